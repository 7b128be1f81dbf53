"""Writes a pack, shard by shard. A killed process loses the shard it was writing, and the next one continues there.

Every image is decoded once, so that training meets no image that cannot be decoded. A finished shard has a file beside
it that describes its images; when all shards are written, these files become the index and are removed.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.atomic_write import remove_temporary_files, write_atomically, write_chunks_atomically
from metalabelnet.data.encoders.images import map_in_threads
from metalabelnet.data.files.listing import shorten_list
from metalabelnet.data.files.reader import remove_duplicates
from metalabelnet.data.packed import index as pack_index
from metalabelnet.data.packed.index import FILES, INDEX, Index, shard_name
from metalabelnet.data.parts import TRAIN
from metalabelnet.errors import InputError, RunStopped
from metalabelnet.input_files.image_decoding import decode_image
from metalabelnet.input_files.image_files import describe_error
from metalabelnet.input_files.json_text import parse_json
from metalabelnet.input_files.regular_files import open_regular_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from metalabelnet.data.packed.source import ImageSource

SHARD_BYTES = 256 << 20  # a shard ends with the image that reaches this size
_DESCRIPTION = "shard-{:05d}.json"
_OWN_FILES = re.compile(r"\.?(shard-\d{5,}\.|samples\.safetensors|ids\.json|pack\.json).*")


@dataclass(kw_only=True)
class _Shard:
    """A finished shard: positions in the source from `first` to before `end`, of which some cannot be read."""

    source_digest: str
    first: int
    end: int
    positions: list[int]
    sizes: list[int]
    digests: list[str]
    failures: list[str]
    sha256: str

    def check(self, first: int, size: int) -> None:
        """Raise TypeError or ValueError if it does not describe a shard of `size` bytes from position `first` on."""
        numbers = (self.first, self.end, *self.positions, *self.sizes)
        texts = (self.source_digest, self.sha256, *self.digests, *self.failures)
        if not all(type(value) is int for value in numbers) or not all(isinstance(text, str) for text in texts):
            raise TypeError("a value has another type")
        if not len(self.positions) == len(self.sizes) == len(self.digests):
            raise ValueError("a list has another length")
        inside = all(first <= position < self.end for position in self.positions)
        if self.first != first or self.end <= first or not inside or min(self.sizes, default=0) < 0:
            raise ValueError("a position or size is out of range")
        if sum(self.sizes) != size or any(len(bytes.fromhex(text)) != pack_index.DIGEST_BYTES for text in self.digests):
            raise ValueError("a size or digest is wrong")


def write_pack(
    source: ImageSource,
    folder: Path,
    *,
    store: str = FILES,
    skip_errors: bool = False,
    on_samples: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Index:
    """Write all images into a folder, or continue where an earlier call ended.

    Parameters
    ----------
    source : ImageSource
        The images.
    folder : Path
        The folder to write: a new or empty one, or that of an unfinished pack of the same images.
    store : {"files", "pixels"}, default "files"
        Whether the bytes of the image files are stored, or the decoded images.
    skip_errors : bool, default False
        Whether images that cannot be decoded are left out; otherwise they raise InputError.
    on_samples : callable, optional
        Called with the number of images done and the number in all.
    stop : callable, optional
        Checked after every image; if it returns True, `RunStopped` is raised.
    shard_bytes : int, default 256 MiB
        Size at which a new shard begins.

    Returns
    -------
    Index
        The index of the finished pack.
    """
    digest = source.digest(store)
    if (folder / INDEX).exists():
        index = pack_index.read_index(folder)
        if index.source_digest != digest:
            raise InputError(
                f"{folder} already holds a pack of other images or settings: choose another folder with -o"
            )
        return index
    with _created(folder):
        shards = _find_finished(folder, digest, len(source.ids))
        start = shards[-1].end if shards else 0
        report = on_samples or (lambda _done, _total: None)
        report(start, len(source.ids))
        images = _iterate_images(source, start, store, skip_errors=skip_errors, report=report, stop=stop)
        end = len(source.ids)
        while start < end:
            shards.append(_write_shard(folder, len(shards), images, start, digest, shard_bytes))
            start = shards[-1].end
        index = _write_index(folder, source, store, shards, digest)
    for number in range(len(shards)):
        (folder / _DESCRIPTION.format(number)).unlink()
    return index


@contextmanager
def _created(folder: Path) -> Iterator[None]:
    """Create a folder; remove it again if nothing was written to it."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            for path in missing:
                path.rmdir()


