"""Arrays with noisy labels: digits, and blobs and images that are learned in seconds."""

from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits, make_blobs


class NoisyData(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    true: np.ndarray
    clean_mask: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def add_label_noise(X: np.ndarray, true: np.ndarray, clean: int, wrong: float, test: int, seed: int = 0) -> NoisyData:
    """Return data with `clean` clean samples per class, and a share of the other labels flipped at random."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    X, true, X_test, y_test = X[order[test:]], true[order[test:]], X[order[:test]], true[order[:test]]
    classes = np.unique(true)
    clean_mask = np.zeros(len(X), dtype=bool)
    for label in classes:
        clean_mask[np.flatnonzero(true == label)[:clean]] = True
    flipped = (rng.random(len(X)) < wrong) & ~clean_mask
    y = np.where(flipped, (true + rng.integers(1, len(classes), len(X))) % len(classes), true)
    return NoisyData(X, y, true, clean_mask, X_test, y_test)


def digits() -> NoisyData:
    """Return images (N, 8, 8) with half of the labels wrong."""
    values, true = load_digits(return_X_y=True)
    X = np.rint(values * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    return add_label_noise(X, true, clean=10, wrong=0.5, test=900)


def blobs(wrong: float = 0.3) -> NoisyData:
    X, true = make_blobs(260, centers=3, n_features=5, cluster_std=2.0, random_state=0)
    return add_label_noise(X, true, clean=6, wrong=wrong, test=100)


def images(dtype: type = np.uint8) -> NoisyData:
    """Return color images, channels last, with a bright column for the class."""
    rng = np.random.default_rng(0)
    true = np.arange(160) % 3
    X = rng.integers(0, 120, (160, 8, 8, 3))
    for label in range(3):
        X[true == label, :, 1 + 2 * label : 3 + 2 * label] += 100
    data = X.astype(np.uint8) if dtype is np.uint8 else (X / 255).astype(dtype)
    return add_label_noise(data, true, clean=5, wrong=0.2, test=60)
