"""Is a clean set of the most informative samples worth more than one drawn at random, at equal effort?

    python benchmarks/informative.py digits --json results/review/informative.jsonl
    python benchmarks/informative.py fashion-mnist --rows 1500 --epochs 6 --methods fine-tune --json …
    python benchmarks/informative.py --table results/review/informative.jsonl

A run starts with two clean samples a class. Then a person who is always right looks at `--judged` more samples on the
review page (its own code draws them, class by class, blind): at random, or by a measure of `review/informative.py`. The
clean set is then what the run had and what the person said, and each method is trained anew with it, with the same
seed; the samples that were looked at leave the training rows. Test accuracy at the selected epoch. Differences to
random are paired: same data, noise, seed and method.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from metalabelnet.data import DATASETS, DataSet, ReadOptions, Rows, load
from metalabelnet.data.splits import hold_out
from metalabelnet.review import source as sources
from metalabelnet.review.informativeness import MEASURES
from metalabelnet.review.clean_set_sampling import draw, progress
from metalabelnet.review.store import ReviewStore
from metalabelnet.review.verdicts import Verdict, decide
from metalabelnet.seeds import generator
from metalabelnet.train import Run, recipe, train
from metalabelnet.train.prepare import prepare

if TYPE_CHECKING:
    from metalabelnet.data.problem import Problem

METHODS = ("fine-tune", "metalabelnet")
PER_CLASS = 2
NOISES = ("uniform:0.4", "feature:0.4")


def smaller(name: str, rows: int) -> DataSet:
    """The first rows of a large data set, and a test part of 2,000."""
    whole = load(name)
    first = torch.arange(rows)
    test = whole.test.take(torch.arange(2000)) if whole.test is not None else None
    return dataclasses.replace(whole, train=whole.train.take(first), test=test)


def looked_at(folder: Path, true_label: dict[int, int], way: str, judged: int) -> list[int]:
    """The positions in the data that a person looks at."""
    sources.DEFAULT_MEASURE = way if way in MEASURES else "entropy"
    source = sources.of(str(folder), ReadOptions())
    with tempfile.TemporaryDirectory() as place:
        store = ReviewStore(Path(place) / "review.sqlite")
        store.fill(source)
        positions = []
        for _ in range(judged):
            so_far = progress(store, len(source.classes), judged)  # more than can be had: classes stay balanced
            n = draw(store, so_far, "random" if way == "random" else "informative")
            assert n is not None
            position = store.connection().execute("SELECT position FROM samples WHERE n = ?", (n,)).fetchone()[0]
            decide(store, Verdict(n=n, kind="label", label=true_label[position], page="clean", blind=True), seen=0)
            positions.append(position)
        store.close()
    return positions


def both(a: Rows, b: Rows) -> Rows:
    tensors = {name: torch.cat([getattr(a, name), getattr(b, name)]) for name in ("x", "given", "true", "index")}
    return dataclasses.replace(a, **tensors, ids=(*a.ids, *b.ids))


def with_looked_at(run: Run, problem: Problem, positions: list[int]) -> Problem:
    """The same problem, with these rows moved from training to the clean set."""
    moved = torch.isin(problem.train.index, torch.tensor(positions))
    clean_set = both(both(problem.clean, problem.validation), problem.train.take(moved.nonzero()[:, 0]))
    clean, select = hold_out(clean_set, generator(run.seed, "hold out"))
    train_rows = problem.train.take((~moved).nonzero()[:, 0])
    return dataclasses.replace(problem, train=train_rows, clean=clean, validation=select)


def measure(args: argparse.Namespace, noise: str, seed: int, folder: Path) -> list[dict[str, object]]:
    drops = (args.epochs * 2 // 5, args.epochs * 3 // 4)
    run = recipe(
        args.data,
        method="metalabelnet",
        noise=noise,
        clean=10 * PER_CLASS,
        seed=seed,
        epochs=args.epochs,
        warmup=args.epochs * 2 // 5,
        rate=0.02,
        lr_milestones=drops,
        batch_size=64,
        device="cpu",
    )
    problem = prepare(run)
    train(run, folder=folder, problem=problem)
    true_label = dict(zip(problem.train.index.tolist(), problem.train.true.tolist(), strict=True))
    lines = []
    for way in ("nothing", "random", *args.measures):
        positions = [] if way == "nothing" else looked_at(folder, true_label, way, args.judged)
        wrong = problem.train.given != problem.train.true
        hit = wrong[torch.isin(problem.train.index, torch.tensor(positions, dtype=torch.long))]
        for method in args.methods:
            again = dataclasses.replace(run, method=method)
            result = train(again, problem=with_looked_at(again, problem, positions))
            line = {
                "data": args.data,
                "rows": len(problem.train),
                "noise": noise,
                "seed": seed,
                "way": way,
                "judged": len(positions),
                "wrong": round(100 * hit.float().mean().item(), 1) if len(hit) else None,
                "method": method,
                "epochs": args.epochs,
                "test_accuracy": result.summary["test_accuracy"],
            }
            lines.append(line)
            print(json.dumps(line), flush=True)
    return lines


def table(lines: list[dict]) -> str:
    """Means over seeds, and the paired difference to random with its standard error."""
    cells: dict[tuple, dict[int, float]] = defaultdict(dict)
    for line in lines:
        cells[line["data"], line["noise"], line["method"], line["way"]][line["seed"]] = line["test_accuracy"]
    rows = ["| data, noise, method | way | seeds | test accuracy | difference to random |", "|---|---|---|---|---|"]
    pooled = defaultdict(list)
    for (data, noise, method, way), values in cells.items():
        random = cells[data, noise, method, "random"]
        differences = [values[seed] - random[seed] for seed in values if seed in random]
        if way not in ("random", "nothing"):
            pooled[data, way] += differences
        shown = "" if way == "random" else said(differences)
        mean = f"{statistics.mean(values.values()):.2f}"
        rows.append(f"| {data}, {noise}, {method} | {way} | {len(values)} | {mean} | {shown} |")
    rows += [f"| {data}, all | {way} | {len(d)} pairs | | {said(d)} |" for (data, way), d in pooled.items()]
    return "\n".join(rows)


def said(differences: list[float]) -> str:
    if len(differences) < 2:
        return f"{differences[0]:+.2f}" if differences else ""
    return f"{statistics.mean(differences):+.2f} ± {statistics.stdev(differences) / math.sqrt(len(differences)):.2f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", default="digits")
    parser.add_argument("--noise", nargs="+", default=list(NOISES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--measures", nargs="+", default=list(MEASURES))
    parser.add_argument("--judged", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--rows", type=int, help="only so many training rows")
    parser.add_argument("--json", type=Path, help="append a line for each training")
    parser.add_argument("--table", type=Path, help="train nothing; show the table of these lines")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.table:
        print(table([json.loads(line) for line in chosen.table.read_text().splitlines()]))
        raise SystemExit
    if chosen.rows:
        part = smaller(chosen.data, chosen.rows)
        DATASETS[chosen.data] = dataclasses.replace(DATASETS[chosen.data], read=lambda *_: part)
    found = []
    for one_noise in chosen.noise:
        for one_seed in chosen.seeds:
            with tempfile.TemporaryDirectory() as home:
                new = measure(chosen, one_noise, one_seed, Path(home) / "run")
            found += new
            if chosen.json:
                chosen.json.parent.mkdir(parents=True, exist_ok=True)
                with chosen.json.open("a") as opened:
                    opened.writelines(json.dumps(line) + "\n" for line in new)
    print(table(found))
