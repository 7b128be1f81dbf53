"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), from an .npz file, the published batches or the published archive.

The published files are pickles, which can run code when they are loaded. Each is therefore read into memory once, its
bytes are compared with the published MD5 digest, and the same bytes are unpickled.

https://www.cs.toronto.edu/~kriz/cifar.html
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
from metalabelnet.input_files.regular_files import open_regular_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from metalabelnet.data.benchmarks.download import ProgressCallback

MAX_MEMBER_BYTES = 1 << 28  # the largest file has 155 MB; a compressed one could expand to anything
BASE_URL = "https://www.cs.toronto.edu/~kriz/"

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
class CifarFiles:
    """The published files of CIFAR-10 or CIFAR-100 with their MD5 digests, and the class names."""

    name: str
    archive: str
    archive_md5: str
    folder: str
    train: Mapping[str, str]
    test: Mapping[str, str]
    labels: str
    classes: tuple[str, ...]


CIFAR10 = CifarFiles(
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

CIFAR100 = CifarFiles(
    name="cifar100",
    archive="cifar-100-python.tar.gz",
    archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
    folder="cifar-100-python",
    train={"train": "16019d7e3df5f24257cddd939b257f8d"},
    test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    labels="fine_labels",
    classes=tuple(_CLASSES100.split()),
)


def read(published: CifarFiles, folder: Path | None = None, on_download: ProgressCallback | None = None) -> DataSet:
    """Return 50,000 training and 10,000 test images as uint8 (N, 3, 32, 32).

    They are read from the first of these that is in the folder: the .npz file (cifar10.npz), the folder of batches, the
    archive. If there is none, the archive is downloaded.
    """
    root = data_folder(folder)
    arrays, batches, archive = (root / part for part in (f"{published.name}.npz", published.folder, published.archive))
    if arrays.is_file():
        return _read_npz(arrays, published)
    if batches.is_dir():
        return _read_pickles(_read_folder(batches, published), published, batches)
    if not archive.is_file():
        try:
            fetch(BASE_URL + published.archive, archive, published.archive_md5, on_download)
        except InputError as error:
            names = f"{arrays.name}, {batches.name} or {archive.name}"
            raise InputError(f"{published.name}: {root} has no {names}, and {error}") from error
    return _read_pickles(_read_archive(archive, published), published, archive)


def _read_npz(path: Path, published: CifarFiles) -> DataSet:
    data = npz.read(path, name=published.name, classes=published.classes)
    if data.test is None:
        raise InputError(f"{path}: x_test and y_test are missing; {published.name} has a test part")
    if data.train.x.shape[1:] != (3, 32, 32):
        raise InputError(f"{path}: samples have the shape {tuple(data.train.x.shape[1:])}, not (3, 32, 32)")
    return data


def _read_folder(folder: Path, published: CifarFiles) -> dict[str, bytes]:
    """Return the bytes of each batch in the folder."""
    contents = {}
    try:
        for name in (*published.train, *published.test):
            with open_regular_file(folder / name) as file:
                contents[name] = file.read(MAX_MEMBER_BYTES)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be read ({error}); unpack {published.archive} again, or delete the folder"
        ) from error
    return contents


def _read_archive(path: Path, published: CifarFiles) -> dict[str, bytes]:
    """Return the bytes of each batch in the archive, without unpacking it to disk.

    The archive is read in one pass: seeking back in a compressed archive means to start over.
    """
    wanted = {f"{published.folder}/{name}": name for name in (*published.train, *published.test)}
    found: dict[str, bytes] = {}
    try:
        with open_regular_file(path) as opened, tarfile.open(fileobj=opened, mode="r|gz") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() and member.name in wanted else None
                if file is not None:
                    found[wanted[member.name]] = file.read(MAX_MEMBER_BYTES)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}); delete it to download it again") from error
    for member_name, name in wanted.items():
        if name not in found:
            raise InputError(f"{path}: {member_name} is missing; delete the archive to download it again")
    return found


def _read_pickles(contents: Mapping[str, bytes], published: CifarFiles, where: Path) -> DataSet:
    """Return the data set from its batches. Nothing is unpickled unless all have the published MD5 digests."""
    for name, md5 in (*published.train.items(), *published.test.items()):
        if (got := md5_of(contents[name])) != md5:
            raise InputError(
                f"{where}: {name} has MD5 {got}, but the published file has {md5}; it was not loaded; "
                f"delete {where} to download it again"
            )
    parts = {}
    for part, names in (("train", published.train), ("test", published.test)):
        batches = [_unpickle(contents[name]) for name in names]
        parts[part] = _rows(batches, published, f"{where}, {part}")
    return DataSet(name=published.name, train=parts["train"], test=parts["test"])


def _unpickle(content: bytes) -> dict[str, Any]:
    """Return the contents of a batch whose MD5 digest has been verified."""
    # NumPy 2.4.0 to 2.4.4 warn about the pickled dtypes of 2009 in these files.
    with warnings.catch_warnings(action="ignore", category=np.exceptions.VisibleDeprecationWarning):
        batch: dict[str, Any] = pickle.loads(content, encoding="latin1")  # noqa: S301
    return batch


def _rows(batches: list[dict[str, Any]], published: CifarFiles, what: str) -> Rows:
    images = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
    labels = torch.tensor([label for batch in batches for label in batch[published.labels]])
    return make_rows(torch.from_numpy(images), labels, true=labels, classes=published.classes, what=what)
