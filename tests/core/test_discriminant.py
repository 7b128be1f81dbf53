"""Linear discriminant analysis: scikit-learn's for hard labels, copies for soft ones, and folds that are left out."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from metalabelnet.core import discriminant
from metalabelnet.core.discriminant import fit_discriminant
from metalabelnet.core.logistic import log_softmax, logits
from metalabelnet.methods.generative import Discriminant


def example(n=60, d=7, classes=3, dtype=np.float64):
    """Return features of different scales, soft labels and weights, one of them 0."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 0.5).astype(dtype)
    q, w = rng.dirichlet(np.ones(classes), n), rng.random(n) + 0.5
    w[7] = 0
    return X, q, w


@pytest.mark.parametrize("shrinkage", [0.01, 0.4, 1.0])
def test_hard_labels_give_the_probabilities_of_scikit_learn(shrinkage):
    X, q, _ = example()
    label = q.argmax(1)
    W = fit_discriminant(X, np.eye(3)[label], np.ones(60), shrinkage)
    expected = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(X, label)
    np.testing.assert_allclose(W[:-1].T, expected.coef_)
    # scikit-learn's prior has no added one
    prior = np.log1p(np.bincount(label)) - np.log(np.bincount(label) / 60)
    np.testing.assert_allclose(W[-1] - prior, expected.intercept_)
    W[-1] -= prior
    np.testing.assert_allclose(np.exp(log_softmax(logits(X, W))), expected.predict_proba(X))


def test_soft_labels_are_weighted_copies_of_each_class():
    X, q, w = example()
    label = np.repeat(np.arange(3), 60)
    copies = fit_discriminant(np.tile(X, (3, 1)), np.eye(3)[label], (q * w[:, None]).T.ravel(), 0.1)
    np.testing.assert_allclose(fit_discriminant(X, q, w, 0.1), copies)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 1e-3)])
@pytest.mark.parametrize("part_rows", [1 << 14, 11])
def test_rows_are_predicted_by_the_other_folds(dtype, tolerance, part_rows, monkeypatch):
    monkeypatch.setattr(discriminant, "PART_ROWS", part_rows)
    X, q, w = example(dtype=dtype)
    f = SimpleNamespace(X=X, fold=np.arange(60) % 4, folds=4)
    model, values = Discriminant(), (0.9, 0.05)
    for s, z in zip(values, model.held_out_logits(f, q, w, values), strict=True):
        for k in range(4):
            others = f.fold != k
            expected = fit_discriminant(X[others].astype(float), q[others], w[others], s)
            np.testing.assert_allclose(z[~others], logits(X[~others], expected), rtol=tolerance, atol=10 * tolerance)


def test_a_class_without_samples_is_unlikely_and_finite():
    X, q, w = example()
    q = np.concatenate([q, np.zeros((60, 1))], 1)
    W = fit_discriminant(X, q, w, 0.2)
    assert np.isfinite(W).all()
    np.testing.assert_allclose(W[:, :3], fit_discriminant(X, q[:, :3], w, 0.2))
    assert (log_softmax(logits(X, W))[:, 3] < np.log(0.5)).all()


def test_constant_features_give_the_class_frequencies():
    _, q, w = example()
    p = np.exp(log_softmax(logits(np.ones((60, 2)), fit_discriminant(np.ones((60, 2)), q, w, 0.5))))
    np.testing.assert_allclose(p, np.tile((1 + w @ q) / (1 + w @ q).sum(), (60, 1)), atol=1e-6)
