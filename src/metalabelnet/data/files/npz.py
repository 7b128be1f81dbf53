"""Anybody's data from one .npz file, as numpy.savez writes it.

    x_train, y_train   samples and the labels nobody trusts (−1: none)
    x_test, y_test     samples with right labels to measure on (may be left out)
    x_clean, y_clean     the small clean set (may be left out)
    true_train         the right labels of x_train where known, −1 elsewhere (may be left out)
    classes            the names of the classes (may be left out)

Labels are numbers or, in all arrays of labels alike, names; an empty name is no label, and neither is "-1", which is
what −1 becomes in an array of names.
Nothing in the file is ever unpickled: a data file must not be able to run code.
"""

from __future__ import annotations

import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.data.rows import NO_LABEL, UNLABELED, DataSet, Rows, make_rows
from metalabelnet.errors import InputError, unknown

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    Array = NDArray[Any]

KEYS = ("x_train", "y_train", "x_test", "y_test", "x_clean", "y_clean", "true_train", "classes")
CHANNELS = (1, 3, 4)
MOST_CLASSES = 100_000  # beyond, a label is a mistake (an id, a year of birth), and names would fill memory

# What comes up when a damaged file is read: found by changing bytes of a good one at random.
BROKEN = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error)


def read(
    path: Path, *, name: str | None = None, classes: tuple[str, ...] | None = None, noisy: bool = False
) -> DataSet:
    """The data set in the file; `name` replaces the file's own, `classes` are its classes where it names none.

    Where the classes are given, y_train may be missing: all rows are then unlabeled.

    Where the file has neither true labels nor a clean set it is taken for a benchmark to which noise is
    yet to be added, whose labels are the truth; with a clean set, or where they are said to be `noisy`, the truth
    stays unknown.
    """
    arrays = _arrays(path, needed=("x_train", "y_train") if classes is None else ("x_train",))
    if any(arrays[key].dtype.kind == "U" for key in _label_keys(arrays)):
        arrays = _numbered(arrays, classes, path)
    samples = {key: as_samples(a, f"{path}: {key}") for key, a in arrays.items() if key.startswith("x_")}
    labels = {key: _labels(arrays[key], f"{path}: {key}") for key in _label_keys(arrays)}
    own = arrays.get("classes")
    names = classes if classes is not None and own is None else _classes(own, labels, path)

    shapes = {key: tuple(part.shape[1:]) for key, part in samples.items()}
    for key, shape in shapes.items():
        if shape != shapes["x_train"]:
            raise InputError(
                f"{path}: a sample is {shape} in {key}, but {shapes['x_train']} in x_train; they must agree"
            )

    x = samples["x_train"]
    y = labels["y_train"] if "y_train" in labels else torch.full((len(x),), UNLABELED)
    true = labels.get("true_train", None if noisy or "x_clean" in samples else y)
    if "true_train" in labels and len(labels["true_train"]) != len(x):
        raise InputError(f"{path}: {len(x)} samples in x_train but {len(labels['true_train'])} in true_train")
    return DataSet(
        name=name or path.stem,
        train=make_rows(x, y, true=true, classes=names, what=f"{path}, x_train"),
        test=_trusted("test", samples, labels, names, path),
        clean=_trusted("clean", samples, labels, names, path),
    )


def has_clean(path: Path) -> bool:
    """Whether the file brings a clean set along. What is no such file does not, and is refused where it is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "x_clean.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _arrays(path: Path, needed: tuple[str, ...]) -> dict[str, Array]:
    """The arrays under the keys above, the necessary ones being there."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: is not a whole .npz file; write it with numpy.savez, or copy it again")
    try:
        # Opened here, because np.load leaves a file open that it cannot make sense of.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            present = list(archive)
            arrays = {key: _array(archive, key, path) for key in KEYS if key in present}
    except InputError:
        raise
    except BROKEN as error:
        raise InputError(f"{path}: cannot be read ({error}); write it with numpy.savez") from error
    for key in needed:
        if key not in arrays:
            raise InputError(f"{path}: has no {key}, only {', '.join(present) or 'nothing'}")
    for one, other in (("x_test", "y_test"), ("x_clean", "y_clean")):
        if (one in arrays) != (other in arrays):
            there, absent = (one, other) if one in arrays else (other, one)
            raise InputError(f"{path}: has {there} but no {absent}; give both or neither")
    return arrays


def _array(archive: Any, key: str, path: Path) -> Array:
    try:
        array = archive[key]
    except BROKEN as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path}: {key} cannot be read ({reason}); save a plain array of numbers (of names for classes), "
            "not of Python objects"
        ) from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: {key} is not an array; write the file with numpy.savez")
    return array


