"""Confidence intervals of proportions and of mean differences, with Holm's correction for several comparisons.

    Wilson score       of a proportion
    Student's t        of the mean of paired differences, or of two means (Welch)
    Holm's procedure   k comparisons, in order of their p-values, are tested at the levels α/k, α/(k − 1), …, α until
                       one is not significant; all from there on are not significant

A corrected interval has the level at which Holm's procedure tests its comparison, so that it lies beyond zero if and
only if the difference is significant after the correction (Holm 1979, https://www.jstor.org/stable/4615733).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metalabelnet.core.student_t import critical_value, two_sided_p_value

if TYPE_CHECKING:
    from collections.abc import Sequence

Z_95 = 1.959963984540054  # quantile of the normal distribution for a two-sided 95 % CI
ALPHA = 0.05  # of a 95 % CI

Interval = tuple[float, float]


def wilson(successes: float, n: float, z: float = Z_95) -> Interval:
    """Return the 95 % CI of a proportion by the Wilson score (Wilson 1927), or (0, 1) for n = 0.

    It is valid for small samples and for proportions close to 0 and 1.

    Parameters
    ----------
    successes, n : float
        Number of successes, and of samples.
    z : float, default 1.96
        Quantile of the normal distribution that belongs to the level.

    Returns
    -------
    tuple of float
        Lower and upper bound.

    Examples
    --------
    >>> from metalabelnet.core.intervals import wilson
    >>> [round(bound, 3) for bound in wilson(9, 10)]
    [0.596, 0.982]
    """
    if n <= 0:
        return 0.0, 1.0
    p, z2_n = successes / n, z * z / n
    center = (p + z2_n / 2) / (1 + z2_n)
    half_width = z / (1 + z2_n) * math.sqrt(p * (1 - p) / n + z2_n / (4 * n))
    return (0.0 if successes == 0 else center - half_width), (1.0 if successes == n else center + half_width)


def wilson_percent(percent: float, n: int) -> Interval:
    """Return the 95 % CI, in per cent, of a percentage observed on n samples.

    Parameters
    ----------
    percent : float
        Percentage of successes.
    n : int
        Number of samples.

    Returns
    -------
    tuple of float
        Lower and upper bound in per cent.
    """
    low, high = wilson(percent / 100 * n, n)
    return 100 * low, 100 * high


@dataclass(frozen=True, kw_only=True)
class MeanDifference:
    """A mean difference with its standard error.

    Attributes
    ----------
    mean : float
        The mean difference.
    standard_error, df : float or None
        Its standard error and degrees of freedom; None with too few values.
    """

    mean: float
    standard_error: float | None = None
    df: float | None = None

    def p_value(self) -> float | None:
        """Return the two-sided p-value of a mean of zero, or None with too few values."""
        if self.standard_error is None or self.df is None:
            return None
        if self.standard_error == 0:
            return float(self.mean == 0)
        return two_sided_p_value(self.mean / self.standard_error, self.df)

    def interval(self, alpha: float = ALPHA) -> Interval | None:
        """Return the interval with confidence 1 − alpha, or None with too few values.

        Parameters
        ----------
        alpha : float, default 0.05
            Level.

        Returns
        -------
        tuple of float or None
            Lower and upper bound.
        """
        if self.standard_error is None or self.df is None:
            return None
        half_width = critical_value(alpha, self.df) * self.standard_error
        return self.mean - half_width, self.mean + half_width


def paired_difference(differences: Sequence[float], min_std: float = 0.0) -> MeanDifference:
    """Return the mean of paired differences. Fewer than two have no interval.

    Parameters
    ----------
    differences : sequence of float
        At least one value.
    min_std : float
        Lower bound on the standard deviation, such as the effect of a single sample: a few equal differences do not
        show that there is no variation.

    Returns
    -------
    MeanDifference

    Examples
    --------
    >>> from metalabelnet.core.intervals import paired_difference
    >>> difference = paired_difference([5.0, 6.0, 4.0])
    >>> difference.mean, [round(bound, 2) for bound in difference.interval()]
    (5.0, [2.52, 7.48])
    """
    n, mean = len(differences), statistics.mean(differences)
    if n < 2:
        return MeanDifference(mean=mean)
    std = max(min_std, statistics.stdev(differences))
    return MeanDifference(mean=mean, standard_error=std / math.sqrt(n), df=n - 1)


def welch_difference(one: tuple[float, float, int], other: tuple[float, float, int]) -> MeanDifference:
    """Return the difference of two means of independent runs with unequal variances (Welch's t-test).

    Parameters
    ----------
    one, other : tuple of (float, float, int)
        Mean, standard deviation and number of runs.

    Returns
    -------
    MeanDifference
    """
    mean = one[0] - other[0]
    if min(one[2], other[2]) < 2:
        return MeanDifference(mean=mean)
    squares = [std * std / n for _, std, n in (one, other)]
    if sum(squares) == 0:
        return MeanDifference(mean=mean, standard_error=0.0, df=one[2] + other[2] - 2)
    df = sum(squares) ** 2 / sum(s * s / (n - 1) for s, n in zip(squares, (one[2], other[2]), strict=True))
    return MeanDifference(mean=mean, standard_error=math.sqrt(sum(squares)), df=df)


def holm_levels(p_values: Sequence[float | None], alpha: float = ALPHA) -> list[float]:
    """Return the level at which Holm's procedure tests each comparison.

    Parameters
    ----------
    p_values : sequence of float or None
        The p-value of each comparison; None is no comparison.
    alpha : float, default 0.05
        Level of all comparisons together.

    Returns
    -------
    list of float

    Examples
    --------
    >>> from metalabelnet.core.intervals import holm_levels
    >>> holm_levels([0.2, 0.001, 0.04], alpha=0.06)
    [0.03, 0.02, 0.03]
    """
    known = sorted((p, position) for position, p in enumerate(p_values) if p is not None)
    levels = [alpha] * len(p_values)
    left, stopped = len(known), False
    for p, position in known:
        levels[position] = alpha / left
        stopped = stopped or p > alpha / left
        left -= not stopped
    return levels


def corrected_intervals(differences: Sequence[MeanDifference | None], alpha: float = ALPHA) -> list[Interval | None]:
    """Return the intervals of several comparisons at the levels of Holm's procedure.

    Parameters
    ----------
    differences : sequence of MeanDifference or None
        The comparisons; None is no comparison.
    alpha : float, default 0.05
        Level of all comparisons together.

    Returns
    -------
    list of tuple or None
        Lower and upper bound of each difference; None with too few values.

    Examples
    --------
    >>> from metalabelnet.core.intervals import corrected_intervals, is_beyond_zero, paired_difference
    >>> large, small = paired_difference([5.0, 5.1, 4.9]), paired_difference([0.2, -0.1, 0.3])
    >>> [is_beyond_zero(interval) for interval in corrected_intervals([large, small])]
    [True, False]
    """
    levels = holm_levels([None if d is None else d.p_value() for d in differences], alpha)
    return [None if d is None else d.interval(level) for d, level in zip(differences, levels, strict=True)]


def is_beyond_zero(interval: Interval | None) -> bool:
    """Return whether there is an interval and it does not contain zero."""
    return interval is not None and not interval[0] <= 0 <= interval[1]
