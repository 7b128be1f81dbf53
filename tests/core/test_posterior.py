"""What a given label adds: exact for noise that depends on the class, and found without being told the noise."""

import math

import torch

from metalabelnet.core.posterior import doubted, noise_matrix, off, off_by, posterior


def made(n: int = 20_000) -> tuple[torch.Tensor, ...]:
    """Samples of three classes with calibrated p, and labels given by a matrix."""
    g = torch.Generator().manual_seed(0)
    p = torch.distributions.Dirichlet(torch.full((3,), 0.3)).sample((n,)).double() * 0.98 + 0.02 / 3
    p = p[torch.randperm(n, generator=g)]
    true = torch.multinomial(p, 1, generator=g)[:, 0]
    T = torch.tensor([[0.7, 0.2, 0.1], [0.05, 0.9, 0.05], [0.0, 0.4, 0.6]]).double()
    return p, true, torch.multinomial(T[true], 1, generator=g)[:, 0], T


def test_the_matrix_is_found_and_the_posterior_is_bayes_rule() -> None:
    torch.manual_seed(0)
    p, true, given, T = made()
    found = noise_matrix(p, given)
    assert (found - T).abs().max() < 0.03
    torch.testing.assert_close(found.sum(1), torch.ones(3).double())
    q = posterior(p, given, T)
    by_hand = torch.stack([p[i] * T[:, given[i]] for i in range(5)])
    torch.testing.assert_close(q[:5], by_hand / by_hand.sum(1, keepdim=True))
    right = [float((x.argmax(1) == true).double().mean()) for x in (p, posterior(p, given, found))]
    assert right[1] > right[0] + 0.02
    assert right[1] > float((given == true).double().mean())


def test_a_sample_without_a_label_keeps_its_p() -> None:
    p, _, given, T = made(50)
    given[::2] = -1
    q = posterior(p.float(), given, T)
    assert q.dtype == torch.float32
    torch.testing.assert_close(q[::2], p.float()[::2])
    assert not torch.allclose(q[1::2], p.float()[1::2])
    torch.testing.assert_close(noise_matrix(p, given), noise_matrix(p[1::2], given[1::2]))


def test_one_class_and_labels_that_nobody_gave() -> None:
    assert noise_matrix(torch.ones(3, 1), torch.zeros(3, dtype=torch.long)).tolist() == [[1.0]]
    nothing = noise_matrix(torch.full((3, 2), 0.5), torch.full((3,), -1))
    torch.testing.assert_close(nothing.sum(1), torch.ones(2).double())


def test_p_is_right_as_often_by_q_as_on_clean_samples_where_noise_depends_on_the_class() -> None:
    torch.manual_seed(0)
    p, true, given, _ = made()
    noisy, clean = slice(0, 15_000), slice(15_000, None)
    q = posterior(p[noisy], given[noisy], noise_matrix(p[noisy], given[noisy]))
    expected, error = off(p[clean], true[clean])
    assert abs(off_by(q, p[noisy]) - expected) < 2 * error < 0.012
    surprise = (p[clean].argmax(1) == true[clean]).double() - p[clean].max(1).values
    assert abs(error - float(surprise.std()) / math.sqrt(5000)) < 1e-4
    assert abs(expected - float(surprise.mean())) < 1e-12
    by_hand = float(q.gather(1, p[noisy].argmax(1)[:, None]).mean() - p[noisy].max(1).values.mean())
    assert abs(off_by(q, p[noisy]) - by_hand) < 1e-12


def test_p_seems_wrong_by_q_where_noise_follows_what_p_confuses() -> None:
    torch.manual_seed(0)
    p, true, _, _ = made()
    second = p.argsort(1)[:, 1]
    given = torch.where(p.gather(1, second[:, None])[:, 0] > 0.2, second, true)
    q = posterior(p, given, noise_matrix(p, given))
    right = [float((x.argmax(1) == true).double().mean()) for x in (p, q)]
    assert right[1] < right[0] - 0.05  # q is led astray
    expected, error = off(p[:2000], true[:2000])
    assert off_by(q, p) - expected < -0.05 < -4 * error  # and it shows


def test_none_wrong_among_few_is_no_proof() -> None:
    p = torch.eye(2).double()[[0, 1] * 10]
    expected, error = off(p, torch.tensor([0, 1] * 10))
    assert expected == off_by(p, p) == 0
    assert 0.04 < error < 0.06
    assert off(p[:0], torch.zeros(0, dtype=torch.long))[1] > 0.5


def test_doubt_goes_where_p_is_confused() -> None:
    p = torch.tensor([[0.7, 0.3, 0.0], [0.4, 0.6, 0.0], [0.0, 0.0, 1.0]]).double()
    T = doubted(torch.eye(3).double(), p, 0.1)
    torch.testing.assert_close(T[:2], torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0]]).double())
    torch.testing.assert_close(T[2], torch.tensor([0.0, 0.0, 0.9]).double())  # confused with nothing
