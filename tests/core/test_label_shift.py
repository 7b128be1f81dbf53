"""Weights of clean samples that were drawn by class."""

import numpy as np
import pytest

from metalabelnet.core.label_pool import fit_label_pool
from metalabelnet.core.label_shift import class_frequencies, clean_sample_weights
from metalabelnet.core.logistic import log_softmax

KNOWN = np.ones(3, bool)


def draw(true: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Uniform noise among three classes."""
    return np.where(rng.random(len(true)) < rate, (true + rng.integers(1, 3, len(true))) % 3, true)


def test_class_frequencies_explain_the_given_labels() -> None:
    T = np.array([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1], [0.0, 0.5, 0.5]])
    pi = np.array([0.7, 0.25, 0.05])
    np.testing.assert_allclose(class_frequencies(pi @ T, T, KNOWN, 1e9), pi, atol=2e-3)
    np.testing.assert_allclose(class_frequencies(pi, np.eye(3), KNOWN, 1e9), pi)
    without = class_frequencies(pi, np.full((3, 3), 1 / 3), np.array([True, True, False]), 100)
    np.testing.assert_allclose(without, [0.5, 0.5, 0])


def test_rare_class_does_not_vanish() -> None:
    """T of few samples may say that more labels of a class should be seen than there are."""
    T = np.array([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0], [0.0, 0.1, 0.9]])
    frequencies = np.array([0.8, 0.05, 0.15])  # 0.1 · 0.8 / 0.9 would be explained by class 0 alone
    assert class_frequencies(frequencies, T, KNOWN, 1e9)[1] < 1e-6
    assert 1 / 100 <= class_frequencies(frequencies, T, KNOWN, 97)[1] < 1 / 20
    np.testing.assert_allclose(class_frequencies(np.eye(3)[0], np.eye(3), KNOWN, 97), [0.98, 0.01, 0.01])


def test_weights_give_a_balanced_clean_set_the_frequencies_of_the_training_samples() -> None:
    rng = np.random.default_rng(0)
    true, clean = rng.choice(3, 6000, p=[0.8, 0.15, 0.05]), np.repeat([0, 1, 2], 100)
    weights = clean_sample_weights(draw(true, 0.3, rng), draw(clean, 0.3, rng), clean, 3)
    assert weights.mean() == pytest.approx(1)
    found = np.bincount(clean, weights=weights) / len(clean)
    np.testing.assert_allclose(found, [0.8, 0.15, 0.05], atol=0.05)
    assert (np.diff(weights[:100]) == 0).all()


def test_samples_that_are_drawn_alike_have_equal_weights() -> None:
    rng = np.random.default_rng(0)
    true, clean = (rng.choice(3, n, p=[0.8, 0.15, 0.05]) for n in (6000, 300))
    given, clean_given = draw(true, 0.3, rng), draw(clean, 0.3, rng)
    assert (clean_sample_weights(given, clean_given, clean, 3) == 1).all()
    balanced = np.repeat([0, 1, 2], 100)
    assert (clean_sample_weights(given, np.full(300, -1), balanced, 3) == 1).all()
    assert (clean_sample_weights(np.full(6000, -1), balanced, balanced, 3) == 1).all()


def test_weighted_pool_is_that_of_repeated_samples() -> None:
    rng = np.random.default_rng(0)
    opinions = np.stack([log_softmax(z) for z in rng.normal(size=(2, 60, 3))])
    true, counts = rng.integers(0, 3, 60), rng.integers(1, 4, 60)
    weighted = fit_label_pool(opinions, true, counts.astype(float))
    repeated = fit_label_pool(opinions.repeat(counts, 1), true.repeat(counts))
    np.testing.assert_allclose(np.concatenate(weighted), np.concatenate(repeated), atol=1e-6)
    plain = fit_label_pool(opinions, true)
    assert np.abs(np.concatenate(plain) - np.concatenate(weighted)).max() > 0.01
