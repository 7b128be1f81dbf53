"""Naive Bayes: scikit-learn's for hard labels, copies for soft ones, and predictions that leave out a row."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix, vstack
from sklearn.naive_bayes import MultinomialNB

from metalabelnet.core import naive_bayes
from metalabelnet.core.logistic import logits
from metalabelnet.core.naive_bayes import fit_naive_bayes, leave_one_out_logits


def example(n=40, d=25, classes=3, dtype=np.float64):
    """Return sparse features with an empty row, soft labels and weights, one of them 0."""
    rng = np.random.default_rng(0)
    X = rng.random((n, d)) * (rng.random((n, d)) < 0.3)
    X[5] = 0
    q, w = rng.dirichlet(np.ones(classes), n), rng.random(n) + 0.5
    w[7] = 0
    return csr_matrix(X.astype(dtype)), q, w


def test_hard_labels_give_the_coefficients_of_scikit_learn():
    X, q, _ = example()
    label = q.argmax(1)
    W = fit_naive_bayes(X, np.eye(3)[label], np.ones(40), 0.3)
    expected = MultinomialNB(alpha=0.3).fit(X, label)
    np.testing.assert_allclose(W[:-1].T, expected.feature_log_prob_)
    np.testing.assert_allclose(W[-1], np.log1p(np.bincount(label)))


def test_soft_labels_are_weighted_copies_of_each_class():
    X, q, w = example()
    label = np.repeat(np.arange(3), 40)
    copies = fit_naive_bayes(vstack([X] * 3).tocsr(), np.eye(3)[label], (q * w[:, None]).T.ravel(), 0.1)
    np.testing.assert_allclose(fit_naive_bayes(X, q, w, 0.1), copies)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("part_values", [1 << 22, 100])
def test_leaving_out_a_row_equals_fitting_the_others(dtype, tolerance, part_values, monkeypatch):
    monkeypatch.setattr(naive_bayes, "PART_VALUES", part_values)
    X, q, w = example(dtype=dtype)
    found = leave_one_out_logits(X, q, w, 0.2)
    for i in range(X.shape[0]):
        others = np.arange(X.shape[0]) != i
        expected = logits(X[i], fit_naive_bayes(X[others], q[others], w[others], 0.2))
        np.testing.assert_allclose(found[i], expected[0], rtol=tolerance, atol=tolerance)
