"""Sparse products against dense ones, and logistic regression with columns that have no value."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from metalabelnet.core import sparse_matrix
from metalabelnet.core.logistic import differentiate_solution, fit_logistic, hessian_product, solve_hessian
from metalabelnet.core.sparse_matrix import nonzero_columns


def example(n=50, d=30, dtype=np.float64):
    """Return features with an empty row and columns without a value, labels and weights, some of them 0."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.3)
    X[7], X[:, [0, 11, 29]] = 0, 0
    w = rng.uniform(0.2, 2.0, n)
    w[:5] = 0
    X[5:, 4] = 0  # no value in rows of positive weight
    return X.astype(dtype), rng.dirichlet(np.ones(3), n), w


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_products_are_those_of_the_dense_columns(dtype, tolerance):
    X, _, _ = example(dtype=dtype)
    A, columns = nonzero_columns(csr_matrix(X))
    np.testing.assert_array_equal(columns, np.flatnonzero((X != 0).any(0)))
    assert (A.shape, A.T.shape, A.dtype) == ((50, 27), (27, 50), dtype)
    rng = np.random.default_rng(1)
    for k in (1, 2, 5):
        V, R = (rng.normal(size=(size, k)).astype(dtype) for size in A.T.shape)
        np.testing.assert_allclose(A @ V, X[:, columns] @ V, atol=tolerance)
        np.testing.assert_allclose(A.T @ R, X[:, columns].T @ R, atol=tolerance)


def test_matrix_without_values():
    A, columns = nonzero_columns(csr_matrix((4, 6)))
    assert columns.size == 0
    np.testing.assert_array_equal(A @ np.ones((0, 2)), np.zeros((4, 2)))
    assert (A.T @ np.ones((4, 2))).shape == (0, 2)
    q = np.array([[0.9, 0.1]] * 4)
    W = fit_logistic(csr_matrix((4, 6)), q, np.ones(4), 1.0, start=np.ones((7, 2)), tolerance=1e-10)
    np.testing.assert_array_equal(W[:-1], 0)
    assert W[-1, 0] - W[-1, 1] == pytest.approx(np.log(9))


@pytest.mark.parametrize("max_values", [sparse_matrix.MAX_VALUES, 0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-7), (np.float32, 1e-3)])
def test_columns_without_values_have_the_solution_of_dense_features(dtype, tolerance, max_values, monkeypatch):
    monkeypatch.setattr(sparse_matrix, "MAX_VALUES", max_values)
    X, q, w = example(dtype=dtype)
    start = np.random.default_rng(2).normal(size=(31, 3))
    dense, sparse = (
        fit_logistic(features, q, w, 0.5, start=start, tolerance=1e-10 if dtype is np.float64 else 1e-4)
        for features in (X, csr_matrix(X))
    )
    assert sparse.dtype == np.float64
    sparse[-1] += dense[-1].mean() - sparse[-1].mean()  # a constant added to all biases changes nothing
    np.testing.assert_allclose(sparse, dense, atol=tolerance)
    np.testing.assert_allclose(sparse[[0, 4, 11, 29]], 0, atol=tolerance)


@pytest.mark.parametrize("max_values", [sparse_matrix.MAX_VALUES, 0])
def test_the_hessian_of_columns_without_values_is_solved(max_values, monkeypatch):
    monkeypatch.setattr(sparse_matrix, "MAX_VALUES", max_values)
    X, q, w = example()
    g = np.random.default_rng(3).normal(size=(31, 3))
    g[-1] -= g[-1].mean()
    u = solve_hessian(csr_matrix(X), q, w, 0.5, g, 1e-12)
    np.testing.assert_allclose(hessian_product(X, q, w, 0.5, u), g, atol=1e-9)
    W = fit_logistic(X, q, w, 0.5, tolerance=1e-12)
    found, expected = (differentiate_solution(A, W, q, w, 0.5, g, 1e-12) for A in (csr_matrix(X), X))
    np.testing.assert_allclose(found.labels, expected.labels, atol=1e-8)
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-8)
    assert found.log_decay == pytest.approx(expected.log_decay, abs=1e-8)
