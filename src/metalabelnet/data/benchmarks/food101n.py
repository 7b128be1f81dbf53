"""Food-101N (Lee et al. 2018): 310,009 images of dishes from web searches, some with a verification label.

A verification label states whether the class of an image is right, not which class is.

    split `general`  clean set: images of verified_train.tsv whose class is right; test: Food-101's test images
    split `paper`    clean set: Food-101's images; test: images of verified_val.tsv whose class is right

The paper's accuracy is therefore not comparable with results on Food-101's test images. Images of the clean set and of
the test set are removed from the training images.

https://kuanghuei.github.io/Food-101N/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.data.benchmarks.image_lists import (
    ImageParts,
    ImageSize,
    ListedImage,
    count_note,
    find_root,
    read_images,
    read_lines,
)
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from metalabelnet.data.benchmarks.download import ProgressCallback
    from metalabelnet.data.files.list_data import ReadOptions
    from metalabelnet.data.rows import DataSet

NAME = "food101n"
SIZE = ImageSize(resize=256, crop=224)
CLASS_COUNT, IMAGE_COUNT, FOOD101_TEST_COUNT = 101, 310_009, 25_250
VERIFIED_COUNTS = {"verified_train.tsv": 52_868, "verified_val.tsv": 4_741}
HEADER = "class_name"  # how the first line of the lists begins
SOURCE = "https://kuanghuei.github.io/Food-101N/ and https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/"
LAYOUT = """
Food-101N_release/
  meta/classes.txt                             a header line, then 101 class names
  meta/imagelist.tsv                           a header line, then lines "CLASS/KEY.jpg"
  meta/verified_train.tsv  meta/verified_val.tsv
                                               a header line, then lines "CLASS/KEY.jpg<TAB>0 or 1"
  images/CLASS/KEY.jpg
food-101/
  meta/test.txt                                lines "CLASS/ID", no header
  images/CLASS/ID.jpg
--split general: the clean set is drawn from the images of verified_train.tsv with label 1; tests on Food-101's test
images (25,250), as most papers do.
--split paper: the clean set is drawn from Food-101's images; tests on the images of verified_val.tsv with label 1, as
the authors' code does. Its accuracies are not comparable with those on Food-101's test images.
--clean N draws N of these images, as many of each class as possible; --clean all uses all of them.
"""


def read(folder: Path | None, options: ReadOptions, on_samples: ProgressCallback | None = None) -> DataSet:
    """Return the images of the split in `options`."""
    return read_images(list_parts(folder, options.split), options, folder, on_samples)


def list_parts(folder: Path | None, split: str) -> ImageParts:
    """Return the listed images of each part of a split."""
    root = find_root(NAME, folder, ("Food-101N_release", NAME), ("meta/imagelist.tsv",))
    food101 = find_root(NAME, folder, ("food-101",), ("meta/test.txt",))
    image_list, classes_file = root / "meta" / "imagelist.tsv", root / "meta" / "classes.txt"
    keys = [line for line in read_lines(NAME, image_list) if not line.startswith(HEADER)]
    numbers = _class_numbers(keys, image_list, classes_file)
    verified = {file: _read_verified(root / "meta" / file, numbers) for file in VERIFIED_COUNTS}
    test_list = food101 / "meta" / "test.txt"
    food101_images = []
    for key in read_lines(NAME, test_list):
        number = _class_number(key, numbers, test_list)
        food101_images.append(ListedImage(str(food101 / "images" / f"{key}.jpg"), f"food-101/{key}", true=number))
    notes = [
        *count_note(image_list.name, len(keys), IMAGE_COUNT),
        *(note for file, count in VERIFIED_COUNTS.items() for note in count_note(file, len(verified[file]), count)),
        *count_note("food-101/meta/test.txt", len(food101_images), FOOD101_TEST_COUNT),
    ]
    if repeated := len(keys) - len({key.partition("/")[2] for key in keys}):
        notes.append(f"{repeated} images are listed under more than one class")
    used = verified["verified_val.tsv" if split == "paper" else "verified_train.tsv"]
    right = {key: None for key, is_right in used.items() if is_right}  # in the order of the list

    def image(key: str) -> str:
        return str(root / "images" / key)

    # Only images whose class is right are clean, so their given labels would show no noise: they have none.
    own = [ListedImage(image(key), key, UNLABELED, _class_number(key, numbers, image_list)) for key in right]
    return ImageParts(
        name=NAME,
        size=SIZE,
        classes=tuple(numbers),
        train=[ListedImage(image(key), key, numbers[key.partition("/")[0]]) for key in keys if key not in right],
        clean=food101_images if split == "paper" else own,
        test=own if split == "paper" else food101_images,
        notes=notes,
    )


def _class_numbers(keys: list[str], image_list: Path, classes_file: Path) -> dict[str, int]:
    """Return the number of each class, in the order of classes.txt, whose first line is a header."""
    used = {key.partition("/")[0] for key in keys}
    names = read_lines(NAME, classes_file)
    if names and names[0] not in used:
        names = names[1:]
    numbers = {name: k for k, name in enumerate(names)}
    for key in keys:
        _class_number(key, numbers, image_list)
    return numbers


def _class_number(key: str, numbers: dict[str, int], file: Path) -> int:
    name, slash, image = key.partition("/")
    if name not in numbers or not slash or not image:
        raise InputError(
            f"{NAME}: {file} has {key[:80]!r}, whose class is not in meta/classes.txt; restore the published file"
        )
    return numbers[name]


def _read_verified(file: Path, numbers: dict[str, int]) -> dict[str, bool]:
    """Return whether the class of each image is right."""
    verified = {}
    for line in read_lines(NAME, file):
        if line.startswith(HEADER):
            continue
        key, _, label = line.partition("\t")
        if label not in ("0", "1"):
            raise InputError(
                f"{NAME}: {file} has the verification label {label[:20]!r} in the line {line[:80]!r}; it is 0 or 1: "
                "restore the published file"
            )
        _class_number(key, numbers, file)
        verified[key] = label == "1"
    return verified
