"""Nearest neighbors in feature space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

MAX_DISTANCES_IN_MEMORY = 2**24  # 64 MiB in float32


@torch.no_grad()
def nearest_neighbors(features: Tensor, k: int) -> Tensor:
    """Return the indices (n, k) of the k nearest other samples by Euclidean distance, nearest first.

    With fewer than k other samples, all of them are returned; a single sample is its own neighbor.

    The search is exact: all distances are computed, in chunks of rows. In ‖a − b‖² = ‖a‖² + ‖b‖² − 2⟨a, b⟩ the term
    ‖a‖² does not affect the order and is omitted.
    """
    n = len(features)
    features = features - features.mean(0)  # a common offset changes no distance, but costs precision
    squares = features.square().sum(1)
    neighbors = []
    for rows in torch.split(torch.arange(n, device=features.device), max(1, MAX_DISTANCES_IN_MEMORY // n)):
        distances = torch.addmm(squares, features[rows], features.T, alpha=-2)
        distances[torch.arange(len(rows), device=rows.device), rows] = torch.inf
        neighbors.append(distances.topk(min(k, max(1, n - 1)), largest=False).indices)
    return torch.cat(neighbors)


def balanced_votes(neighbors: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the share of each class among a row's neighbors, divided by the class's frequency, normalized: (n, C).

    A label of −1 does not vote. A row without a vote gets the uniform distribution.

    neighbors  (n, k) row numbers
    labels     (n,) the label of each row
    """
    one_hot = (labels >= 0)[:, None] * functional.one_hot(labels.clamp_min(0), classes)
    counts = torch.zeros(len(neighbors), classes, device=labels.device)
    for column in neighbors.T:  # one column at a time: (n, k, C) numbers would not fit into memory
        counts += one_hot[column]
    balanced = counts / one_hot.sum(0).clamp_min(1)
    total = balanced.sum(1, keepdim=True)
    return torch.where(total > 0, balanced / total.clamp_min(torch.finfo(total.dtype).tiny), 1 / classes)


class NeighborTable:
    """The row numbers of the neighbors of every row, nearest first; −1 in a row without neighbors.

    It is computed once and saved in checkpoints, so that a resumed run uses the same neighbors.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    @classmethod
    def from_features(cls, positions: Tensor, features: Tensor, k: int, rows: int) -> NeighborTable:
        """Return a table of `rows` rows, in which the rows at `positions` have neighbors among each other."""
        neighbors = nearest_neighbors(features, k)
        table = torch.full((rows, neighbors.shape[1]), -1, device=positions.device)
        table[positions] = positions[neighbors]
        return cls(table)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state from a checkpoint."""
        self.rows = state_dict["rows"]
