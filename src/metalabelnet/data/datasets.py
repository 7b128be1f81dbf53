"""Loads a data set by name or path."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metalabelnet.data.benchmarks import cifar, clothing1m, digits, fashion_mnist, food101n, webvision
from metalabelnet.data.benchmarks.download import data_folder
from metalabelnet.data.encoders.embeddings import embed_images
from metalabelnet.data.files import annotation_file, clean_set, duplicates, npz, reader
from metalabelnet.data.files.list_data import ReadOptions, is_folder_or_table
from metalabelnet.data.packed import reader as packed
from metalabelnet.data.packed.index import is_pack
from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.run_options import IMAGE_BENCHMARKS, PATH_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from metalabelnet.data.benchmarks.download import ProgressCallback
    from metalabelnet.data.benchmarks.image_lists import ImageParts
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
        Reads the data set, given the folder of its files (None: see `data_folder`), a callback for the progress of a
        download, the options of the reader and a callback for the number of samples read.
    source : str
        Where to get the files.
    layout : str
        How the folder of the files must look.
    list_images : callable or None
        For data sets of image files: lists the images, given the folder and the split.
    """

    summary: str
    reference: str
    read: Callable[[Path | None, ProgressCallback | None, ReadOptions, ProgressCallback | None], DataSet]
    source: str
    layout: str
    list_images: Callable[[Path | None, str], ImageParts] | None = None


DATASETS: dict[str, Benchmark] = {
    "digits": Benchmark(
        summary="1,797 gray images of handwritten digits, 8×8, 10 classes, no test part (included in scikit-learn)",
        reference="Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits, UCI",
        read=lambda folder, *_: digits.read(folder),
        source="included in scikit-learn",
        layout="No files are needed where scikit-learn is installed.",
    ),
    "fashion-mnist": Benchmark(
        summary="70,000 gray images of clothes, 28×28, 10 classes (Debian: dataset-fashion-mnist)",
        reference="Xiao, Rasul and Vollgraf 2017, Fashion-MNIST, arXiv:1708.07747",
        read=lambda folder, *_: fashion_mnist.read(folder),
        source="Debian's package dataset-fashion-mnist, or https://github.com/zalandoresearch/fashion-mnist",
        layout=f"fashion-mnist/\n  {', '.join(fashion_mnist.FILES)} (or .gz)",
    ),
    "cifar10": Benchmark(
        summary="60,000 color images, 32×32, 10 classes (downloaded once, 163 MiB)",
        reference="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images",
        read=lambda folder, on_download, *_: cifar.read(cifar.CIFAR10, folder, on_download),
        source=f"{cifar.BASE_URL}cifar.html (downloaded if it is missing)",
        layout=f"{cifar.CIFAR10.archive}, or the unpacked folder {cifar.CIFAR10.folder}/, or cifar10.npz",
    ),
    "cifar100": Benchmark(
        summary="60,000 color images, 32×32, 100 classes (downloaded once, 161 MiB)",
        reference="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images",
        read=lambda folder, on_download, *_: cifar.read(cifar.CIFAR100, folder, on_download),
        source=f"{cifar.BASE_URL}cifar.html (downloaded if it is missing)",
        layout=f"{cifar.CIFAR100.archive}, or the unpacked folder {cifar.CIFAR100.folder}/, or cifar100.npz",
    ),
    "clothing1m": Benchmark(
        summary="1 million photos of clothes with noisy labels, 14 classes, clean parts (on request from its authors)",
        reference="Xiao et al. 2015, Learning from Massive Noisy Labeled Data for Image Classification",
        read=lambda folder, _, *options: clothing1m.read(folder, *options),
        source=clothing1m.SOURCE,
        layout=clothing1m.LAYOUT,
        list_images=clothing1m.list_parts,
    ),
    "food101n": Benchmark(
        summary="310,009 photos of dishes with noisy labels, 101 classes, 57,609 of them verified; needs Food-101, too",
        reference="Lee et al. 2018, CleanNet: Transfer Learning for Scalable Image Classifier Training",
        read=lambda folder, _, *options: food101n.read(folder, *options),
        source=food101n.SOURCE,
        layout=food101n.LAYOUT,
        list_images=food101n.list_parts,
    ),
    "webvision": Benchmark(
        summary="2.4 million photos from Google and Flickr with noisy labels, the 1,000 classes of ImageNet",
        reference="Li et al. 2017, WebVision Database, arXiv:1708.02862",
        read=lambda folder, _, *options: webvision.read(folder, *options),
        source=webvision.SOURCE,
        layout=webvision.LAYOUT,
        list_images=lambda folder, _: webvision.list_parts(folder, mini=False),
    ),
    "webvision-mini": Benchmark(
        summary="65,944 photos of webvision: those from Google of the first 50 classes",
        reference="Jiang et al. 2018, MentorNet, arXiv:1712.05055",
        read=lambda folder, _, *options: webvision.read_mini(folder, *options),
        source=webvision.SOURCE,
        layout=webvision.LAYOUT,
        list_images=lambda folder, _: webvision.list_parts(folder, mini=True),
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
        Options for folders, tables and data sets of image files. `clean_file` applies to all data.
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
    if name in IMAGE_BENCHMARKS and is_pack(data_folder(folder)):
        data = packed.read(data_folder(folder), options, name)
    elif name not in DATASETS and is_pack(path):
        data = packed.read(path, options)
    elif name in DATASETS:
        data = DATASETS[name].read(folder, on_download, options, on_samples)
    elif path.suffix.lower() == ".npz":
        noisy = noisy or (options.clean_file is not None and not options.adds_noise)
        data = npz.read(path, classes=classes, noisy=noisy)
        data = dataclasses.replace(data, notes=(*data.notes, *duplicates.note_on_test_duplicates(data)))
    else:
        raise unknown_data_error(name)
    if options.encoder is not None:
        data = embed_images(data, options.encoder, folder=folder, device=options.device, on_samples=on_samples)
    if options.clean_file is not None:
        data = clean_set.add_clean_labels(data, Path(options.clean_file))
    return data if options.annotations is None else annotation_file.add_annotations(data, Path(options.annotations))


def unknown_data_error(name: str) -> InputError:
    """Return the error for what is neither the name of a data set nor the path of one."""
    path = Path(name)
    if len(path.parts) > 1 or name.endswith("/") or path.exists():
        problem = " is not a supported kind of data:" if path.exists() else ": no such file, folder or run;"
        return InputError(f"{name}{problem} give {PATH_KINDS}, or choose from {', '.join(DATASETS)}")
    error = unknown_name_error("data set", name, DATASETS)
    if "did you mean" in str(error):
        return InputError(f"{error}, or give the path of {PATH_KINDS}")
    return InputError(
        f"{name}: no such file, folder, run or data set; give {PATH_KINDS}, or choose from {', '.join(DATASETS)}"
    )
