"""Label noise: true labels in, given labels out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metalabelnet.errors import InputError
from metalabelnet.noise.asymmetric import asymmetric_targets
from metalabelnet.noise.cifar_n import human_labels
from metalabelnet.noise.class_dependent import class_dependent_noise, class_targets
from metalabelnet.noise.feature_dependent import feature_dependent_noise, read_probabilities
from metalabelnet.noise.from_file import labels_from_file, read_label_file
from metalabelnet.noise.instance_dependent import instance_dependent_noise
from metalabelnet.noise.spec import NOISE_KINDS, UNLABELED, Noise, NoiseKind
from metalabelnet.noise.symmetric import symmetric_noise
from metalabelnet.noise.transition_matrix import matrix_noise, read_matrix
from metalabelnet.noise.uniform import uniform_noise

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = [
    "NOISE_KINDS",
    "Noise",
    "NoiseKind",
    "actual_noise_rate",
    "asymmetric_targets",
    "class_dependent_noise",
    "class_targets",
    "corrupt",
    "feature_dependent_noise",
    "human_labels",
    "instance_dependent_noise",
    "labels_from_file",
    "matrix_noise",
    "read_label_file",
    "read_matrix",
    "read_probabilities",
    "symmetric_noise",
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
    read_samples: Callable[[Tensor], Tensor] | None = None,
    folder: Path | None = None,
) -> Tensor:
    """Return the given labels of samples under label noise.

    Parameters
    ----------
    noise : Noise
        Kind of noise, with its rate, file or label set.
    true : Tensor of shape (N,), int64
        True labels. Unknown labels, −1, are not changed and do not count toward the noise rate.
    classes : tuple of str
        Names of the classes. Class-dependent and asymmetric noise use the pairs of the literature for CIFAR's names.
    generator : torch.Generator
        Source of randomness.
    index : Tensor of shape (N,), int64, optional
        Numbers of the samples in the original data, by which a label file is looked up. Default: 0 to N − 1.
    samples : int, optional
        Number of samples in the original data, the maximum length of a label file.
    probabilities : Tensor of shape (N, C), optional
        A network's probabilities or log-probabilities, for feature-dependent noise.
    read_samples : callable, optional
        Returns the samples at the given positions, for instance-dependent noise.
    folder : Path, optional
        Folder of the published human labels, for CIFAR-10N and CIFAR-100N.

    Returns
    -------
    Tensor of shape (N,), int64

    Raises
    ------
    InputError
        If a true label is not a class, no true label is known, or what the noise needs is missing or does not fit.

    References
    ----------
    .. [1] G. Algan and I. Ulusoy, "MetaLabelNet: Learning to Generate Soft-Labels from Noisy-Labels", 2021,
       https://arxiv.org/abs/2103.10869 (uniform and feature-dependent noise)
    .. [2] G. Patrini et al., "Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach",
       CVPR 2017, https://arxiv.org/abs/1609.03683 (class-dependent and asymmetric noise)
    .. [3] J. Li et al., "DivideMix: Learning with Noisy Labels as Semi-supervised Learning", ICLR 2020,
       https://arxiv.org/abs/2002.07394 (symmetric noise)
    .. [4] X. Xia et al., "Part-dependent Label Noise: Towards Instance-dependent Label Noise", NeurIPS 2020,
       https://arxiv.org/abs/2006.07836 (instance-dependent noise)
    .. [5] J. Wei et al., "Learning with Noisy Labels Revisited: A Study Using Real-World Human Annotations", ICLR 2022,
       https://arxiv.org/abs/2110.12088 (CIFAR-10N and CIFAR-100N)

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.noise import Noise, actual_noise_rate, corrupt
    >>> true = torch.arange(100) % 4
    >>> given = corrupt(Noise.parse("uniform:0.4"), true, ("a", "b", "c", "d"), torch.Generator().manual_seed(0))
    >>> actual_noise_rate(true, given)
    0.4
    """
    _check_true_labels(noise, true, len(classes))
    if noise.kind == "none":
        return true.clone()
    if noise.is_read:
        index = torch.arange(len(true)) if index is None else index
        return _read_labels(noise, true, len(classes), index, samples, folder)
    if noise.path is not None:
        return matrix_noise(true, read_matrix(noise.path, len(classes)), generator)
    assert noise.rate is not None  # for the type checker: Noise checks it
    if noise.kind == "instance":
        if read_samples is None:
            raise InputError(f"noise {noise} needs the samples of the rows")
        return instance_dependent_noise(true, read_samples, len(classes), noise.rate, generator)
    if noise.kind == "feature":
        return feature_dependent_noise(true, _check_probabilities(noise, probabilities, true, classes), noise.rate)
    if noise.kind in ("class", "asymmetric"):
        targets = class_targets(classes) if noise.kind == "class" else asymmetric_targets(classes)
        return class_dependent_noise(true, targets, noise.rate, generator)
    draw = uniform_noise if noise.kind == "uniform" else symmetric_noise
    return draw(true, len(classes), noise.rate, generator)


def _check_true_labels(noise: Noise, true: Tensor, classes: int) -> None:
    """Raise InputError for labels that are not classes, and for noise on rows without true labels."""
    wrong = (true < UNLABELED) | (true >= classes)
    if wrong.any():
        raise InputError(
            f"noise {noise}: a true label is {int(true[wrong][0])}; labels are 0 to {classes - 1}, or -1 for unknown"
        )
    if noise.kind != "none" and len(true) and bool((true == UNLABELED).all()):
        raise InputError(f"noise {noise} changes true labels, but none of the {len(true)} rows has one; use noise none")


def _read_labels(
    noise: Noise, true: Tensor, classes: int, index: Tensor, samples: int | None, folder: Path | None
) -> Tensor:
    """Return the labels of a label file or of published human labels."""
    if noise.path is not None:
        return labels_from_file(true, read_label_file(noise.path, classes), index, samples)
    if folder is None:
        raise InputError(f"noise {noise} needs the folder of the published human labels")
    return human_labels(noise, folder, true, index, classes, samples)


def _check_probabilities(noise: Noise, probabilities: Tensor | None, true: Tensor, classes: tuple[str, ...]) -> Tensor:
    """Return the probabilities if they have a row for each sample and a column for each class."""
    if probabilities is None:
        raise InputError(f"noise {noise} needs a network's probabilities of every class for every row")
    if probabilities.shape != (len(true), len(classes)):
        raise InputError(
            f"noise {noise}: probabilities have shape {tuple(probabilities.shape)}, "
            f"but there are {len(true)} rows and {len(classes)} classes"
        )
    return probabilities


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
