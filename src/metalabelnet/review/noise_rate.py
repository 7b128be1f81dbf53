"""How many of the given labels are wrong, from samples judged blind, and how sure that is.

Samples are drawn class by class, so that a class that is rare in the data is not rare among the judged. The rate of the
data is therefore the mean of the classes' rates, weighted by how many samples each has:

    r = Σ_c w_c k_c / n_c        k_c of the n_c judged samples of stratum c have a wrong label

The interval is Wilson's of the share r among n' = 1 / Σ_c (w_c² / n_c) judged samples: as many as count when some stand
for more samples of the data than others (Kish, 1965). With one class that is Wilson's interval as it is.

Of a class that nobody has judged nothing is known. The weights are those of the judged classes then, and where the
others hold the share u of the samples, the interval (l, h) becomes

    (1 − u) l  to  (1 − u) h + u
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from metalabelnet.core.intervals import wilson

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def noise_rate(strata: Sequence[Stratum]) -> Rate | None:
    """The share of wrong labels in the data; None before anything was judged."""
    known = [s for s in strata if s.judged and s.size]
    if not known:
        return None
    size = sum(s.size for s in known)
    rate = sum(s.size * s.wrong / s.judged for s in known) / size
    counting = size**2 / sum(s.size**2 / s.judged for s in known)
    low, high = wilson(rate * counting, counting)
    share = size / sum(s.size for s in strata)
    judged = sum(s.judged for s in known)
    return Rate(rate=rate, low=share * low, high=1 - share * (1 - high), judged=judged)
