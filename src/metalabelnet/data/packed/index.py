"""The index of a pack: which images it has, where they are in the shards, and their labels.

pack.json            version, classes, encoder, shards with their SHA-256 digests; written last
samples.safetensors  a row per image: shard, offset, size, SHA-256 digest, part, labels, index in the source
ids.json             the id of each image
shard-00000.bin, …   the images one after another: the bytes of their files, or their pixels (uint8)
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metalabelnet.atomic_write import write_atomically
from metalabelnet.data.parts import CLEAN, LEFT_OUT, TRAIN
from metalabelnet.errors import InputError
from metalabelnet.input_files.json_text import parse_json
from metalabelnet.input_files.regular_files import open_regular_file

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

INDEX, TABLE, IDS = "pack.json", "samples.safetensors", "ids.json"
FILE_NAMES = (INDEX, TABLE, IDS)
FORMAT, VERSION = "metalabelnet pack", 1
FILES, PIXELS = STORES = ("files", "pixels")  # what a shard holds: image files as they were, or decoded images
COLUMNS = {  # of the table, with their types
    "shard": np.int64,
    "offset": np.int64,
    "size": np.int64,
    "part": np.int64,
    "given": np.int64,
    "true": np.int64,
    "index": np.int64,
    "sha256": np.uint8,
}
DIGEST_BYTES = 32
MAX_SOURCE_SAMPLES = 1 << 28  # noise has a label for each of them
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Index:
    """The content of pack.json.

    Attributes
    ----------
    name : str
        Name of the data set: that of a folder, or of a benchmark.
    store : str
        `files` or `pixels`.
    classes : tuple of str
        Class names.
    encoder : dict
        Configuration of the `ImageEncoder`.
    split : str or None
        The split of a benchmark whose parts these are; None: another data set.
    total_samples : int
        The number of samples that the column `index` refers to.
    notes : tuple of str
        Messages for the user.
    shards : tuple of dict
        `file`, `bytes` and `sha256` of each shard.
    digests : dict
        SHA-256 digests of the table and of the ids.
    source_digest : str
        Digest of the list of images that was packed.
    """

    name: str
    store: str
    classes: tuple[str, ...]
    encoder: dict[str, Any]
    split: str | None
    total_samples: int
    notes: tuple[str, ...]
    shards: tuple[dict[str, Any], ...]
    digests: dict[str, str]
    source_digest: str


def is_pack(folder: Path) -> bool:
    """Whether the folder is a finished pack."""
    return (folder / INDEX).is_file()


def has_clean_set(folder: Path) -> bool:
    """Whether the pack has clean images."""
    return is_pack(folder) and bool((read_table(folder, read_index(folder))["part"] == CLEAN).any())


def write_index(folder: Path, index: Index, table: dict[str, NDArray[Any]], ids: list[str]) -> None:
    """Write the table and the ids, and then pack.json, which completes the pack."""
    from safetensors.numpy import save

    contents = {TABLE: save(table), IDS: json.dumps(ids, ensure_ascii=False).encode()}
    for name, content in contents.items():
        write_atomically(folder / name, content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    fields = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(dataclasses.replace(index, digests=digests))}
    write_atomically(folder / INDEX, json.dumps(fields, ensure_ascii=False, indent=1).encode() + b"\n")


def read_index(folder: Path) -> Index:
    """Return the content of pack.json, checked. The shards must have the sizes that it says."""
    file = folder / INDEX
    try:
        with open_regular_file(file) as opened:
            fields = parse_json(opened.read())
        version = fields.pop("version") if fields.pop("format") == FORMAT else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(file, "it is not the index of a pack") from error
    if version != VERSION:
        raise InputError(
            f"{file} has version {version!r}, and this version of metalabelnet reads version {VERSION}: pack the "
            "images again"
        )
    try:
        fields |= {name: tuple(fields[name]) for name in ("classes", "notes", "shards")}
        index = Index(**fields)
        _check(index)
    except (TypeError, KeyError, ValueError) as error:
        raise _damaged(file, " ".join(str(error).split())[:120]) from error
    for shard in index.shards:
        path = folder / shard["file"]
        size = path.stat().st_size if path.is_file() else None
        if size != shard["bytes"]:
            problem = "is missing" if size is None else f"has {size:,} bytes, not {shard['bytes']:,}"
            raise InputError(f"{path} {problem}: restore it, or pack the images again")
    return index


def _check(index: Index) -> None:
    """Raise TypeError or ValueError for content that `write_index` does not write."""
    if not all(isinstance(part, dict) for part in (index.encoder, index.digests, *index.shards)):
        raise TypeError("its fields are not those of a pack")
    texts = (index.name, index.source_digest, *index.classes, *index.notes, *index.digests.values())
    if not all(isinstance(text, str) for text in texts) or not isinstance(index.split, str | None):
        raise TypeError("a name or digest is not a text")
    if index.store not in STORES or type(index.total_samples) is not int or {*index.digests} != {TABLE, IDS}:
        raise ValueError("its fields are not those of a pack")
    if index.total_samples > MAX_SOURCE_SAMPLES:
        raise ValueError(f"it says that there are more than {MAX_SOURCE_SAMPLES:,} samples")
    for number, shard in enumerate(index.shards):
        types = {name: type(value) for name, value in shard.items()}
        if types != {"file": str, "bytes": int, "sha256": str} or shard["file"] != shard_name(number):
            raise ValueError(f"its entry for shard {number} is wrong")


def read_table(folder: Path, index: Index) -> dict[str, NDArray[Any]]:
    """Return the columns of the table, checked: images lie inside of the shards, labels are classes."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    file = folder / TABLE
    content = _read_checked(folder, TABLE, index)
    try:
        table: dict[str, NDArray[Any]] = load(content)
        _check_table(table, index)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise _damaged(file, " ".join(str(error).split())[:120]) from error
    return table


