"""Estimate of the noise rate from samples judged blind, with a 95 % confidence interval.

Samples are drawn class by class, so rare classes are overrepresented among the judged samples. The noise rate of the
data is therefore the mean over classes, weighted by class size:

    r = Σ_c w_c k_c / n_c        k_c of the n_c judged samples of stratum c have a wrong label

The interval is the Wilson interval of r with the effective sample size n' = 1 / Σ_c (w_c² / n_c) (Kish, 1965). With a
single class it is the plain Wilson interval.

Nothing is known about classes without judged samples. The weights are then those of the judged classes, and if the
other classes have the share u of the samples, the interval (l, h) becomes

    (1 − u) l  to  (1 − u) h + u
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from metalabelnet.core.intervals import wilson

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class NoiseRateEstimate:
    """The noise rate with its 95 % confidence interval and the number of judged samples."""

    rate: float
    low: float
    high: float
    judged: int


@dataclass(frozen=True, kw_only=True)
class Stratum:
    """A class: its number of samples, how many were judged, and how many of these have a wrong given label."""

    size: int
    judged: int
    wrong: int


def noise_rate(strata: Sequence[Stratum]) -> NoiseRateEstimate | None:
    """The estimated noise rate, or None without judged samples."""
    judged_strata = [s for s in strata if s.judged and s.size]
    if not judged_strata:
        return None
    size = sum(s.size for s in judged_strata)
    rate = sum(s.size * s.wrong / s.judged for s in judged_strata) / size
    effective_n = size**2 / sum(s.size**2 / s.judged for s in judged_strata)
    low, high = wilson(rate * effective_n, effective_n)
    share = size / sum(s.size for s in strata)
    judged = sum(s.judged for s in judged_strata)
    return NoiseRateEstimate(rate=rate, low=share * low, high=1 - share * (1 - high), judged=judged)
