"""Corrected labels where a network soon has all of them by heart: a few hundred drawings, the default 30 epochs.

    python benchmarks/few_samples.py --json results/labels/few-samples.json

The drawings are those of examples/images.py, 60 of them checked; a share of the others is in a wrong folder. `before`
and `after` are right labels in per cent, `average precision` that of the suspicion, `by heart` the share of given
labels the selected network agrees with; `without` is the same run whose rule has the means of epochs alone.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from images import KINDS, draw

from metalabelnet.labels.metrics import predict_logits
from metalabelnet.labels.metrics import average_precision
from metalabelnet.train import recipe, train
from metalabelnet.train.prepare import prepare
from metalabelnet.train.run_folder import commit, versions

refitted = importlib.import_module("metalabelnet.labels.loo_refit")


def make(folder: Path, count: int, rate: float, seed: int) -> None:
    """The drawings, and the list of those that were checked."""
    random = np.random.default_rng(seed)
    checked = []
    for number in range(count):
        kind = KINDS[number % 3]
        place = KINDS[(number + random.integers(1, 3)) % 3] if random.random() < rate else kind
        file = folder / "pictures" / place / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        draw(kind, random).save(file)
        if number < 60:
            checked.append((f"{place}/{number}.png", kind))
    with (folder / "checked.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label"), *checked])


def measured(folder: Path, seed: int, *, fit: bool) -> dict[str, float]:
    """One run, and what its label table is worth."""
    refitted.WIDEST = 4096 if fit else 0
    run = recipe(str(folder / "pictures"), clean_file=str(folder / "checked.csv"), seed=seed, device="cpu")
    problem = prepare(run)
    result = train(run, problem=problem)
    rows, verdict = result.labels.rows, result.labels.decisions()
    true = torch.tensor([int(Path(name).stem) % 3 for name in (rows.ids[k] for k in range(len(rows)))])
    heart = predict_logits(result.method, rows.x).argmax(1) == rows.given
    shares = {"before": rows.given == true, "after": verdict.label == true, "by heart": heart}
    found = {name: 100 * float(right.double().mean()) for name, right in shares.items()}
    return found | {"average precision": average_precision(verdict.suspicion, rows.given != true)}


def main() -> None:
    """Print a line for each run, and means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", nargs="*", type=int, default=[400])
    parser.add_argument("--lr", nargs="*", type=float, default=[0.15, 0.33])
    parser.add_argument("--seed", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines: list[dict[str, Any]] = []
    print("| drawings | wrong | before | by heart | after, without | after | average precision, without | … with |")
    print("|---|---|---|---|---|---|---|---|")
    for count in args.count:
        for rate in args.rate:
            group = []
            for seed in args.seed:
                with tempfile.TemporaryDirectory() as folder:
                    make(Path(folder), count, rate, seed)
                    both = [measured(Path(folder), seed, fit=fit) for fit in (False, True)]
                group.append(both)
                lines.append({"count": count, "rate": rate, "seed": seed, "without": both[0], "with": both[1]})
            means = [{name: float(np.mean([b[k][name] for b in group])) for name in group[0][k]} for k in (0, 1)]
            cells = [f"{means[0][name]:.1f}" for name in ("before", "by heart", "after")] + [f"{means[1]['after']:.1f}"]
            cells += [f"{mean['average precision']:.4f}" for mean in means]
            print(f"| {count} | {100 * rate:.0f} % | {' | '.join(cells)} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"versions": versions(), "commit": commit(), "runs": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
