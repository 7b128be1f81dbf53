"""Limits of the informativeness measures."""

import math

import pytest

from metalabelnet.review.informativeness import DEFAULT_MEASURE, MEASURES, entropy, margin


def test_measures_are_zero_for_certain_and_maximal_for_uniform_predictions() -> None:
    for name in ("entropy", "margin"):
        certain, uniform = (MEASURES[name](p, 0.5) for p in ((1.0, 0.0, 0.0), (1 / 3, 1 / 3, 1 / 3)))
        assert certain == pytest.approx(0, abs=1e-12)
        assert uniform > MEASURES[name]((0.6, 0.3, 0.1), 0.5) > certain
    assert entropy((0.25,) * 4, 0.0) == pytest.approx(math.log(4))
    assert margin((0.5, 0.5, 0.0), 0.0) == 1


def test_remaining_probability_counts_as_one_class() -> None:
    assert entropy((0.5,), 0.0) == pytest.approx(math.log(2))


def test_default_measure_exists() -> None:
    assert DEFAULT_MEASURE in MEASURES
    assert MEASURES["suspicion"]((1.0,), 0.3) == 0.3
