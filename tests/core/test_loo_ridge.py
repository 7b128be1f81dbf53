"""The closed forms against what they stand for: a loop that leaves out one sample after the other."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from metalabelnet.core.loo_ridge import DECAYS, LEAST, Head, Moments

CLASSES = 3


def data(n: int = 40, width: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features with different scales and a constant one, labels that follow them in part."""
    random = torch.Generator().manual_seed(seed)
    v = torch.randn(n, width, generator=random, dtype=torch.float64)
    y = (v[:, :CLASSES] + 0.7 * torch.randn(n, CLASSES, generator=random, dtype=torch.float64)).argmax(1)
    return torch.cat([v * torch.logspace(-1, 2, width, dtype=torch.float64) + 5, torch.ones(n, 1)], 1), y


def fitted(v: Tensor, y: Tensor) -> Head:
    moments = Moments(v.shape[1], CLASSES, v.device)
    for part in (slice(0, 13), slice(13, None)):
        moments.add(v[part], y[part])
    return moments.fit()


def naive(z: Tensor, y: Tensor, decay: float, n: int) -> tuple[Tensor, Tensor]:
    """W and b of (1/n) Σ ‖W z + b − e(y)‖² + λ‖W‖², by the normal equations; the intercept is free."""
    ones = torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], 1)
    penalty = decay * n * torch.eye(ones.shape[1], dtype=z.dtype)
    penalty[-1, -1] = 0
    solution = torch.linalg.solve(ones.T @ ones + penalty, ones.T @ one_hot(y, CLASSES).double())
    return solution[:-1], solution[-1]


def standardised(v: Tensor) -> Tensor:
    return ((v - v.mean(0)) / v.std(0, correction=0))[:, :-1]  # without the constant


def decay_of(head: Head) -> float:
    """λ, from 1/(0 + λ): the constant feature has the eigenvalue 0."""
    return float(1 / head.spread.max())


def test_left_out_is_the_fit_without_that_sample() -> None:
    v, y = data()
    head, z = fitted(v, y), standardised(v)
    said = head.logits(v, y) * head.variance
    for i in range(len(y)):
        rest = torch.arange(len(y)) != i
        weight, bias = naive(z[rest], y[rest], decay_of(head), len(y))
        torch.testing.assert_close(said[i], z[i] @ weight + bias)


def test_other_samples_are_told_by_the_whole_fit() -> None:
    v, y = data()
    head, z = fitted(v, y), standardised(v)
    weight, bias = naive(z, y, decay_of(head), len(y))
    torch.testing.assert_close(head.logits(v) * head.variance, z @ weight + bias)
    nobody = torch.full_like(y, -1)
    torch.testing.assert_close(head.logits(v, nobody), head.logits(v))  # none of these was taken in


def test_the_decay_is_that_of_least_generalised_cross_validation() -> None:
    v, y = data(seed=1)
    head, z = fitted(v, y), standardised(v)
    n, size, found = len(y), float(z.square().mean(0).sum() / v.shape[1]), {}
    for part in DECAYS:
        weight, bias = naive(z, y, size * part, n)
        hat = torch.cat([z, torch.ones(n, 1, dtype=z.dtype)], 1)
        penalty = size * part * n * torch.eye(hat.shape[1], dtype=z.dtype)
        penalty[-1, -1] = 0
        trace = float(torch.linalg.solve(hat.T @ hat + penalty, hat.T @ hat).trace())
        error = float((z @ weight + bias - one_hot(y, CLASSES)).square().sum(1).mean())
        found[size * part] = error / (1 - trace / n) ** 2
    best = min(found, key=lambda decay: found[decay])
    assert decay_of(head) == pytest.approx(best)
    assert head.variance == pytest.approx(found[best] / CLASSES)
    assert len({round(value, 12) for value in found.values()}) == len(DECAYS)


def test_samples_without_a_label_have_no_part() -> None:
    v, y = data()
    y[::3] = -1
    some, known = fitted(v, y), y >= 0
    alone = Moments(v.shape[1], CLASSES, v.device)
    alone.add(v[known], y[known])
    torch.testing.assert_close(some.logits(v), alone.fit().logits(v))


def test_a_wrong_label_does_not_vouch_for_itself() -> None:
    """Far more features than samples: the fit has every label right, and left out they are told by the others."""
    random = torch.Generator().manual_seed(0)
    true = torch.arange(60) % CLASSES
    v = 4 * one_hot(true, CLASSES).double() @ torch.randn(CLASSES, 200, generator=random, dtype=torch.float64)
    v = v + torch.randn(60, 200, generator=random, dtype=torch.float64)
    given = torch.where(torch.arange(60) % 5 == 0, (true + 1) % CLASSES, true)
    head = fitted(v, given)
    assert (head.logits(v, given).argmax(1) == true).all()


def test_features_that_say_nothing_or_everything() -> None:
    y = torch.arange(9) % CLASSES
    nothing = fitted(torch.ones(9, 4), y)
    assert nothing.logits(torch.ones(2, 4)).softmax(1).flatten().tolist() == pytest.approx([1 / 3] * 6)
    everything = fitted(one_hot(y, CLASSES).double(), y)
    assert everything.variance == LEAST
    assert (everything.logits(one_hot(y, CLASSES).double(), y).argmax(1) == y).all()
