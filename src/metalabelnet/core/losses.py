"""Losses of the paper. Each takes logits and returns one number per sample.

References
----------
.. [1] G. Algan and I. Ulusoy, "MetaLabelNet: Learning to Generate Soft-Labels from Noisy-Labels", 2021,
   https://arxiv.org/abs/2103.10869
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

LossScale = Literal["per-class-mean", "sum"]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy −log p_y of every sample, with p = softmax(logits).

    The loss of warm-up and of the clean set. It tends to 0 as p_y → 1.

    Parameters
    ----------
    logits : Tensor of shape (N, C)
    labels : Tensor of shape (N,), int64
        Classes, 0 to C − 1.

    Returns
    -------
    Tensor of shape (N,)

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.core.losses import cross_entropy
    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2]))  # log 4
    tensor([1.3863])
    """
    return functional.cross_entropy(logits, labels, reduction="none")


def soft_cross_entropy(logits: Tensor, log_soft_labels: Tensor) -> Tensor:
    """Return the cross-entropy −Σ_j ŷ_j log p_j of every sample with a soft label ŷ.

    Its minimum over p is at p = ŷ, where it equals the entropy of ŷ.

    Parameters
    ----------
    logits : Tensor of shape (N, C)
    log_soft_labels : Tensor of shape (N, C)
        log ŷ.

    Returns
    -------
    Tensor of shape (N,)

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.core.losses import soft_cross_entropy
    >>> soft_cross_entropy(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]).log())  # log 2
    tensor([0.6931])
    """
    return -(log_soft_labels.exp() * functional.log_softmax(logits, dim=1)).sum(1)


def classification_loss(logits: Tensor, log_soft_labels: Tensor) -> Tensor:
    """Return the paper's classification loss l_c = KL(p ‖ ŷ) = Σ_j p_j (log p_j − log ŷ_j) of every sample.

    It is 0 where p = ŷ, and −log ŷ_k where p is one-hot at k. Soft labels are passed as logarithms, so the loss stays
    finite when the label net gives a class a probability close to 0.

    Parameters
    ----------
    logits : Tensor of shape (N, C)
    log_soft_labels : Tensor of shape (N, C)
        log ŷ.

    Returns
    -------
    Tensor of shape (N,)

    References
    ----------
    .. [1] G. Algan and I. Ulusoy, "MetaLabelNet: Learning to Generate Soft-Labels from Noisy-Labels", 2021,
       https://arxiv.org/abs/2103.10869

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.core.losses import classification_loss
    >>> logits = torch.tensor([[2.0, 0.0, -1.0]])
    >>> classification_loss(logits, logits.log_softmax(1))
    tensor([0.])
    """
    log_p = functional.log_softmax(logits, dim=1)
    return (log_p.exp() * (log_p - log_soft_labels)).sum(1)


def entropy_loss(logits: Tensor) -> Tensor:
    """Return the entropy l_e = −Σ_j p_j log p_j of every prediction.

    It is 0 for a one-hot prediction and log C for a uniform one.

    Parameters
    ----------
    logits : Tensor of shape (N, C)

    Returns
    -------
    Tensor of shape (N,)

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.core.losses import entropy_loss
    >>> entropy_loss(torch.zeros(1, 4))  # log 4
    tensor([1.3863])
    """
    log_p = functional.log_softmax(logits, dim=1)
    return -(log_p.exp() * log_p).sum(1)


def uniform_cross_entropy(logits: Tensor) -> Tensor:
    """Return the cross-entropy of the prediction with the uniform distribution: the part of label smoothing."""
    return -functional.log_softmax(logits, dim=1).mean(1)


def scale_factor(scale: LossScale, logits: Tensor) -> float:
    """Return the factor of a sum over classes: 1/C for "per-class-mean", 1 for "sum".

    Parameters
    ----------
    scale : {"per-class-mean", "sum"}
        "sum" follows the paper's equations. "per-class-mean" divides by the number of classes, as the authors' code
        does; the paper's learning rates belong to this scale.
    logits : Tensor of shape (N, C)

    Returns
    -------
    float

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.core.losses import scale_factor
    >>> scale_factor("per-class-mean", torch.zeros(8, 10))
    0.1
    """
    return 1.0 if scale == "sum" else 1.0 / logits.shape[1]
