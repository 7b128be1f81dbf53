"""Confidence intervals against SciPy and closed forms."""

import math

import pytest

from metalabelnet.core.intervals import T_95, Z_95, is_positive, wilson, wilson_percent


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


def test_quantiles_of_students_t() -> None:
    stats = pytest.importorskip("scipy.stats")
    assert pytest.approx([stats.t.ppf(0.975, df) for df in range(1, 11)], abs=1e-3) == T_95
    for n in (12, 30, 100):  # the approximation beyond the table
        assert 1.96 + 2.5 / (n - 1) == pytest.approx(stats.t.ppf(0.975, n - 1), abs=0.03)


def test_is_positive() -> None:
    assert is_positive([1.0, 1.1, 0.9], 0.01)
    assert not is_positive([1.0, -0.5, 2.0], 0.01)
    assert not is_positive([1.0], 0.01)
    assert not is_positive([-1.0, -1.1, -0.9], 0.01)


@pytest.mark.parametrize("n", [2, 5, 11, 12, 40])
def test_is_positive_at_the_bound(n: int) -> None:
    """Equal differences have the standard deviation `min_std`: the bound is t · min_std / √n."""
    bound = (T_95[n - 2] if n <= 11 else 1.96 + 2.5 / (n - 1)) / math.sqrt(n)
    assert is_positive([bound * 1.001] * n, 1.0)
    assert not is_positive([bound * 0.999] * n, 1.0)
