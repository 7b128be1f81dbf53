"""One-hot labels: as PyTorch's, zeros for unlabeled rows."""

import torch
from torch.nn import functional

from metalabelnet.core.one_hot import one_hot


def test_equals_pytorch() -> None:
    labels, like = torch.tensor([2, 0, 1, 2]), torch.zeros(4, 3, dtype=torch.float64)
    result = one_hot(labels, like)
    assert result.dtype == torch.float64
    assert torch.equal(result, functional.one_hot(labels, 3).double())


def test_unlabeled_row_is_zero() -> None:
    assert one_hot(torch.tensor([-1, 1]), torch.zeros(2, 2)).tolist() == [[0.0, 0.0], [0.0, 1.0]]
