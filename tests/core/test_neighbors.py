"""Nearest neighbors against a double loop, in one and in many chunks."""

import pytest
import torch

from metalabelnet.core import neighbors
from metalabelnet.core.neighbors import NeighborTable, balanced_votes, nearest_neighbors


def naive(features: list[list[float]], k: int) -> list[list[int]]:
    result = []
    for i, a in enumerate(features):
        by_distance = []
        for j, b in enumerate(features):
            if i != j:
                by_distance.append((sum((u - v) ** 2 for u, v in zip(a, b, strict=True)), j))
        result.append([j for _, j in sorted(by_distance)[:k]])
    return result


@pytest.mark.parametrize("max_distances", [2**24, 100, 1])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_equals_double_loop(monkeypatch: pytest.MonkeyPatch, max_distances: int, offset: float) -> None:
    monkeypatch.setattr(neighbors, "MAX_DISTANCES_IN_MEMORY", max_distances)
    features = torch.randn(30, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + offset
    assert nearest_neighbors(features, 4).tolist() == naive(features.tolist(), 4)


def test_equal_samples_are_not_their_own_neighbors() -> None:
    result = nearest_neighbors(torch.ones(7, 3), 6)
    assert all(sorted(row) == [j for j in range(7) if j != i] for i, row in enumerate(result.tolist()))


def test_fewer_samples_than_neighbors() -> None:
    assert nearest_neighbors(torch.tensor([[0.0], [1.0], [5.0]]), 10).tolist() == [[1, 2], [0, 2], [1, 0]]
    assert nearest_neighbors(torch.zeros(1, 2), 10).tolist() == [[0]]


def test_table_contains_row_numbers() -> None:
    table = NeighborTable.from_features(torch.tensor([1, 4, 6]), torch.tensor([[0.0], [1.0], [5.0]]), 1, rows=8)
    assert table.rows.tolist() == [[-1], [4], [-1], [-1], [1], [-1], [4], [-1]]
    other = NeighborTable(torch.zeros(8, 1, dtype=torch.long))
    other.load_state_dict(table.state_dict())
    assert torch.equal(other.rows, table.rows)


def test_balanced_votes_equal_a_loop() -> None:
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, 3, (20,), generator=g)
    neighbors = torch.stack([torch.randperm(20, generator=g)[:5] for _ in range(20)])
    frequency = [sum(label == c for label in labels.tolist()) for c in range(3)]
    for row, votes in zip(neighbors.tolist(), balanced_votes(neighbors, labels, 3).tolist(), strict=True):
        shares = [sum(int(labels[j]) == c for j in row) / frequency[c] for c in range(3)]
        assert votes == pytest.approx([share / sum(shares) for share in shares])


def test_votes_without_labeled_neighbors_are_uniform() -> None:
    votes = balanced_votes(torch.tensor([[1], [0]]), torch.tensor([-1, 1]), 2)
    assert votes.tolist() == [[0.0, 1.0], [0.5, 0.5]]
