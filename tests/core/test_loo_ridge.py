"""LOO ridge: the closed forms against a loop that leaves out one sample after the other."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from metalabelnet.core.loo_ridge import MIN_VARIANCE, RELATIVE_DECAYS, RidgeHead, RidgeMoments

CLASSES = 3


def data(n: int = 40, width: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features with different scales and a constant one, and labels that depend on them with noise."""
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(n, width, generator=generator, dtype=torch.float64)
    y = (v[:, :CLASSES] + 0.7 * torch.randn(n, CLASSES, generator=generator, dtype=torch.float64)).argmax(1)
    return torch.cat([v * torch.logspace(-1, 2, width, dtype=torch.float64) + 5, torch.ones(n, 1)], 1), y


def fit(v: Tensor, y: Tensor) -> RidgeHead:
    moments = RidgeMoments(v.shape[1], CLASSES, v.device)
    for part in (slice(0, 13), slice(13, None)):
        moments.add(v[part], y[part])
    return moments.fit()


def naive(z: Tensor, y: Tensor, decay: float, n: int) -> tuple[Tensor, Tensor]:
    """W and b of (1/n) Σ ‖W z + b − e(y)‖² + λ‖W‖², by the normal equations; the intercept is not penalized."""
    ones = torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], 1)
    penalty = decay * n * torch.eye(ones.shape[1], dtype=z.dtype)
    penalty[-1, -1] = 0
    solution = torch.linalg.solve(ones.T @ ones + penalty, ones.T @ one_hot(y, CLASSES).double())
    return solution[:-1], solution[-1]


def standardize(v: Tensor) -> Tensor:
    return ((v - v.mean(0)) / v.std(0, correction=0))[:, :-1]  # without the constant


def decay_of(head: RidgeHead) -> float:
    """λ from 1/(0 + λ): the constant feature has the eigenvalue 0."""
    return float(1 / head.inverse.max())


def test_leave_one_out_equals_fit_without_sample() -> None:
    v, y = data()
    head, z = fit(v, y), standardize(v)
    predictions = head.logits(v, y) * head.variance
    for i in range(len(y)):
        rest = torch.arange(len(y)) != i
        weight, bias = naive(z[rest], y[rest], decay_of(head), len(y))
        torch.testing.assert_close(predictions[i], z[i] @ weight + bias)


def test_new_samples_use_full_fit() -> None:
    v, y = data()
    head, z = fit(v, y), standardize(v)
    weight, bias = naive(z, y, decay_of(head), len(y))
    torch.testing.assert_close(head.logits(v) * head.variance, z @ weight + bias)
    unlabeled = torch.full_like(y, -1)
    torch.testing.assert_close(head.logits(v, unlabeled), head.logits(v))  # none of these was added


def test_decay_minimizes_generalized_cross_validation() -> None:
    v, y = data(seed=1)
    head, z = fit(v, y), standardize(v)
    n, scale, gcv_errors = len(y), float(z.square().mean(0).sum() / v.shape[1]), {}
    for relative in RELATIVE_DECAYS:
        weight, bias = naive(z, y, scale * relative, n)
        hat = torch.cat([z, torch.ones(n, 1, dtype=z.dtype)], 1)
        penalty = scale * relative * n * torch.eye(hat.shape[1], dtype=z.dtype)
        penalty[-1, -1] = 0
        trace = float(torch.linalg.solve(hat.T @ hat + penalty, hat.T @ hat).trace())
        error = float((z @ weight + bias - one_hot(y, CLASSES)).square().sum(1).mean())
        gcv_errors[scale * relative] = error / (1 - trace / n) ** 2
    best = min(gcv_errors, key=lambda decay: gcv_errors[decay])
    assert decay_of(head) == pytest.approx(best)
    assert head.variance == pytest.approx(gcv_errors[best] / CLASSES)
    assert len({round(value, 12) for value in gcv_errors.values()}) == len(RELATIVE_DECAYS)


def test_unlabeled_samples_are_ignored() -> None:
    v, y = data()
    y[::3] = -1
    some, labeled = fit(v, y), y >= 0
    expected = RidgeMoments(v.shape[1], CLASSES, v.device)
    expected.add(v[labeled], y[labeled])
    torch.testing.assert_close(some.logits(v), expected.fit().logits(v))


def test_wrong_labels_do_not_confirm_themselves() -> None:
    """With more features than samples the fit reproduces every label; leave-one-out predictions do not."""
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(60) % CLASSES
    v = 4 * one_hot(true, CLASSES).double() @ torch.randn(CLASSES, 200, generator=generator, dtype=torch.float64)
    v = v + torch.randn(60, 200, generator=generator, dtype=torch.float64)
    given = torch.where(torch.arange(60) % 5 == 0, (true + 1) % CLASSES, true)
    head = fit(v, given)
    assert (head.logits(v, given).argmax(1) == true).all()


def test_constant_features_and_perfect_features() -> None:
    y = torch.arange(9) % CLASSES
    constant = fit(torch.ones(9, 4), y)
    assert constant.logits(torch.ones(2, 4)).softmax(1).flatten().tolist() == pytest.approx([1 / 3] * 6)
    one_hot_features = fit(one_hot(y, CLASSES).double(), y)
    assert one_hot_features.variance == MIN_VARIANCE
    assert (one_hot_features.logits(one_hot(y, CLASSES).double(), y).argmax(1) == y).all()


def test_sums_by_class_equal_products_with_one_hot_labels() -> None:
    (v, y), classes = data(200), 300
    y = torch.where(torch.arange(200) % 7 == 0, -1, 50 * y + torch.arange(200))  # many classes, some samples unlabeled
    moments = RidgeMoments(v.shape[1], classes, v.device)
    for part in (slice(0, 90), slice(90, None)):
        moments.add(v[part], y[part])
    v, e = v[y >= 0], one_hot(y[y >= 0], classes).double()
    assert torch.equal(moments.e, e.sum(0))
    torch.testing.assert_close(moments.ve, v.T @ e, rtol=1e-12, atol=1e-12)
