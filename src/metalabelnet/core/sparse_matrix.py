"""A sparse matrix that is multiplied many times: PyTorch's products with the matrix and with its stored transpose.

SciPy takes two to three times as long to multiply a CSR matrix by a few dense columns. Columns without a value, of
which there are many where TF-IDF is fitted to few of the rows, are left out.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

MAX_VALUES = 2**31 - 1  # PyTorch's products count values in 32 bits


class SparseMatrix:
    """A sparse matrix with products `A @ V` and `A.T @ V`; V is dense and has the matrix's dtype."""

    def __init__(self, matrix: Tensor, transpose: Tensor, dtype: np.dtype[Any]) -> None:
        self._matrix, self._transpose, self.dtype = matrix, transpose, dtype
        self.shape = tuple(matrix.shape)

    @property
    def T(self) -> SparseMatrix:  # noqa: N802 (NumPy's name)
        """The transpose."""
        return SparseMatrix(self._transpose, self._matrix, self.dtype)

    def __matmul__(self, V: NDArray[Any]) -> NDArray[Any]:
        product: NDArray[Any] = (self._matrix @ torch.from_numpy(V)).numpy()
        return product


def nonzero_columns(csr: Any) -> tuple[Any, NDArray[np.int64]]:
    """Return the columns of a SciPy CSR matrix that have a value, with fast products, and their positions.

    With more values than `MAX_VALUES` the matrix itself is returned, with all columns.
    """
    rows, count = csr.shape
    if csr.nnz > MAX_VALUES:
        return csr, np.arange(count)
    transpose = csr.T.tocsr()
    sizes = np.diff(transpose.indptr)
    columns = np.flatnonzero(sizes)
    position = np.zeros(count, np.int32)
    position[columns] = np.arange(len(columns))
    starts = np.concatenate([[0], np.cumsum(sizes[columns])])
    matrix = _csr_tensor(csr.indptr, position[csr.indices], csr.data, (rows, len(columns)))
    transposed = _csr_tensor(starts, transpose.indices, transpose.data, (len(columns), rows))
    return SparseMatrix(matrix, transposed, csr.dtype), columns


def _csr_tensor(starts: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], shape: tuple[int, int]) -> Tensor:
    row_starts, columns = (torch.from_numpy(a.astype(np.int32, copy=False)) for a in (starts, indices))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return torch.sparse_csr_tensor(
            row_starts, columns, torch.from_numpy(values), size=list(shape), check_invariants=False
        )
