"""Table cells: mean, standard deviation and number of the runs of one method, noise and setting."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from metalabelnet.reproduction.epoch_seconds import read_epoch_seconds
from metalabelnet.reproduction.experiments import EXPERIMENTS
from metalabelnet.reproduction.selection import DEFAULT_SELECTION, Selection, run_specs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from metalabelnet.reproduction.experiment import RunSpec
    from metalabelnet.reproduction.results import ResultLine, Results

CellKey = tuple[str, str, str]  # method, cell (the column), point
SELECTED, LAST = "test_accuracy", "test_accuracy_last"  # summary keys: accuracy at the selected and at the last epoch


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """The result lines of one table cell and the number of runs that failed. Repeated runs of a seed are averaged."""

    lines: list[ResultLine] = field(default_factory=list)
    failed: int = 0

    @property
    def ended(self) -> bool:
        """Whether at least one run finished or failed."""
        return bool(self.lines or self.failed)

    @property
    def repeats(self) -> list[ResultLine]:
        """The runs beyond the first of each seed."""
        seeds = [line["settings"]["seed"] for line in self.lines]
        return [line for k, line in enumerate(self.lines) if seeds[k] in seeds[:k]]

    @property
    def lines_with_curves(self) -> list[ResultLine]:
        """The runs whose metrics of every epoch are stored."""
        return [line for line in self.lines if line.get("curves") is not None]

    def mean_by_seed(self, value: Callable[[ResultLine], float | None]) -> dict[int, float]:
        """The mean value of the runs of each seed, without the runs that have none."""
        values: dict[int, list[float]] = {}
        for line in self.lines:
            if (number := value(line)) is not None:
                values.setdefault(line["settings"]["seed"], []).append(number)
        return {seed: statistics.mean(numbers) for seed, numbers in values.items()}

    def by_seed(self, name: str = SELECTED) -> dict[int, float]:
        """The value of each seed that has one."""
        return self.mean_by_seed(lambda line: line["summary"][name] if line["summary"] else None)

    def values(self, name: str = SELECTED) -> list[float]:
        """The value of each seed that has one."""
        return list(self.by_seed(name).values())

    def mean(self, name: str = SELECTED) -> float | None:
        """The mean over the seeds, or None without runs."""
        values = self.values(name)
        return statistics.mean(values) if values else None

    def test_samples(self) -> int | None:
        """The smallest number of test samples of these runs, if it is known."""
        counts = [line["summary"].get("samples", {}).get("test") for line in self.lines if line["summary"]]
        return min((count for count in counts if count), default=None)

    def text(self, name: str = SELECTED) -> str:
        """Format as "mean ± standard deviation (number of seeds)"; empty without runs."""
        values = self.values(name)
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        parts = [f"{statistics.mean(values):.2f}{spread} ({len(values)})"] if values else []
        if self.failed:
            parts.append("fail" if not values and self.failed == 1 else f"{self.failed} failed")
        return ", ".join(parts)


def collect_cells(name: str, results: Results, selection: Selection = DEFAULT_SELECTION) -> dict[CellKey, TableCell]:
    """Group the results of an experiment into table cells, over all seeds.

    The experiment's default methods, columns and points are always present. A column beyond these is present if the
    selection asks for it and it was run, or if at least two of its points have results. A method beyond these is
    present where it was run, a point where any method was.
    """
    experiment = EXPERIMENTS[name]
    seeds = number_of_seeds(results)
    default = experiment.smoke_cells if selection.smoke else experiment.cells
    extra = selection.cells or ()
    methods = tuple(m for m in experiment.all_methods if m in (*experiment.methods, *(selection.methods or ())))
    columns = tuple(c for c in experiment.all_cells if not selection.smoke or c in (*default, *extra))
    cells: dict[CellKey, TableCell] = {}
    times = read_epoch_seconds(results.folder)
    points = experiment.points if selection.smoke else experiment.selectable_points
    every = Selection(
        seeds=seeds, smoke=selection.smoke, methods=methods, cells=columns, points=points, epoch_seconds=times
    )
    for spec in run_specs(name, every):
        key = (spec.method, spec.cell, spec.point)
        cells[key] = _add_result(cells.get(key, TableCell()), results, spec)
    shown = [c for c in columns if c in default or (c in extra and _was_run(cells, c)) or _is_comparable(cells, c)]
    run_points = {*experiment.points, *(point for (_, _, point), cell in cells.items() if cell.ended)}
    return {
        key: cell
        for key, cell in cells.items()
        if key[1] in shown and key[2] in run_points and (key[0] in experiment.methods or cell.ended)
    }


def number_of_seeds(results: Results) -> int:
    """The number of seeds up to the highest one of the results."""
    return 1 + max((int(line["settings"].get("seed", 0)) for line in results.lines), default=0)


def end_of_warmup(line: ResultLine) -> float | None:
    """The test accuracy after the last epoch of warm-up, if the metrics of every epoch are stored."""
    if line.get("curves") is None:
        return None
    return float(line["curves"]["test_accuracy"][line["settings"]["warmup"] - 1])


def _add_result(cell: TableCell, results: Results, spec: RunSpec) -> TableCell:
    lines = results.find_all(spec)
    finished = [line for line in lines if not line.get("failure")]
    return TableCell(lines=[*cell.lines, *finished], failed=cell.failed + len(lines) - len(finished))


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
