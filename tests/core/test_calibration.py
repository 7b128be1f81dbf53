"""Temperature scaling: recovery of a known temperature, and regularization for few samples."""

import pytest
import torch

from metalabelnet.core.calibration import fit_temperature, softmax_at_temperature


def draw_labels(n: int, t: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and labels drawn from softmax(logits / t)."""
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, 5, generator=g, dtype=torch.float64)
    return logits, torch.multinomial((logits / t).softmax(1), 1, generator=g)[:, 0]


@pytest.mark.parametrize("t", [0.3, 1.0, 2.5])
def test_known_temperature_is_recovered(t: float) -> None:
    """20,000 labels: the standard error of ln t is about 1 %; the tolerance is five standard errors."""
    fit = fit_temperature(*draw_labels(20_000, t)).temperature
    assert fit == pytest.approx(t, rel=0.05)


def test_temperature_minimizes_regularized_loss() -> None:
    logits, labels = draw_labels(50, 2.0)

    def loss(t: float) -> float:  # with the pseudo-sample
        log_p = (logits / t).log_softmax(1)
        return float(-log_p[range(50), labels].sum() - log_p.mean())

    fit = fit_temperature(logits, labels)
    assert all(loss(fit.temperature) < loss(fit.temperature * change) for change in (0.99, 1.01))
    exact = -(logits / fit.temperature).log_softmax(1)[range(50), labels].mean()
    assert fit.loss == pytest.approx(float(exact))


def test_scaled_logits_scale_temperature() -> None:
    logits, labels = draw_labels(200, 1.0)
    once, twice = fit_temperature(logits, labels), fit_temperature(2 * logits, labels)
    assert twice.temperature == pytest.approx(2 * once.temperature, rel=1e-3)
    assert twice.loss == pytest.approx(once.loss, rel=1e-5)


def test_log_probabilities_give_same_temperature_as_logits() -> None:
    logits, labels = draw_labels(200, 1.7)
    assert fit_temperature(logits.log_softmax(1), labels) == pytest.approx(fit_temperature(logits, labels))


@pytest.mark.parametrize("correct", [True, False])
def test_few_samples_do_not_give_certainty(correct: bool) -> None:
    logits = torch.tensor([[4.0, 0.0, 0.0]] * 4)
    t, _ = fit_temperature(logits, torch.zeros(4, dtype=torch.long) if correct else torch.ones(4, dtype=torch.long))
    confidence = float(softmax_at_temperature(logits, t)[0, 0])
    # Four correct and the pseudo-sample: the maximum-likelihood share is (4 + 1/3) / 5. All wrong: MAX_TEMPERATURE.
    assert confidence == pytest.approx(13 / 15 if correct else 0.379, abs=0.001)


def test_class_order_is_preserved() -> None:
    logits, _ = draw_labels(100, 1.0)
    for t in (0.05, 0.7, 20.0):
        p = softmax_at_temperature(logits, t)
        assert torch.equal(p.argsort(1), logits.argsort(1))
        torch.testing.assert_close(p.sum(1), torch.ones(100, dtype=p.dtype))
    torch.testing.assert_close(softmax_at_temperature(logits, 1.0), logits.softmax(1))


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = draw_labels(500, 1.7)
    whole = fit_temperature(logits, labels)
    monkeypatch.setattr("metalabelnet.core.calibration.MAX_VALUES_PER_CHUNK_ON_CPU", 35)  # 7 rows; the last block has 3
    assert fit_temperature(logits, labels) == whole
