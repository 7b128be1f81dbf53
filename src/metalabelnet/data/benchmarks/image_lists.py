"""Data sets of image files with published lists: reading and checking the lists, and decoding the listed images.

Images are resized to a square without keeping the aspect ratio, and the center of it is cropped, as in the paper.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, overload

import torch

from metalabelnet.data.benchmarks.download import FOLDER_VARIABLE, data_folder
from metalabelnet.data.disk_tensor import sample_memory_bytes
from metalabelnet.data.encoders import ImageEncoder, encode_all
from metalabelnet.data.files.listing import shorten_list
from metalabelnet.data.parts import CLEAN, TEST, TRAIN
from metalabelnet.data.rows import UNLABELED, DataSet, make_rows
from metalabelnet.errors import InputError
from metalabelnet.input_files.regular_files import open_regular_file

if TYPE_CHECKING:
    from metalabelnet.data.benchmarks.download import ProgressCallback
    from metalabelnet.data.files.list_data import ReadOptions


class ListedImage(NamedTuple):
    """An image of a list: its path, its id, its given label and its true label; −1: none."""

    path: str
    id: str
    given: int = UNLABELED
    true: int = UNLABELED


@dataclass(frozen=True, kw_only=True)
class ImageSize:
    """The side in pixels that images are resized to, and that of the center that is cropped."""

    resize: int
    crop: int

    def scaled_to(self, crop: int | None) -> ImageSize:
        """Return the sizes for another crop, in the same proportion; None: unchanged."""
        return self if crop is None else ImageSize(resize=round(crop * self.resize / self.crop), crop=crop)

    def encoder(self) -> ImageEncoder:
        """Return the encoder of color images of this size."""
        return ImageEncoder((3, self.crop, self.crop), None, resize=self.resize)


@dataclass(kw_only=True)
class ImageParts:
    """The listed images of each part of a data set.

    name         name of the data set
    size         sides of the images
    classes      class names
    train        training images
    clean        clean set
    test         test images
    second_test  another set of test images, may be empty
    notes        messages for the user
    """

    name: str
    size: ImageSize
    classes: tuple[str, ...]
    train: list[ListedImage]
    clean: list[ListedImage]
    test: list[ListedImage]
    second_test: list[ListedImage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_root(name: str, folder: Path | None, subfolders: Sequence[str], files: Sequence[str]) -> Path:
    """Return the first folder that has one of these files: a subfolder of the data folder, or the data folder."""
    data = data_folder(folder)
    roots = [*(data / subfolder for subfolder in subfolders), data]
    for root in roots:
        if any((root / file).is_file() for file in files):
            return root
    raise InputError(
        f"{name}: {files[0]} is not in {', '.join(map(str, roots))}; `metalabelnet datasets {name}` shows where to get "
        f"the data and how its folder must look; give its folder with --data-dir or {FOLDER_VARIABLE}"
    )


def read_lines(name: str, file: Path) -> list[str]:
    """Return the lines of a list without those that are empty."""
    try:
        with open_regular_file(file) as opened:
            text = opened.read().decode("utf-8")
    except FileNotFoundError:
        raise InputError(
            f"{name}: {file} is missing; restore it (`metalabelnet datasets {name}` shows how the folder must look)"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: {file} is not a text file ({error.reason}); restore the published file") from error
    return [line for line in (line.strip() for line in text.splitlines()) if line]


def parse_label(name: str, file: Path, line: str, text: str, classes: int) -> int:
    """Return the label in a line of a list."""
    if not text.isdecimal() or int(text) >= classes:
        raise InputError(
            f"{name}: {file} has the label {text!r} in the line {line[:80]!r}; labels are 0 to {classes - 1}: restore "
            "the published file"
        )
    return int(text)


def count_note(what: str, found: int, published: int) -> list[str]:
    """Return a message where a list has another number of images than the published one."""
    return [] if found == published else [f"{what}: {found:,} images are listed, {published:,} are published"]


def present_images(parts: ImageParts, *, skip_missing: bool) -> tuple[list[ListedImage], torch.Tensor]:
    """Return the images of all parts and the part of each.

    Images that are missing raise InputError, which names the first five, or are left out.
    """
    listed = [*parts.train, *parts.clean, *parts.test, *parts.second_test]
    lengths = (len(parts.train), len(parts.clean), len(parts.test), len(parts.second_test))
    part = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))
    if missing := find_missing([image.path for image in listed]):
        names = [listed[k].id for k in missing]
        what = f"{len(missing):,} of {len(listed):,} listed images are missing: {shorten_list(names)}"
        if not skip_missing:
            raise InputError(f"{parts.name}: {what}; restore them, or leave them out with --on-error skip")
        parts.notes.append(f"{what}; left out")
        gone = {*missing}
        present = [k for k in range(len(listed)) if k not in gone]
        listed, part = [listed[k] for k in present], part[present]
    for k, what in ((TRAIN, "training"), (CLEAN, "clean"), (TEST, "test")):
        if not (part == k).any():
            raise InputError(f"{parts.name}: there are no {what} images; see `metalabelnet datasets {parts.name}`")
    return listed, part


def read_images(
    parts: ImageParts, options: ReadOptions, folder: Path | None, on_samples: ProgressCallback | None
) -> DataSet:
    """Return the data set with all its images decoded, in memory or on disk."""
    skip = options.on_error == "skip"
    listed, part = present_images(parts, skip_missing=skip)
    encoder = parts.size.scaled_to(options.image_size).encoder()
    x, encoded, failures = encode_all(
        encoder,
        Paths([image.path for image in listed]),
        [image.id for image in listed],
        memory_bytes=sample_memory_bytes(options.memory_limit, options.gpu_free_bytes, options.concurrent_runs),
        folder=data_folder(folder),
        skip_errors=skip,
        on_samples=None if on_samples is None else lambda done, total: on_samples(parts.name, done, total),
    )
    if failures:
        parts.notes.append(f"{len(failures)} of {len(listed)} images left out: {shorten_list(failures)}")
    index = torch.tensor(encoded, dtype=torch.long)
    labels = torch.tensor([(image.given, image.true) for image in listed])[index]
    rows = make_rows(
        x,
        labels[:, 0],
        true=labels[:, 1],
        classes=parts.classes,
        what=parts.name,
        ids=tuple(listed[k].id for k in encoded),
        index=index,
    )
    train, clean, test, second = (rows.take((part[index] == k).nonzero()[:, 0]) for k in range(4))
    return DataSet(
        name=parts.name,
        train=train,
        clean=clean,
        test=test,
        second_test=second if len(second) else None,
        encoder_config=encoder.to_json(),
        notes=tuple(parts.notes),
        total_samples=len(listed),
        is_split=True,
    )


def find_missing(paths: Sequence[str]) -> list[int]:
    """Return the positions of the files that do not exist. Every folder is listed once."""
    entries: dict[str, set[str]] = {}
    missing = []
    for k, path in enumerate(paths):
        parent, _, file = path.rpartition("/")
        if parent not in entries:
            try:
                entries[parent] = set(os.listdir(parent))  # noqa: PTH208 (names only: there may be millions)
            except OSError:
                entries[parent] = set()
        if file not in entries[parent]:
            missing.append(k)
    return missing


class Paths(Sequence[Path]):
    """Paths that are made when they are needed: as text, a million of them take a third of the memory."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    @overload
    def __getitem__(self, which: int) -> Path: ...
    @overload
    def __getitem__(self, which: slice) -> list[Path]: ...
    def __getitem__(self, which: int | slice) -> Path | list[Path]:
        return [Path(path) for path in self._paths[which]] if isinstance(which, slice) else Path(self._paths[which])
