"""Confidence intervals against SciPy and closed forms."""

import math
import random

import pytest

from metalabelnet.core.intervals import (
    Z_95,
    corrected_intervals,
    holm_levels,
    is_beyond_zero,
    paired_difference,
    welch_difference,
    wilson,
    wilson_percent,
)


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 20), (20, 20), (3, 17), (250, 1000)])
def test_wilson_equals_scipy(successes: int, n: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(successes, n).proportion_ci(0.95, method="wilson")
    assert wilson(successes, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_bounds_solve_the_score_equation() -> None:
    """Wilson's bounds are the proportions π with |p − π| = z √(π(1 − π)/n)."""
    for bound in wilson(13, 40):
        assert abs(13 / 40 - bound) == pytest.approx(Z_95 * math.sqrt(bound * (1 - bound) / 40))


def test_wilson_without_observations_is_the_unit_interval() -> None:
    assert wilson(0, 0) == (0, 1)


def test_wilson_percent_at_0_and_100_percent() -> None:
    """At 100 % of n samples the interval is n/(n + z²) to 1."""
    low, high = wilson_percent(100.0, 20)
    assert (low, high) == pytest.approx((100 * 20 / (20 + Z_95**2), 100.0))
    assert wilson_percent(0.0, 20) == pytest.approx((0.0, 100 - low))
    low, high = wilson_percent(50.0, 10**6)
    assert high - low == pytest.approx(2 * Z_95 * 100 * 0.5 / 1000, rel=1e-4)


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_paired_difference_equals_scipy(n: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = random.Random(n)
    differences = [rng.gauss(0.5, 1.0) for _ in range(n)]
    result, expected = paired_difference(differences), stats.ttest_1samp(differences, 0.0)
    assert result.p_value() == pytest.approx(expected.pvalue, rel=1e-9)
    for alpha in (0.05, 0.05 / 30):
        ci = expected.confidence_interval(1 - alpha)
        assert result.interval(alpha) == pytest.approx((ci.low, ci.high), rel=1e-9)


def test_one_difference_has_no_interval() -> None:
    single = paired_difference([3.0])
    assert (single.mean, single.p_value(), single.interval()) == (3.0, None, None)
    assert not is_beyond_zero(single.interval())
    assert corrected_intervals([single, None]) == [None, None]


def test_minimum_standard_deviation() -> None:
    """Equal differences have the standard deviation `min_std`: the half-width is t · min_std / √n."""
    low, high = paired_difference([1.0, 1.0], min_std=0.2).interval()
    assert high - 1 == pytest.approx(1 - low) == pytest.approx(12.7062047 * 0.2 / math.sqrt(2))
    assert paired_difference([1.0, 3.0], min_std=0.2) == paired_difference([1.0, 3.0])
    assert paired_difference([1.0, 1.0]).interval() == (1.0, 1.0)
    assert [paired_difference([x, x]).p_value() for x in (0.0, 1.0)] == [1.0, 0.0]


def test_welch_difference_equals_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    one, other = (51.0, 1.13, 2), (50.02, 0.44, 4)
    expected = stats.ttest_ind_from_stats(*one, *other, equal_var=False)
    assert welch_difference(one, other).p_value() == pytest.approx(expected.pvalue, rel=1e-9)
    assert welch_difference((51.0, 0.0, 1), other).interval() is None
    assert welch_difference((51.0, 0.0, 2), (50.0, 0.0, 2)).interval() == (1.0, 1.0)


def naive_holm(p_values: list[float], alpha: float) -> list[bool]:
    """Holm's adjusted p-values: the running maximum of (k − rank) · p."""
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, position in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, (len(p_values) - rank) * p_values[position])
        adjusted[position] = running
    return [p <= alpha for p in adjusted]


def test_corrected_interval_is_beyond_zero_where_holm_rejects() -> None:
    """50 tables of 8 comparisons, some of them real. The adjusted p-values are an independent computation."""
    rng, rejected = random.Random(0), 0
    for _ in range(50):
        shifts = [rng.choice((0.0, 1.0, 3.0)) for _ in range(8)]
        comparisons = [paired_difference([rng.gauss(shift, 0.5) for _ in range(4)]) for shift in shifts]
        expected = naive_holm([c.p_value() for c in comparisons], 0.05)
        assert [is_beyond_zero(interval) for interval in corrected_intervals(comparisons)] == expected
        rejected += sum(expected)
    assert 50 < rejected < 350


def test_comparisons_without_interval_do_not_count_in_the_correction() -> None:
    p_values = [0.01, None, 0.02, None]
    assert holm_levels(p_values) == [0.025, 0.05, 0.05, 0.05]
    assert holm_levels([0.2, 0.01, 0.04]) == [0.025, 0.05 / 3, 0.025]
    assert holm_levels([]) == []


def test_family_wise_error_of_corrected_intervals() -> None:
    """Ten comparisons without any difference: at most 5 % of tables have an interval beyond zero.

    600 tables: the standard error is 0.9 points, the tolerance three of them.
    """
    rng, wrong, uncorrected = random.Random(1), 0, 0
    for _ in range(600):
        comparisons = [paired_difference([rng.gauss(0, 1) for _ in range(3)]) for _ in range(10)]
        wrong += any(map(is_beyond_zero, corrected_intervals(comparisons)))
        uncorrected += any(is_beyond_zero(c.interval()) for c in comparisons)
    assert 0.023 < wrong / 600 < 0.077
    assert uncorrected / 600 > 0.3
