"""Images in a folder per class, some in the wrong one: train, correct the labels, predict new ones.

    python examples/images.py [FOLDER]

It makes 400 small pictures of crosses, rings and bars, moves a quarter of them into a wrong folder, takes the label off
a few, writes down 60 that somebody has checked, and calls the command line.
"""

import csv
import shlex
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from metalabelnet.cli import main

KINDS = ("bar", "cross", "ring")


def draw(kind: str, random: np.random.Generator) -> Image.Image:
    """A bright shape at a random place on a noisy ground."""
    pixels = random.normal(90, 35, (24, 24, 3))
    y, x = np.mgrid[:24, :24] - random.integers(9, 15, 2)[:, None, None]
    distance = np.hypot(x, y)
    inside = {"bar": abs(x) < 2, "cross": (abs(x) < 2) | (abs(y) < 2), "ring": abs(distance - 6) < 1.5}[kind]
    pixels[inside & (distance < 9)] += random.uniform(70, 120)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def make(folder: Path) -> None:
    """Write the pictures, and the list of those that were checked."""
    random = np.random.default_rng(0)
    checked = []
    for number in range(400):
        kind = KINDS[number % 3]
        place = KINDS[(number + random.integers(1, 3)) % 3] if random.random() < 0.25 else kind
        place = "_unlabeled" if random.random() < 0.05 else place
        file = folder / "pictures" / place / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        draw(kind, random).save(file)
        if number < 60:
            checked.append((f"{place}/{number}.png", kind))
    with (folder / "checked.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label"), *checked])
    (folder / "new").mkdir()
    for number in range(30):
        draw(KINDS[number % 3], random).save(folder / "new" / f"{KINDS[number % 3]} {number}.png")


def run(command: str) -> None:
    """Call the command line, as a shell would."""
    print(f"$ metalabelnet {command}", flush=True)
    if main(shlex.split(command)):
        sys.exit(1)


if __name__ == "__main__":
    here = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    make(here)
    run(f"train '{here}/pictures' --clean '{here}/checked.csv' --epochs 10 --warmup 4 --out '{here}/run'")
    with (here / "run" / "labels.csv").open(newline="") as file:
        labels = [row for row in csv.DictReader(file) if row["given"]]
    for column in ("given", "label"):  # what the folders said, and what the run makes of it
        right = sum(row[column] == KINDS[int(Path(row["id"]).stem) % 3] for row in labels)
        print(f"{column}: {right} of {len(labels)} right")
    run(f"predict '{here}/run' '{here}/new' -o '{here}/new.csv'")
    with (here / "new.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    right = sum(row["id"].startswith(row["label"]) for row in rows)
    print(f"{right} of {len(rows)} new pictures right")
