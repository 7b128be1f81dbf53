"""Tables of which each rank stores its share of the rows: they give what a plain tensor gives, to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from metalabelnet.core.sharded_table import ShardedTable
from rank_processes import run_ranks, use_tables

ROWS = 50  # 16, 17 and 17 on three ranks
INDICES = [torch.tensor([49, 0, 17]), torch.tensor([16, 0, 16, 49, 32, 0, 33]), torch.tensor([], dtype=torch.int64)]


def flatten(results: Any, name: str = "") -> dict[str, Any]:
    """Return a nested result by path."""
    if isinstance(results, dict | list):
        items = results.items() if isinstance(results, dict) else enumerate(results)
        return {path: value for key, part in items for path, value in flatten(part, f"{name}/{key}").items()}
    return {name: results}


def same_bytes(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()


def test_one_process_indexes_a_tensor() -> None:
    values = torch.randn(7, 3)
    table, index = ShardedTable(values, 7), torch.tensor([3, 0, 3, 6])
    assert torch.equal(table[index], values[index])
    assert table.state() is values
    table[index[1:]] = torch.ones(3, 3)
    table.add(index[:1], torch.ones(1, 3))
    assert torch.equal(values[[0, 6]], torch.ones(2, 3))
    assert torch.equal(values[3], torch.full((3,), 2.0))
    table.load(torch.zeros(7, 3))
    assert not values.any()


@pytest.mark.dist
def test_ranks_have_the_rows_of_one_process(tmp_path: Path) -> None:
    """Lookups with repeated and without row numbers, updates, checkpoints, soft labels; shares are unequal."""
    expected = flatten(use_tables(ROWS, INDICES))
    ranks = [flatten(results) for results in run_ranks(use_tables, 3, tmp_path / "ranks", ROWS, INDICES)]
    for key, value in expected.items():
        for rank, results in enumerate(ranks):
            if rank and key.endswith(("/table", "/ring")):  # rank 0 alone writes checkpoints
                assert results[key] is None
            elif key.endswith("/numel"):
                assert results[key] == 3 * [16, 17, 17][rank]
            elif isinstance(value, Tensor):
                assert same_bytes(results[key], value), f"{key} on rank {rank}"
            else:
                assert results[key] == value, f"{key} on rank {rank}"
