"""Which epochs should be allowed as the result of a method? Compared on training data alone: no test sample is read.

A fifth of the training rows takes the place of the test rows, as in `choose_recipe.py`. Each method is trained with
the recipe `modern`, once for each noise and seed. The epoch is then selected from its curves, by the held-out clean
samples, among all epochs that the method allows, the last half, the last fifth, and the last one. The table gives the
mean accuracy on the held-out training rows for the first of these, and the difference of the others.

    python benchmarks/selection_window.py digits --out results/recipe/window-digits.jsonl [--methods A,B] [--part 0/2]
    python benchmarks/selection_window.py --show results/recipe/window-digits.jsonl

A line of the output is one run. Runs that are in the file already are not repeated; several commands with different
parts may write to one file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

from choose_recipe import test_on_training_rows

from metalabelnet.data.read_cache import ReadCache
from metalabelnet.methods import METHODS
from metalabelnet.train import make_run, train
from metalabelnet.train.prepare import prepare
from metalabelnet.train.versions import commit, versions

NOISES = ("uniform:0.4", "uniform:0.8", "feature:0.4", "feature:0.8")
WINDOWS = {"all": 0.0, "last half": 0.5, "last fifth": 0.8, "last epoch": 1.0}
CURVES = ("test_accuracy", "clean_accuracy", "clean_loss")
CLEAN, LIMIT = {"digits": 100, "fashion-mnist": 200}, {"fashion-mnist": 10_000}  # as in `metalabelnet reproduce beyond`


def measure(args: argparse.Namespace, method: str, noise: str, seed: int, cache: ReadCache) -> dict[str, Any]:
    """Train one run and return its line."""
    own = METHODS[method]
    own.traits = dataclasses.replace(own.traits, select_from=0.0)  # the windows are applied to the curves
    fields = {"epochs": args.epochs, "limit": LIMIT.get(args.data), "data_dir": args.data_dir}
    run = make_run(
        args.data,
        method=method,
        noise=noise,
        clean=CLEAN[args.data],
        seed=1000 + seed,
        device=args.device,
        dtype=args.dtype,
        snapshots=0,
        **{name: value for name, value in fields.items() if value is not None},
    )
    history = train(run, problem=test_on_training_rows(prepare(run, read_cache=cache), run.seed)).history
    return {
        "data": args.data,
        "method": method,
        "noise": noise,
        "seed": seed,
        "epochs": run.epochs,
        "first": next(row["epoch"] for row in history if row["candidate"]),
        "curves": {name: [float(f"{row[name]:.4g}") for row in history] for name in CURVES},
        "commit": args.commit or commit(),
        "versions": versions(),
    }


def select(line: dict[str, Any], window: float) -> float:
    """The accuracy on the held-out training rows at the epoch that is selected from a window."""
    curves, stop = line["curves"], len(line["curves"]["test_accuracy"])
    start = max(line["first"], stop - line["epochs"] + int(window * line["epochs"]))
    epochs = range(min(start, stop - 1), stop)
    best = max(epochs, key=lambda epoch: (curves["clean_accuracy"][epoch], -curves["clean_loss"][epoch]))
    return float(curves["test_accuracy"][best])


def print_table(lines: list[dict[str, Any]]) -> None:
    """Print the mean over noises and seeds of each method as a Markdown table."""
    print(f"| method | runs | {' | '.join(WINDOWS)} |\n| --- | --- |{' --- |' * len(WINDOWS)}")
    for method in METHODS:
        own = [line for line in lines if line["method"] == method]
        if own:
            means = [sum(select(line, window) for line in own) / len(own) for window in WINDOWS.values()]
            cells = [f"{means[0]:.2f}", *(f"{mean - means[0]:+.2f}" for mean in means[1:])]
            print(f"| {method} | {len(own)} | {' | '.join(cells)} |")


def main() -> None:
    """Train the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", choices=tuple(CLEAN))
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the table of a file and train nothing")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--methods", default=",".join(name for name in METHODS if not name.startswith("logistic")))
    parser.add_argument("--noises", default=",".join(NOISES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--part", default="0/1", metavar="K/N", help="every Nth run, from the Kth on")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--commit", metavar="ID", help="the commit to store if this is not a git checkout")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after this time")
    args = parser.parse_args()
    if args.show is not None:
        print_table([json.loads(text) for text in args.show.read_text().splitlines()])
        return
    if args.data is None or args.out is None:
        parser.error("give a data set and --out, or --show")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(text) for text in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {(line["data"], line["method"], line["noise"], line["seed"]) for line in lines}
    part, parts = map(int, args.part.split("/"))
    runs = list(product(range(args.seeds), args.noises.split(","), args.methods.split(",")))[part::parts]
    cache, start = ReadCache(), time.monotonic()
    for seed, noise, method in runs:
        if (args.data, method, noise, seed) in done or time.monotonic() - start > args.seconds:
            continue
        lines.append(measure(args, method, noise, seed, cache))
        with args.out.open("a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
        print(method, noise, seed, f"{time.monotonic() - start:.0f} s", flush=True)
    print_table(lines)


if __name__ == "__main__":
    main()
