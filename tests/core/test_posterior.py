"""Posterior with given labels: exact for class-dependent noise, and detection of other noise."""

import math

import pytest
import torch
from torch import Tensor

from metalabelnet.core.posterior import (
    LastTransitionMatrix,
    clean_confidence_gap,
    fit_transition_matrix,
    mix_in_confusion,
    posterior,
    posterior_confidence_gap,
)


def draw(n: int = 20_000) -> tuple[torch.Tensor, ...]:
    """Samples of three classes with calibrated p, true labels, given labels, and the transition matrix."""
    g = torch.Generator().manual_seed(0)
    p = torch.distributions.Dirichlet(torch.full((3,), 0.3)).sample((n,)).double() * 0.98 + 0.02 / 3
    p = p[torch.randperm(n, generator=g)]
    true = torch.multinomial(p, 1, generator=g)[:, 0]
    T = torch.tensor([[0.7, 0.2, 0.1], [0.05, 0.9, 0.05], [0.0, 0.4, 0.6]]).double()
    return p, true, torch.multinomial(T[true], 1, generator=g)[:, 0], T


def test_matrix_is_recovered_and_posterior_is_bayes_rule() -> None:
    torch.manual_seed(0)
    p, true, given, T = draw()
    fit = fit_transition_matrix(p, given)
    assert (fit - T).abs().max() < 0.03
    torch.testing.assert_close(fit.sum(1), torch.ones(3).double())
    q = posterior(p, given, T)
    by_hand = torch.stack([p[i] * T[:, given[i]] for i in range(5)])
    torch.testing.assert_close(q[:5], by_hand / by_hand.sum(1, keepdim=True))
    accuracy = [float((x.argmax(1) == true).double().mean()) for x in (p, posterior(p, given, fit))]
    assert accuracy[1] > accuracy[0] + 0.02
    assert accuracy[1] > float((given == true).double().mean())


def test_unlabeled_sample_keeps_p() -> None:
    p, _, given, T = draw(50)
    given[::2] = -1
    q = posterior(p.float(), given, T)
    assert q.dtype == torch.float32
    torch.testing.assert_close(q[::2], p.float()[::2])
    assert not torch.allclose(q[1::2], p.float()[1::2])
    torch.testing.assert_close(fit_transition_matrix(p, given), fit_transition_matrix(p[1::2], given[1::2]))


def test_one_class_and_no_labels() -> None:
    assert fit_transition_matrix(torch.ones(3, 1), torch.zeros(3, dtype=torch.long)).tolist() == [[1.0]]
    unlabeled = fit_transition_matrix(torch.full((3, 2), 0.5), torch.full((3,), -1))
    torch.testing.assert_close(unlabeled.sum(1), torch.ones(2).double())


def test_gaps_agree_for_class_dependent_noise() -> None:
    torch.manual_seed(0)
    p, true, given, _ = draw()
    noisy, clean = slice(0, 15_000), slice(15_000, None)
    q = posterior(p[noisy], given[noisy], fit_transition_matrix(p[noisy], given[noisy]))
    expected, error = clean_confidence_gap(p[clean], true[clean])
    assert abs(posterior_confidence_gap(q, p[noisy]) - expected) < 2 * error < 0.012
    gap = (p[clean].argmax(1) == true[clean]).double() - p[clean].max(1).values
    assert abs(error - float(gap.std()) / math.sqrt(5000)) < 1e-4
    assert abs(expected - float(gap.mean())) < 1e-12
    by_hand = float(q.gather(1, p[noisy].argmax(1)[:, None]).mean() - p[noisy].max(1).values.mean())
    assert abs(posterior_confidence_gap(q, p[noisy]) - by_hand) < 1e-12


def test_gaps_differ_for_feature_dependent_noise() -> None:
    torch.manual_seed(0)
    p, true, _, _ = draw()
    second = p.argsort(1)[:, 1]
    given = torch.where(p.gather(1, second[:, None])[:, 0] > 0.2, second, true)
    q = posterior(p, given, fit_transition_matrix(p, given))
    accuracy = [float((x.argmax(1) == true).double().mean()) for x in (p, q)]
    assert accuracy[1] < accuracy[0] - 0.05  # q accepts wrong labels
    expected, error = clean_confidence_gap(p[:2000], true[:2000])
    assert posterior_confidence_gap(q, p) - expected < -0.05 < -4 * error  # and the gap reveals it


def test_standard_error_without_errors_in_small_sample() -> None:
    p = torch.eye(2).double()[[0, 1] * 10]
    expected, error = clean_confidence_gap(p, torch.tensor([0, 1] * 10))
    assert expected == posterior_confidence_gap(p, p) == 0
    assert 0.04 < error < 0.06
    assert clean_confidence_gap(p[:0], torch.zeros(0, dtype=torch.long))[1] > 0.5


def test_confusion_is_mixed_in() -> None:
    p = torch.tensor([[0.7, 0.3, 0.0], [0.4, 0.6, 0.0], [0.0, 0.0, 1.0]]).double()
    T = mix_in_confusion(torch.eye(3).double(), p, 0.1)
    torch.testing.assert_close(T[:2], torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0]]).double())
    torch.testing.assert_close(T[2], torch.tensor([0.0, 0.0, 0.9]).double())  # no confusion


def test_last_transition_matrix_is_fitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[Tensor] = []

    def fit(p: Tensor, given: Tensor) -> Tensor:
        fits.append(p)
        return fit_transition_matrix(p, given)

    monkeypatch.setattr("metalabelnet.core.posterior.fit_transition_matrix", fit)
    p, given, last = torch.rand(30, 4).softmax(1), torch.arange(30) % 4, LastTransitionMatrix()
    for _ in range(2):
        assert torch.equal(last(p, given), fit_transition_matrix(p, given))
    assert len(fits) == 1
    other, fewer = p.flip(1), torch.where(given == 0, -1, given)
    for arguments in ((other, given), (other, fewer), (p, given)):
        assert torch.equal(last(*arguments), fit_transition_matrix(*arguments))
    assert len(fits) == 4
