"""Embeddings and tables with noisy labels: `metalabelnet-plus` against logistic regression and cleanlab, paired.

    python benchmarks/linear.py cifar10n --features FEATURES.npz --labels CIFAR-10_human.pt [--draws 5]
    python benchmarks/linear.py digits [--draws 5]
    python benchmarks/linear.py fashion-mnist --data-dir DIR [--draws 5]
    python benchmarks/linear.py --show results/linear/runs.jsonl

cifar10n       CIFAR-10 as embeddings, with the labels `worse_label` of CIFAR-10N; 1,000 of the training rows are clean
               and keep their given label. FEATURES.npz is made by `benchmarks/embed_cifar10.py`, or by
               `metalabelnet embed cifar10 --encoder WEIGHTS`
digits         scikit-learn's data set as a table of 64 columns, a third of it for testing; 100 clean rows
fashion-mnist  pixels as a table of 784 columns: 10,000 training rows, all test rows; 1,000 clean rows

digits and fashion-mnist have eight noises: uniform and feature-dependent, 20 to 80 %.

`cleanlab + refit` is logistic regression on given and clean labels without the rows that cleanlab removes
(`find_label_issues` with its defaults, on out-of-fold probabilities of logistic-both). It has the λ of logistic-both,
and no clean row is removed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from paired_rows import show

from metalabelnet.core.intervals import paired_difference
from metalabelnet.core.logistic import fit_logistic, log_softmax
from metalabelnet.data.read_cache import ReadCache
from metalabelnet.methods.fixed_features import make_features
from metalabelnet.methods.logistic import CLEAN_WEIGHT, cross_fit, given_labels, select_decay
from metalabelnet.train import make_run, train
from metalabelnet.train.logistic_run import with_all_clean_rows
from metalabelnet.train.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from metalabelnet.data.problem import Problem

METHODS = ("metalabelnet-plus", "logistic-given", "logistic-clean", "logistic-both")
CLEANLAB = "cleanlab + refit"
NOISES = tuple(f"{kind}:{rate}" for kind in ("uniform", "feature") for rate in (0.2, 0.4, 0.6, 0.8))
METRICS = ("test_accuracy", "right_before", "right_after", "suspicion_ap", "clean_accuracy")
CLEAN = {"cifar10n": 1000, "digits": 100, "fashion-mnist": 1000}
FASHION_ROWS = 11_000  # with the clean rows


def cifar10n_run(features: Path, labels: Path, draw: int, folder: Path) -> dict[str, Any]:
    """Write the features with the given labels, and the clean set of a draw; return the options of its runs."""
    target = folder / "cifar10n.npz"
    with np.load(features) as file:
        true = file["y_train"].astype(np.int64)
        if not target.exists():
            human = torch.load(labels, weights_only=False)  # the file of the authors has NumPy arrays
            if not np.array_equal(human["clean_label"], true):
                raise SystemExit(f"{labels}: the order of the images differs from {features}")
            arrays = {"x_train": file["x_train"], "y_train": human["worse_label"], "true_train": true}
            np.savez(target, **arrays, x_test=file["x_test"], y_test=file["y_test"])
    chosen = np.random.default_rng(draw).permutation(len(true))[: CLEAN["cifar10n"]]
    clean = folder / f"clean{draw}.csv"
    clean.write_text("id,label\n" + "".join(f"{k},{true[k]}\n" for k in sorted(chosen)))
    return {"data": str(target), "clean_file": str(clean)}


def table_run(name: str, data_dir: Path | None, draw: int, folder: Path) -> dict[str, Any]:
    """Write pixels as a table in an .npz file; return the options of its runs."""
    from metalabelnet.data import load

    target, rng = folder / f"{name}{draw}.npz", np.random.default_rng(draw)
    if name == "digits":
        data = load("digits").train
        x, y = data.x.flatten(1).float().numpy(), data.given.numpy()
        order = rng.permutation(len(y))
        parts = order[600:], order[:600]
        arrays = {
            f"{key}_{part}": a[p]
            for part, p in zip(("train", "test"), parts, strict=True)
            for key, a in (("x", x), ("y", y))
        }
    else:
        data_set = load(name, data_dir)
        chosen = torch.from_numpy(rng.permutation(len(data_set.train))[:FASHION_ROWS])
        arrays = {}
        for part, rows in (("train", data_set.train.take(chosen)), ("test", data_set.test)):
            arrays |= {f"x_{part}": rows.x.flatten(1).float().numpy(), f"y_{part}": rows.true.numpy()}
    np.savez(target, **arrays)
    return {"data": str(target), "clean": CLEAN[name], "seed": draw}


def cleanlab_refit(problem: Problem) -> dict[str, Any]:
    """Return the test accuracy of logistic regression without the label issues that cleanlab finds."""
    from cleanlab.filter import find_label_issues

    problem = with_all_clean_rows(problem)
    f = make_features(problem.train, problem.clean)
    q, w = given_labels(f)
    q[f.n :], w[f.n :] = np.eye(f.classes)[f.true], CLEAN_WEIGHT
    decay = exhaust(select_decay(f, q, w))
    out_of_fold, W = exhaust(cross_fit(f, q, w, decay))
    labeled = np.flatnonzero(w > 0)
    issues = find_label_issues(q[labeled].argmax(1), np.exp(log_softmax(out_of_fold))[labeled])
    removed = labeled[issues]
    w[removed[removed < f.n]] = 0
    W = fit_logistic(f.X, q, w, decay, start=W)
    weight, bias = f.linear_layer(W)
    x = problem.test.x[torch.arange(len(problem.test))].double()
    accuracy = ((x @ weight.T + bias).argmax(1) == problem.test.true).double().mean()
    return dict.fromkeys(METRICS) | {
        "test_accuracy": round(100 * float(accuracy), 4),
        "removed": int((removed < f.n).sum()),
    }


def exhaust(generator: Any) -> Any:
    while True:
        try:
            next(generator)
        except StopIteration as stop:
            return stop.value


def measure(
    name: str,
    options: dict[str, Any],
    draw: int,
    out: Path,
    methods: list[str],
    change: Callable[[Problem], Problem] = lambda problem: problem,
) -> None:
    """Train every method on one draw, with the changed problem, and append a line for each."""
    cache, data = ReadCache(), dict(options)
    path = data.pop("data")
    for method in methods:
        run = make_run(path, method="logistic-both" if method == CLEANLAB else method, device="cpu", **data)
        problem = change(prepare(run, read_cache=cache))
        start = time.process_time()
        summary = cleanlab_refit(problem) if method == CLEANLAB else train(run, problem=problem).summary
        line = {"set": name, "method": method, "draw": draw, **{key: summary[key] for key in METRICS}}
        line["cpu_seconds"] = round(time.process_time() - start, 1)
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(*line.values(), flush=True)


def markdown(out: Path) -> list[str]:
    """Return the rows of a table: test accuracy of every method, and the lead over the best other row, by its mean."""
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    rows = []
    for name in dict.fromkeys(line["set"] for line in lines):
        accuracy: dict[str, dict[int, float]] = {}
        for line in lines:
            if line["set"] == name:
                accuracy.setdefault(line["method"], {})[line["draw"]] = line["test_accuracy"]
        own = accuracy[METHODS[0]]
        best = max((m for m in accuracy if m != METHODS[0]), key=lambda m: statistics.mean(accuracy[m].values()))
        difference = paired_difference([own[draw] - accuracy[best][draw] for draw in sorted(own)])
        cells = []
        for values in (list(accuracy[m].values()) for m in (*METHODS, CLEANLAB)):
            deviation = f" ± {statistics.pstdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{deviation}")
        interval = difference.interval()
        between = "" if interval is None else f" ({interval[0]:+.2f} to {interval[1]:+.2f})"
        lead = f"{difference.mean:+.2f}{between}".replace("-", "−")
        rows.append(f"| {name} | {' | '.join(cells)} | {lead} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", nargs="?", choices=CLEAN)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--noises", nargs="+", default=NOISES)
    parser.add_argument("--methods", nargs="+", default=[*METHODS, CLEANLAB])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--out", type=Path, default=Path("results/linear/runs.jsonl"))
    parser.add_argument("--show", type=Path)
    args = parser.parse_args()
    if args.show:
        show(args.show, METHODS[0], (*METRICS, "cpu_seconds"))
        print("\n".join(markdown(args.show)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for draw in range(args.first, args.first + args.draws):
            if args.set == "cifar10n":
                options = cifar10n_run(args.features, args.labels, draw, folder)
                measure("cifar10n worst", options, draw, args.out, args.methods)
                continue
            options = table_run(args.set, args.data_dir, draw, folder)
            for noise in args.noises:
                measure(f"{args.set} {noise}", options | {"noise": noise}, draw, args.out, args.methods)


if __name__ == "__main__":
    main()
