"""Clothing1M (Xiao et al. 2015): a million images of clothes from shopping sites, with labels from their captions.

    split `paper`    the clean set is the clean validation part, as in the paper
    split `general`  the clean set is the clean training part, as in MLC and EMLC

Both test on the clean test part. Images of the clean parts are removed from the training images.

https://openaccess.thecvf.com/content_cvpr_2015/html/Xiao_Learning_From_Massive_2015_CVPR_paper.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from metalabelnet.data.benchmarks.download import ProgressCallback
    from metalabelnet.data.files.list_data import ReadOptions
    from metalabelnet.data.rows import DataSet

NAME = "clothing1m"
CLASSES = (
    *("T-Shirt", "Shirt", "Knitwear", "Chiffon", "Sweater", "Hoodie", "Windbreaker", "Jacket", "Downcoat", "Suit"),
    *("Shawl", "Dress", "Vest", "Underwear"),
)
SIZE = ImageSize(resize=256, crop=224)
PUBLISHED = {"noisy_train": 1_000_000, "clean_train": 47_570, "clean_val": 14_313, "clean_test": 10_526}
IMAGES = "images/"  # prefix of the keys, which some copies lack
SOURCE = "on request from its authors, see https://github.com/Cysu/noisy_label"
LAYOUT = """
clothing1M/
  noisy_label_kv.txt  clean_label_kv.txt       lines "images/0/…jpg LABEL", labels 0 to 13
  noisy_train_key_list.txt  clean_train_key_list.txt  clean_val_key_list.txt  clean_test_key_list.txt
                                               lines "images/0/…jpg"
  images/0/ … images/9/
The lists may be in the subfolder annotations/, and keys may lack the prefix images/.
--split paper: the clean set is the clean validation part (14,313 images), as in the paper.
--split general: the clean set is the clean training part (47,570 images), as in MLC and EMLC.
Results of the two splits are not comparable. Both test on the clean test part (10,526 images).
--clean N draws N images of the clean set, as many of each class as possible; --clean all uses all of them.
"""


def read(folder: Path | None, options: ReadOptions, on_samples: ProgressCallback | None = None) -> DataSet:
    """Return the images of the split in `options`."""
    return read_images(list_parts(folder, options.split), options, folder, on_samples)


def list_parts(folder: Path | None, split: str) -> ImageParts:
    """Return the listed images of each part of a split."""
    files = ("noisy_label_kv.txt", "annotations/noisy_label_kv.txt")
    root = find_root(NAME, folder, ("clothing1M", NAME), files)
    lists = root if (root / files[0]).is_file() else root / "annotations"
    noisy, clean = (_read_labels(lists / f"{kind}_label_kv.txt") for kind in ("noisy", "clean"))
    keys = {part: _read_keys(lists / f"{part}_key_list.txt") for part in PUBLISHED}
    notes = [
        note for part, count in PUBLISHED.items() for note in count_note(f"{part}_key_list.txt", len(keys[part]), count)
    ]
    in_clean_parts = {key for part in ("clean_train", "clean_val", "clean_test") for key in keys[part]}
    train = [key for key in keys["noisy_train"] if key not in in_clean_parts]
    if removed := len(keys["noisy_train"]) - len(train):
        notes.append(f"{removed:,} training images belong to a clean part and are not trained on")

    def images(part: str) -> list[ListedImage]:
        file, found = lists / f"{part}_key_list.txt", []
        for key in keys[part]:
            if key not in clean:
                raise InputError(f"{NAME}: {file} has {key}, which has no label in {lists / 'clean_label_kv.txt'}")
            found.append(ListedImage(str(root / key), key, noisy.get(key, UNLABELED), clean[key]))
        return found

    for key in train:
        if key not in noisy:
            file = lists / "noisy_train_key_list.txt"
            raise InputError(f"{NAME}: {file} has {key}, which has no label in {lists / 'noisy_label_kv.txt'}")
    return ImageParts(
        name=NAME,
        size=SIZE,
        classes=CLASSES,
        train=[ListedImage(str(root / key), key, noisy[key]) for key in train],
        clean=images("clean_val" if split == "paper" else "clean_train"),
        test=images("clean_test"),
        notes=notes,
    )


def _key(text: str) -> str:
    return text if text.startswith(IMAGES) else IMAGES + text


def _read_keys(file: Path) -> list[str]:
    return [_key(line) for line in read_lines(NAME, file)]


def _read_labels(file: Path) -> dict[str, int]:
    labels = {}
    for line in read_lines(NAME, file):
        key, _, label = line.rpartition(" ")
        labels[_key(key)] = parse_label(NAME, file, line, label, len(CLASSES))
    return labels
