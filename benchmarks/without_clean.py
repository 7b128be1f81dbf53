"""Training without a clean set: the methods that need none, on digits with noisy labels.

    python benchmarks/without_clean.py                      features and the MLP, three seeds
    python benchmarks/without_clean.py --images --seeds 1   images and the small CNN

There are 1,197 training samples with noisy labels. A fifth of them selects the epoch by the noisy labels, except for
the default, which trains truncated GCE on all of them. Reported is the test accuracy in percent on 500 other samples.
The last row has 100 additional clean samples, for comparison.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from metalabelnet import MetaLabelNetClassifier, NoCleanSetWarning
from metalabelnet.train import make_run
from metalabelnet.train.prepare import prepare

if TYPE_CHECKING:
    from metalabelnet.data.problem import Problem

NOISES = [f"{kind}:{rate}" for kind in ("uniform", "feature") for rate in (0.2, 0.4, 0.6)]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "cross-entropy": ("cross-entropy", {}),
    "sce": ("sce", {}),
    "gce": ("gce", {}),
    "gce, truncated": ("gce", {"truncated": True}),
    "bootstrap": ("bootstrap", {}),
    "pencil": ("pencil", {}),
    "joint-optimization": ("joint-optimization", {"prior": "given"}),
    "by default": ("metalabelnet", {}),
}


@functools.cache
def load_problem(noise: str, seed: int) -> Problem:
    return prepare(make_run("digits", recipe="paper", noise=noise, clean=100, seed=seed, device="cpu"))


def score(variant: str, noise: str, seed: int, *, images: bool) -> float:
    """Test accuracy in percent."""
    problem = load_problem(noise, seed)
    parts = [problem.train, problem.clean, problem.validation, problem.test]
    x, clean_x, validation_x, test_x = (p.x.numpy() if images else p.x.flatten(1).numpy() for p in parts)
    if variant == "metalabelnet, 100 clean":
        X = np.concatenate([x, clean_x, validation_x])
        y = torch.cat([problem.train.given, problem.clean.true, problem.validation.true]).numpy()
        clf = MetaLabelNetClassifier(random_state=seed, device="cpu").fit(X, y, clean_mask=np.arange(len(X)) >= len(x))
    else:
        method, settings = VARIANTS[variant]
        clf = MetaLabelNetClassifier(method, settings=settings, random_state=seed, device="cpu")
        clf.fit(x, problem.train.given.numpy())
    return 100 * float(clf.score(test_x, problem.test.true.numpy()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--variants", default=",".join(w.replace(", ", "+") for w in [*VARIANTS, "metalabelnet, 100 clean"])
    )
    parser.add_argument("--json", type=Path, help="file to append a line per cell to")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", NoCleanSetWarning)
    print("| |", " | ".join(NOISES), "| mean |")
    print("|---" * (len(NOISES) + 2) + "|")
    for variant in (name.replace("+", ", ") for name in args.variants.split(",")):
        cells, means = [], []
        for noise in NOISES:
            scores = [score(variant, noise, seed, images=args.images) for seed in range(args.seeds)]
            means.append(statistics.mean(scores))
            cells.append(f"{means[-1]:.1f}" + (f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""))
            if args.json:
                line = {"variant": variant, "noise": noise, "images": args.images, "scores": scores}
                with args.json.open("a") as file:
                    file.write(json.dumps(line) + "\n")
        print(f"| {variant} |", " | ".join(cells), f"| {statistics.mean(means):.1f} |", flush=True)


if __name__ == "__main__":
    main()