def as_samples(x: Array, what: str) -> Tensor:
    """Images as uint8 (N, channels, height, width), tables as float32 (N, columns)."""
    if x.size == 0:
        raise InputError(f"{what}: an array of shape {x.shape} is empty; there must be rows and values in them")
    if x.ndim == 2 and x.dtype.kind in "biuf":
        with np.errstate(over="ignore"):  # becomes infinite, which make_rows refuses with the row's number
            return torch.from_numpy(x.astype(np.float32))
    if x.dtype == np.uint8:
        if x.ndim == 3:
            return torch.from_numpy(np.ascontiguousarray(x[:, None]))
        if x.ndim == 4 and x.shape[3] in CHANNELS:
            return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
        if x.ndim == 4 and x.shape[1] in CHANNELS:
            return torch.from_numpy(np.ascontiguousarray(x))
    raise InputError(
        f"{what}: {x.dtype} of shape {x.shape} is neither a table of numbers (N, columns) nor images, which "
        "are uint8 (0 to 255) of shape (N, height, width), (N, height, width, channels) or "
        "(N, channels, height, width) with 1, 3 or 4 channels"
    )


def _label_keys(arrays: dict[str, Array]) -> list[str]:
    return [key for key in arrays if key.startswith(("y_", "true_"))]


def _numbered(arrays: dict[str, Array], known: tuple[str, ...] | None, path: Path) -> dict[str, Array]:
    """The arrays with numbers for the names that labels are, and the names as classes."""
    named = {key: arrays[key] for key in _label_keys(arrays)}
    for key, y in named.items():
        if y.dtype.kind != "U":
            raise InputError(f"{path}: {key} has {y.dtype}, but other labels are names; give numbers or names in all")
    found = sorted({name for y in named.values() for name in y.ravel().tolist()} - {*NO_LABEL})
    own = arrays.get("classes")
    names = list(known or found) if own is None else list(_classes(own, {}, path))
    for name in found:
        if name not in names:
            raise InputError(f"{path}: {unknown('class', name, names)}")
    number = {name: k for k, name in enumerate(names)} | dict.fromkeys(NO_LABEL, UNLABELED)
    numbers = {
        key: np.array([number[name] for name in y.ravel().tolist()], dtype=np.int64).reshape(y.shape)
        for key, y in named.items()
    }
    return {**arrays, **numbers, "classes": np.array(names, dtype=np.str_)}


def _labels(y: Array, what: str) -> Tensor:
    """Labels as int64, refusing what is not a whole number in a sensible range."""
    if y.ndim != 1:
        raise InputError(f"{what}: labels are one number per row, shape (N,), not {y.shape}")
    fine = np.zeros(len(y), dtype=bool)
    if y.dtype.kind in "biuf":
        # Compared before the cast, which would wrap 2**64 − 1 round to −1, "unlabeled".
        fine = (y >= UNLABELED) & (y < MOST_CLASSES) & (y == np.floor(y))
    if not fine.all():
        at = int(np.argmin(fine))
        raise InputError(
            f"{what}: row {at} is {y[at].item()!r}; a label is a whole number from 0 to {MOST_CLASSES - 1}, "
            "or -1 for unlabeled; or all labels are names (an array of strings)"
        )
    return torch.from_numpy(y.astype(np.int64))


def _classes(names: Array | None, labels: dict[str, Tensor], path: Path) -> tuple[str, ...]:
    """The names given, or the numbers up to the largest label."""
    if names is None:
        count = 1 + max((int(y.max()) for y in labels.values() if len(y)), default=UNLABELED)
        found = tuple(str(number) for number in range(count))
    elif names.ndim == 1 and names.dtype.kind == "U":
        found = tuple(names.tolist())
    else:
        raise InputError(f"{path}: classes is {names.dtype} of shape {names.shape}, not a list of strings")
    if len(found) < 2:
        raise InputError(f"{path}: there must be at least 2 classes, not {len(found)}")
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise InputError(f"{path}: two classes have the name {twice!r}; give each its own")
    return found


def _trusted(
    part: str, samples: dict[str, Tensor], labels: dict[str, Tensor], classes: tuple[str, ...], path: Path
) -> Rows | None:
    """The test part or the clean set, whose every label is the truth."""
    if f"x_{part}" not in samples:
        return None
    y = labels[f"y_{part}"]
    if (y == UNLABELED).any():
        at = int((y == UNLABELED).nonzero()[0, 0])
        raise InputError(f"{path}: y_{part} row {at} is -1, but every row of that part needs its right label")
    return make_rows(samples[f"x_{part}"], y, true=y, classes=classes, what=f"{path}, x_{part}")
