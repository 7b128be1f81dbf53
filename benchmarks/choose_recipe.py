"""Compare values of the recipe on training data alone: no test sample is read.

A part of the training rows takes the place of the test rows. `cross-entropy` and `fine-tune` are trained with the
values in `START`, and with one value changed at a time, under uniform and feature-dependent noise. The table gives the
mean accuracy on the held-out training rows over noises and seeds, and the difference to `START`. The recipe `modern`
has the values that were better on every data set.

    python benchmarks/choose_recipe.py digits --out results/recipe/digits.jsonl
    python benchmarks/choose_recipe.py cifar10 --clean 1000 --epochs 40 --dtype bf16 --out results/recipe/cifar10.jsonl

A line of the output is one run. Runs that are in the file already are not repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data.read_cache import ReadCache
from metalabelnet.seeds import generator
from metalabelnet.train import make_run, train
from metalabelnet.train.prepare import prepare
from metalabelnet.train.versions import commit, versions

if TYPE_CHECKING:
    from metalabelnet.data.problem import Problem

METHODS = ("cross-entropy", "fine-tune")
NOISES = ("uniform:0.4", "feature:0.4")
START: dict[str, Any] = {
    "lr": 0.05,
    "lr_schedule": "cosine",
    "weight_decay": 5e-4,
    "ema": 0.999,
    "strong_augment": "supervised",
    "warmup": 1 / 8,  # of the epochs
    "select_from": 2 / 3,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "start": {},
    "lr 0.02": {"lr": 0.02},
    "lr 0.1": {"lr": 0.1},
    "weight decay 1e-4": {"weight_decay": 1e-4},
    "weight decay 2e-3": {"weight_decay": 2e-3},
    "no EMA": {"ema": 0.0},
    "no strong augmentation": {"strong_augment": "none"},
    "consistency": {"strong_augment": "consistency"},
    "MixUp 0.2": {"mixup": 0.2},
    "MixUp 1": {"mixup": 1.0},
    "label smoothing 0.1": {"label_smoothing": 0.1},
    "warm-up 1/4": {"warmup": 1 / 4},
    "warm-up 3/8": {"warmup": 3 / 8},
    "selected from all epochs": {"select_from": 0.0},
    "milestones": {"lr_schedule": "milestones"},
}


def test_on_training_rows(problem: Problem, seed: int) -> Problem:
    """The problem with a fifth of its training rows in place of the test rows."""
    order = torch.randperm(len(problem.train), generator=generator(seed, "recipe hold-out"))
    held_out, rest = order[: len(order) // 5], order[len(order) // 5 :]
    return dataclasses.replace(problem, train=problem.train.take(rest), test=problem.train.take(held_out))


def measure(
    args: argparse.Namespace, variant: str, method: str, noise: str, seed: int, cache: ReadCache
) -> dict[str, Any]:
    """Train one run and return its line."""
    changes = {**START, **VARIANTS[variant]}
    fields = {"clean": args.clean, "epochs": args.epochs, "limit": args.limit, "data_dir": args.data_dir}
    run = make_run(
        args.data,
        method=method,
        noise=noise,
        seed=1000 + seed,
        device=args.device,
        dtype=args.dtype,
        snapshots=0,
        noise_probs=args.noise_probs if noise.startswith("feature") else None,
        **{name: value for name, value in fields.items() if value is not None},
    )
    changes["warmup"] = max(1, round(changes["warmup"] * run.epochs))
    run = dataclasses.replace(run, **changes)
    problem = test_on_training_rows(prepare(run, read_cache=cache), run.seed)
    start = time.monotonic()
    summary = train(run, problem=problem).summary
    return {
        "data": args.data,
        "variant": variant,
        "method": method,
        "noise": noise,
        "seed": seed,
        "epochs": run.epochs,
        "clean": run.clean,
        "accuracy": summary["test_accuracy"],
        "seconds": round(time.monotonic() - start, 1),
    }


def main() -> None:
    """Train the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--clean", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--noise-probs", help="class probabilities for feature-dependent noise")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="separated by commas")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after this time")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(text) for text in args.out.read_text().splitlines()] if args.out.exists() else []
    names = ("data", "variant", "method", "noise", "seed")
    done = {tuple(line[name] for name in names) for line in lines}
    cache, start = ReadCache(), time.monotonic()
    for seed in range(args.seeds):
        for variant in args.variants.split(","):
            for noise in NOISES:
                for method in METHODS:
                    if (args.data, variant, method, noise, seed) in done or time.monotonic() - start > args.seconds:
                        continue
                    line = measure(args, variant, method, noise, seed, cache)
                    lines.append(line | {"commit": commit(), "versions": versions()})
                    with args.out.open("a") as file:
                        file.write(json.dumps(lines[-1]) + "\n")
                    print(line, flush=True)
    print_table(lines)


def print_table(lines: list[dict[str, Any]]) -> None:
    """Print the mean accuracy of each variant by method, over the noises and seeds that `start` has, too."""
    for method in METHODS:
        by_variant: dict[str, dict[tuple[str, int], float]] = {}
        for line in lines:
            if line["method"] == method:
                by_variant.setdefault(line["variant"], {})[line["noise"], line["seed"]] = line["accuracy"]
        base = by_variant.get("start", {})
        for variant, cells in by_variant.items():
            shared = sorted(cells.keys() & base.keys())
            if shared:
                mean = sum(cells[key] for key in shared) / len(shared)
                difference = sum(cells[key] - base[key] for key in shared) / len(shared)
                print(f"{method:14} {variant:28} {mean:6.2f}  {difference:+.2f}  ({len(shared)} runs)")


if __name__ == "__main__":
    main()
