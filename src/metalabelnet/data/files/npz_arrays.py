"""The arrays of a data set in an `.npz` file, checked, in NumPy alone: PyTorch takes seconds to import.

Nothing in the file is unpickled: a data file must not be able to run code.
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from metalabelnet.data.unlabeled import UNLABELED, UNLABELED_NAMES
from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.input_files import npy_format
from metalabelnet.input_files.regular_files import open_regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Array = NDArray[Any]

KEYS = ("x_train", "y_train", "x_test", "y_test", "x_clean", "y_clean", "true_train", "ids", "classes")
CHANNEL_COUNTS = (1, 3, 4)
MAX_CLASSES = 100_000  # a larger label is a mistake (an id, a year)
MAX_NAMES_IN_MESSAGE = 8
_NAMES = "x_train, y_train, and optionally x_clean, y_clean, x_test, y_test"
# How many times a member may be larger than its bytes in the file. numpy writes no other compression. Deflate reaches
# 1,032 (https://zlib.net/zlib_tech.html).
MAX_EXPANSION = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}


@dataclass(frozen=True, kw_only=True)
class NpzArrays:
    """Samples and labels by the names of their arrays, the class names, and the ids of the training samples.

    Samples are uint8 (N, channels, height, width) or float32 (N, columns), labels int64.
    """

    samples: dict[str, Array]
    labels: dict[str, Array]
    classes: tuple[str, ...]
    ids: tuple[str, ...] | None = None


def read_arrays(path: Path, classes: tuple[str, ...] | None = None) -> NpzArrays:
    """Read the arrays of the file. `classes` are used if it has no class names; y_train may be missing then."""
    arrays = _read_arrays(path, required=("x_train", "y_train") if classes is None else ("x_train",))
    if any(arrays[key].dtype.kind == "U" for key in _label_keys(arrays)):
        arrays = _names_to_numbers(arrays, classes, path)
    samples = {key: as_sample_array(a, f"{path}: {key}") for key, a in arrays.items() if key.startswith("x_")}
    labels = {key: _as_labels(arrays[key], f"{path}: {key}") for key in _label_keys(arrays)}
    own_names = arrays.get("classes")
    names = classes if classes is not None and own_names is None else _class_names(own_names, labels, path)

    shapes = {key: tuple(part.shape[1:]) for key, part in samples.items()}
    for key, shape in shapes.items():
        if shape != shapes["x_train"]:
            raise InputError(
                f"{path}: samples have the shape {shape} in {key}, but {shapes['x_train']} in x_train; make them equal"
            )
    ids = None if "ids" not in arrays else _ids(arrays["ids"], len(samples["x_train"]), path)
    return NpzArrays(samples=samples, labels=labels, classes=names, ids=ids)


def as_sample_array(x: Array, what: str) -> Array:
    """Return images as uint8 (N, channels, height, width), tables as float32 (N, columns)."""
    if x.size == 0:
        raise InputError(f"{what}: an array of shape {x.shape} is empty; give at least one row and one value per row")
    if x.ndim == 2 and x.dtype.kind in "biuf":
        with np.errstate(over="ignore"):  # overflows become infinite, which make_rows reports with the row number
            return x.astype(np.float32)
    if x.dtype == np.uint8:
        if x.ndim == 3:
            return np.ascontiguousarray(x[:, None])
        if x.ndim == 4 and x.shape[3] in CHANNEL_COUNTS:
            return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        if x.ndim == 4 and x.shape[1] in CHANNEL_COUNTS:
            return np.ascontiguousarray(x)
    raise InputError(
        f"{what}: {x.dtype} of shape {x.shape} is neither a table of numbers (N, columns) nor images, which "
        "are uint8 (0 to 255) of shape (N, height, width), (N, height, width, channels) or "
        "(N, channels, height, width) with 1, 3 or 4 channels"
    )


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open the file, which starts with the archive."""
    with open_regular_file(path) as file, zipfile.ZipFile(file) as archive:
        file.seek(0)
        if file.read(2) != b"PK":  # zip files may follow other data, such as a program
            raise ValueError("it starts with other data than an archive")
        yield archive