def _find_finished(folder: Path, digest: str, samples: int) -> list[_Shard]:
    """Return the finished shards of an unfinished pack, and remove what a killed process has left."""
    names = frozenset(entry.name for entry in folder.iterdir())
    shards: list[_Shard] = []
    while (name := _DESCRIPTION.format(len(shards))) in names:
        try:
            with open_regular_file(folder / name) as file:
                shard = _Shard(**parse_json(file.read()))
            shard.check(shards[-1].end if shards else 0, (folder / shard_name(len(shards))).stat().st_size)
        except (ValueError, TypeError, FileNotFoundError) as error:
            raise InputError(f"{folder / name} is damaged: remove {folder} and pack the images again") from error
        if shard.source_digest != digest or shard.end > samples:
            raise InputError(
                f"{folder} holds an unfinished pack of other images or settings: choose another folder with -o, or "
                "remove it"
            )
        shards.append(shard)
    if others := sorted(name for name in names if not _OWN_FILES.fullmatch(name)):
        raise InputError(f"{folder} is not empty and holds no pack, but {others[0]}: choose another folder with -o")
    own = {make_name(number) for number in range(len(shards) + 1) for make_name in (shard_name, _DESCRIPTION.format)}
    remove_temporary_files(folder, frozenset((*own, *pack_index.FILE_NAMES)))
    return shards


def _iterate_images(
    source: ImageSource,
    start: int,
    store: str,
    *,
    skip_errors: bool,
    report: Callable[[int, int], None],
    stop: Callable[[], bool] | None,
) -> Iterator[tuple[int, bytes | str]]:
    """Yield the position and the content of each image, or why it is left out."""
    shape, resize = source.encoder.shape, source.encoder.resize

    def read(path: Path) -> bytes:
        with open_regular_file(path, subject="") as file:
            content = file.read()
        pixels = decode_image(content, shape, resize)
        return content if store == FILES else pixels.tobytes()

    for position, result in enumerate(map_in_threads(read, source.paths[start:]), start):
        if stop is not None and stop():
            raise RunStopped(f"the finished shards of {position:,} of {len(source.ids):,} images are kept")
        if isinstance(result, Exception):
            failure = f"{source.ids[position]} {describe_error(result)}"
            if not skip_errors:
                raise InputError(f"{failure}; repair it, or skip such samples with --on-error skip")
            yield position, failure
        else:
            yield position, result
        report(position + 1, len(source.ids))


def _write_shard(
    folder: Path,
    number: int,
    images: Iterator[tuple[int, bytes | str]],
    first: int,
    source_digest: str,
    shard_bytes: int,
) -> _Shard:
    """Write the next images into a shard, and then the file that describes it."""
    shard = _Shard(
        source_digest=source_digest,
        first=first,
        end=first,
        positions=[],
        sizes=[],
        digests=[],
        failures=[],
        sha256="",
    )
    digest = hashlib.sha256()

    def contents() -> Iterator[bytes]:
        size = 0
        for position, content in images:
            shard.end = position + 1
            if isinstance(content, str):
                shard.failures.append(content)
                continue
            shard.positions.append(position)
            shard.sizes.append(len(content))
            size += len(content)
            shard.digests.append(hashlib.sha256(content).hexdigest())
            digest.update(content)
            yield content
            if size >= shard_bytes:
                return

    write_chunks_atomically(folder / shard_name(number), contents())
    shard.sha256 = digest.hexdigest()
    write_atomically(folder / _DESCRIPTION.format(number), json.dumps(vars(shard)).encode())
    return shard


def _write_index(folder: Path, source: ImageSource, store: str, shards: list[_Shard], digest: str) -> Index:
    """Write the index of the finished shards. Training images that are identical to clean ones are left out."""
    positions = torch.tensor([k for shard in shards for k in shard.positions], dtype=torch.long)
    digests = [bytes.fromhex(value) for shard in shards for value in shard.digests]
    ids = [source.ids[k] for k in positions.tolist()]
    notes, part = list(source.notes), source.part[positions]
    failures = [failure for shard in shards for failure in shard.failures]
    if failures:
        notes.append(f"{len(failures)} of {len(source.ids)} images left out: {shorten_list(failures)}")
    if source.split is None:
        part = remove_duplicates(digests, ids, part, notes, table=False)
    if not (part == TRAIN).any():
        raise InputError(
            f"{source.name}: no training image is left; see the messages about images left out: {notes[-1]}"
        )
    columns: dict[str, Any] = {
        "shard": np.repeat(np.arange(len(shards)), [len(shard.sizes) for shard in shards]),
        "offset": np.concatenate([np.cumsum([0, *shard.sizes[:-1]]) for shard in shards if shard.sizes]),
        "size": np.concatenate([np.array(shard.sizes, np.int64) for shard in shards]),
        "part": part.numpy(),
        "given": source.given[positions].numpy(),
        "true": source.true[positions].numpy(),
        "index": source.index[positions].numpy(),
        "sha256": np.frombuffer(b"".join(digests), np.uint8).reshape(-1, pack_index.DIGEST_BYTES),
    }
    table = {name: np.ascontiguousarray(columns[name], dtype) for name, dtype in pack_index.COLUMNS.items()}
    index = Index(
        name=source.name,
        store=store,
        classes=source.classes,
        encoder=source.encoder.to_json(),
        split=source.split,
        total_samples=source.total_samples,
        notes=tuple(notes),
        shards=tuple(
            {"file": shard_name(number), "bytes": sum(shard.sizes), "sha256": shard.sha256}
            for number, shard in enumerate(shards)
        ),
        digests={},
        source_digest=digest,
    )
    pack_index.write_index(folder, index, table, ids)
    return index
