"""Several ranks train as one process does: losses, weights, predictions and soft labels are equal to rounding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rank_processes import count_table_values, pass_networks, read_batches, run_ranks, train_methods, use_tables
from small_runs import METHOD_VARIANTS, TRAINED_METHODS

pytestmark = pytest.mark.dist

RUNS: list[tuple[str, dict[str, Any]]] = [
    ("metalabelnet", {"batch_size": 11, "epochs": 2, "warmup": 1}),  # shares of 5 and 6 rows
    ("fixmatch", {"mixup": 0.2, "epochs": 1, "warmup": 0}),
    ("elr", {"epochs": 1}),  # has a label table
]
TABLES = {
    "co-teaching": ["cross_fit.noisy"],
    "dividemix": ["division.p"],
    "dmlp": ["purified.scores"],
    "elr": ["targets.t"],
    "elr-plus": ["targets.net", "targets.peer"],
    "joint-optimization": ["labels.logits", "predictions.ring"],
    "mslg": ["table.logits"],
    "pencil": ["labels.logits"],
    "sop": ["noise.u", "noise.v"],
    "sop-plus": ["noise.u", "noise.v"],
    "ssr": ["selection.p"],
}
ALL_RUNS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in (*TRAINED_METHODS, *METHOD_VARIANTS)),
    *((name, {"batch_size": 11}) for name in ("cross-entropy", "mlnt", "dividemix", "ssr")),
    *((name, {"settings": {"differentiation": "double-backward"}}) for name in ("metalabelnet", "mslg", "mlc", "mlnt")),
    ("metalabelnet", {"settings": {"differentiation": "finite-difference"}}),
    ("forward", {"settings": {"transition": "estimated"}}),
    ("metalabelnet-plus", {"mixup": 0.2, "ema": 0.9, "strong_augment": "consistency"}),
]

INDICES = [torch.tensor([49, 0, 17]), torch.tensor([16, 0, 16, 49, 32, 0, 33]), torch.tensor([], dtype=torch.int64)]


def flatten(results: Any, name: str = "") -> dict[str, Any]:
    """Return a nested result by path."""
    if isinstance(results, dict | list):
        items = results.items() if isinstance(results, dict) else enumerate(results)
        return {path: value for key, part in items for path, value in flatten(part, f"{name}/{key}").items()}
    return {name: results}


def same_bytes(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()


def assert_ranks_equal_one_process(runs: list[tuple[str, dict[str, Any]]], size: int, folder: Path) -> None:
    ranks = run_ranks(train_methods, size, folder / "ranks", runs)
    for (name, changes), expected, *each in zip(runs, train_methods(runs), *ranks, strict=True):
        for key, value in expected.items():
            for of_rank in each[1:]:
                assert torch.equal(of_rank[key], each[0][key]), f"{name} {changes}: {key} differs between ranks"
            if value.numel():
                difference = (each[0][key].double() - value.double()).abs().max()
                scale = value.double().abs().max().clamp_min(1)
                assert difference < 1e-12 * scale, f"{name} {changes}: {key} differs by {difference:.1e} of {scale:.1e}"


def test_two_ranks_equal_one_process(tmp_path: Path) -> None:
    assert_ranks_equal_one_process(RUNS, 2, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_equal_one_process_for_every_method(size: int, tmp_path: Path) -> None:
    assert_ranks_equal_one_process(ALL_RUNS, size, tmp_path)


def test_ranks_have_the_rows_of_a_table_of_one_process(tmp_path: Path) -> None:
    """Lookups with repeated and with no row numbers, updates, checkpoints, soft labels: equal to the bit."""
    expected = flatten(use_tables(50, INDICES))
    ranks = [flatten(results) for results in run_ranks(use_tables, 3, tmp_path / "ranks", 50, INDICES)]
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


@pytest.mark.slow
def test_shares_of_label_tables_may_be_unequal(tmp_path: Path) -> None:
    """48 rows on five ranks."""
    assert_ranks_equal_one_process([(name, {}) for name in TABLES], 5, tmp_path)


@pytest.mark.slow
def test_each_rank_stores_its_share_of_label_tables(tmp_path: Path) -> None:
    """And no method has a replicated table."""
    ranks = run_ranks(count_table_values, 2, tmp_path / "ranks", TRAINED_METHODS)
    for name, tables in ranks[0].items():
        assert sorted(tables) == TABLES.get(name, []), name
        for table, (own, whole) in tables.items():
            assert (own, whole // 2) == (whole // 2, ranks[1][name][table][0]), f"{name}: {table}"


@pytest.mark.slow
@pytest.mark.parametrize(("size", "rows"), [(2, 8), (3, 8), (3, 2)])
def test_passes_of_networks_equal_those_of_one_process(size: int, rows: int, tmp_path: Path) -> None:
    """With equal and unequal shares, and fewer rows than ranks; with tangents and second derivatives."""
    ranks = run_ranks(pass_networks, size, tmp_path / "ranks", rows)
    for name, expected in pass_networks(rows).items():
        for of_rank in ranks:
            assert of_rank[name].keys() == expected.keys()
            for key, value in expected.items():
                torch.testing.assert_close(of_rank[name][key], value, rtol=1e-12, atol=1e-12, msg=f"{name}: {key}")


@pytest.mark.slow
def test_each_rank_reads_its_share_of_the_samples(tmp_path: Path) -> None:
    first, second = run_ranks(read_batches, 2, tmp_path / "ranks", str(tmp_path))
    expected = read_batches(str(tmp_path))
    for rank in (first, second):
        assert torch.equal(rank["batches"], expected["batches"])
        assert torch.equal(rank["chunks"], expected["chunks"])
        assert rank["read"] == expected["read"] / 2
