"""A layer near another: that one where it is good, the samples' own where it is not."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core import head_refit
from metalabelnet.core.head_refit import fit_near

WIDTH, CLASSES = 12, 4


def layer(seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(CLASSES, WIDTH, generator=random, dtype=torch.float64)
    return weight, torch.randn(CLASSES, generator=random, dtype=torch.float64)


def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features of different scales, one of them constant, and labels drawn as `layer(0)` has them."""
    random = torch.Generator().manual_seed(seed)
    v = torch.randn(n, WIDTH, generator=random, dtype=torch.float64) * torch.logspace(-1, 1, WIDTH) + 1
    v[:, 0] = 3.0
    p = functional.linear(v, *layer(0)).div(9).softmax(1)
    return v, torch.multinomial(p, 1, generator=random)[:, 0]


def fitted(v: Tensor, y: Tensor, old: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return fit_near(v, y, *old, torch.Generator().manual_seed(0))


def loss(v: Tensor, y: Tensor, one: tuple[Tensor, Tensor]) -> float:
    return float(functional.cross_entropy(functional.linear(v, *one), y))


def test_a_layer_that_knows_too_much_of_itself_becomes_as_sure_as_it_is_right() -> None:
    truth = layer(0)
    sure = tuple(5 * part for part in truth)
    v, y = data(60, seed=1)
    seen = fitted(v, y, sure)
    others = data(4000, seed=2)
    best = loss(*others, tuple(part / 9 for part in truth))
    assert loss(*others, seen) < best + 0.03 < loss(*others, sure)


def test_where_the_layer_is_wrong_the_samples_speak_for_themselves() -> None:
    v, y = data(300, seed=1)
    wrong = layer(9)
    others = data(4000, seed=2)
    near_wrong = loss(*others, fitted(v, y, wrong))
    alone = loss(*others, fitted(v, y, tuple(torch.zeros_like(part) for part in wrong)))
    assert near_wrong < alone + 0.01
    assert near_wrong < loss(*others, wrong) / 2


def test_it_is_the_least_of_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_refit, "DECAYS", (0.1,))
    monkeypatch.setattr(head_refit, "ITERATIONS", 500)
    v, y = data(50, seed=3)
    weight, bias = (part.requires_grad_() for part in fitted(v, y, tuple(torch.zeros_like(p) for p in layer(0))))
    deviation = v.std(0, correction=0)
    logits = functional.linear(v, weight, bias)
    value = functional.cross_entropy(logits, y, label_smoothing=CLASSES / (50 + CLASSES))
    value = value + 0.05 * (weight * deviation).square().sum()
    by_weight, by_bias = torch.autograd.grad(value, (weight, bias))
    assert by_weight.abs().max() < 1e-4
    assert by_bias.abs().max() < 1e-4


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_few_samples_are_enough_to_go_on(n: int) -> None:
    v, y = data(n, seed=1)
    assert all(torch.isfinite(part).all() for part in fitted(v, y, layer(0)))


def test_one_sample_changes_nothing_and_the_forms_stay() -> None:
    old = tuple(part.float() for part in layer(0))
    v, y = data(1, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(fitted(v.float(), y, old), old, strict=True))
    v, y = data(20, seed=1)
    assert [part.dtype for part in fitted(v.float(), y, old)] == [torch.float32] * 2
