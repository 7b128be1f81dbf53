"""Images in one folder per class, some in the wrong folder: train, correct the labels, predict new images.

    python examples/images.py [FOLDER]

The script draws 400 small images of bars, crosses and rings. A quarter of them go to the wrong folder, and a few to the
folder of unlabeled images. The correct labels of 60 images are the clean set. Then it runs the command line.
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


def draw(shape: str, random: np.random.Generator) -> Image.Image:
    """Return an image of a bright shape at a random position on a noisy background."""
    pixels = random.normal(90, 35, (24, 24, 3))
    y, x = np.mgrid[:24, :24] - random.integers(9, 15, 2)[:, None, None]
    distance = np.hypot(x, y)
    inside = {"bar": abs(x) < 2, "cross": (abs(x) < 2) | (abs(y) < 2), "ring": abs(distance - 6) < 1.5}[shape]
    pixels[inside & (distance < 9)] += random.uniform(70, 120)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def make(folder: Path) -> None:
    """Write the images, and a table with the labels of the clean set."""
    random = np.random.default_rng(0)
    clean = []
    for number in range(400):
        shape = KINDS[number % 3]
        folder_name = KINDS[(number + random.integers(1, 3)) % 3] if random.random() < 0.25 else shape
        folder_name = "_unlabeled" if random.random() < 0.05 else folder_name
        file = folder / "pictures" / folder_name / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        draw(shape, random).save(file)
        if number < 60:
            clean.append((f"{folder_name}/{number}.png", shape))
    with (folder / "clean.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label"), *clean])
    (folder / "new").mkdir()
    for number in range(30):
        draw(KINDS[number % 3], random).save(folder / "new" / f"{KINDS[number % 3]} {number}.png")


def run(command: str) -> None:
    """Run a command of the command line."""
    print(f"$ metalabelnet {command}", flush=True)
    if main(shlex.split(command)):
        sys.exit(1)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    make(folder)
    run(f"train '{folder}/pictures' --clean '{folder}/clean.csv' --epochs 10 --warmup 4 --out '{folder}/run'")
    with (folder / "run" / "labels.csv").open(newline="") as file:
        labels = [row for row in csv.DictReader(file) if row["given"]]
    for column in ("given", "label"):  # the folder of the image, and the corrected label
        correct = sum(row[column] == KINDS[int(Path(row["id"]).stem) % 3] for row in labels)
        print(f"{column}: {correct} of {len(labels)} correct")
    run(f"predict '{folder}/run' '{folder}/new' -o '{folder}/new.csv'")
    with (folder / "new.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    correct = sum(row["id"].startswith(row["label"]) for row in rows)
    print(f"{correct} of {len(rows)} new images correct")
