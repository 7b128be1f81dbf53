"""Which samples lie nearest to each other in a feature space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

CELLS = 2**24  # distances held at a time: 64 MiB in float32


@torch.no_grad()
def nearest(features: Tensor, k: int) -> Tensor:
    """The k other samples nearest to each by Euclidean distance, nearest first; fewer where there are fewer.

    Exact: all distances are computed, a chunk of rows at a time. ‖a − b‖² = ‖a‖² + ‖b‖² − 2⟨a, b⟩, of which ‖a‖²
    does not change the order. A sample alone is its own neighbour.
    """
    n = len(features)
    features = features - features.mean(0)  # a common offset would cost digits and changes no distance
    squares = features.square().sum(1)
    found = []
    for rows in torch.split(torch.arange(n, device=features.device), max(1, CELLS // n)):
        distances = torch.addmm(squares, features[rows], features.T, alpha=-2)
        distances[torch.arange(len(rows), device=rows.device), rows] = torch.inf
        found.append(distances.topk(min(k, max(1, n - 1)), largest=False).indices)
    return torch.cat(found)


class NeighbourTable:
    """The row numbers of every row's neighbours, nearest first; −1 in a row that has none.

    Found once and then kept, so that a resumed run goes on with the same.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    @classmethod
    def among(cls, positions: Tensor, features: Tensor, k: int, rows: int) -> NeighbourTable:
        """The table of so many rows, with neighbours for those at these positions, among each other."""
        by_place = nearest(features, k)
        table = torch.full((rows, by_place.shape[1]), -1, device=positions.device)
        table[positions] = positions[by_place]
        return cls(table)

    def state_dict(self) -> dict[str, Any]:
        """The state, for a checkpoint."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state over."""
        self.rows = state_dict["rows"]
