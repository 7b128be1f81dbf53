"""A table with numbers, categories and gaps, and a column that says which labels were checked.

    python examples/table.py [FOLDER]

It makes 900 customers who stay or leave, with a third of the labels wrong, and calls the command line.
"""

import csv
import shlex
import sys
import tempfile
from pathlib import Path

import numpy as np

from metalabelnet.cli import main


def rows(count: int, random: np.random.Generator) -> list[list[object]]:
    """customer, age, visits, plan, outcome, and whether the outcome was checked."""
    made: list[list[object]] = []
    for number in range(count):
        stays = bool(random.random() < 0.5)
        age = round(random.normal(48 if stays else 36, 7))
        visits = "" if random.random() < 0.1 else round(random.normal(9 if stays else 5, 2), 1)
        plan = random.choice(["year", "month", "trial"], p=[0.6, 0.3, 0.1] if stays else [0.1, 0.5, 0.4])
        checked = number % 9 == 0
        said = stays if checked or random.random() > 0.33 else not stays
        made.append([f"c{number}", age, visits, plan, "stays" if said else "leaves", "yes" if checked else ""])
    return made


def make(folder: Path) -> None:
    """Write the table."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    with (folder / "customers.csv").open("w", newline="") as file:
        header = ["customer", "age", "visits", "plan", "outcome", "checked"]
        csv.writer(file).writerows([header, *rows(900, random)])
    with (folder / "test.csv").open("w", newline="") as file:  # here every label is right
        right = [row[:5] for row in rows(1800, random)[::9]]
        csv.writer(file).writerows([header[:5], *right])


def run(command: str) -> None:
    """Call the command line, as a shell would."""
    print(f"$ metalabelnet {command}", flush=True)
    if main(shlex.split(command)):
        sys.exit(1)


if __name__ == "__main__":
    here = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    make(here)
    run(
        f"train '{here}/customers.csv' --label outcome --id customer --clean-column checked --test '{here}/test.csv' "
        f"--epochs 12 --warmup 5 --out '{here}/run'"
    )
    run(f"predict '{here}/run' '{here}/test.csv' --id customer -o '{here}/predictions.csv'")
