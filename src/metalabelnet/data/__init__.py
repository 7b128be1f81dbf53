"""Data: a table of data sets known by name, and one way to load any of them or a person's own.

A reader gives a `DataSet` of `Rows`: images as uint8 (they go to the device once, as they are), tables as
float32, a given label per row and the true one where it is known.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from metalabelnet.data.benchmarks import cifar, digits, fashion_mnist
from metalabelnet.data.benchmarks.download import Progress, data_folder
from metalabelnet.data.files import clean_set, duplicates, npz, reader
from metalabelnet.data.files.reader import ReadOptions
from metalabelnet.data.rows import UNLABELED, DataSet, Rows
from metalabelnet.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DATASETS",
    "PATHS",
    "UNLABELED",
    "DataSet",
    "Progress",
    "ReadOptions",
    "Rows",
    "Source",
    "data_folder",
    "load",
]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set known by name: what it is, where it comes from, and its reader.

    The reader takes the folder to look in (None: see `data_folder`) and whom to tell about a download.
    """

    summary: str
    reference: str
    read: Callable[[Path | None, Progress | None], DataSet]


PATHS = "a folder of images, or a .csv, .tsv, .parquet or .npz file"

DATASETS: dict[str, Source] = {
    "digits": Source(
        summary="1,797 grey images of handwritten digits, 8×8, no test part (comes with scikit-learn)",
        reference="Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits, UCI",
        read=lambda folder, _progress: digits.read(folder),
    ),
    "fashion-mnist": Source(
        summary="70,000 grey images of clothes, 28×28, 10 classes (Debian: dataset-fashion-mnist)",
        reference="Xiao, Rasul and Vollgraf 2017, Fashion-MNIST, arXiv:1708.07747",
        read=lambda folder, _progress: fashion_mnist.read(folder),
    ),
    "cifar10": Source(
        summary="60,000 color images, 32×32, 10 classes (downloaded once, 163 MiB)",
        reference="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images",
        read=lambda folder, progress: cifar.read(cifar.CIFAR10, folder, progress),
    ),
    "cifar100": Source(
        summary="60,000 color images, 32×32, 100 classes (downloaded once, 161 MiB)",
        reference="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images",
        read=lambda folder, progress: cifar.read(cifar.CIFAR100, folder, progress),
    ),
}


def load(
    name: str,
    folder: Path | None = None,
    progress: Progress | None = None,
    classes: tuple[str, ...] | None = None,
    *,
    noisy: bool = False,
    read_options: ReadOptions | None = None,
    on_samples: Progress | None = None,
) -> DataSet:
    """The data set with that name, or the one at that path: a folder of images, a table, an .npz file.

    `folder` is where a named data set's files are looked for, and where a download is put; without it
    that is `data_folder()`. A path stands for itself. `classes` are the names an .npz file's labels stand for,
    where they are known from elsewhere; where these labels are `noisy` they are not taken for the truth. `reading` is
    for folders and tables, but for the file of the clean set, which any data may have; `on_samples` hears how many are
    read.
    """
    path, how = Path(name), read_options or ReadOptions()
    if name not in DATASETS and reader.is_own(path):
        return reader.read(path, how, folder, on_samples)
    if name in DATASETS:
        data = DATASETS[name].read(folder, progress)
    elif path.suffix.lower() == ".npz":
        data = npz.read(path, classes=classes, noisy=noisy or (how.clean_file is not None and not how.noise_to_come))
        data = dataclasses.replace(data, notes=(*data.notes, *duplicates.noted(data)))
    else:
        data = _no_data(name, path)
    return data if how.clean_file is None else clean_set.in_numbers(data, Path(how.clean_file))


def _no_data(name: str, path: Path) -> NoReturn:
    if len(path.parts) > 1 or name.endswith("/"):
        wrong = "is no kind of data that is known" if path.exists() else "does not exist"
        raise InputError(f"{name} {wrong}: data is {PATHS}, or one of {', '.join(DATASETS)}")
    raise InputError(f"{unknown('data set', name, DATASETS)}, or the path of {PATHS}")
