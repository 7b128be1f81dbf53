"""Which samples are worth a look: how informativeness is measured.

Each measure takes the probabilities of the classes and the suspicion of a sample (0 to 1), and gives a number that is
higher the more a checked label should teach. `benchmarks/informative.py` holds them against drawing at random.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def entropy(p: Sequence[float], _suspicion: float) -> float:
    """−Σ p log p: the classifier does not know the class. 0 where it is certain, log C where it has no idea.

    Where only the most likely classes are known, the rest counts as one more class.
    """
    rest = max(0.0, 1.0 - sum(p))
    return -sum(value * math.log(value) for value in (*p, rest) if value > 0)


def margin(p: Sequence[float], _suspicion: float) -> float:
    """1 − (the highest probability − the second): the classifier wavers between two classes."""
    first, second = sorted((*p, 0.0, 0.0), reverse=True)[:2]
    return 1.0 - (first - second)


def suspicion(_p: Sequence[float], suspicion: float) -> float:
    """How doubtful the given label is: the classifier and the label disagree."""
    return suspicion


MEASURES: dict[str, Callable[[Sequence[float], float], float]] = {
    "entropy": entropy,
    "margin": margin,
    "suspicion": suspicion,
}
MEASURE = "margin"  # what the page uses; none was better than drawing at random (docs/review.md)
