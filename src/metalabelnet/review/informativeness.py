"""Informativeness measures for active learning: which samples to review first.

Each measure takes the class probabilities and the suspicion (0 to 1) of a sample and returns a score; a higher score
means that a verified label is expected to improve the classifier more. `benchmarks/informative.py` compares them with
random sampling.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def entropy(p: Sequence[float], _suspicion: float) -> float:
    """Entropy −Σ p log p of the prediction: 0 if certain, log C if uniform over C classes.

    If only the most likely classes are given, the remaining probability counts as one more class.
    """
    rest = max(0.0, 1.0 - sum(p))
    return -sum(value * math.log(value) for value in (*p, rest) if value > 0)


def margin(p: Sequence[float], _suspicion: float) -> float:
    """1 − (highest probability − second highest)."""
    first, second = sorted((*p, 0.0, 0.0), reverse=True)[:2]
    return 1.0 - (first - second)


def suspicion(_p: Sequence[float], suspicion: float) -> float:
    """The suspicion of the given label."""
    return suspicion


MEASURES: dict[str, Callable[[Sequence[float], float], float]] = {
    "entropy": entropy,
    "margin": margin,
    "suspicion": suspicion,
}
DEFAULT_MEASURE = "margin"  # no measure was better than random sampling (docs/results/review.md)
