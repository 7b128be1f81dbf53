"""A table of which a single process has all rows; tests of several ranks are in tests/methods/test_ranks.py."""

import torch

from metalabelnet.core.sharded_table import ShardedTable


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
