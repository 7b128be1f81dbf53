"""Label noise: true labels in, given labels out."""

from __future__ import annotations

import torch
from torch import Tensor

from metalabelnet.errors import InputError
from metalabelnet.noise.class_dependent import class_dependent_noise, class_targets
from metalabelnet.noise.feature_dependent import feature_dependent_noise, read_probabilities
from metalabelnet.noise.from_file import labels_from_file, read_label_file
from metalabelnet.noise.spec import NOISE_KINDS, UNLABELED, Noise, NoiseKind
from metalabelnet.noise.transition_matrix import matrix_noise, read_matrix
from metalabelnet.noise.uniform import uniform_noise

__all__ = [
    "NOISE_KINDS",
    "Noise",
    "NoiseKind",
    "actual_noise_rate",
    "class_dependent_noise",
    "class_targets",
    "corrupt",
    "feature_dependent_noise",
    "labels_from_file",
    "matrix_noise",
    "read_label_file",
    "read_matrix",
    "read_probabilities",
    "uniform_noise",
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
    """Return the given labels of samples under label noise.

    Parameters
    ----------
    noise : Noise
        Kind of noise, with its rate or file.
    true : Tensor of shape (N,), int64
        True labels. Unknown labels, −1, are not changed and do not count toward the noise rate.
    classes : tuple of str
        Names of the classes. Class-dependent noise uses the pairs of the literature for CIFAR-10's names.
    generator : torch.Generator
        Source of randomness.
    index : Tensor of shape (N,), int64, optional
        Numbers of the samples in the original data, by which a label file is looked up. Default: 0 to N − 1.
    samples : int, optional
        Number of samples in the original data, the maximum length of a label file.
    probabilities : Tensor of shape (N, C), optional
        A network's probabilities or log-probabilities, for feature-dependent noise.

    Returns
    -------
    Tensor of shape (N,), int64

    Raises
    ------
    InputError
        If a true label is not a class, no true label is known, or a file or `probabilities` do not fit.

    References
    ----------
    .. [1] G. Algan and I. Ulusoy, "MetaLabelNet: Learning to Generate Soft-Labels from Noisy-Labels", 2021,
       https://arxiv.org/abs/2103.10869 (uniform and feature-dependent noise)
    .. [2] G. Patrini et al., "Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach",
       CVPR 2017, https://arxiv.org/abs/1609.03683 (class-dependent noise)

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.noise import Noise, actual_noise_rate, corrupt
    >>> true = torch.arange(100) % 4
    >>> given = corrupt(Noise.parse("uniform:0.4"), true, ("a", "b", "c", "d"), torch.Generator().manual_seed(0))
    >>> actual_noise_rate(true, given)
    0.4
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
        raise InputError(f"noise {noise} changes true labels, but none of the {len(true)} rows has one; use noise none")
    if noise.path is not None:
        if noise.kind == "matrix":
            return matrix_noise(true, read_matrix(noise.path, len(classes)), generator)
        index = torch.arange(len(true)) if index is None else index
        return labels_from_file(true, read_label_file(noise.path, len(classes)), index, samples)
    assert noise.rate is not None  # for the type checker: Noise checks it
    if noise.kind == "uniform":
        return uniform_noise(true, len(classes), noise.rate, generator)
    if noise.kind == "class":
        return class_dependent_noise(true, class_targets(classes), noise.rate, generator)
    if probabilities is None:
        raise InputError(f"noise {noise} needs a network's probabilities of every class for every row")
    if probabilities.shape != (len(true), len(classes)):
        raise InputError(
            f"noise {noise}: probabilities have shape {tuple(probabilities.shape)}, "
            f"but there are {len(true)} rows and {len(classes)} classes"
        )
    return feature_dependent_noise(true, probabilities, noise.rate)


def actual_noise_rate(true: Tensor, given: Tensor) -> float:
    """Return the share of wrong labels among the rows with a given label and a known true label, or NaN without any.

    Parameters
    ----------
    true, given : Tensor of shape (N,), int64
        True and given labels, −1 where unknown.

    Returns
    -------
    float

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.noise import actual_noise_rate
    >>> actual_noise_rate(torch.tensor([0, 1, 2, -1]), torch.tensor([0, 2, -1, 1]))
    0.5
    """
    both = (true != UNLABELED) & (given != UNLABELED)
    return float((true[both] != given[both]).double().mean()) if both.any() else float("nan")