@contextmanager
def open_member(archive: zipfile.ZipFile, key: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open the array of this name. Yield it with its size in bytes, which the archive can really hold."""
    info = archive.NameToInfo.get(f"{key}.npy") or archive.getinfo(key)
    if info.compress_type not in MAX_EXPANSION:
        method = zipfile.compressor_names.get(info.compress_type, info.compress_type)  # type: ignore[attr-defined]
        raise ValueError(f"it is compressed with {method}")
    if info.file_size > MAX_EXPANSION[info.compress_type] * info.compress_size:
        raise ValueError(f"it claims {info.file_size:,} bytes, but {info.compress_size:,} are stored")
    with archive.open(info) as file:
        yield file, info.file_size  # type: ignore[misc]


def one_line(error: Exception) -> str:
    """Return the message of an error as one short line."""
    return " ".join(str(error).split())[:120] or type(error).__name__


def _read_arrays(path: Path, required: tuple[str, ...]) -> dict[str, Array]:
    """Return the arrays of `KEYS` that the file has; raise InputError if a required one is missing."""
    try:
        with open_archive(path) as archive:
            present = [name.removesuffix(".npy") for name in archive.namelist()]
            arrays = {key: _read_array(archive, key, path) for key in KEYS if key in present}
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except zipfile.BadZipFile:
        raise InputError(f"{path}: not a complete .npz file; write it with numpy.savez, or copy it again") from None
    except Exception as error:  # a damaged file may raise anything
        raise InputError(f"{path}: cannot be read ({one_line(error)}); write it with numpy.savez") from error
    for key in required:
        if key not in arrays:
            more = ["…"] if len(present) > MAX_NAMES_IN_MESSAGE else []
            names = [*(name[:40] for name in present[:MAX_NAMES_IN_MESSAGE]), *more]
            found = ", ".join(names) or "no arrays"
            raise InputError(f"{path}: {key} is missing; the file has {found}: give the arrays these names: {_NAMES}")
    for one, other in (("x_test", "y_test"), ("x_clean", "y_clean")):
        if (one in arrays) != (other in arrays):
            there, absent = (one, other) if one in arrays else (other, one)
            raise InputError(f"{path}: has {there} but no {absent}; give both or neither")
    return arrays


def _read_array(archive: zipfile.ZipFile, key: str, path: Path) -> Array:
    size = 0
    try:
        with open_member(archive, key) as (file, size):
            if size <= total_memory_bytes():
                return npy_format.read_array(file, size)
    except MemoryError:
        pass
    except Exception as error:  # a damaged file may raise anything
        raise InputError(
            f"{path}: {key} cannot be read ({one_line(error)}); save an array of numbers (or of strings for labels "
            "and classes), not of Python objects"
        ) from error
    raise InputError(f"{path}: {key} needs {size:,} bytes, more than there is memory; split the file")


def _label_keys(arrays: dict[str, Array]) -> list[str]:
    return [key for key in arrays if key.startswith(("y_", "true_"))]


def _names_to_numbers(arrays: dict[str, Array], known: tuple[str, ...] | None, path: Path) -> dict[str, Array]:
    """Replace class names in the label arrays by numbers, and set `classes` to the names."""
    label_arrays = {key: arrays[key] for key in _label_keys(arrays)}
    for key, y in label_arrays.items():
        if y.dtype.kind != "U":
            raise InputError(
                f"{path}: {key} is {y.dtype}, but other labels are strings; use numbers or class names in all"
            )
    used = sorted({name for y in label_arrays.values() for name in y.ravel().tolist()} - {*UNLABELED_NAMES})
    own_names = arrays.get("classes")
    names = list(known or used) if own_names is None else list(_class_names(own_names, {}, path))
    for name in used:
        if name not in names:
            raise InputError(f"{path}: {unknown_name_error('class', name, names)}")
    number = {name: k for k, name in enumerate(names)} | dict.fromkeys(UNLABELED_NAMES, UNLABELED)
    numbers = {
        key: np.array([number[name] for name in y.ravel().tolist()], dtype=np.int64).reshape(y.shape)
        for key, y in label_arrays.items()
    }
    return {**arrays, **numbers, "classes": np.array(names, dtype=np.str_)}


def _as_labels(y: Array, what: str) -> Array:
    """Return labels as int64; raise InputError for values that are not integers from −1 to MAX_CLASSES − 1."""
    if y.ndim != 1:
        raise InputError(f"{what}: labels must have the shape (N,), one per row, not {y.shape}")
    valid = np.zeros(len(y), dtype=bool)
    if y.dtype.kind in "biuf":
        # Compared before the cast, which would wrap 2**64 − 1 to −1, "unlabeled".
        valid = (y >= UNLABELED) & (y < MAX_CLASSES) & (y == np.floor(y))
    if not valid.all():
        row = int(np.argmin(valid))
        raise InputError(
            f"{what}: row {row} is {y[row].item()!r}; a label is an integer from 0 to {MAX_CLASSES - 1}, or -1 for "
            "unlabeled; alternatively, all labels are class names (an array of strings)"
        )
    return y.astype(np.int64)


def _class_names(names: Array | None, labels: dict[str, Array], path: Path) -> tuple[str, ...]:
    """Return the class names of the file, or the numbers up to the largest label."""
    if names is None:
        count = 1 + max((int(y.max()) for y in labels.values() if len(y)), default=UNLABELED)
        classes = tuple(str(number) for number in range(count))
    elif names.ndim == 1 and names.dtype.kind == "U":
        classes = tuple(names.tolist())
    else:
        raise InputError(f"{path}: classes is {names.dtype} of shape {names.shape}, not a list of strings")
    if len(classes) < 2:
        raise InputError(f"{path}: there must be at least 2 classes, not {len(classes)}")
    if len(set(classes)) < len(classes):
        duplicate = next(name for name in classes if classes.count(name) > 1)
        raise InputError(f"{path}: two classes have the name {duplicate!r}; rename one of them")
    return classes


def _ids(ids: Array, samples: int, path: Path) -> tuple[str, ...]:
    """Return the ids of the training samples."""
    if ids.dtype.kind != "U" or ids.shape != (samples,):
        raise InputError(
            f"{path}: ids is {ids.dtype} of shape {ids.shape}, not {samples} strings, one per row of x_train"
        )
    return tuple(ids.tolist())


def total_memory_bytes() -> float:
    """Return the memory of this computer, or of the container: an upper bound of what an array may take."""
    total = [math.inf]
    with contextlib.suppress(AttributeError, ValueError, OSError):
        total.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError):  # the limit of a container
        total.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(total)
