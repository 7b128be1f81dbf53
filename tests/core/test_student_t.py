"""Student's t distribution against SciPy, closed forms and its own inverse."""

import math

import pytest

from metalabelnet.core.student_t import critical_value, regularized_beta, two_sided_p_value


@pytest.mark.parametrize("df", [1, 2, 3, 4.5, 9, 29, 500, 1e5])
def test_p_value_equals_scipy(df: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    for t in (0.01, 0.5, 1.0, 1.96, 3.0, 12.7, 40.0, 1067.0):
        assert two_sided_p_value(t, df) == pytest.approx(2 * stats.t.sf(t, df), rel=1e-9, abs=1e-300)
        assert two_sided_p_value(-t, df) == two_sided_p_value(t, df)


@pytest.mark.parametrize("alpha", [0.5, 0.05, 0.05 / 30, 1e-6])
@pytest.mark.parametrize("df", [1, 2, 3, 4.5, 9, 29, 500])
def test_critical_value_equals_scipy(df: float, alpha: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert critical_value(alpha, df) == pytest.approx(stats.t.isf(alpha / 2, df), rel=1e-9)
    assert two_sided_p_value(critical_value(alpha, df), df) == pytest.approx(alpha, rel=1e-9)


def test_closed_forms_for_one_and_two_degrees_of_freedom() -> None:
    """df = 1 is the Cauchy distribution; for df = 2, P(|T| ≥ t) = 1 − t/√(2 + t²)."""
    for t in (1e-8, 0.1, 1.0, 7.0):
        assert two_sided_p_value(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t))
        assert two_sided_p_value(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t))


def test_regularized_beta() -> None:
    """I_x(1, b) = 1 − (1 − x)^b, I_x(a, 1) = x^a, and SciPy."""
    special = pytest.importorskip("scipy.special")
    assert [regularized_beta(x, 2.0, 3.0) for x in (0.0, 1.0)] == [0.0, 1.0]
    for x in (1e-9, 0.2, 0.5, 0.9, 1 - 1e-9):
        assert regularized_beta(x, 1, 3.5) == pytest.approx(1 - (1 - x) ** 3.5, rel=1e-9)
        assert regularized_beta(x, 2.5, 1) == pytest.approx(x**2.5, rel=1e-9)
        for a, b in ((0.5, 0.5), (0.5, 40), (300, 0.5), (7, 9)):
            assert regularized_beta(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-9)
