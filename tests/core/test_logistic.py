"""Logistic regression against scikit-learn, and the gradient through its solution against finite differences."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression

from metalabelnet.core.logistic import (
    differentiate_solution,
    fit_logistic,
    hessian_product,
    log_softmax,
    logits,
    solve_hessian,
)


def example(n=60, d=5, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = (X @ rng.normal(size=(d, classes)) + rng.normal(size=(n, classes))).argmax(1)
    return X, y, rng.uniform(0.2, 2.0, n), rng.dirichlet(np.ones(classes), n)


def test_one_hot_labels_give_the_coefficients_of_scikit_learn():
    X, y, w, _ = example()
    W = fit_logistic(X, np.eye(3)[y], w, 0.5, tolerance=1e-10)
    expected = LogisticRegression(C=2.0, tol=1e-12, max_iter=10_000).fit(X, y, w)
    np.testing.assert_allclose(W[:-1].T, expected.coef_, atol=1e-6)
    np.testing.assert_allclose(W[-1] - W[-1].mean(), expected.intercept_ - expected.intercept_.mean(), atol=1e-6)


def test_two_classes_are_a_single_logit_with_half_the_decay():
    X, y, w, _ = example(classes=2)
    W = fit_logistic(X, np.eye(2)[y], w, 1.0, tolerance=1e-10)
    expected = LogisticRegression(C=2.0, tol=1e-12, max_iter=10_000).fit(X, y, w)
    np.testing.assert_allclose((W[:-1, 1] - W[:-1, 0])[None], expected.coef_, atol=1e-6)


def test_soft_labels_are_weighted_copies_of_each_class():
    X, _, w, q = example()
    W = fit_logistic(X, q, w, 0.5, tolerance=1e-10)
    copies = LogisticRegression(C=2.0, tol=1e-12, max_iter=10_000).fit(
        np.repeat(X, 3, 0), np.tile(np.arange(3), len(X)), (w[:, None] * q).ravel()
    )
    np.testing.assert_allclose(W[:-1].T, copies.coef_, atol=1e-6)


def test_sparse_features_give_the_same_solution_from_any_start():
    X, _, w, q = example()
    X[np.abs(X) < 0.7] = 0
    dense = fit_logistic(X, q, w, 0.5, tolerance=1e-10)
    start = np.random.default_rng(1).normal(size=dense.shape)
    sparse = fit_logistic(scipy.sparse.csr_matrix(X), q, w, 0.5, start=start, tolerance=1e-10)
    np.testing.assert_allclose(np.exp(log_softmax(logits(X, dense))), np.exp(log_softmax(logits(X, sparse))), atol=1e-8)


def test_rows_of_weight_zero_are_ignored():
    X, _, w, q = example()
    w[:20] = 0
    np.testing.assert_allclose(
        fit_logistic(X, q, w, 0.5, tolerance=1e-10),
        fit_logistic(X[20:], q[20:], w[20:], 0.5, tolerance=1e-10),
        atol=1e-7,
    )


def test_hessian_products_are_differences_of_gradients():
    X, _, w, q = example()
    rng = np.random.default_rng(2)
    W, V = rng.normal(size=(2, 6, 3))

    def gradient(W):
        r = w[:, None] * (np.exp(log_softmax(logits(X, W))) - q)
        return np.concatenate([X.T @ r + 0.5 * W[:-1], r.sum(0)[None]])

    p = np.exp(log_softmax(logits(X, W)))
    numeric = (gradient(W + 1e-6 * V) - gradient(W - 1e-6 * V)) / 2e-6
    np.testing.assert_allclose(hessian_product(X, p, w, 0.5, V), numeric, atol=1e-6)
    g = gradient(W)
    np.testing.assert_allclose(hessian_product(X, p, w, 0.5, solve_hessian(X, p, w, 0.5, g, 1e-12)), g, atol=1e-8)


@pytest.mark.parametrize("sparse", [False, True])
def test_gradient_through_the_solution_equals_finite_differences(sparse):
    X, y, w, q = example()
    held_out, true = X[40:], y[40:]
    X, w, q = X[:40], w[:40], q[:40]
    if sparse:
        X = scipy.sparse.csr_matrix(X)
    decay = 0.5

    def solve(q, w, decay):
        return fit_logistic(X, q, w, decay, tolerance=1e-13)

    def loss(W):
        return -log_softmax(logits(held_out, W))[np.arange(20), true].sum()

    W = solve(q, w, decay)
    r = np.exp(log_softmax(logits(held_out, W))) - np.eye(3)[true]
    g = np.concatenate([held_out.T @ r, r.sum(0)[None]])
    found = differentiate_solution(X, W, q, w, decay, g, tolerance=1e-12)
    rng, e = np.random.default_rng(3), 1e-3
    dq = rng.normal(size=q.shape)
    dq -= dq.mean(1, keepdims=True)  # soft labels keep their sum
    dw = rng.normal(size=w.shape)
    numeric = (loss(solve(q + e * dq, w, decay)) - loss(solve(q - e * dq, w, decay))) / (2 * e)
    assert (found.labels * dq).sum() == pytest.approx(numeric, rel=1e-4)
    numeric = (loss(solve(q, w + e * dw, decay)) - loss(solve(q, w - e * dw, decay))) / (2 * e)
    assert (found.weights * dw).sum() == pytest.approx(numeric, rel=1e-4)
    numeric = (loss(solve(q, w, decay * np.exp(e))) - loss(solve(q, w, decay * np.exp(-e)))) / (2 * e)
    assert found.log_decay == pytest.approx(numeric, rel=1e-4)


def test_rows_of_weight_zero_do_not_change_the_gradient_through_the_solution():
    X, _, w, q = example()
    w[:20] = 0
    W = fit_logistic(X, q, w, 0.5, tolerance=1e-12)
    g = np.random.default_rng(4).normal(size=W.shape)
    g -= g.mean(1, keepdims=True)
    found = differentiate_solution(X, W, q, w, 0.5, g, tolerance=1e-12)
    expected = differentiate_solution(X[20:], W, q[20:], w[20:], 0.5, g, tolerance=1e-12)
    assert not found.labels[:20].any()
    np.testing.assert_allclose(found.labels[20:], expected.labels, atol=1e-9)
    np.testing.assert_allclose(found.weights[20:], expected.weights, atol=1e-9)
    assert found.log_decay == pytest.approx(expected.log_decay)


def test_principal_components_need_few_products(monkeypatch):
    """Uncorrelated columns of very different scale, which sparse features, without preconditioner, solve slowly."""
    from metalabelnet.core import logistic

    X, _, w, q = example(n=400, d=40)
    X = np.linalg.qr(X)[0] * np.geomspace(1, 1000, 40)
    product, calls = logistic.hessian_product, []
    monkeypatch.setattr(logistic, "hessian_product", lambda *args: calls.append(0) or product(*args))
    counts, solutions = [], []
    for features in (X, scipy.sparse.csr_matrix(X)):
        calls.clear()
        solutions.append(logits(X, fit_logistic(features, q, w, 1.0, tolerance=1e-8)))
        counts.append(len(calls))
    assert counts[0] < counts[1] / 2
    np.testing.assert_allclose(*solutions, atol=1e-4)
