"""Lists the images to pack: those of a folder or a table with its clean set and test set, or of a named data set."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence  # noqa: TC003  (a field of a dataclass)
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metalabelnet.data.benchmarks.image_lists import Paths, present_images
from metalabelnet.data.datasets import DATASETS
from metalabelnet.data.encoders import ImageEncoder
from metalabelnet.data.files import clean_set
from metalabelnet.data.files.list_data import is_folder_or_table, list_test, list_train
from metalabelnet.data.files.reader import combine, fit_encoder
from metalabelnet.data.packed.index import VERSION
from metalabelnet.data.parts import LEFT_OUT, TRAIN
from metalabelnet.errors import InputError
from metalabelnet.run_options import IMAGE_BENCHMARKS

if TYPE_CHECKING:
    from metalabelnet.data.benchmarks.download import ProgressCallback
    from metalabelnet.data.files.list_data import ReadOptions


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """Images to pack, in order.

    name           name of the data set
    paths, ids     file and id of each image
    given, true    labels; −1: none
    part           part of each image
    index          position of each image in the source
    classes        class names
    encoder        how images are decoded
    split          the split of a named data set whose parts these are; None: another data set
    total_samples  the number of samples that `index` refers to
    notes          messages for the user
    """

    name: str
    paths: Sequence[Path]
    ids: list[str]
    given: Tensor
    true: Tensor
    part: Tensor
    index: Tensor
    classes: tuple[str, ...]
    encoder: ImageEncoder
    split: str | None
    total_samples: int
    notes: list[str]

    def digest(self, store: str) -> str:
        """Return a digest of what is packed: an unfinished pack of it can be resumed."""
        digest = hashlib.sha256()
        facts = (VERSION, store, self.name, self.classes, self.split, self.total_samples, self.encoder.to_json())
        digest.update(json.dumps([*facts, self.ids]).encode())
        digest.update(torch.stack([self.given, self.true, self.part, self.index]).numpy().tobytes())
        return digest.hexdigest()


def list_images(
    data: str, options: ReadOptions, folder: Path | None = None, on_samples: ProgressCallback | None = None
) -> ImageSource:
    """Return the images of a folder, a table or a named data set.

    Parameters
    ----------
    data : str
        The path of a folder of images or of a table with a column of images, or the name of a data set of image files.
    options : ReadOptions
        Clean set, test set, split, image size, and what is done with images that are missing.
    folder : Path or None
        Folder with the files of a named data set.
    on_samples : callable or None
        Called with (what, samples done, samples in all).

    Returns
    -------
    ImageSource
        The images, none of which is decoded.
    """
    if data in IMAGE_BENCHMARKS:
        return _from_benchmark(data, options, folder)
    path = Path(data)
    if data in DATASETS or not is_folder_or_table(path):
        raise InputError(
            f"{data} cannot be packed: give a folder of images, a table with a column of images, or one of "
            f"{', '.join(IMAGE_BENCHMARKS)}"
        )
    return _from_files(path, options, on_samples)


def _from_benchmark(name: str, options: ReadOptions, folder: Path | None) -> ImageSource:
    listing = DATASETS[name].list_images
    assert listing is not None
    parts = listing(folder, options.split)
    listed, part = present_images(parts, skip_missing=options.on_error == "skip")
    labels = torch.tensor([(image.given, image.true) for image in listed])
    return ImageSource(
        name=name,
        paths=Paths([image.path for image in listed]),
        ids=[image.id for image in listed],
        given=labels[:, 0],
        true=labels[:, 1],
        part=part,
        index=torch.arange(len(listed)),
        classes=parts.classes,
        encoder=parts.size.scaled_to(options.image_size).encoder(),
        split=options.split,
        total_samples=len(listed),
        notes=parts.notes,
    )


def _from_files(path: Path, options: ReadOptions, on_samples: ProgressCallback | None) -> ImageSource:
    notes: list[str] = []
    train, columns = list_train(path, options, notes, on_samples)
    if columns.kind != "image":
        raise InputError(f"{path} has samples of the kind {columns.kind}: only images can be packed")
    clean_file = None if options.clean_file is None else Path(options.clean_file)
    clean = clean_set.find_clean_samples(train, columns, clean_file)
    test = None if options.test is None else list_test(Path(options.test), options, columns, train, on_samples)
    samples = combine(train, clean, test)
    if not (samples.part == TRAIN).any():
        raise InputError(f"{path}: all images are clean, which leaves none to train on; mark fewer")
    used = (samples.part != LEFT_OUT).nonzero()[:, 0]
    positions = used.tolist()
    in_training = (samples.part == TRAIN).nonzero()[:, 0].tolist()
    on_headers = None if on_samples is None else functools.partial(on_samples, f"reading headers of {path} (training)")
    items, ids = ([values[k] for k in in_training] for values in (samples.items, samples.ids))
    encoder = fit_encoder(items, ids, columns, options, notes, on_headers)
    assert isinstance(encoder, ImageEncoder)
    return ImageSource(
        name=path.stem,
        paths=[samples.items[k] for k in positions],
        ids=[samples.ids[k] for k in positions],
        given=samples.given[used],
        true=samples.true[used],
        part=samples.part[used],
        index=used,
        classes=samples.classes,
        encoder=ImageEncoder(encoder.shape, None),
        split=None,
        total_samples=len(train.items),
        notes=notes,
    )
