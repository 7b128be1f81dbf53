"""The transition matrix, counted, estimated and by anchors: hand-worked tables, exact recovery, known error."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.transition_matrix import anchor, class_prior, counted, deconfounded, estimated, noise_rate

C = 5


def make_T(seed: int = 0) -> Tensor:
    """Noise of every kind at once: rows of their own, most of each on its diagonal."""
    off = torch.rand(C, C, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    off = off / off.sum(1, keepdim=True)
    keep = torch.linspace(0.5, 0.9, C, dtype=torch.float64)[:, None]
    return keep * torch.eye(C) + (1 - keep) * off


def labels(T: Tensor, prior: Tensor, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    true = torch.multinomial(prior, n, replacement=True, generator=g)
    return true, torch.multinomial(T[true], 1, generator=g)[:, 0]


def uniform(n: int = C) -> Tensor:
    return torch.full((n,), 1 / n, dtype=torch.float64)


def test_count_by_hand() -> None:
    """Class 0: three samples, one of them given 2. Class 1: none. Class 2: one, right."""
    count = counted(torch.tensor([0, 0, 0, 2]), torch.tensor([0, 2, 0, 2]), 3)
    expected = torch.tensor([[2 / 3, 0, 1 / 3], [0, 1, 0], [0, 0, 1]], dtype=torch.float64)
    torch.testing.assert_close(count.T, expected)
    assert count.rate == 0.25
    assert count.error == pytest.approx(math.sqrt(2 / 6 * 4 / 6 / 4))


def test_none_wrong_is_no_certainty() -> None:
    assert counted(torch.arange(3), torch.arange(3), 3).error > 0.2


@pytest.mark.parametrize("n", [80, 2000])
def test_a_count_is_within_three_standard_errors(n: int) -> None:
    """One number of a hundred may be further off; the mean error over all seeds is 0 within 3 of its own."""
    T = make_T()
    truth = noise_rate(T, uniform())
    z = []
    for seed in range(100):
        count = counted(*labels(T, uniform(), n, seed), C)
        z.append((count.rate - truth) / count.error)
    assert sum(abs(x) > 3 for x in z) <= 1
    assert abs(sum(z) / 100) < 3 / 10
    assert sum(x * x for x in z) / 100 > 0.5  # the error is no larger than it need be


def test_a_count_of_many_is_the_matrix() -> None:
    T = make_T()
    true, given = labels(T, uniform(), 100_000)
    assert (counted(true, given, C).T - T).abs().max() < 3 * math.sqrt(0.25 / 20_000)


def test_noise_rate_by_hand() -> None:
    T = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
    assert noise_rate(T, torch.tensor([0.75, 0.25])) == pytest.approx(0.75 * 0.1 + 0.25 * 0.6)
    assert noise_rate(torch.eye(2), torch.tensor([0.5, 0.5])) == 0


def test_prior_is_found_from_the_given_labels() -> None:
    T = make_T()
    prior = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1], dtype=torch.float64)
    torch.testing.assert_close(class_prior(T, 70 * prior @ T, uniform(), 2000), prior, rtol=0, atol=1e-4)
    near = class_prior(T, prior @ T, uniform())
    assert (near - prior).abs().sum() < 0.5 * (uniform() - prior).abs().sum()
    assert float(near.sum()) == pytest.approx(1)


def unsure(true: Tensor, T: Tensor, doubt: float, seed: int) -> tuple[Tensor, Tensor]:
    """What a network says that knows T but not always the class: softmax of a blurred one-hot, sent through T."""
    g = torch.Generator().manual_seed(seed)
    blurred = functional.one_hot(true, C) + doubt * torch.randn(len(true), C, dtype=torch.float64, generator=g)
    belief = (blurred / doubt**2).softmax(1)  # for Gaussian blur this is the exact posterior
    return belief @ T, belief


@pytest.mark.parametrize("doubt", [0.2, 0.5])
def test_estimate_recovers_the_matrix_where_the_mean_of_p_does_not(doubt: float) -> None:
    T, prior = make_T(), torch.tensor([0.3, 0.3, 0.2, 0.1, 0.1], dtype=torch.float64)
    clean, _ = labels(T, uniform(), 5000, seed=1)
    true, given = labels(T, prior, 20_000, seed=2)
    p_clean, p_noisy = unsure(clean, T, doubt, 3)[0], unsure(true, T, doubt, 4)[0]
    estimate = estimated(p_clean, clean, p_noisy, given)
    torch.testing.assert_close(estimate.T.sum(1), torch.ones(C, dtype=torch.float64))
    assert (estimate.T - T).abs().max() < 0.05
    assert (estimate.prior - prior).abs().max() < 0.03
    truth = noise_rate(T, prior)
    assert noise_rate(*estimate) == pytest.approx(truth, abs=0.015)
    if doubt == 0.5:
        mean = 1 - float(p_clean.gather(1, clean[:, None]).mean())
        assert mean > truth + 0.1


def test_estimate_of_a_sure_network_is_a_count() -> None:
    true, given = labels(make_T(), uniform(), 1000)
    sure = functional.one_hot(true, C).double()
    estimate = estimated(sure, true, sure, given)
    torch.testing.assert_close(estimate.T, counted(true, given, C).T, rtol=0, atol=1e-6)
    assert noise_rate(*estimate) == pytest.approx(counted(true, given, C).rate, abs=1e-6)


def test_estimate_bears_a_class_without_clean_samples_and_certainties_that_are_wrong() -> None:
    true, given = labels(make_T(), uniform(), 200)
    wrong = functional.one_hot((true + 1) % C, C).float()
    seen = true != 2
    estimate = estimated(wrong[seen], true[seen], wrong, given)
    assert all(torch.isfinite(t).all() for t in estimate)
    torch.testing.assert_close(estimate.T.sum(1), torch.ones(C, dtype=torch.float64))


def test_anchor_takes_the_surest_sample_below_the_percentile() -> None:
    """200 samples: p_0 rises from 0 to 1, p_2 is always 0.001. 3 % of 200 are at or above the 97th percentile."""
    p_0 = torch.linspace(0, 0.999, 200, dtype=torch.float64)
    p = torch.stack([p_0, 0.999 - p_0, torch.full_like(p_0, 0.001)], 1)
    T = anchor(p)
    torch.testing.assert_close(T[0], p[193])
    torch.testing.assert_close(T[1], p[6])
    torch.testing.assert_close(T[2].sum(), torch.tensor(1.0, dtype=torch.float64))  # all equal: none is below
    torch.testing.assert_close(anchor(p, 100)[0], p[198])


def test_anchor_finds_the_matrix_where_every_class_has_a_sure_sample() -> None:
    T = make_T()
    true, _ = labels(T, uniform(), 3000)
    p = unsure(true, T, 0.15, 5)[0]
    assert (anchor(p) - T).abs().max() < 0.02


@pytest.mark.parametrize(("classes", "rare"), [(40, False), (100, False), (2, True)])
def test_anchors_of_many_classes_and_of_a_rare_one_are_samples_of_their_class(classes: int, rare: bool) -> None:
    """A percentile that cut off all samples of a class would take its row from another's."""
    true = (torch.arange(2000) % 50 == 0).long() if rare else torch.arange(4000) % classes
    T = 0.6 * torch.eye(classes, dtype=torch.float64) + 0.4 / classes
    doubt = torch.rand(len(true), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 10
    p = (1 - doubt) * T[true] + doubt / classes
    torch.testing.assert_close(anchor(p), T, rtol=0, atol=0.1)


def doubting(rate: float, doubt: float, classes: int = 10) -> tuple[Tensor, Tensor, Tensor]:
    """T, what a network expects of clean samples, and their classes: of 20 that look like one some are the next one's.

    It knows how many, and how many labels are drawn at random.
    """
    own = torch.eye(classes, dtype=torch.float64)
    look = torch.arange(classes).repeat_interleave(20)
    true = torch.where(torch.arange(20 * classes) % 20 < round(20 * doubt), (look + 1) % classes, look)
    posterior = (1 - doubt) * own + doubt * own.roll(1, 1)
    p = (1 - rate) * posterior[look] + rate / classes
    of_class = functional.one_hot(true, classes).to(p)
    return of_class.T @ p / of_class.sum(0)[:, None], p, true


def random_noise(rate: float, classes: int = 10) -> Tensor:
    return (1 - rate) * torch.eye(classes, dtype=torch.float64) + rate / classes


@pytest.mark.parametrize(("rate", "doubt"), [(0.2, 0.1), (0.4, 0.2), (0.8, 0.1)])
def test_doubt_is_taken_out_where_noise_is_random(rate: float, doubt: float) -> None:
    T, p, true = doubting(rate, doubt)
    assert (T - random_noise(rate)).abs().max() > 0.02
    torch.testing.assert_close(deconfounded(T, p, true), random_noise(rate))


@pytest.mark.parametrize("rate", [0.0, 0.05])
def test_noise_that_follows_the_features_is_no_doubt(rate: float) -> None:
    """Nothing falls on classes far away: three tenths of what seems noise must, before anything is done."""
    T, p, true = doubting(rate, 0.3)
    assert torch.equal(deconfounded(T, p, true), T)


def test_a_network_that_has_learned_little_doubts_everything() -> None:
    """Its doubt reaches all classes, as labels drawn at random would: but the clean samples are of all classes too."""
    own = torch.eye(10, dtype=torch.float64)
    p = (0.4 * own + 0.06).repeat(50, 1)
    true = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(0))[:, 0]
    of_class = functional.one_hot(true, 10).to(p)
    T = of_class.T @ p / of_class.sum(0)[:, None]
    assert torch.equal(deconfounded(T, p, true), T)


