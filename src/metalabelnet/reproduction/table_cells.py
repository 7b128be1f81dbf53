"""Table cells: mean, standard deviation and number of the runs of one method, noise and setting."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from metalabelnet.reproduction.epoch_seconds import read_epoch_seconds
from metalabelnet.reproduction.experiments import EXPERIMENTS, RunSpec
from metalabelnet.reproduction.selection import DEFAULT_SELECTION, Selection, run_specs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metalabelnet.reproduction.results import ResultLine, Results

CellKey = tuple[str, str, str]  # method, cell (the column), point
SELECTED, LAST = "test_accuracy", "test_accuracy_last"  # summary keys: accuracy at the selected and at the last epoch


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """The result lines of one table cell and the number of runs that failed."""

    lines: list[ResultLine] = field(default_factory=list)
    failed: int = 0

    @property
    def ended(self) -> bool:
        """Whether at least one run finished or failed."""
        return bool(self.lines or self.failed)

    def values(self, name: str = SELECTED) -> list[float]:
        """The value of each run that has one."""
        return [line["summary"][name] for line in self.lines if line["summary"] and line["summary"][name] is not None]

    def mean(self, name: str = SELECTED) -> float | None:
        """The mean over the runs, or None without runs."""
        values = self.values(name)
        return statistics.mean(values) if values else None

    def standard_error(self, name: str = SELECTED) -> float | None:
        """The standard error of the mean, or None with fewer than two runs."""
        values = self.values(name)
        return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None

    def text(self, name: str = SELECTED) -> str:
        """Format as "mean ± standard deviation (number of runs)"; empty without runs."""
        values = self.values(name)
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        parts = [f"{statistics.mean(values):.2f}{spread} ({len(values)})"] if values else []
        if self.failed:
            parts.append("fail" if not values and self.failed == 1 else f"{self.failed} failed")
        return ", ".join(parts)


def collect_cells(name: str, results: Results, selection: Selection = DEFAULT_SELECTION) -> dict[CellKey, TableCell]:
    """Group the results of an experiment into table cells, over all seeds.

    The experiment's default methods and columns are always present. A column beyond these is present if the selection
    asks for it and it was run, or if at least two of its points have results. A method beyond these is present where
    it was run.
    """
    experiment = EXPERIMENTS[name]
    if experiment.needs_data:
        return {}
    seeds = 1 + max((int(line["settings"].get("seed", 0)) for line in results.lines), default=0)
    default = experiment.smoke_cells if selection.smoke else experiment.cells
    extra = selection.cells or ()
    methods = tuple(m for m in experiment.all_methods if m in (*experiment.methods, *(selection.methods or ())))
    columns = tuple(c for c in experiment.all_cells if not selection.smoke or c in (*default, *extra))
    cells: dict[CellKey, TableCell] = {}
    times = read_epoch_seconds(results.folder)
    every = Selection(seeds=seeds, smoke=selection.smoke, methods=methods, cells=columns, epoch_seconds=times)
    for spec in run_specs(name, every):
        key = (spec.method, spec.cell, spec.point)
        cells[key] = _add_result(cells.get(key, TableCell()), results, spec)
    shown = [c for c in columns if c in default or (c in extra and _was_run(cells, c)) or _is_comparable(cells, c)]
    return {
        key: cell for key, cell in cells.items() if key[1] in shown and (key[0] in experiment.methods or cell.ended)
    }


def _add_result(cell: TableCell, results: Results, spec: RunSpec) -> TableCell:
    line = results.find(spec)
    if line is None:
        return cell
    if line.get("failure"):
        return TableCell(lines=cell.lines, failed=cell.failed + 1)
    return TableCell(lines=[*cell.lines, line], failed=cell.failed)


def _was_run(cells: Mapping[CellKey, TableCell], column: str) -> bool:
    return any(cell.ended for (_, c, _), cell in cells.items() if c == column)


def _is_comparable(cells: Mapping[CellKey, TableCell], column: str) -> bool:
    """Whether at least two points of a column have results."""
    return sum(bool(cell.lines) for (_, c, point), cell in cells.items() if c == column and point) > 1


def column_names(cells: Mapping[CellKey, TableCell]) -> list[str]:
    """The columns among these cells, each once, in order of first appearance."""
    return list(dict.fromkeys(column for _, column, _ in cells))


def losses_by_column(cells: Mapping[CellKey, TableCell]) -> dict[str, dict[str, Any]]:
    """The losses along a step for each column, from the first run that has them."""
    losses: dict[str, dict[str, Any]] = {}
    for (_, column, _), cell in cells.items():
        for line in cell.lines:
            if line.get("losses"):
                losses.setdefault(column, line["losses"])
    return losses


def column_title(column: str) -> str:
    """Format a column for readers: "feature:0.6" becomes "feature-dependent 60 %"."""
    kind, _, rate = column.partition(":")
    if not rate:
        return {"random1": "random 1"}.get(kind, kind)
    return f"{'feature-dependent' if kind == 'feature' else kind} {float(rate):.0%}".replace("%", " %")
