"""Label noise: true labels in, the labels a training set is given out."""

from __future__ import annotations

import torch
from torch import Tensor

from metalabelnet.errors import InputError
from metalabelnet.noise.class_dependent import class_dependent, targets
from metalabelnet.noise.feature_dependent import feature_dependent, read_probabilities
from metalabelnet.noise.from_file import from_file, read_labels
from metalabelnet.noise.spec import NOISES, UNLABELED, Kind, Noise
from metalabelnet.noise.transition_matrix import from_matrix, read_matrix
from metalabelnet.noise.uniform import uniform

__all__ = [
    "NOISES",
    "Kind",
    "Noise",
    "class_dependent",
    "corrupt",
    "feature_dependent",
    "from_file",
    "from_matrix",
    "reached_rate",
    "read_labels",
    "read_matrix",
    "read_probabilities",
    "targets",
    "uniform",
]


def corrupt(
    noise: Noise,
    true: Tensor,
    classes: tuple[str, ...],
    generator: torch.Generator,
    *,
    index: Tensor | None = None,
    samples: int | None = None,
    probabilities: Tensor | None = None,
) -> Tensor:
    """The labels these rows are given under this noise.

    true           (N,) int64; −1 is unknown, stays as it is and counts for nothing
    index          (N,) the samples' numbers in the original data, which `file` looks up (default 0 to N − 1)
    samples        how many the original data has, and a `file` may have labels of
    probabilities  (N, C) a network's probabilities or log-probabilities of these rows, for `feature`
    """
    wrong = (true < UNLABELED) | (true >= len(classes))
    if wrong.any():
        raise InputError(
            f"noise {noise}: a true label is {int(true[wrong][0])}; labels are 0 to {len(classes) - 1}, "
            f"or -1 for unknown"
        )
    if noise.kind == "none":
        return true.clone()
    if len(true) and bool((true == UNLABELED).all()):
        raise InputError(f"noise {noise} changes true labels, and none of the {len(true)} rows has one; use none")
    if noise.path is not None:
        if noise.kind == "matrix":
            return from_matrix(true, read_matrix(noise.path, len(classes)), generator)
        index = torch.arange(len(true)) if index is None else index
        return from_file(true, read_labels(noise.path, len(classes)), index, samples)
    assert noise.rate is not None  # for the type checker: Noise has seen to it
    if noise.kind == "uniform":
        return uniform(true, len(classes), noise.rate, generator)
    if noise.kind == "class":
        return class_dependent(true, targets(classes), noise.rate, generator)
    if probabilities is None:
        raise InputError(f"noise {noise} needs a network's probabilities of every class for every row")
    if probabilities.shape != (len(true), len(classes)):
        raise InputError(
            f"noise {noise}: probabilities of shape {tuple(probabilities.shape)}, "
            f"but there are {len(true)} rows and {len(classes)} classes"
        )
    return feature_dependent(true, probabilities, noise.rate)


def reached_rate(true: Tensor, given: Tensor) -> float:
    """The share of wrong labels among the rows that have a label and a known truth; NaN where none has."""
    both = (true != UNLABELED) & (given != UNLABELED)
    return float((true[both] != given[both]).double().mean()) if both.any() else float("nan")
