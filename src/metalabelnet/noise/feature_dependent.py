"""Feature-dependent noise: the samples closest to a network's decision boundary get the label of the other class.

This is the rule of the paper's tables. It imitates an annotator who errs where classes look alike. Two properties:

- Samples that the network misclassifies are flipped first, to the predicted class: an inaccurate network makes noise
  that another network learns easily.
- The authors' array of CIFAR-10 probabilities is the result of applying softmax twice. Two thirds of its second-best
  values are tied, and at high rates most flips go to the last class, truck. This is a property of the array, not of the
  rule: newly computed log-probabilities have nearly no ties.

Sorts are stable, so that ties are resolved in the same way everywhere: of equal values the later one ranks higher.

References
----------
.. [1] G. Algan and I. Ulusoy, "Label Noise Types and Their Effects on Deep Learning", 2020,
   https://arxiv.org/abs/2003.10471
.. [2] G. Algan and I. Ulusoy, "MetaLabelNet: Learning to Generate Soft-Labels from Noisy-Labels", 2021,
   https://arxiv.org/abs/2103.10869
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


def feature_dependent_noise(true: Tensor, scores: Tensor, rate: float) -> Tensor:
    """Return labels with int(n·rate) of the n labeled rows flipped by the paper's rule.

    true    (N,) labels, −1 where unlabeled
    scores  (N, C) probabilities or log-probabilities of the classes; only their order matters. Raw logits do not work,
            because values of different rows are compared.

    First, rows whose best class is not their label are flipped to that class, those with the largest best value first.
    Then, of the others, those with the largest second-best value are flipped to their second-best class.
    """
    if scores.ndim != 2 or len(scores) != len(true):
        raise InputError(
            f"feature-dependent noise: scores have shape {tuple(scores.shape)}, not ({len(true)}, classes)"
        )
    check_classes(scores.shape[1])
    if scores.isnan().any():
        raise InputError("feature-dependent noise: a score is NaN, which cannot be ranked; give finite probabilities")
    labeled = (true != UNLABELED).nonzero()[:, 0]
    label, score = true[labeled], scores[labeled]
    ranked = score.sort(dim=1, stable=True)
    first, second = ranked.indices[:, -1], ranked.indices[:, -2]
    first_value, second_value = ranked.values[:, -1], ranked.values[:, -2]

    count = flip_count(len(labeled), rate)
    misclassified = (first != label).nonzero()[:, 0]
    correct = (first == label).nonzero()[:, 0]
    to_first = _largest(misclassified, first_value, count)
    to_second = _largest(correct, second_value, count - len(to_first))

    given = true.clone()
    given[labeled[to_first]] = first[to_first]
    given[labeled[to_second]] = second[to_second]
    return given


def _largest(rows: Tensor, values: Tensor, count: int) -> Tensor:
    """Return up to `count` of these rows, those with the largest values; of equal values the later row."""
    order = values[rows].argsort(stable=True)
    return rows[order[max(0, len(rows) - count) :]]


def read_probabilities(path: Path, rows: int, classes: int) -> Tensor:
    """Return the (rows, classes) array of a .npy file, the scores of `feature_dependent_noise`."""
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
