"""Compare the paper's feature-dependent noise with stable sorting and with numpy's default, by labels per class.

python benchmarks/noise_order.py student_logits.npy cifar10.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def noisy_labels(p: np.ndarray, true: np.ndarray, rate: float, kind: str) -> np.ndarray:
    """The authors' rule (see metalabelnet.noise.feature_dependent) with the given sorting algorithm."""
    flips, ranked = int(len(true) * rate), np.argsort(p, axis=1, kind=kind)
    first, second = ranked[:, -1], ranked[:, -2]
    given = true.copy()
    for mask, target in ((first != true, first), (first == true, second)):
        rows = np.flatnonzero(mask)
        flipped = rows[np.argsort(p[rows, target[rows]], kind=kind)[max(0, len(rows) - flips) :]]
        given[flipped] = target[flipped]
        flips -= len(flipped)
    return given


def main() -> None:
    p, true = np.load(Path(sys.argv[1])), np.load(Path(sys.argv[2]))["y_train"]
    for rate in (0.2, 0.4, 0.6, 0.8):
        stable, unstable = (np.bincount(noisy_labels(p, true, rate, kind)) for kind in ("stable", "quicksort"))
        print(f"{rate}: stable {stable}, default {unstable}, largest difference {np.abs(stable - unstable).max()}")


if __name__ == "__main__":
    main()
