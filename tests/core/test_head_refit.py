"""Head refit: close to the present layer if that is good, otherwise fitted to the samples."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core import head_refit
from metalabelnet.core.head_refit import refit_head

WIDTH, CLASSES = 12, 4


def layer(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(CLASSES, WIDTH, generator=generator, dtype=torch.float64)
    return weight, torch.randn(CLASSES, generator=generator, dtype=torch.float64)


def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features of different scales, one of them constant, and labels drawn from the probabilities of `layer(0)`."""
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(n, WIDTH, generator=generator, dtype=torch.float64) * torch.logspace(-1, 1, WIDTH) + 1
    v[:, 0] = 3.0
    p = functional.linear(v, *layer(0)).div(9).softmax(1)
    return v, torch.multinomial(p, 1, generator=generator)[:, 0]


def refit(v: Tensor, y: Tensor, old: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return refit_head(v, y, *old, torch.Generator().manual_seed(0))


def loss(v: Tensor, y: Tensor, one: tuple[Tensor, Tensor]) -> float:
    return float(functional.cross_entropy(functional.linear(v, *one), y))


def test_overconfident_layer_is_rescaled() -> None:
    truth = layer(0)
    overconfident = tuple(5 * part for part in truth)
    v, y = data(60, seed=1)
    refitted = refit(v, y, overconfident)
    others = data(4000, seed=2)
    best = loss(*others, tuple(part / 9 for part in truth))
    assert loss(*others, refitted) < best + 0.03 < loss(*others, overconfident)


def test_wrong_layer_is_replaced() -> None:
    v, y = data(300, seed=1)
    wrong = layer(9)
    others = data(4000, seed=2)
    from_wrong = loss(*others, refit(v, y, wrong))
    from_zero = loss(*others, refit(v, y, tuple(torch.zeros_like(part) for part in wrong)))
    assert from_wrong < from_zero + 0.01
    assert from_wrong < loss(*others, wrong) / 2


def test_refit_minimizes_documented_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_refit, "WEIGHT_DECAYS", (0.1,))
    monkeypatch.setattr(head_refit, "ITERATIONS", 500)
    v, y = data(50, seed=3)
    weight, bias = (part.requires_grad_() for part in refit(v, y, tuple(torch.zeros_like(p) for p in layer(0))))
    std = v.std(0, correction=0)
    logits = functional.linear(v, weight, bias)
    value = functional.cross_entropy(logits, y, label_smoothing=CLASSES / (50 + CLASSES))
    value = value + 0.05 * (weight * std).square().sum()
    grad_weight, grad_bias = torch.autograd.grad(value, (weight, bias))
    assert grad_weight.abs().max() < 1e-4
    assert grad_bias.abs().max() < 1e-4


def test_chunks_of_samples_give_the_same_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of a few samples are held at a time."""
    v, y = data(53, seed=3)
    expected = refit(v, y, layer(1))
    sizes: list[int] = []
    logits = head_refit._logits

    def count(u: Tensor, fit: Tensor) -> Tensor:
        sizes.append(len(u))
        return logits(u, fit)

    monkeypatch.setattr(head_refit, "_logits", count)
    monkeypatch.setattr(head_refit, "MAX_LOGITS_PER_CHUNK", 7 * 12 * CLASSES + 1)
    found = refit(v, y, layer(1))
    assert max(sizes) == 8  # 10 of the 12 fits are cross-validated
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_samples_give_finite_weights(n: int) -> None:
    v, y = data(n, seed=1)
    assert all(torch.isfinite(part).all() for part in refit(v, y, layer(0)))


def test_one_sample_keeps_layer_and_dtype_is_kept() -> None:
    old = tuple(part.float() for part in layer(0))
    v, y = data(1, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(refit(v.float(), y, old), old, strict=True))
    v, y = data(20, seed=1)
    assert [part.dtype for part in refit(v.float(), y, old)] == [torch.float32] * 2
