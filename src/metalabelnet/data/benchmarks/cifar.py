"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), from an .npz, the published batches or the published archive.

The published files are pickles, and a pickle can run any code when it is read. So each is read once into
memory, those bytes are compared with the published md5, and those same bytes are unpickled.
"""

from __future__ import annotations

import pickle
import tarfile
import warnings
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.data.benchmarks.download import data_folder, fetch, md5_of
from metalabelnet.data.files import npz
from metalabelnet.data.rows import DataSet, Rows, make_rows
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from metalabelnet.data.benchmarks.download import Progress

HOME = "https://www.cs.toronto.edu/~kriz/"

_CLASSES10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CLASSES100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""


@dataclass(frozen=True, kw_only=True)
class Published:
    """One of the two data sets as it was published: its files with their md5 and its classes."""

    name: str
    archive: str
    archive_md5: str
    folder: str
    train: Mapping[str, str]
    test: Mapping[str, str]
    labels: str
    classes: tuple[str, ...]


CIFAR10 = Published(
    name="cifar10",
    archive="cifar-10-python.tar.gz",
    archive_md5="c58f30108f718f92721af3b95e74349a",
    folder="cifar-10-batches-py",
    train={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    },
    test={"test_batch": "40351d587109b95175f43aff81a1287e"},
    labels="labels",
    classes=tuple(_CLASSES10.split()),
)

CIFAR100 = Published(
    name="cifar100",
    archive="cifar-100-python.tar.gz",
    archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
    folder="cifar-100-python",
    train={"train": "16019d7e3df5f24257cddd939b257f8d"},
    test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    labels="fine_labels",
    classes=tuple(_CLASSES100.split()),
)


def read(published: Published, folder: Path | None = None, progress: Progress | None = None) -> DataSet:
    """50,000 training and 10,000 test images as uint8 (N, 3, 32, 32).

    Taken from the first of these in the folder: the .npz (cifar10.npz), the folder of batches, the
    archive; with none of them the archive is downloaded.
    """
    root = data_folder(folder)
    arrays, batches, archive = (root / part for part in (f"{published.name}.npz", published.folder, published.archive))
    if arrays.is_file():
        return _from_npz(arrays, published)
    if batches.is_dir():
        return _from_pickles(_in_folder(batches, published), published, batches)
    if not archive.is_file():
        try:
            fetch(HOME + published.archive, archive, published.archive_md5, progress)
        except InputError as error:
            names = f"{arrays.name}, {batches.name} or {archive.name}"
            raise InputError(f"{published.name}: there is no {names} in {root}, and {error}") from error
    return _from_pickles(_in_archive(archive, published), published, archive)


def _from_npz(path: Path, published: Published) -> DataSet:
    data = npz.read(path, name=published.name, classes=published.classes)
    if data.test is None:
        raise InputError(f"{path}: x_test and y_test are missing, and {published.name} has a test part")
    if data.train.x.shape[1:] != (3, 32, 32):
        raise InputError(f"{path}: a sample is {tuple(data.train.x.shape[1:])}, not a color image of 32×32")
    return data


def _in_folder(folder: Path, published: Published) -> dict[str, bytes]:
    """The bytes of each batch in the folder."""
    try:
        return {name: (folder / name).read_bytes() for name in (*published.train, *published.test)}
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be read ({error}); unpack {published.archive} again, or remove the folder"
        ) from error


def _in_archive(path: Path, published: Published) -> dict[str, bytes]:
    """The bytes of each batch in the archive, nothing of which is written to disk.

    In one pass from front to back: a compressed archive can go back only by starting over.
    """
    wanted = {f"{published.folder}/{name}": name for name in (*published.train, *published.test)}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() and member.name in wanted else None
                if file is not None:
                    found[wanted[member.name]] = file.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}); delete it to download it again") from error
    for member_name, name in wanted.items():
        if name not in found:
            raise InputError(f"{path}: has no {member_name}; delete it to download it again")
    return found


def _from_pickles(contents: Mapping[str, bytes], published: Published, where: Path) -> DataSet:
    """The data set from its batches, each of them what was published or none of them unpickled."""
    for name, md5 in (*published.train.items(), *published.test.items()):
        if (got := md5_of(contents[name])) != md5:
            raise InputError(
                f"{where}: {name} has md5 {got}, but the published file has {md5}; it is damaged or another "
                f"file and was not opened; delete {where} to download it again"
            )
    parts = {}
    for part, names in (("train", published.train), ("test", published.test)):
        batches = [_unpickle(contents[name]) for name in names]
        parts[part] = _rows(batches, published, f"{where}, {part}")
    return DataSet(name=published.name, train=parts["train"], test=parts["test"])


def _unpickle(content: bytes) -> dict[str, Any]:
    """What is in a batch, the content of which must have been found to be the published one."""
    # NumPy 2.4.0 to 2.4.4 warn of the way the NumPy of 2009 pickled a dtype; nobody can change these files.
    with warnings.catch_warnings(action="ignore", category=np.exceptions.VisibleDeprecationWarning):
        batch: dict[str, Any] = pickle.loads(content, encoding="latin1")  # noqa: S301
    return batch


def _rows(batches: list[dict[str, Any]], published: Published, what: str) -> Rows:
    images = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
    labels = torch.tensor([label for batch in batches for label in batch[published.labels]])
    return make_rows(torch.from_numpy(images), labels, true=labels, classes=published.classes, what=what)