def _check_table(table: dict[str, NDArray[Any]], index: Index) -> None:
    count = len(table["part"])
    for name, dtype in COLUMNS.items():
        shape = (count, DIGEST_BYTES) if name == "sha256" else (count,)
        if table[name].dtype != dtype or table[name].shape != shape:
            raise ValueError(f"the column {name} is {table[name].dtype} of shape {table[name].shape}")
    sizes = np.array([shard["bytes"] for shard in index.shards], np.int64)
    limits = {
        "shard": (0, len(sizes)),
        "offset": (0, None),
        "size": (0, None),
        "part": (0, LEFT_OUT + 1),
        "given": (-1, len(index.classes)),
        "true": (-1, len(index.classes)),
        "index": (0, None),
    }
    for name, (low, high) in limits.items():
        values = table[name]
        if values.min(initial=low) < low or (high is not None and values.max(initial=low) >= high):
            raise ValueError(f"the column {name} has a value out of range")
    trained = table["index"][table["part"] == TRAIN]
    if not len(trained) or trained.max() >= index.total_samples:
        raise ValueError("it has no training image, or too many")
    if (table["size"] > sizes[table["shard"]] - table["offset"]).any():
        raise ValueError("an image lies outside of its shard")


def read_ids(folder: Path, index: Index, count: int) -> list[str]:
    """Return the id of each image."""
    content = _read_checked(folder, IDS, index)
    try:
        ids = parse_json(content)
    except ValueError as error:
        raise _damaged(folder / IDS, "it is not JSON") from error
    if not isinstance(ids, list) or len(ids) != count or not all(isinstance(name, str) for name in ids):
        raise _damaged(folder / IDS, f"it is not a list of {count} ids")
    return ids


def verify_shards(folder: Path, index: Index) -> None:
    """Raise InputError if the digest of a shard is not that of the index."""
    for shard in index.shards:
        digest = hashlib.sha256()
        with open_regular_file(folder / shard["file"]) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        if digest.hexdigest() != shard["sha256"]:
            raise damaged_shard_error(folder / shard["file"])


def damaged_shard_error(file: Path) -> InputError:
    """Return the error for a shard whose content has changed."""
    return InputError(f"{file} is damaged (its SHA-256 digest has changed): restore it, or pack the images again")


def shard_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"shard-{number:05d}.bin"


def _read_checked(folder: Path, name: str, index: Index) -> bytes:
    """Return the content of a file of the index; raise InputError if its digest has changed."""
    try:
        with open_regular_file(folder / name) as file:
            content = file.read()
    except FileNotFoundError:
        raise InputError(f"{folder / name} is missing: restore it, or pack the images again") from None
    if hashlib.sha256(content).hexdigest() != index.digests[name]:
        raise _damaged(folder / name, "its SHA-256 digest has changed")
    return content


def _damaged(file: Path, reason: str) -> InputError:
    return InputError(f"{file} is damaged ({reason}): restore it, or pack the images again")
