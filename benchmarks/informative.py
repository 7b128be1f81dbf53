"""Compare clean sets of the most informative samples with random ones of the same size.

    python benchmarks/informative.py digits --json results/review/informative.jsonl
    python benchmarks/informative.py fashion-mnist --rows 1500 --epochs 6 --methods fine-tune --json …
    python benchmarks/informative.py --table results/review/informative.jsonl

A run starts with two clean samples per class. Then `--judged` further samples are drawn as on the review page, class by
class: at random, or by a measure of `review/informativeness.py`, and get their true labels. They move from the training
rows to the clean set, and each method is trained with it from scratch with the same seed. Reported is the test accuracy
at the selected epoch. Differences from random are paired: same data, noise, seed and method.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from metalabelnet.core.intervals import paired_difference
from metalabelnet.data import DATASETS, DataSet, ReadOptions, Rows, load
from metalabelnet.data.splits import hold_out
from metalabelnet.reproduction.comparisons import difference_texts
from metalabelnet.review import run_label_table
from metalabelnet.review import source as sources
from metalabelnet.review.clean_set_sampling import draw_sample, progress
from metalabelnet.review.informativeness import MEASURES
from metalabelnet.review.store import ReviewStore
from metalabelnet.review.verdicts import Verdict, add_verdict
from metalabelnet.seeds import generator
from metalabelnet.train import Run, make_run, train
from metalabelnet.train.prepare import prepare

if TYPE_CHECKING:
    from metalabelnet.data.problem import Problem

METHODS = ("fine-tune", "metalabelnet")
CLEAN_PER_CLASS = 2
NOISES = ("uniform:0.4", "feature:0.4")


def first_rows(name: str, rows: int) -> DataSet:
    """The first rows of a data set, with 2,000 test rows."""
    full = load(name)
    first = torch.arange(rows)
    test = full.test.take(torch.arange(2000)) if full.test is not None else None
    return dataclasses.replace(full, train=full.train.take(first), test=test)


def sampled_positions(folder: Path, true_label: dict[int, int], sampling: str, judged: int) -> list[int]:
    """The positions of the sampled rows."""
    # The measure is part of the fingerprint of the source and of the scores in its label table.
    sources.DEFAULT_MEASURE = run_label_table.DEFAULT_MEASURE = sampling if sampling in MEASURES else "entropy"
    source = sources.open_source(str(folder), ReadOptions())
    with tempfile.TemporaryDirectory() as workdir:
        store = ReviewStore(Path(workdir) / "review.sqlite")
        store.import_samples(source)
        positions = []
        for _ in range(judged):
            so_far = progress(
                store, len(source.classes), judged
            )  # a target that is never reached keeps the classes balanced
            n = draw_sample(store, so_far, "random" if sampling == "random" else "informative")
            assert n is not None
            position = store.connection().execute("SELECT position FROM samples WHERE n = ?", (n,)).fetchone()[0]
            add_verdict(store, Verdict(n=n, kind="label", label=true_label[position], page="clean", blind=True), seen=0)
            positions.append(position)
        store.close()
    return positions


def concatenate(a: Rows, b: Rows) -> Rows:
    tensors = {name: torch.cat([getattr(a, name), getattr(b, name)]) for name in ("x", "given", "true", "index")}
    return dataclasses.replace(a, **tensors, ids=(*a.ids, *b.ids))


def move_to_clean_set(run: Run, problem: Problem, positions: list[int]) -> Problem:
    """The problem with these rows moved from the training set to the clean set."""
    moved = torch.isin(problem.train.index, torch.tensor(positions))
    clean_set = concatenate(concatenate(problem.clean, problem.validation), problem.train.take(moved.nonzero()[:, 0]))
    clean, validation = hold_out(clean_set, generator(run.seed, "hold out"))
    train_rows = problem.train.take((~moved).nonzero()[:, 0])
    return dataclasses.replace(problem, train=train_rows, clean=clean, validation=validation)


def run_experiment(args: argparse.Namespace, noise: str, seed: int, folder: Path) -> list[dict[str, object]]:
    milestones = (args.epochs * 2 // 5, args.epochs * 3 // 4)
    run = make_run(
        args.data,
        recipe="paper",
        method="metalabelnet",
        noise=noise,
        clean=10 * CLEAN_PER_CLASS,
        seed=seed,
        epochs=args.epochs,
        warmup=args.epochs * 2 // 5,
        lr=0.02,
        lr_milestones=milestones,
        batch_size=64,
        device="cpu",
    )
    problem = prepare(run)
    train(run, folder=folder, problem=problem)
    true_label = dict(zip(problem.train.index.tolist(), problem.train.true.tolist(), strict=True))
    lines = []
    for sampling in ("nothing", "random", *args.measures):
        positions = [] if sampling == "nothing" else sampled_positions(folder, true_label, sampling, args.judged)
        wrong = problem.train.given != problem.train.true
        hit = wrong[torch.isin(problem.train.index, torch.tensor(positions, dtype=torch.long))]
        for method in args.methods:
            again = dataclasses.replace(run, method=method)
            result = train(again, problem=move_to_clean_set(again, problem, positions))
            line = {
                "data": args.data,
                "rows": len(problem.train),
                "noise": noise,
                "seed": seed,
                "sampling": sampling,
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
    """Means over seeds, and the paired difference from random with its interval, corrected for all comparisons."""
    cells: dict[tuple, dict[int, float]] = defaultdict(dict)
    for line in lines:
        cells[line["data"], line["noise"], line["method"], line["sampling"]][line["seed"]] = line["test_accuracy"]
    rows, comparisons = [], []
    by_seed: dict[tuple, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (data, noise, method, sampling), values in cells.items():
        random = cells[data, noise, method, "random"]
        differences = {seed: values[seed] - random[seed] for seed in values if seed in random}
        if sampling not in ("random", "nothing"):
            for seed, difference in differences.items():
                by_seed[data, sampling][seed].append(difference)
        mean = f"{statistics.mean(values.values()):.2f}"
        rows.append([f"{data}, {noise}, {method}", sampling, str(len(values)), mean])
        comparisons.append(None if sampling == "random" else paired_difference(list(differences.values())))
    for (data, sampling), seeds in by_seed.items():  # the runs of a seed share their data: they count once
        rows.append([f"{data}, all", sampling, str(len(seeds)), ""])
        comparisons.append(paired_difference([statistics.mean(differences) for differences in seeds.values()]))
    head = ["data, noise, method", "sampling", "seeds", "test accuracy", "difference from random"]
    texts = difference_texts(comparisons)
    lines_of_table = [head, ["---"] * len(head), *([*row, text] for row, text in zip(rows, texts, strict=True))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines_of_table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", default="digits")
    parser.add_argument("--noise", nargs="+", default=list(NOISES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--measures", nargs="+", default=list(MEASURES))
    parser.add_argument("--judged", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--rows", type=int, help="number of training rows")
    parser.add_argument("--json", type=Path, help="file to append a line per run to")
    parser.add_argument("--table", type=Path, help="print the table of this file and exit")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.table:
        print(table([json.loads(line) for line in arguments.table.read_text().splitlines()]))
        raise SystemExit
    if arguments.rows:
        part = first_rows(arguments.data, arguments.rows)
        DATASETS[arguments.data] = dataclasses.replace(DATASETS[arguments.data], read=lambda *_: part)
    all_lines = []
    for one_noise in arguments.noise:
        for one_seed in arguments.seeds:
            with tempfile.TemporaryDirectory() as home:
                new = run_experiment(arguments, one_noise, one_seed, Path(home) / "run")
            all_lines += new
            if arguments.json:
                arguments.json.parent.mkdir(parents=True, exist_ok=True)
                with arguments.json.open("a") as file:
                    file.writelines(json.dumps(line) + "\n" for line in new)
    print(table(all_lines))
