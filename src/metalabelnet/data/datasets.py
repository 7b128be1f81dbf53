"""Loads a data set by name or path."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from metalabelnet.data.benchmarks import cifar, digits, fashion_mnist
from metalabelnet.data.files import clean_set, duplicates, npz, reader
from metalabelnet.data.files.list_data import ReadOptions, is_folder_or_table
from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.run_options import PATH_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from metalabelnet.data.benchmarks.download import ProgressCallback
    from metalabelnet.data.rows import DataSet


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A data set known by name.

    Attributes
    ----------
    summary : str
        One line: size, kind of samples, source of the files.
    reference : str
        The publication to cite.
    read : callable
        Reads the data set, given the folder of its files (None: see `data_folder`) and a callback for the progress of
        a download.
    """

    summary: str
    reference: str
    read: Callable[[Path | None, ProgressCallback | None], DataSet]


DATASETS: dict[str, Benchmark] = {
    "digits": Benchmark(
        summary="1,797 gray images of handwritten digits, 8×8, 10 classes, no test part (included in scikit-learn)",
        reference="Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits, UCI",
        read=lambda folder, _on_download: digits.read(folder),
    ),
    "fashion-mnist": Benchmark(
        summary="70,000 gray images of clothes, 28×28, 10 classes (Debian: dataset-fashion-mnist)",
        reference="Xiao, Rasul and Vollgraf 2017, Fashion-MNIST, arXiv:1708.07747",
        read=lambda folder, _on_download: fashion_mnist.read(folder),
    ),
    "cifar10": Benchmark(
        summary="60,000 color images, 32×32, 10 classes (downloaded once, 163 MiB)",
        reference="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images",
        read=lambda folder, on_download: cifar.read(cifar.CIFAR10, folder, on_download),
    ),
    "cifar100": Benchmark(
        summary="60,000 color images, 32×32, 100 classes (downloaded once, 161 MiB)",
        reference="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images",
        read=lambda folder, on_download: cifar.read(cifar.CIFAR100, folder, on_download),
    ),
}


def load(
    name: str,
    folder: Path | None = None,
    on_download: ProgressCallback | None = None,
    classes: tuple[str, ...] | None = None,
    *,
    noisy: bool = False,
    read_options: ReadOptions | None = None,
    on_samples: ProgressCallback | None = None,
) -> DataSet:
    """Load a data set by name or path.

    Parameters
    ----------
    name : str
        A key of `DATASETS`, or the path of a folder of images, a .csv, .tsv, .parquet or .npz file.
    folder : Path or None
        Folder for the files of a named data set, where downloads go too. Default: `data_folder()`.
    on_download : callable or None
        Called with (what, bytes done, bytes in all) during a download.
    classes : tuple of str or None
        Class names for the labels of an .npz file that has none.
    noisy : bool
        Whether the labels of an .npz file are noisy. By default they are taken for true labels if the file has no clean
        set.
    read_options : ReadOptions or None
        Options for folders and tables. `clean_file` applies to all data.
    on_samples : callable or None
        Called with (what, samples done, samples in all) while samples are read.

    Returns
    -------
    DataSet
        The training rows, and test and clean rows where the source has them.

    Raises
    ------
    InputError
        If there is no such data set, or its files cannot be used.

    Examples
    --------
    >>> from metalabelnet.data import load
    >>> data = load("digits")
    >>> len(data.train), tuple(data.train.x.shape[1:]), data.classes[:3]
    (1797, (1, 8, 8), ('0', '1', '2'))
    """
    path, options = Path(name), read_options or ReadOptions()
    if name not in DATASETS and is_folder_or_table(path):
        return reader.read(path, options, folder, on_samples)
    if name in DATASETS:
        data = DATASETS[name].read(folder, on_download)
    elif path.suffix.lower() == ".npz":
        noisy = noisy or (options.clean_file is not None and not options.adds_noise)
        data = npz.read(path, classes=classes, noisy=noisy)
        data = dataclasses.replace(data, notes=(*data.notes, *duplicates.note_on_test_duplicates(data)))
    else:
        _raise_not_found(name, path)
    return data if options.clean_file is None else clean_set.add_clean_labels(data, Path(options.clean_file))


def _raise_not_found(name: str, path: Path) -> NoReturn:
    if len(path.parts) > 1 or name.endswith("/"):
        problem = "is not a supported kind of data" if path.exists() else "does not exist"
        raise InputError(f"{name} {problem}: give {PATH_KINDS}, or choose from {', '.join(DATASETS)}")
    raise InputError(f"{unknown_name_error('data set', name, DATASETS)}, or give the path of {PATH_KINDS}")
