"""User data for tests: image folders, tables and texts with some wrong labels."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FRUIT = ("Äpfel rot", "birne", "cherry pie")
# With --snapshots 0 the label table comes from the selected epoch alone, so that it equals the model's predictions.
# Tables are fitted, not trained, by default: these runs train a network. Its labels are worth little: see LEARNED.
QUICK_TRAINING = "--epochs 2 --warmup 1 --batch-size 32 --lr 0.05 --device cpu --snapshots 0"
QUICK = f"--method metalabelnet {QUICK_TRAINING}"
LEARNED = "--epochs 3 --batch-size 16"  # beside QUICK: enough to find wrong labels


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]], separator: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def picture(kind: int, random: np.random.Generator, size: tuple[int, int] = (12, 12)) -> Image.Image:
    """Return a noise image with a bright band at the position of its class."""
    pixels = random.integers(0, 120, (size[1], size[0], 3))
    band = size[0] // 3
    pixels[:, kind * band : (kind + 1) * band] += 110
    return Image.fromarray(pixels.astype(np.uint8))


def write_photos(root: Path, count: int = 90, unlabeled: int = 5) -> list[tuple[str, str]]:
    """Write images in one folder per class, a fifth of them in a wrong one; return the id and true label of each.

    The first ones are unlabeled. A class of three gray images comes last.
    """
    random = np.random.default_rng(0)
    true_label = []
    for k in range(count):
        kind = k % 3
        noisy = (kind + 1) % 3 if k % 5 == 4 else kind
        folder = "_unlabeled" if k < unlabeled else FRUIT[noisy]
        file = root / folder / f"bild ü {k}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture(kind, random).save(file)
        true_label.append((file.relative_to(root).as_posix(), FRUIT[kind]))
    (root / "rare").mkdir()
    for k in range(3):
        Image.fromarray(random.integers(200, 255, (9, 14)).astype(np.uint8)).save(root / "rare" / f"{k}.png")
        true_label.append((f"rare/{k}.png", "rare"))
    return true_label


def table_rows(count: int, seed: int = 0) -> list[list[str]]:
    """Return rows of `TABLE_COLUMNS`: two informative columns, missing values, a category, some labels missing."""
    random = np.random.default_rng(seed)
    rows = []
    for k in range(count):
        kind = k % 2
        width = "" if k % 11 == 3 else f"{random.normal(10 + 4 * kind, 1):.3f}"
        color = "" if k % 13 == 5 else ("red", "blue")[kind if random.random() < 0.8 else 1 - kind]
        checked = k % 6 < 2
        wrong = k % 5 == 0 and not checked
        label = "" if k % 20 == 7 else ("yes ✓", "no, never")[kind if not wrong else 1 - kind]
        rows.append([f"r{k}", width, f"{random.normal():.3f}", color, label, "yes" if checked and label else ""])
    return rows


TABLE_COLUMNS = ("id", "width", "noise", "color", "label", "checked")


def text_rows(count: int, seed: int = 0) -> list[list[str]]:
    """Return rows of text, label, checked: words of two topics."""
    random = np.random.default_rng(seed)
    sport, business = ("goal", "team", "ball", "match", "player"), ("bank", "stock", "market", "price", "money")
    rows = []
    for k in range(count):
        kind = k % 2
        words = [str(random.choice((sport, business)[kind if random.random() < 0.85 else 1 - kind])) for _ in range(8)]
        wrong = k % 5 == 0 and k % 6 > 1
        topic = ("sport", "business")[kind if not wrong else 1 - kind]
        rows.append([" ".join(words), topic, "1" if k % 6 < 2 else "0"])
    return rows
