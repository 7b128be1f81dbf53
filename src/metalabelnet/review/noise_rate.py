"""How many of the given labels are wrong, from samples judged blind, and how sure that is.

Samples are drawn class by class, so that a class that is rare in the data is not rare among the judged. The rate of the
data is therefore the mean of the classes' rates, weighted by how many samples each has:

    r = Σ_c w_c k_c / n_c        k_c of the n_c judged samples of stratum c have a wrong label

Wilson's interval (l_c, u_c) of each class is put together as Zou and Donner (2008) do for sums of proportions:

    r − √Σ w_c² (r_c − l_c)²  to  r + √Σ w_c² (u_c − r_c)²

With one class this is Wilson's interval. A class of which nothing is known yet has the pooled rate, and is taken to be
anything from 0 to 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Z = 1.959963984540054  # of a 95 % interval


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A share with its 95 % interval, from so many judged samples."""

    rate: float
    low: float
    high: float
    judged: int


@dataclass(frozen=True, kw_only=True)
class Stratum:
    """Of `size` samples in the data `judged` were judged, and `wrong` of these have a wrong label."""

    size: int
    judged: int
    wrong: int


def wilson(wrong: int, judged: int, z: float = Z) -> tuple[float, float]:
    """Wilson's interval of a proportion; 0 to 1 where nothing is known."""
    if judged == 0:
        return 0.0, 1.0
    share, square = wrong / judged, z * z / judged
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / judged + square / (4 * judged))
    return (0.0 if wrong == 0 else middle - half), (1.0 if wrong == judged else middle + half)


def noise_rate(strata: Sequence[Stratum]) -> Rate | None:
    """The share of wrong labels in the data; None before anything was judged."""
    judged, size = sum(s.judged for s in strata), sum(s.size for s in strata)
    if judged == 0 or size == 0:
        return None
    pooled = sum(s.wrong for s in strata) / judged
    rate = below = above = 0.0
    for s in strata:
        weight, low_high = s.size / size, wilson(s.wrong, s.judged)
        own = s.wrong / s.judged if s.judged else pooled
        rate += weight * own
        below += (weight * (own - low_high[0])) ** 2
        above += (weight * (low_high[1] - own)) ** 2
    low, high = rate - math.sqrt(below), rate + math.sqrt(above)
    return Rate(rate=rate, low=max(0.0, low), high=min(1.0, high), judged=judged)
