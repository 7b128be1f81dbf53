"""Confidence intervals: Wilson score for a proportion, Student's t for the mean of paired differences."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Z_95 = 1.959963984540054  # quantile of the normal distribution for a two-sided 95 % CI
T_95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
)  # Student's t, 1 to 10 degrees of freedom


def wilson(successes: float, n: float, z: float = Z_95) -> tuple[float, float]:
    """Return the 95 % CI of a proportion by the Wilson score (Wilson 1927), or (0, 1) for n = 0.

    It is valid for small samples and for proportions close to 0 and 1.
    """
    if n <= 0:
        return 0.0, 1.0
    p, z2_n = successes / n, z * z / n
    center = (p + z2_n / 2) / (1 + z2_n)
    half_width = z / (1 + z2_n) * math.sqrt(p * (1 - p) / n + z2_n / (4 * n))
    return (0.0 if successes == 0 else center - half_width), (1.0 if successes == n else center + half_width)


def wilson_percent(percent: float, n: int) -> tuple[float, float]:
    """Return the 95 % CI, in per cent, of a percentage observed on n samples."""
    low, high = wilson(percent / 100 * n, n)
    return 100 * low, 100 * high


def is_positive(differences: Sequence[float], min_std: float) -> bool:
    """Whether the 95 % CI (Student's t) of the mean of paired differences lies above 0.

    `min_std` is a lower bound on the standard deviation, such as the effect of a single sample.
    """
    n = len(differences)
    if n < 2:
        return False
    quantile = T_95[n - 2] if n - 2 < len(T_95) else 1.96 + 2.5 / (n - 1)
    return statistics.mean(differences) > quantile * max(min_std, statistics.stdev(differences)) / math.sqrt(n)
