"""The ridge regression of DMLP, its gradient by the labels, and the purified labels."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.label_purifier import (
    RIDGE,
    Features,
    RidgeRegression,
    clean_loss,
    purify_labels,
    standardize,
)


def problem(seed: int = 0, train: int = 30, clean: int = 9, width: int = 4) -> tuple[Features, Tensor, Tensor]:
    """Return features, labels Y of the training samples and labels of the clean samples."""
    g = torch.Generator().manual_seed(seed)
    v, v_m = (torch.randn(n, width, generator=g, dtype=torch.float64) for n in (train, clean))
    return (
        standardize(v, v_m),
        torch.rand(train, 3, generator=g, dtype=torch.float64),
        torch.randint(3, (clean,), generator=g),
    )


def test_ridge_weights_are_those_of_scikit_learn() -> None:
    features, y, _ = problem()
    reference = Ridge(alpha=RIDGE * len(y), fit_intercept=False, solver="cholesky").fit(features.train, y)
    np.testing.assert_allclose(RidgeRegression(features.train).weights(y).T, reference.coef_, rtol=1e-10)


def test_gradient_by_labels_equals_finite_differences_and_autograd() -> None:
    features, y, y_m = problem()
    ridge = RidgeRegression(features.train)

    def loss_of_labels(labels: Tensor) -> Tensor:
        return clean_loss(features, y_m, ridge.weights(labels))

    ours = ridge.label_gradient(y, lambda w: clean_loss(features, y_m, w))
    labels = y.clone().requires_grad_()
    torch.testing.assert_close(ours, torch.autograd.grad(loss_of_labels(labels), labels)[0], rtol=1e-9, atol=1e-12)
    step = 1e-5
    for i, c in ((0, 0), (7, 2), (29, 1)):
        shift = torch.zeros_like(y)
        shift[i, c] = step
        difference = (loss_of_labels(y + shift) - loss_of_labels(y - shift)) / (2 * step)
        assert float(ours[i, c]) == pytest.approx(float(difference), rel=1e-6)


def test_purified_labels_are_those_of_the_formulas() -> None:
    """A loop with the inverse, autograd through it, and torch's Adam."""
    features, _, y_m = problem()
    v, v_m = features
    given = torch.arange(30) % 3
    ours = purify_labels(features, given, y_m, classes=3, steps=3, period=2)

    options: Any = {"weight_decay": 3e-4, "betas": (0.5, 0.999)}
    y = functional.one_hot(given, 3).double().requires_grad_()
    u = torch.zeros(5, 3, dtype=torch.float64, requires_grad=True)
    label_adam, classifier_adam = torch.optim.Adam([y], 2.6e-2, **options), torch.optim.Adam([u], 6e-3, **options)
    target = functional.one_hot(y_m, 3)
    for step in range(1, 4):
        w = torch.linalg.inv(v.T @ v / 30 + 0.01 * torch.eye(5)) @ v.T @ y / 30
        balance = (v @ w).softmax(1).mean(0)
        loss = ((v_m @ w - target) ** 2).sum() + functional.cross_entropy(v_m @ w, y_m) - (3 * balance).log().mean()
        (y.grad,) = torch.autograd.grad(loss, y)
        label_adam.step()
        for _ in range(14):
            p = (v @ u).softmax(1)
            loss = functional.nll_loss(p.log(), y.argmax(1)) - (3 * p.mean(0)).log().mean()
            (u.grad,) = torch.autograd.grad(loss + 0.4 * (p * p.log()).sum(1).mean(), u)
            classifier_adam.step()
        if step == 2:
            y.data = (v @ u).detach().softmax(1)
    torch.testing.assert_close(ours, y.detach(), rtol=1e-6, atol=1e-9)


def test_constant_features_are_dropped() -> None:
    v = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    v[:, 1] = 5.0
    features = standardize(v, torch.tensor([[0.0, 7.0]]))
    assert features.train[:, 1].abs().max() == 0
    assert features.clean[0, 1:].tolist() == [0.0, 1.0]
    torch.testing.assert_close(features.train[:, 0].std(correction=0), torch.tensor(1.0))


def separable_problem() -> tuple[Features, Tensor, Tensor, Tensor]:
    """Return features in three clusters, true labels, given labels (60 % wrong), and labels of 60 clean samples."""
    g = torch.Generator().manual_seed(0)
    true, y_m = torch.arange(300) % 3, torch.arange(60) % 3
    centers = 3 * torch.eye(3, 6, dtype=torch.float64)
    v, v_m = (centers[labels] + torch.randn(len(labels), 6, generator=g, dtype=torch.float64) for labels in (true, y_m))
    wrong, shift = torch.rand(300, generator=g) < 0.6, torch.randint(1, 3, (300,), generator=g)
    return standardize(v, v_m), true, torch.where(wrong, (true + shift) % 3, true), y_m


def test_purifier_corrects_labels_of_separable_features() -> None:
    """It does so where the ridge regression of the given labels does not."""
    features, true, given, y_m = separable_problem()
    one_hot = functional.one_hot(given, 3).double()
    fitted = features.train @ RidgeRegression(features.train).weights(one_hot)
    purified = purify_labels(features, given, y_m, classes=3, steps=30, period=10)
    before, after = (float((y.argmax(1) == true).double().mean()) for y in (fitted, purified))
    assert before < 0.85
    assert after > 0.95


def test_intrinsic_correction_lowers_the_clean_loss() -> None:
    features, _, given, y_m = separable_problem()
    one_hot, ridge = functional.one_hot(given, 3).double(), RidgeRegression(features.train)
    purified = purify_labels(features, given, y_m, classes=3, steps=20, period=1000)
    before, after = (clean_loss(features, y_m, ridge.weights(y)) for y in (one_hot, purified))
    assert after < 0.8 * before
