"""The noise rate of each sample: logistic regression of "the given label is wrong" on the margin of a prediction.

    e(x) = σ(b + w u(x))

Clean samples show which given labels are wrong, but they are few: a noise rate of 60 % counted on 160 samples has a
standard error of 4 points. Of the training samples only a predicted probability f is known, which has little variance
but a bias. Prediction-powered inference [1]_ uses both: clean samples correct the bias. With n clean samples, and means
over training samples,

    0 = n mean (e − f) (1, u) − Σ_clean (wrong − f) (1, u) + prior

which is logistic regression on the training samples, with f as target, and a correction by the clean samples. It is
right on average whatever f is; the better f predicts, the smaller its variance. Without training samples it is the
logistic regression on the clean samples.

The prior is one sample with a wrong and one with a right label at u = 0, and w ~ N(0, 1).

References
----------
.. [1] A. N. Angelopoulos et al., "Prediction-powered inference", Science 382, 2023, https://arxiv.org/abs/2301.09633
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

NEWTON_STEPS = 30


class Predicted(NamedTuple):
    """Predicted probabilities f that given labels are wrong.

    u_train  (N,) standardized margins of training samples
    train    (N,) f of training samples
    clean    (n,) f of clean samples, by predictions that are not fitted to them
    """

    u_train: Tensor
    train: Tensor
    clean: Tensor


def fit_noise_rate(u: Tensor, wrong: Tensor, predicted: Predicted | None = None) -> tuple[Tensor, Tensor]:
    """Return b and w by Newton's method.

    Parameters
    ----------
    u : Tensor of shape (n,)
        Standardized margins of the clean samples.
    wrong : Tensor of shape (n,)
        Whether their given labels are wrong, or the probability of it.
    predicted : Predicted, optional
        Adds the training samples. Default: clean samples alone.
    """
    x = _design(u)
    if predicted is None:
        target, correction = wrong, u.new_zeros(2)
    else:
        correction = x.T @ (wrong - predicted.clean)
        x, target = _design(predicted.u_train), predicted.train
        expected = len(u) * target.mean()  # wrong labels among n samples by f alone
        correction[0] = correction[0].clamp(-expected, len(u) - expected)
    weight = len(u) / len(x)
    x_prior, target_prior = _design(u.new_zeros(2)), u.new_tensor([0.0, 1.0])
    prior = torch.diag(u.new_tensor([0.0, 1.0]))
    solution = torch.stack([torch.logit((wrong.sum() + 1) / (len(wrong) + 2)), u.new_zeros(())])
    for _ in range(NEWTON_STEPS):
        e, e_prior = torch.sigmoid(x @ solution), torch.sigmoid(x_prior @ solution)
        gradient = weight * (x.T @ (e - target)) - correction + x_prior.T @ (e_prior - target_prior) + prior @ solution
        hessian = weight * _hessian(x, e) + _hessian(x_prior, e_prior) + prior
        step = torch.linalg.solve(hessian, gradient)
        solution = solution - step / (step.abs().max() / 2).clamp_min(1.0)  # Newton's step is long far from the end
    return solution[0], solution[1]


def _design(u: Tensor) -> Tensor:
    return torch.stack([torch.ones_like(u), u], 1)


def _hessian(x: Tensor, e: Tensor) -> Tensor:
    return (x * (e * (1 - e))[:, None]).T @ x
