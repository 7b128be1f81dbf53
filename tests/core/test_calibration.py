"""Temperature: found where it is known, and never further than the samples allow."""

import pytest
import torch

from metalabelnet.core.calibration import at_temperature, calibrated


def drawn(n: int, t: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and labels drawn from softmax(logits / t)."""
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, 5, generator=g, dtype=torch.float64)
    return logits, torch.multinomial((logits / t).softmax(1), 1, generator=g)[:, 0]


@pytest.mark.parametrize("t", [0.3, 1.0, 2.5])
def test_a_known_temperature_is_found(t: float) -> None:
    """20,000 labels: the standard error of ln t is about 1 %; five of them are allowed."""
    found = calibrated(*drawn(20_000, t)).temperature
    assert found == pytest.approx(t, rel=0.05)


def test_it_is_the_minimum_and_the_loss_is_that_of_the_samples() -> None:
    logits, labels = drawn(50, 2.0)

    def loss(t: float) -> float:  # with the one sample more
        log_p = (logits / t).log_softmax(1)
        return float(-log_p[range(50), labels].sum() - log_p.mean())

    found = calibrated(logits, labels)
    assert all(loss(found.temperature) < loss(found.temperature * change) for change in (0.99, 1.01))
    exact = -(logits / found.temperature).log_softmax(1)[range(50), labels].mean()
    assert found.loss == pytest.approx(float(exact))


def test_scaled_logits_scale_the_temperature() -> None:
    logits, labels = drawn(200, 1.0)
    once, twice = calibrated(logits, labels), calibrated(2 * logits, labels)
    assert twice.temperature == pytest.approx(2 * once.temperature, rel=1e-3)
    assert twice.loss == pytest.approx(once.loss, rel=1e-5)


def test_probabilities_do_as_well_as_logits() -> None:
    logits, labels = drawn(200, 1.7)
    assert calibrated(logits.log_softmax(1), labels) == pytest.approx(calibrated(logits, labels))


@pytest.mark.parametrize("right", [True, False])
def test_few_samples_all_right_or_all_wrong_give_no_certainty(right: bool) -> None:
    logits = torch.tensor([[4.0, 0.0, 0.0]] * 4)
    t, _ = calibrated(logits, torch.zeros(4, dtype=torch.long) if right else torch.ones(4, dtype=torch.long))
    confidence = float(at_temperature(logits, t)[0, 0])
    # Four right and one unknown: the likeliest share is (4 + 1/3) / 5. All wrong: the highest temperature.
    assert confidence == pytest.approx(13 / 15 if right else 0.379, abs=0.001)


def test_the_order_of_the_classes_stays() -> None:
    logits, _ = drawn(100, 1.0)
    for t in (0.05, 0.7, 20.0):
        p = at_temperature(logits, t)
        assert torch.equal(p.argsort(1), logits.argsort(1))
        torch.testing.assert_close(p.sum(1), torch.ones(100, dtype=p.dtype))
    torch.testing.assert_close(at_temperature(logits, 1.0), logits.softmax(1))
