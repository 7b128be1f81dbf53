"""A table with numbers, categories and missing values, and a column that marks the clean rows.

    python examples/table.py [FOLDER]

The script writes a table of 900 customers who stay or leave, with a third of the labels wrong. Then it runs the
command line.
"""

import csv
import shlex
import sys
import tempfile
from pathlib import Path

import numpy as np

from metalabelnet.cli import main


def make_rows(count: int, random: np.random.Generator) -> list[list[object]]:
    """Return rows of customer, age, visits, plan, outcome, and whether the outcome was checked."""
    rows: list[list[object]] = []
    for number in range(count):
        stays = bool(random.random() < 0.5)
        age = round(random.normal(48 if stays else 36, 7))
        visits = "" if random.random() < 0.1 else round(random.normal(9 if stays else 5, 2), 1)
        plan = random.choice(["year", "month", "trial"], p=[0.6, 0.3, 0.1] if stays else [0.1, 0.5, 0.4])
        checked = number % 9 == 0
        given = stays if checked or random.random() > 0.33 else not stays
        rows.append([f"c{number}", age, visits, plan, "stays" if given else "leaves", "yes" if checked else ""])
    return rows


def make(folder: Path) -> None:
    """Write the training table and the test table."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    with (folder / "customers.csv").open("w", newline="") as file:
        header = ["customer", "age", "visits", "plan", "outcome", "checked"]
        csv.writer(file).writerows([header, *make_rows(900, random)])
    with (folder / "test.csv").open("w", newline="") as file:  # all labels are correct
        test_rows = [row[:5] for row in make_rows(1800, random)[::9]]
        csv.writer(file).writerows([header[:5], *test_rows])


def run(command: str) -> None:
    """Run a command of the command line."""
    print(f"$ metalabelnet {command}", flush=True)
    if main(shlex.split(command)):
        sys.exit(1)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    make(folder)
    run(
        f"train '{folder}/customers.csv' --label outcome --id customer --clean-column checked "
        f"--test '{folder}/test.csv' --out '{folder}/run'"
    )
    run(f"predict '{folder}/run' '{folder}/test.csv' --id customer -o '{folder}/predictions.csv'")
