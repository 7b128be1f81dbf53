"""Corrected labels of a small data set that is memorized quickly: a few hundred drawings, the default 30 epochs.

    python benchmarks/few_samples.py --json results/labels/few-samples.json

The drawings are those of examples/images.py; 60 are the clean set and a share of the others is in a wrong folder.
`before` and `after` are percentages of correct labels, `average precision` is that of the suspicion, and `memorized` is
the percentage of given labels that the selected network predicts. `without` is the same run without the LOO refit.
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

from metalabelnet.labels.metrics import average_precision, predict_logits
from metalabelnet.train import make_run, train
from metalabelnet.train.prepare import prepare
from metalabelnet.train.versions import commit, versions

loo_refit = importlib.import_module("metalabelnet.labels.loo_refit")


def write_drawings(folder: Path, count: int, noise_rate: float, seed: int) -> None:
    """Write the drawings and the clean set."""
    random = np.random.default_rng(seed)
    clean_set = []
    for number in range(count):
        kind = KINDS[number % 3]
        given = KINDS[(number + random.integers(1, 3)) % 3] if random.random() < noise_rate else kind
        file = folder / "pictures" / given / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        draw(kind, random).save(file)
        if number < 60:
            clean_set.append((f"{given}/{number}.png", kind))
    with (folder / "clean.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label"), *clean_set])


def measure(folder: Path, seed: int, *, fit: bool) -> dict[str, float]:
    """Train a run and return the quality of its label table."""
    loo_refit.MAX_FEATURES = 4096 if fit else 0
    run = make_run(
        str(folder / "pictures"), recipe="paper", clean_file=str(folder / "clean.csv"), seed=seed, device="cpu"
    )
    problem = prepare(run)
    result = train(run, problem=problem)
    rows, decisions = result.labels.rows, result.labels.decisions()
    true = torch.tensor([int(Path(name).stem) % 3 for name in (rows.ids[k] for k in range(len(rows)))])
    memorized = predict_logits(result.method, rows.x).argmax(1) == rows.given
    shares = {"before": rows.given == true, "after": decisions.label == true, "memorized": memorized}
    quality = {name: 100 * float(correct.double().mean()) for name, correct in shares.items()}
    return quality | {"average precision": average_precision(decisions.suspicion, rows.given != true)}


def main() -> None:
    """Print the table of means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", nargs="*", type=int, default=[400])
    parser.add_argument("--noise-rate", nargs="*", type=float, default=[0.15, 0.33])
    parser.add_argument("--seed", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines: list[dict[str, Any]] = []
    print("| drawings | wrong | before | memorized | after, without | after | average precision, without | … with |")
    print("|---|---|---|---|---|---|---|---|")
    for count in args.count:
        for rate in args.noise_rate:
            group = []
            for seed in args.seed:
                with tempfile.TemporaryDirectory() as folder:
                    write_drawings(Path(folder), count, rate, seed)
                    both = [measure(Path(folder), seed, fit=fit) for fit in (False, True)]
                group.append(both)
                lines.append({"count": count, "rate": rate, "seed": seed, "without": both[0], "with": both[1]})
            means = [{name: float(np.mean([b[k][name] for b in group])) for name in group[0][k]} for k in (0, 1)]
            cells = [f"{means[0][name]:.1f}" for name in ("before", "memorized", "after")] + [
                f"{means[1]['after']:.1f}"
            ]
            cells += [f"{mean['average precision']:.4f}" for mean in means]
            print(f"| {count} | {100 * rate:.0f} % | {' | '.join(cells)} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"versions": versions(), "commit": commit(), "runs": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
