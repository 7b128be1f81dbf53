"""Sparse samples that are read like a tensor: TF-IDF vectors have tens of thousands of columns, most of them 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class SparseTensor:
    """(N, d) float32 values in a SciPy CSR matrix. Rows that are read become dense tensors on the device.

    Parameters
    ----------
    csr : scipy.sparse.csr_matrix
        The values.
    """

    def __init__(self, csr: Any, device: torch.device | str = "cpu") -> None:
        self.csr = csr
        self.shape, self.dtype, self.device = torch.Size(csr.shape), torch.float32, torch.device(device)

    @property
    def ndim(self) -> int:
        """The number of dimensions, 2."""
        return 2

    @property
    def nbytes(self) -> int:
        """The memory of the stored values and their positions."""
        return int(self.csr.data.nbytes + self.csr.indices.nbytes + self.csr.indptr.nbytes)

    def is_floating_point(self) -> bool:
        """Return True."""
        return True

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, which: slice | Tensor) -> Tensor:
        """Return rows as a dense tensor on the device."""
        rows = self.csr[which.cpu().numpy() if isinstance(which, Tensor) else which]
        return torch.from_numpy(rows.toarray().astype(np.float32)).to(self.device)

    def take(self, positions: Tensor) -> SparseTensor:
        """Return the rows at these positions, still sparse."""
        return SparseTensor(self.csr[positions.cpu().numpy()], self.device)

    def concat(self, other: SparseTensor) -> SparseTensor:
        """Return these rows followed by the others."""
        return SparseTensor(stack_rows(self.csr, other.csr), self.device)

    def linear(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the output of a linear layer for all rows. The rows stay sparse."""
        product = self.csr @ weight.detach().double().T.cpu().numpy()
        return torch.from_numpy(product).to(weight) + bias.detach()

    def to(self, device: torch.device | str) -> SparseTensor:
        """Return the same rows, to be read onto another device."""
        return SparseTensor(self.csr, device)


def stack_rows(first: Any, second: Any) -> Any:
    """Return the rows of two matrices, both dense or both sparse."""
    if isinstance(first, np.ndarray):
        return np.concatenate([first, second])
    from scipy.sparse import vstack

    return vstack([first, second], format="csr")
