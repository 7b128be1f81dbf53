"""Tables and texts with real label noise: `metalabelnet-plus` against logistic regression, paired over draws.

    python benchmarks/real.py FOLDER [--sets sentiment tubespam digits] [--draws 10] [--out results/real/runs.jsonl]
    python benchmarks/real.py --show results/real/runs.jsonl

FOLDER/NAME/ has train.csv (id, text, given, true), test.csv (id, text, label): texts whose given labels are wrong by
nature. 100 clean rows are drawn at random from the training rows and keep their given labels. `digits` is
scikit-learn's data set as a table of 64 columns, with added noise. Every method sees the same rows, and the choices
of every method are made on clean and training rows.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from metalabelnet.core.intervals import paired_difference
from metalabelnet.data.read_cache import ReadCache
from metalabelnet.train import make_run, train

METHODS = ("metalabelnet-plus", "logistic-given", "logistic-clean", "logistic-both")
CLEAN = 100
DIGITS_NOISES = ("uniform:0.4", "uniform:0.8", "feature:0.4")
METRICS = ("test_accuracy", "right_before", "right_after", "suspicion_ap", "clean_accuracy", "seconds")


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_csv(path: Path, columns: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def text_runs(source: Path, draw: int, folder: Path) -> dict[str, Any]:
    """Write the files of a draw; return the options of its runs."""
    rows = read_csv(source / "train.csv")
    chosen = np.random.default_rng(draw).permutation(len(rows))[:CLEAN]
    write_csv(folder / "train.csv", ["id", "text", "given", "true"], [list(row.values()) for row in rows])
    write_csv(folder / "clean.csv", ["id", "label"], [[rows[k]["id"], rows[k]["true"]] for k in chosen])
    test = [[row["id"], row["text"], row["label"]] for row in read_csv(source / "test.csv")]
    write_csv(folder / "test.csv", ["id", "text", "given"], test)
    return {
        "data": str(folder / "train.csv"),
        "text": "text",
        "label": "given",
        "true_label": "true",
        "id": "id",
        "clean_file": str(folder / "clean.csv"),
        "test": str(folder / "test.csv"),
    }


def digits_runs(draw: int, folder: Path, noise: str) -> dict[str, Any]:
    """Write digits as a table, a third of them for testing; return the options of its runs."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(draw).permutation(len(y))
    columns = [f"pixel{k}" for k in range(64)]
    for name, part in (("train", order[600:]), ("test", order[:600])):
        write_csv(folder / f"{name}.csv", [*columns, "digit"], [[*X[k].tolist(), f"d{y[k]}"] for k in part])
    return {
        "data": str(folder / "train.csv"),
        "label": "digit",
        "true_label": "digit",
        "test": str(folder / "test.csv"),
        "clean": CLEAN,
        "noise": noise,
        "seed": draw,
    }


def measure(name: str, options: dict[str, Any], draw: int, out: Path) -> None:
    """Train every method on one draw and append a line for each."""
    cache = ReadCache()
    for method in METHODS:
        start = time.process_time()
        data = dict(options)
        run = make_run(data.pop("data"), method=method, device="cpu", **data)
        summary = train(run, read_cache=cache).summary
        line = {"set": name, "method": method, "draw": draw, **{key: summary[key] for key in METRICS}}
        line["cpu_seconds"] = round(time.process_time() - start, 2)
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(name, draw, method, *(f"{key} {line[key]}" for key in METRICS[:4]), line["cpu_seconds"], flush=True)


def show(out: Path) -> None:
    """Print mean and standard deviation of each method, and the paired difference to the best logistic row."""
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for name in dict.fromkeys(line["set"] for line in lines):
        by_method: dict[str, dict[int, dict[str, Any]]] = {}
        for line in lines:
            if line["set"] == name:
                by_method.setdefault(line["method"], {})[line["draw"]] = line
        print(f"\n{name}, {len(by_method[METHODS[0]])} draws")
        means = {}
        for method, draws in by_method.items():
            values = {key: [line[key] for line in draws.values() if line[key] is not None] for key in METRICS}
            means[method] = statistics.mean(values["test_accuracy"])
            cells = [f"{key} {statistics.mean(v):.2f} ± {statistics.pstdev(v):.2f}" for key, v in values.items() if v]
            print(f"  {method:18s} " + ", ".join(cells))
        best = max((method for method in means if method != METHODS[0]), key=means.__getitem__)
        both = by_method[METHODS[0]].keys() & by_method[best].keys()
        gains = [by_method[METHODS[0]][d]["test_accuracy"] - by_method[best][d]["test_accuracy"] for d in sorted(both)]
        difference = paired_difference(gains)
        low, high = difference.interval() or (math.nan, math.nan)
        print(f"  {METHODS[0]} − {best}: {difference.mean:+.2f} (95 % CI {low:+.2f} to {high:+.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--sets", nargs="+", default=["sentiment", "tubespam", "digits"])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--out", type=Path, default=Path("results/real/runs.jsonl"))
    parser.add_argument("--show", type=Path)
    args = parser.parse_args()
    if args.show:
        show(args.show)
        return
    for draw in range(args.first, args.first + args.draws):
        for name in args.sets:
            noises = DIGITS_NOISES if name == "digits" else ("",)
            if name != "digits" and not (args.folder and (args.folder / name).is_dir()):
                print(f"{name}: skipped, {args.folder}/{name} does not exist", file=sys.stderr)
                continue
            for noise in noises:
                with tempfile.TemporaryDirectory() as folder:
                    if name == "digits":
                        options, label = digits_runs(draw, Path(folder), noise), f"digits {noise}"
                    else:
                        options, label = text_runs(args.folder / name, draw, Path(folder)), name
                    measure(label, options, draw, args.out)


if __name__ == "__main__":
    main()
