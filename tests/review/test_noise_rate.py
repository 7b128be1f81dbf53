"""The estimated noise rate and its confidence interval."""

import numpy as np
import pytest

from metalabelnet.core.intervals import wilson
from metalabelnet.review.noise_rate import Stratum, noise_rate


def test_no_estimate_without_judged_samples() -> None:
    assert noise_rate([]) is None
    assert noise_rate([Stratum(size=10, judged=0, wrong=0)]) is None


def test_one_stratum_gives_the_wilson_interval() -> None:
    rate = noise_rate([Stratum(size=500, judged=40, wrong=7)])
    assert rate is not None
    assert (rate.rate, rate.judged) == (7 / 40, 40)
    assert (rate.low, rate.high) == pytest.approx(wilson(7, 40), abs=1e-12)


def test_classes_are_weighted_by_their_size() -> None:
    rate = noise_rate([Stratum(size=900, judged=10, wrong=1), Stratum(size=100, judged=90, wrong=90)])
    assert rate is not None
    assert rate.rate == pytest.approx(0.9 * 0.1 + 0.1 * 1.0)


def test_unjudged_class_widens_the_interval() -> None:
    known = Stratum(size=500, judged=100, wrong=10)
    both = noise_rate([known, Stratum(size=500, judged=0, wrong=0)])
    one = noise_rate([known])
    assert both is not None
    assert one is not None
    assert both.rate == one.rate == 0.1
    assert both.high > one.high + 0.3


def test_interval_coverage() -> None:
    """2,000 samplings of three classes with different noise; the standard error of the coverage is 0.5 points."""
    random = np.random.default_rng(0)
    sizes, rates, judged = (700, 250, 50), (0.05, 0.3, 0.6), (25, 25, 25)
    true_rate = np.dot(sizes, rates) / sum(sizes)
    hits = 0
    for _ in range(2000):
        wrong = [random.binomial(n, r) for n, r in zip(judged, rates, strict=True)]
        strata = zip(sizes, judged, wrong, strict=True)
        estimate = noise_rate([Stratum(size=s, judged=n, wrong=int(k)) for s, n, k in strata])
        assert estimate is not None
        hits += estimate.low <= true_rate <= estimate.high
    assert 0.93 <= hits / 2000 <= 0.99


@pytest.mark.parametrize(("classes", "judged"), [(10, 5), (10, 20), (100, 20), (200, 200)])
@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_interval_coverage_with_few_judged_classes(classes: int, judged: int, rate: float) -> None:
    """600 samplings with random classes; the standard error of the coverage is at most 1.2 points."""
    random = np.random.default_rng(0)
    drawn = random.multinomial(judged, np.full(classes, 1 / classes), size=600)
    hits = 0
    for counts, wrong in zip(drawn, random.binomial(drawn, rate), strict=True):
        strata = zip(counts.tolist(), wrong.tolist(), strict=True)
        estimate = noise_rate([Stratum(size=100, judged=n, wrong=k) for n, k in strata])
        assert estimate is not None
        assert 0 <= estimate.low <= estimate.rate <= estimate.high <= 1
        hits += estimate.low <= rate <= estimate.high
    assert hits >= 540
