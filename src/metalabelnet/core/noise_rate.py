"""The noise rate of each sample: logistic regression of "the given label is wrong" on the margin of a prediction.

    e(x) = σ(b + w u(x))

Clean samples show which given labels are wrong, but they are few: a noise rate of 60 % counted on 160 samples has a
standard error of 4 points. Predictions for the training samples show it with little variance but with a bias.
Prediction-powered inference [1]_ takes both: the clean samples correct the bias. With f, the predicted probability that
a given label is wrong, n clean samples and the means over clean and training samples,

    mean             mean_train f + mean_clean (wrong − f)
    b, w             n mean_train (e − f) (1, u) + Σ_clean (f − wrong) (1, u) + prior = 0

which is logistic regression on the training samples, with f in place of what is not known of them, plus a correction.
It is right on average whatever f is; the better f predicts, the smaller its variance.

The prior is one sample with a wrong and one with a right label at u = 0, and w ~ N(0, 1).

References
----------
.. [1] A. N. Angelopoulos et al., "Prediction-powered inference", Science 382, 2023, https://arxiv.org/abs/2301.09633
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NEWTON_STEPS = 30


class Predicted(NamedTuple):
    """Predicted probabilities f that given labels are wrong.

    u_train  (N,) margins of training samples
    train    (N,) f of training samples
    clean    (n,) f of clean samples, by predictions that are not fitted to them
    """

    u_train: Tensor
    train: Tensor
    clean: Tensor


def fit_noise_rate(u: Tensor, wrong: Tensor, predicted: Predicted | None = None) -> tuple[Tensor, Tensor]:
    """Return b and w for clean samples with margins u and probabilities `wrong` of a wrong given label, both (n,).

    `predicted` adds the training samples; without it the clean samples are all. Newton's method.
    """
    if predicted is None:
        x, target, correction = _design(u), wrong, u.new_zeros(2)
    else:
        x, target = _design(predicted.u_train), predicted.train
        correction = _design(u).T @ (wrong - predicted.clean)
        expected = len(u) * target.mean()  # number of wrong labels among n samples
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
        solution = solution - step / (step.abs().max() / 2).clamp_min(
            1.0
        )  # far from the solution Newton's step is long
    return solution[0], solution[1]


def prediction_powered_mean(train_mean: Tensor, clean: Tensor, true: Tensor) -> Tensor:
    """Return the mean over training samples of a quantity that is predicted for all and known for clean samples.

    Parameters
    ----------
    train_mean : Tensor of shape (k,)
        Mean prediction over the training samples.
    clean, true : Tensor of shape (n, k)
        Prediction and true value of the clean samples.
    """
    return train_mean + (true - clean).mean(0)


def _design(u: Tensor) -> Tensor:
    return torch.stack([torch.ones_like(u), u], 1)


def _hessian(x: Tensor, e: Tensor) -> Tensor:
    return (x * (e * (1 - e))[:, None]).T @ x
