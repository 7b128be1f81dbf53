"""The measures of informativeness at their limits."""

import math

import pytest

from metalabelnet.review.informativeness import DEFAULT_MEASURE, MEASURES, entropy, margin


def test_certainty_teaches_nothing_and_doubt_most() -> None:
    for name in ("entropy", "margin"):
        certain, doubt = (MEASURES[name](p, 0.5) for p in ((1.0, 0.0, 0.0), (1 / 3, 1 / 3, 1 / 3)))
        assert certain == pytest.approx(0, abs=1e-12)
        assert doubt > MEASURES[name]((0.6, 0.3, 0.1), 0.5) > certain
    assert entropy((0.25,) * 4, 0.0) == pytest.approx(math.log(4))
    assert margin((0.5, 0.5, 0.0), 0.0) == 1


def test_what_is_missing_from_the_most_likely_classes_counts_as_one_class() -> None:
    assert entropy((0.5,), 0.0) == pytest.approx(math.log(2))


def test_the_pages_measure_is_one_of_them() -> None:
    assert DEFAULT_MEASURE in MEASURES
    assert MEASURES["suspicion"]((1.0,), 0.3) == 0.3
