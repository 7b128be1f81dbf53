"""The stored numbers of the paper against sums and single values copied from it by hand."""

import pytest

from metalabelnet.methods import METHODS
from metalabelnet.reproduction.experiments import TABLE_METHODS
from metalabelnet.reproduction.paper_numbers import CELLS, PAPER_NUMBERS, paper_number

# Columns of the CIFAR-10 table: sum of the means, sum of the standard deviations, number of failures.
COLUMNS = {
    "uniform:0.2": (1001.5, 6.89, 0),
    "uniform:0.4": (946.18, 8.43, 0),
    "uniform:0.6": (841.41, 9.01, 0),
    "uniform:0.8": (514.65, 16.59, 0),
    "feature:0.2": (969.76, 8.73, 0),
    "feature:0.4": (875.99, 7.34, 0),
    "feature:0.6": (740.03, 6.95, 1),
    "feature:0.8": (288.63, 11.06, 4),
}
SUMS = {
    "clothing1m-table": (12, 886.44),
    "food101n-table": (6, 467.94),
    "webvision-table": (14, 1037.10),
    "clothing1m-clean-size": (7, 541.64),
    "clothing1m-unlabeled": (12, 864.64),
}


@pytest.mark.parametrize("cell", CELLS)
def test_cifar10_table_columns(cell: str) -> None:
    column = [n for n in PAPER_NUMBERS if n.table == "cifar10-table" and n.column == cell]
    means, stds, failed = COLUMNS[cell]
    assert len(column) == 12
    assert sum(n.mean for n in column if n.mean is not None) == pytest.approx(means)
    assert sum(n.std for n in column if n.std is not None) == pytest.approx(stds)
    assert sum(n.failed for n in column) == failed


@pytest.mark.parametrize("table", SUMS)
def test_other_table_sums(table: str) -> None:
    count, total = SUMS[table]
    numbers = [n for n in PAPER_NUMBERS if n.table == table]
    assert len(numbers) == count
    assert sum(n.mean or 0 for n in numbers) == pytest.approx(total)


def test_single_cells() -> None:
    assert str(paper_number("cifar10-table", "metalabelnet", "feature:0.8")) == "76.57 ± 0.33"
    assert str(paper_number("cifar10-table", "mslg", "feature:0.8")) == "57.30 ± 7.40"
    assert str(paper_number("cifar10-table", "co-teaching", "uniform:0.2")) == "85.82 ± 0.22"
    assert str(paper_number("cifar10-table", "sce", "feature:0.6")) == "fail"
    assert str(paper_number("clothing1m-table", "metalabelnet", "accuracy")) == "78.20"
    assert str(paper_number("webvision-table", "metalabelnet", "top 5")) == "87.48"
    assert paper_number("cifar10-table", "fine-tune", "uniform:0.2") is None
    assert paper_number("cifar10-table", "metalabelnet", "uniform:0.3") is None


def test_positions_are_unique_and_rows_are_methods() -> None:
    positions = [(n.table, n.row, n.column) for n in PAPER_NUMBERS]
    assert len(positions) == len(set(positions)) == 96 + 51
    rows = {n.row for n in PAPER_NUMBERS if n.table == "cifar10-table"}
    assert rows == set(TABLE_METHODS) - {"clean-only", "fine-tune"}
    assert rows < set(METHODS)
