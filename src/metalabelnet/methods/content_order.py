"""An order of rows that depends on their content alone, so that folds do not depend on the order of a file.

Rows are sorted by the first column, equal ones by the second, and so on. Scaling a column by a positive factor changes
no order, not even by rounding. Dense and sparse rows of the same values have the same order. For folds, the sorted rows
are shuffled: near-duplicates are neighbors in the sorted order, and would systematically go to different folds.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from metalabelnet.seeds import stream_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Positions = NDArray[np.int64]
    Key = Callable[[Positions], NDArray[Any]]  # values of some rows


def shuffled_rank(X: Any, labels: NDArray[np.int64]) -> Positions:
    """Return the position of each row in a shuffled order of the content, (n,); the shuffle depends on n alone."""
    shuffle: Positions = np.random.default_rng(stream_seed(0, "content order")).permutation(len(labels))
    return shuffle[content_rank(X, labels)]


def content_rank(X: Any, labels: NDArray[np.int64]) -> Positions:
    """Return the position of each row in the order of the content, (n,); rows of equal content are sorted by label.

    X  (n, d) array, SciPy sparse matrix or data frame
    """
    group, tied = np.zeros(len(labels), np.int64), np.arange(len(labels))  # a group has the number of its first row
    for key in _keys(X, labels):
        if not len(tied):
            break
        values = key(tied)
        if values.dtype.kind == "f":
            values = np.where(np.isnan(values), np.inf, values)
        if (values == values[0]).all():
            continue
        order = np.lexsort((values, group[tied]))
        tied, values = tied[order], values[order]
        old = group[tied]
        is_first_old = np.concatenate([[True], old[1:] != old[:-1]])
        is_first = is_first_old | np.concatenate([[True], values[1:] != values[:-1]])
        group[tied] = old + _last_start(is_first) - _last_start(is_first_old)
        tied = tied[~(is_first & np.concatenate([is_first[1:], [True]]))]
    rank = np.empty(len(labels), np.int64)
    rank[np.argsort(group, kind="stable")] = np.arange(len(labels))
    return rank


def _last_start(is_first: NDArray[np.bool_]) -> Positions:
    """Return the position of the first row of each row's group."""
    return np.maximum.accumulate(np.where(is_first, np.arange(len(is_first)), 0))


def _keys(X: Any, labels: NDArray[np.int64]) -> Iterator[Key]:
    """Yield what rows are sorted by, the first key first."""
    if hasattr(X, "tocsr"):
        yield from _sparse_keys(X.tocsr())
    else:
        for k in range(X.shape[1]):
            column = X.iloc[:, k].to_numpy() if hasattr(X, "iloc") else np.asarray(X)[:, k]
            yield (column.astype(str) if column.dtype.kind == "O" else column).__getitem__
    yield labels.__getitem__


def _sparse_keys(X: Any) -> Iterator[Key]:
    """Yield column and value of the first nonzero value, the second, and so on.

    Of two rows that are equal up to some column, the one with a positive value there is sorted behind those with 0, and
    the one with a negative value before them.
    """
    if not X.has_sorted_indices or (X.data == 0).any():
        X = X.copy()
        X.sum_duplicates()  # it sorts, too
        X.eliminate_zeros()
    for k in range(int(np.diff(X.indptr).max(initial=0))):
        yield functools.partial(_nonzero_column, X, k)
        yield functools.partial(_nonzero_value, X, k)


def _nonzero_column(X: Any, k: int, rows: Positions) -> NDArray[Any]:
    """Return a number for the column of the k-th nonzero value of each row; 0 for rows that have fewer."""
    position, exists = _position(X, k, rows)
    return np.where(exists, np.sign(X.data[position]) * (X.shape[1] - X.indices[position].astype(np.float64)), 0)


def _nonzero_value(X: Any, k: int, rows: Positions) -> NDArray[Any]:
    """Return the k-th nonzero value of each row; 0 for rows that have fewer."""
    position, exists = _position(X, k, rows)
    return np.where(exists, X.data[position], 0)


def _position(X: Any, k: int, rows: Positions) -> tuple[Positions, NDArray[np.bool_]]:
    """Return the position of the k-th nonzero value of each row, and whether there is one."""
    position = X.indptr[rows] + k
    return np.minimum(position, len(X.data) - 1), position < X.indptr[rows + 1]
