"""WebVision 1.0 (Li et al. 2017): 2.4 million images from Google and Flickr for the 1,000 classes of ImageNet.

`webvision-mini` is its usual subset: the first 50 classes, images from Google.

There is no clean training part. The first two fifths of the validation images of each class (20 of 50) are the clean
set and the others the test set, for both splits: 1,000 and 1,500 images of the mini subset, as many as in the paper.
Others test on all 2,500, which is a slightly different test set. ImageNet's validation images of the same classes are a
second test set.

https://arxiv.org/abs/1708.02862
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from metalabelnet.data.benchmarks.download import data_folder
from metalabelnet.data.benchmarks.image_lists import (
    ImageParts,
    ImageSize,
    ListedImage,
    count_note,
    find_root,
    parse_label,
    read_images,
    read_lines,
)
from metalabelnet.errors import InputError
from metalabelnet.input_files.image_files import is_image

if TYPE_CHECKING:
    from pathlib import Path

    from metalabelnet.data.benchmarks.download import ProgressCallback
    from metalabelnet.data.files.list_data import ReadOptions
    from metalabelnet.data.rows import DataSet

NAME, MINI = "webvision", "webvision-mini"
SIZE = ImageSize(resize=320, crop=299)
CLASS_COUNT, MINI_CLASS_COUNT = 1000, 50
TRAIN_COUNT, MINI_TRAIN_COUNT = 2_439_574, 65_944
VALIDATION_IMAGES_PER_CLASS = 50
CLEAN_SHARE = 2 / 5  # of the validation images of a class
SOURCE = "https://data.vision.ee.ethz.ch/cvl/webvision/dataset2017.html"
LAYOUT = """
webvision/
  info/train_filelist_google.txt  info/train_filelist_flickr.txt
                                               lines "google/…jpg LABEL", labels 0 to 999
  info/val_filelist.txt                        lines "val000001.jpg LABEL"
  info/synsets.txt                             the synset of each label, such as "n01440764 tench"; optional
  google/  flickr/  val_images_256/ (or val_images/)
imagenet/val/SYNSET/                           ImageNet's validation images, a second test set; optional
webvision-mini has the first 50 classes and the images from Google only, and needs no other files.
Both splits: the first 20 of the 50 validation images of each class are the clean set, the others the test set. Other
papers test on all 50, so that accuracies are only roughly comparable; the second test set is the usual one.
--clean N draws N of the clean images, as many of each class as possible; --clean all uses all of them.
"""


def read(folder: Path | None, options: ReadOptions, on_samples: ProgressCallback | None = None) -> DataSet:
    """Return WebVision 1.0."""
    return read_images(list_parts(folder, mini=False), options, folder, on_samples)


def read_mini(folder: Path | None, options: ReadOptions, on_samples: ProgressCallback | None = None) -> DataSet:
    """Return the mini subset."""
    return read_images(list_parts(folder, mini=True), options, folder, on_samples)


def list_parts(folder: Path | None, *, mini: bool) -> ImageParts:
    """Return the listed images of each part."""
    name, classes = (MINI, MINI_CLASS_COUNT) if mini else (NAME, CLASS_COUNT)
    root = find_root(name, folder, ("webvision", "WebVision"), ("info/train_filelist_google.txt",))
    info = root / "info"
    train: list[ListedImage] = []
    for source in ("google",) if mini else ("google", "flickr"):
        pairs = _read_pairs(name, info / f"train_filelist_{source}.txt", classes)
        train += [ListedImage(str(root / path), path, given=label) for path, label in pairs]
    folders = [root / sub for sub in ("val_images_256", "val_images")]
    images = next((path for path in folders if path.is_dir()), folders[0])
    clean: list[ListedImage] = []
    test: list[ListedImage] = []
    seen = Counter[int]()
    pairs = _read_pairs(name, info / "val_filelist.txt", classes)
    total = Counter(label for _, label in pairs)
    for path, label in pairs:
        part = clean if seen[label] < CLEAN_SHARE * total[label] else test
        part.append(ListedImage(str(images / path), f"{images.name}/{path}", true=label))
        seen[label] += 1
    synsets = _read_synsets(name, info / "synsets.txt")
    second, notes = _imagenet(name, data_folder(folder) / "imagenet" / "val", synsets[:classes])
    return ImageParts(
        name=name,
        size=SIZE,
        classes=tuple(synsets[:classes]) or tuple(map(str, range(classes))),
        train=train,
        clean=clean,
        test=test,
        second_test=second,
        notes=[
            *count_note("training lists", len(train), MINI_TRAIN_COUNT if mini else TRAIN_COUNT),
            *count_note("val_filelist.txt", seen.total(), classes * VALIDATION_IMAGES_PER_CLASS),
            *notes,
        ],
    )


def _read_pairs(name: str, file: Path, classes: int) -> list[tuple[str, int]]:
    """Return the paths and labels of a list, without those of classes that are left out."""
    pairs = []
    for line in read_lines(name, file):
        path, _, label = line.rpartition(" ")
        pairs.append((path, parse_label(name, file, line, label, CLASS_COUNT)))
    return [pair for pair in pairs if pair[1] < classes]


def _read_synsets(name: str, file: Path) -> list[str]:
    """Return the synset of each label; none where the file does not exist."""
    if not file.exists():
        return []
    synsets = [line.split()[0] for line in read_lines(name, file)]
    if len(synsets) != CLASS_COUNT or len({*synsets}) != CLASS_COUNT:
        raise InputError(
            f"{name}: {file} has {len({*synsets})} different synsets, not {CLASS_COUNT}; restore the published file"
        )
    return synsets


def _imagenet(name: str, folder: Path, synsets: list[str]) -> tuple[list[ListedImage], list[str]]:
    """Return ImageNet's validation images of these classes, and a message where they are not used."""
    if not folder.is_dir():
        return [], [f"{folder} does not exist: there is no second test set"]
    if not synsets:
        return [], [f"info/synsets.txt is missing: {folder} cannot be used as a second test set"]
    found = []
    for label, synset in enumerate(synsets):
        if not (folder / synset).is_dir():
            raise InputError(f"{name}: {folder / synset} is missing; restore it, or remove {folder}")
        files = sorted(file for file in (folder / synset).iterdir() if is_image(file))
        found += [ListedImage(str(file), f"imagenet/{synset}/{file.name}", true=label) for file in files]
    return found, []
