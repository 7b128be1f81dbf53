"""The order of rows: an order by content, and fits that give the same model whatever order their rows have."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.naive_bayes import GaussianNB

from metalabelnet import MetaLabelNetClassifier
from metalabelnet.data.rows import Rows, make_rows
from metalabelnet.data.sparse_tensor import SparseTensor
from metalabelnet.methods import LINEAR_METHODS, fixed_features, linear_metalabelnet
from metalabelnet.methods.content_order import content_rank, shuffled_rank
from metalabelnet.methods.fixed_features import make_features, stratified_folds
from metalabelnet.nets import build
from noisy_data import blobs

CLASSES = 3


def samples(n: int, seed: int, *, sparse: bool = False) -> Rows:
    """Return rows with many equal values, some of them equal altogether, with uniformly wrong given labels."""
    g = np.random.default_rng(seed)
    true = np.arange(n) % CLASSES
    if sparse:
        x = SparseTensor(csr_matrix(g.poisson(0.4 + 1.5 * np.eye(CLASSES)[true].repeat(4, 1)).astype(np.float32)))
    else:
        x = torch.tensor(np.c_[g.integers(0, 2, n), (g.normal(size=(n, 5)) + 1.5 * np.eye(5)[true]).round(1)] / 3)
    given = np.where(g.random(n) < 0.3, g.integers(0, CLASSES, n), true)
    given[::9] = -1
    return make_rows(x, torch.tensor(given), true=torch.tensor(true), classes=tuple("abc"), what="rows")


def fit(name: str, train: Rows, clean: Rows) -> Any:
    def make_net(_k: int) -> torch.nn.Module:
        return build("linear", tuple(train.x.shape[1:]), CLASSES, seed=0).double()

    method = LINEAR_METHODS[name](
        SimpleNamespace(make_net=make_net, train=train, clean=clean, dtype=torch.float64), None
    )
    for _ in method.fit():
        pass
    return method


def shuffled(n: int) -> np.ndarray:
    return np.random.default_rng(5).permutation(n)


def test_rank_is_that_of_sorted_tuples() -> None:
    g = np.random.default_rng(0)
    X, labels = g.integers(0, 3, (200, 4)).astype(float), g.integers(-1, 3, 200)
    X[:, 1] = 7.0
    rows = [(*X[k], labels[k], k) for k in range(200)]
    expected = np.empty(200, int)
    expected[[row[-1] for row in sorted(rows)]] = np.arange(200)
    for data in (X, X.astype(np.float32), X.astype(int), pandas.DataFrame(X), X.astype(str)):
        np.testing.assert_array_equal(content_rank(data, labels), expected)
    X[X == 2] = np.nan  # sorted behind all numbers: the order of 0, 1, 2
    np.testing.assert_array_equal(content_rank(X, labels), expected)


@pytest.mark.parametrize("sparse", [False, True])
def test_rank_follows_its_row(*, sparse: bool) -> None:
    g, order = np.random.default_rng(0), shuffled(300)
    X, labels = g.poisson(0.5, (300, 6)).astype(float), g.integers(0, 3, 300)
    X[::4] = 0
    X, moved = (csr_matrix(X), csr_matrix(X[order])) if sparse else (X, X[order])
    rank, moved_rank = content_rank(X, labels), content_rank(moved, labels[order])
    assert sorted(rank) == list(range(300))
    dense = X.toarray() if sparse else X
    content = np.c_[dense, labels]
    np.testing.assert_array_equal(content[np.argsort(rank)], content[order][np.argsort(moved_rank)])
    if not sparse:  # standardized columns are rounded otherwise, and have the same order
        scaled = ((X.astype(np.float32) - np.float32(0.1)) / np.float32(0.7)) * np.float32(1.0000001)
        np.testing.assert_array_equal(content_rank(scaled, labels), rank)


def test_sparse_rows_have_the_order_of_dense_rows() -> None:
    g = np.random.default_rng(0)
    X = g.integers(-2, 3, (300, 7)) * (g.random((300, 7)) < 0.4) / 3
    X[::50] = 0
    labels = g.integers(0, 2, 300)
    rank = content_rank(X, labels)
    np.testing.assert_array_equal(content_rank(csr_matrix(X), labels), rank)
    rows, columns = np.indices(X.shape)
    backwards = csr_matrix((X[:, ::-1].ravel(), columns[:, ::-1].ravel(), np.arange(0, 301 * 7, 7)), shape=X.shape)
    assert backwards.nnz == rows.size  # with zeros, columns not sorted
    np.testing.assert_array_equal(content_rank(backwards, labels), rank)
    np.testing.assert_array_equal(content_rank(csr_matrix((300, 7)), labels), content_rank(np.zeros((300, 7)), labels))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("name", LINEAR_METHODS)
def test_order_of_rows_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch, *, many: bool, sparse: bool) -> None:
    if many:
        monkeypatch.setattr(linear_metalabelnet, "SELECTION_ROWS", 100)
        monkeypatch.setattr(linear_metalabelnet, "STUDENT_ROWS", 150)
        monkeypatch.setattr(fixed_features, "PART_ROWS", 64)
    train, clean, test = (samples(n, seed, sparse=sparse) for seed, n in enumerate((240, 45, 90)))
    a, b = torch.tensor(shuffled(240)), torch.tensor(shuffled(45))
    once, again = fit(name, train, clean), fit(name, train.take(a), clean.take(b))
    z, z_again = (method.logits(test.x[:].double()) for method in (once, again))
    torch.testing.assert_close(z_again, z, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(again.result.log_p, once.result.log_p[a], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(again.result.clean_logits, once.result.clean_logits[b], rtol=1e-6, atol=1e-6)
    assert (again.result.log_p.argmax(1) == once.result.log_p.argmax(1)[a]).all()


def test_near_duplicates_are_in_one_fold_as_often_as_by_chance() -> None:
    X = np.repeat(np.random.default_rng(0).normal(size=(500, 3)), 2, axis=0)
    X[1::2, 2] += 1e-6
    labels = np.zeros(1000, int)
    fold = stratified_folds(labels, shuffled_rank(X, labels), 5)
    assert 0.15 < (fold[::2] == fold[1::2]).mean() < 0.25
    assert (np.bincount(fold) == 200).all()


def test_folds_are_stratified_and_follow_their_rows() -> None:
    train, clean, order = samples(100, 0), samples(31, 1), shuffled(31)
    f, moved = make_features(train, clean), make_features(train, clean.take(torch.tensor(order)))
    for labels, fold in ((f.given[:100], f.fold[:100]), (f.true, f.fold[100:])):
        for label in np.unique(labels):
            counts = np.bincount(fold[labels == label], minlength=f.folds)
            assert counts.max() - counts.min() <= 1
    np.testing.assert_array_equal(moved.fold[100:], f.fold[100:][order])


@pytest.mark.parametrize("changes", [{}, {"estimator": GaussianNB()}])
def test_estimator_with_rows_in_another_order(changes: dict[str, Any]) -> None:
    data, order = blobs(), shuffled(160)
    once, again = (
        MetaLabelNetClassifier(random_state=0, device="cpu", **changes).fit(
            data.X[rows], data.y[rows], clean_mask=data.clean_mask[rows]
        )
        for rows in (np.arange(160), order)
    )
    assert np.array_equal(again.labels_, once.labels_[order])
    assert np.array_equal(again.suspects_, once.suspects_[order])
    np.testing.assert_allclose(again.predict_proba(data.X_test), once.predict_proba(data.X_test), rtol=1e-4)
