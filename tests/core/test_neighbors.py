"""Nearest neighbours against a double loop, in one chunk and in many."""

import pytest
import torch

from metalabelnet.core import neighbors
from metalabelnet.core.neighbors import NeighbourTable, nearest


def naive(features: list[list[float]], k: int) -> list[list[int]]:
    found = []
    for i, a in enumerate(features):
        by_distance = []
        for j, b in enumerate(features):
            if i != j:
                by_distance.append((sum((u - v) ** 2 for u, v in zip(a, b, strict=True)), j))
        found.append([j for _, j in sorted(by_distance)[:k]])
    return found


@pytest.mark.parametrize("cells", [2**24, 100, 1])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_against_a_double_loop(monkeypatch: pytest.MonkeyPatch, cells: int, offset: float) -> None:
    monkeypatch.setattr(neighbors, "CELLS", cells)
    features = torch.randn(30, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + offset
    assert nearest(features, 4).tolist() == naive(features.tolist(), 4)


def test_nobody_is_their_own_neighbour_even_among_equals() -> None:
    found = nearest(torch.ones(7, 3), 6)
    assert all(sorted(row) == [j for j in range(7) if j != i] for i, row in enumerate(found.tolist()))


def test_fewer_samples_than_neighbours() -> None:
    assert nearest(torch.tensor([[0.0], [1.0], [5.0]]), 10).tolist() == [[1, 2], [0, 2], [1, 0]]
    assert nearest(torch.zeros(1, 2), 10).tolist() == [[0]]


def test_a_table_speaks_of_rows() -> None:
    table = NeighbourTable.among(torch.tensor([1, 4, 6]), torch.tensor([[0.0], [1.0], [5.0]]), 1, rows=8)
    assert table.rows.tolist() == [[-1], [4], [-1], [-1], [1], [-1], [4], [-1]]
    other = NeighbourTable(torch.zeros(8, 1, dtype=torch.long))
    other.load_state_dict(table.state_dict())
    assert torch.equal(other.rows, table.rows)
