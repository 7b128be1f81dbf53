"""Feature-dependent noise: what lies nearest to a network's decision boundary is labeled as the class across.

This is the rule of the paper's tables (Algan and Ulusoy), which mimics a person who errs where classes look
alike. Two of its properties are worth knowing:

- What the network gets wrong is flipped first, and to what the network says: a poor network makes noise that
  another network learns easily.
- The authors' array of CIFAR-10 probabilities went through softmax twice. Two thirds of its second-best
  values are tied, and at high rates most flips go to the last class, truck. That comes from the array, not
  from the rule: fresh log-probabilities have next to no ties.

Sorts are stable, so that ties do not depend on the machine: of equal values the later one ranks higher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from metalabelnet.errors import InputError
from metalabelnet.noise.from_file import load_npy
from metalabelnet.noise.spec import UNLABELED, check_classes, flip_count

if TYPE_CHECKING:
    from pathlib import Path


def feature_dependent(true: Tensor, scores: Tensor, rate: float) -> Tensor:
    """Flip int(n·rate) of the n labeled rows by the paper's rule.

    true    (N,) labels, −1 where unlabeled
    scores  (N, C) probabilities or log-probabilities of the classes: only their order counts. Raw logits are
            something else, because values of different rows are compared.

    First the rows whose best class is not their label go to that best class (where they are more than the
    count, those with the largest best value); then, of the others, those with the largest second-best value
    go to their second-best class.
    """
    if scores.ndim != 2 or len(scores) != len(true):
        raise InputError(
            f"feature-dependent noise: scores are ({len(true)}, classes), one row a label, not {tuple(scores.shape)}"
        )
    check_classes(scores.shape[1])
    if scores.isnan().any():
        raise InputError("feature-dependent noise: a score is NaN, which has no place in an order")
    labeled = (true != UNLABELED).nonzero()[:, 0]
    label, score = true[labeled], scores[labeled]
    ranked = score.sort(dim=1, stable=True)
    first, second = ranked.indices[:, -1], ranked.indices[:, -2]
    best, runner_up = ranked.values[:, -1], ranked.values[:, -2]

    count = flip_count(len(labeled), rate)
    mistaken = (first != label).nonzero()[:, 0]
    right = (first == label).nonzero()[:, 0]
    to_first = _largest(mistaken, best, count)
    to_second = _largest(right, runner_up, count - len(to_first))

    given = true.clone()
    given[labeled[to_first]] = first[to_first]
    given[labeled[to_second]] = second[to_second]
    return given


def _largest(rows: Tensor, values: Tensor, count: int) -> Tensor:
    """Up to `count` of these rows, those with the largest values; of equal values the later row."""
    order = values[rows].argsort(stable=True)
    return rows[order[max(0, len(rows) - count) :]]


def read_probabilities(path: Path, rows: int, classes: int) -> Tensor:
    """Read the (rows, classes) array of a .npy file that `feature_dependent` takes as scores."""
    array = load_npy(path, "class probabilities")
    if array.shape != (rows, classes):
        raise InputError(
            f"class probabilities {path}: shape {array.shape}, but the data has {rows} samples "
            f"and {classes} classes: ({rows}, {classes})"
        )
    if array.dtype.kind != "f":
        raise InputError(f"class probabilities {path}: floating-point numbers are needed, not {array.dtype}")
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        raise InputError(
            f"class probabilities {path}: row {int(np.argmin(finite))} has a value that is NaN or infinite"
        )
    return torch.from_numpy(array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32))
