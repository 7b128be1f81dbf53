"""The consistency loss: its limits, a naive loop, its gradient."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.consistency import consistency_loss


def draw(n: int = 7, c: int = 4) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    logits, labels = (2 * torch.randn(n, c, generator=g, dtype=torch.float64) for _ in range(2))
    return logits, labels.log_softmax(1)


def test_at_first_it_is_cross_entropy_to_the_soft_labels() -> None:
    logits, log_y = draw()
    expected = functional.cross_entropy(logits, log_y.exp(), reduction="none")
    torch.testing.assert_close(consistency_loss(logits, log_y), expected)


def test_sharpened_without_end_it_is_cross_entropy_to_the_largest_class() -> None:
    logits, log_y = draw()
    expected = functional.cross_entropy(logits, log_y.argmax(1), reduction="none")
    torch.testing.assert_close(consistency_loss(logits, log_y, sharpen=1e4), expected)


def test_whoever_is_not_sure_says_nothing() -> None:
    logits, log_y = draw()
    sure = log_y.exp().amax(1) >= 0.6
    assert sure.any()
    assert not sure.all()
    whole, part = consistency_loss(logits, log_y), consistency_loss(logits, log_y, confidence=0.6)
    assert torch.equal(part, torch.where(sure, whole, 0.0))


@pytest.mark.parametrize(("sharpen", "confidence"), [(1.0, 0.0), (2.0, 0.5), (0.5, 0.9)])
def test_it_is_the_formula(sharpen: float, confidence: float) -> None:
    logits, log_y = draw()
    for z, y, got in zip(
        logits.tolist(),
        log_y.exp().tolist(),
        consistency_loss(logits, log_y, sharpen=sharpen, confidence=confidence),
        strict=True,
    ):
        norm, total = sum(math.exp(v) for v in z), sum(v**sharpen for v in y)
        expected = -sum(v**sharpen / total * math.log(math.exp(a) / norm) for v, a in zip(y, z, strict=True))
        assert float(got) == pytest.approx(expected if max(y) >= confidence else 0.0, rel=1e-12)


def test_gradcheck() -> None:
    logits, log_y = draw()
    torch.autograd.gradcheck(lambda z: consistency_loss(z, log_y, sharpen=2.0, confidence=0.5), logits.requires_grad_())
