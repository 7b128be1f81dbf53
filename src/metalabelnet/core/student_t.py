"""Student's t distribution: two-sided p-value and critical value, without SciPy.

    P(|T| ≥ t) = I_x(df/2, 1/2),   x = df / (df + t²)

I_x(a, b) is the regularized incomplete beta function, computed by its continued fraction
(https://dlmf.nist.gov/8.17.E22).
"""

from __future__ import annotations

import functools
import math

MAX_TERMS = 10_000  # of the continued fraction; it needs O(√max(a, b))
PRECISION = 1e-15
_TINY = 1e-300  # stands for a zero denominator (modified Lentz algorithm)


def regularized_beta(x: float, a: float, b: float) -> float:
    """Return I_x(a, b) for 0 ≤ x ≤ 1.

    Examples
    --------
    >>> from metalabelnet.core.student_t import regularized_beta
    >>> round(regularized_beta(0.5, 2, 3), 9)
    0.6875
    """
    if x <= 0 or x >= 1:
        return float(x > 0)
    if x > (a + 1) / (a + b + 2):  # the continued fraction converges fast below this bound
        return 1 - regularized_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _continued_fraction(x, a, b))


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Return 1 + d₁/(1 + d₂/(1 + …)) with the coefficients of the incomplete beta function."""
    value, c, d = 1.0, 1.0, 0.0
    for n in range(1, MAX_TERMS):
        m = n // 2
        if n % 2:
            coefficient = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            coefficient = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + coefficient * d or _TINY)
        c = 1 + coefficient / c or _TINY
        value *= c * d
        if abs(c * d - 1) < PRECISION:
            break
    return value


def two_sided_p_value(t: float, df: float) -> float:
    """Return P(|T| ≥ |t|) for T with `df` degrees of freedom.

    Examples
    --------
    >>> from metalabelnet.core.student_t import two_sided_p_value
    >>> round(two_sided_p_value(12.7062047362, df=1), 6)
    0.05
    """
    square = t * t
    if square > 1:
        return regularized_beta(df / (df + square), df / 2, 0.5)
    return 1 - regularized_beta(square / (df + square), 0.5, df / 2)  # 1 − x would lose the digits of a small t


@functools.cache
def critical_value(alpha: float, df: float) -> float:
    """Return the t with P(|T| ≥ t) = alpha, for 0 < alpha < 1.

    Examples
    --------
    >>> from metalabelnet.core.student_t import critical_value
    >>> round(critical_value(0.05, df=4), 4)
    2.7764
    """
    low, high = 0.0, 1.0
    while two_sided_p_value(high, df) > alpha:
        low, high = high, 2 * high
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if two_sided_p_value(middle, df) > alpha else (low, middle)
    return (low + high) / 2
