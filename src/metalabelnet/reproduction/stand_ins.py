"""Small stand-ins of the data sets of image files: the published layout with few, tiny images.

`reproduce --smoke` and tests use them. The color of an image tells its class; a fifth of the given labels is wrong.
"""

from __future__ import annotations

import colorsys
import functools
import io
from typing import TYPE_CHECKING

import numpy as np

from metalabelnet.data.benchmarks import clothing1m, webvision
from metalabelnet.input_files.image_files import check_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

WIDTH, HEIGHT = 24, 16  # not square: the aspect ratio is not kept
FOOD_CLASSES = ("apple_pie", "beignets", "caprese_salad", "donuts", "edamame", "falafel", "gyoza")
WRONG = 5  # one in five given labels is wrong


def write_clothing1m(folder: Path, per_class: int = 6, *, prefix: str = "images/", lists: str = "") -> Path:
    """Write a stand-in of Clothing1M and return its folder.

    prefix  of the keys in the lists; some copies lack it
    lists   subfolder of the lists
    """
    root, classes = folder / "clothing1M", len(clothing1m.CLASSES)
    noisy: list[tuple[str, int]] = []
    clean: list[tuple[str, int]] = []
    for part, count in (("noisy_train", per_class), ("clean_train", 4), ("clean_val", 4), ("clean_test", 2)):
        keys = []
        for k in range(count * classes):
            key, label = f"{k % 10}/{part}_{k}.jpg", k % classes
            _write_image(root / "images" / key, label, classes, k)
            keys.append(f"{prefix}{key}")
            if part == "noisy_train" or k % 2 == 0:  # some clean images have a noisy label, too
                noisy.append((keys[-1], (label + (k // classes % WRONG == 0)) % classes))
            if part != "noisy_train":
                clean.append((keys[-1], label))
        _write_lines(root / lists / f"{part}_key_list.txt", keys)
    for kind, pairs in (("noisy", noisy), ("clean", clean)):
        _write_lines(root / lists / f"{kind}_label_kv.txt", (f"{key} {label}" for key, label in pairs))
    return root


def write_food101n(folder: Path, per_class: int = 10) -> Path:
    """Write stand-ins of Food-101N, with seven classes, and of Food-101; return the folder of the first."""
    root, other, classes = folder / "Food-101N_release", folder / "food-101", len(FOOD_CLASSES)
    header = "class_name/key\tverification_label"
    keys, verified = [], {"train": [header], "val": [header]}
    for k in range(per_class * classes):
        number, given = k // classes, k % classes
        is_right = number % WRONG != 0
        key = f"{FOOD_CLASSES[given]}/{k:08x}.jpg"
        _write_image(root / "images" / key, given if is_right else (given + 1) % classes, classes, k)
        keys.append(key)
        if number < per_class // 2:
            verified["val" if number == 1 else "train"].append(f"{key}\t{int(is_right)}")
    _write_lines(root / "meta" / "classes.txt", ("class_name", *FOOD_CLASSES))
    _write_lines(root / "meta" / "imagelist.tsv", ("class_name/key", *keys))
    for part, lines in verified.items():
        _write_lines(root / "meta" / f"verified_{part}.tsv", lines)
    test = [f"{name}/{1000 + k}" for k in range(3) for name in FOOD_CLASSES]
    for k, key in enumerate(test):
        _write_image(other / "images" / f"{key}.jpg", k % classes, classes, k)
    _write_lines(other / "meta" / "test.txt", test)
    return root


def write_webvision(folder: Path, per_class: int = 3, classes: int = webvision.MINI_CLASS_COUNT) -> Path:
    """Write a stand-in of WebVision with images of the first classes only, and of ImageNet; return the first's folder.

    The lists and the synsets are those of all 1,000 classes.
    """
    root, synsets = folder / "webvision", [f"n{label:08d}" for label in range(webvision.CLASS_COUNT)]
    _write_lines(root / "info" / "synsets.txt", (f"{synset} class {k}" for k, synset in enumerate(synsets)))
    for source in ("google", "flickr"):
        lines = []
        for k in range(per_class * classes):
            path, label = f"{source}/q{k % classes:04d}/{k}.jpg", k % classes
            shown = (label + (k // classes % WRONG == 0)) % classes
            _write_image(root / path, shown, classes, k)
            lines.append(f"{path} {label}")
        # An image of another class, which the mini subset leaves out.
        _write_image(root / f"{source}/other.jpg", 0, classes, 0)
        _write_lines(root / "info" / f"train_filelist_{source}.txt", (*lines, f"{source}/other.jpg 999"))
    names = []
    for k in range(5 * classes):
        _write_image(root / "val_images_256" / f"val{k:06d}.jpg", k % classes, classes, k)
        names.append(f"val{k:06d}.jpg {k % classes}")
    _write_lines(root / "info" / "val_filelist.txt", names)
    for k in range(2 * classes):
        _write_image(folder / "imagenet" / "val" / synsets[k % classes] / f"{k}.JPEG", k % classes, classes, k)
    return root


STAND_INS: dict[str, Callable[[Path], Path]] = {
    "clothing1m": write_clothing1m,
    "food101n": write_food101n,
    "webvision-mini": write_webvision,
}


def _write_image(path: Path, label: int, classes: int, seed: int) -> None:
    """Write a JPEG of the color of the class, with noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_image(label, classes, seed % 4))


@functools.cache
def _image(label: int, classes: int, seed: int) -> bytes:
    check_installed()
    from PIL import Image

    content = io.BytesIO()
    color = 255 * np.array(colorsys.hsv_to_rgb(label / classes, 1, 0.4 + 0.6 * (label % 2)))
    noise = np.random.default_rng(seed).integers(-20, 21, (HEIGHT, WIDTH, 3))
    Image.fromarray((color + noise).clip(0, 255).astype(np.uint8)).save(content, format="JPEG", quality=90)
    return content.getvalue()


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
