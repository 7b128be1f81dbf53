"""The label purifier of DMLP: labels learned through linear classifiers on fixed features.

    V, Y       features of the training samples (standardized, with a constant) and their labels, first the one-hot
               given labels
    V_m, y_m   features and labels of the clean samples; e(y) is the one-hot vector of a label
    W(Y)       (VᵀV/N + δI)⁻¹ VᵀY/N, the ridge regression of Y on V
    L(Y)       Σ_m ‖W(Y)ᵀv_m − e(y_m)‖² + CE(V_m W(Y), y_m) + KL(π ‖ mean softmax(V W(Y)))
    ∂L/∂Y      V (VᵀV/N + δI)⁻¹ ∂L/∂W / N, in closed form
    U          a linear classifier on V, trained on the classes argmax Y

    repeat:
        Y ← Y − Adam(∂L/∂Y)                       intrinsic primary correction
        U ← U − Adam(∇U of its loss)              a few steps
        every T iterations: Y ← softmax(V U)      extrinsic auxiliary correction

The inner problem is solved exactly, so that no network is trained within the loop and nothing is unrolled.

References
----------
.. [1] Y. Tu et al., "Learning from Noisy Labels with Decoupled Meta Label Purifier", CVPR 2023,
   https://arxiv.org/abs/2302.06810
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.mixmatch import class_balance_loss
from metalabelnet.core.optimizers import Adam

if TYPE_CHECKING:
    from collections.abc import Callable

RIDGE = 1e-2  # δ, in units of the variance of a standardized feature
ADAM_BETAS = (0.5, 0.999)
ADAM_WEIGHT_DECAY = 3e-4
LABEL_LR = 2.6e-2  # of the labels Y: √7 times that of the authors' code, whose Adam sees a seventh of the rows per step
CLASSIFIER_LR = 6e-3  # of the linear classifier U
CLASSIFIER_STEPS = 14  # of U per step of Y
CONFIDENCE_PENALTY = 0.4  # weight of −H(p) in the loss of U


class Features(NamedTuple):
    """Features of the training and of the clean samples, standardized, with a column of ones."""

    train: Tensor
    clean: Tensor


def standardize(train: Tensor, clean: Tensor) -> Features:
    """Scale features to mean 0 and standard deviation 1 over the training samples, and add a column of ones.

    Features that are constant over the training samples become 0.
    """
    mean, std = train.mean(0), train.std(0, correction=0)
    scale = torch.where(std > 1e-6 * std.max(), 1 / std, 0.0)
    return Features(*(functional.pad((v - mean) * scale, (0, 1), value=1.0) for v in (train, clean)))


class RidgeRegression:
    """Ridge regressions on the same features: W(Y) = (VᵀV/N + δI)⁻¹ VᵀY/N, the minimizer of ‖VW − Y‖²/N + δ‖W‖².

    Parameters
    ----------
    v : Tensor of shape (N, d)
        The features V.
    """

    def __init__(self, v: Tensor) -> None:
        self.v = v
        self._factor = torch.linalg.cholesky(v.T @ v / len(v) + RIDGE * torch.eye(v.shape[1]).to(v))

    def weights(self, y: Tensor) -> Tensor:
        """Return W(Y), shape (d, C)."""
        return torch.cholesky_solve(self.v.T @ y / len(self.v), self._factor)

    def label_gradient(self, y: Tensor, loss_of: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ∂L/∂Y = V (VᵀV/N + δI)⁻¹ ∂L/∂W / N, shape (N, C), for a loss of the weights W(Y)."""
        w = self.weights(y).requires_grad_()
        with torch.enable_grad():
            (by_w,) = torch.autograd.grad(loss_of(w), w)
        return self.v @ torch.cholesky_solve(by_w, self._factor) / len(self.v)


def clean_loss(features: Features, y_m: Tensor, w: Tensor) -> Tensor:
    """Return L as a function of W: squared error and cross-entropy on the clean samples, and class balance."""
    predictions = features.clean @ w
    squared_error = ((predictions - functional.one_hot(y_m, w.shape[1])) ** 2).sum()
    balance = class_balance_loss((features.train @ w).softmax(1))
    return squared_error + cross_entropy(predictions, y_m).mean() + balance


def classifier_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of U: cross-entropy, class balance, and a penalty on confident predictions."""
    log_p = logits.log_softmax(1)
    negative_entropy = (log_p.exp() * log_p).sum(1)
    penalty = class_balance_loss(log_p.exp()) + CONFIDENCE_PENALTY * negative_entropy.mean()
    return cross_entropy(logits, labels).mean() + penalty


@torch.no_grad()
def purify_labels(features: Features, given: Tensor, y_m: Tensor, *, classes: int, steps: int, period: int) -> Tensor:
    """Return the purified labels Y, shape (N, C): scores whose largest one marks the corrected label.

    Parameters
    ----------
    features : Features
        Of the training and of the clean samples.
    given : Tensor of shape (N,)
        Given labels of the training samples.
    y_m : Tensor of shape (M,)
        Labels of the clean samples.
    classes : int
        Number of classes C.
    steps : int
        Steps of Y.
    period : int
        T, steps between two extrinsic corrections.
    """
    v, ridge = features.train, RidgeRegression(features.train)
    y = functional.one_hot(given, classes).to(v)
    u = v.new_zeros(v.shape[1], classes).requires_grad_()
    label_adam = Adam([y], lr=LABEL_LR, weight_decay=ADAM_WEIGHT_DECAY, betas=ADAM_BETAS)
    classifier_adam = Adam([u], lr=CLASSIFIER_LR, weight_decay=ADAM_WEIGHT_DECAY, betas=ADAM_BETAS)
    for step in range(1, steps + 1):
        y.grad = ridge.label_gradient(y, lambda w: clean_loss(features, y_m, w))
        label_adam.step()
        labels = y.argmax(1)
        for _ in range(CLASSIFIER_STEPS):
            with torch.enable_grad():
                (u.grad,) = torch.autograd.grad(classifier_loss(v @ u, labels), u)
            classifier_adam.step()
        if step % period == 0:
            y.copy_((v @ u).softmax(1))
    return y