def test_between_the_two_it_is_a_mixture() -> None:
    T, p, true = doubting(0.12, 0.1)
    found, random = deconfounded(T, p, true), random_noise(0.12)
    share = (found - T).norm() / (random - T).norm()
    assert 0.05 < share < 0.95
    torch.testing.assert_close(found, share * random + (1 - share) * T)


def test_a_class_nobody_has_seen_learns_from_the_others() -> None:
    T, p, true = doubting(0.4, 0.2)
    T[3] = 0.1
    torch.testing.assert_close(deconfounded(T, p[true != 3], true[true != 3]), random_noise(0.4))


def test_two_classes_have_no_lesser_half() -> None:
    T, p, true = doubting(0.4, 0.2, classes=2)
    assert torch.equal(deconfounded(T, p, true), T)


def test_a_network_without_noise_or_doubt_keeps_the_identity() -> None:
    T, p, true = doubting(0.0, 0.0)
    torch.testing.assert_close(deconfounded(T, p, true), torch.eye(10, dtype=torch.float64))


def test_a_network_that_knows_nothing_leaves_a_matrix_that_says_nothing() -> None:
    """All of it is doubt: nothing is divided by what is left."""
    p, true = torch.full((8, 4), 0.25), torch.arange(8) % 4
    T = torch.full((4, 4), 0.25)
    torch.testing.assert_close(deconfounded(T, p, true), T)
