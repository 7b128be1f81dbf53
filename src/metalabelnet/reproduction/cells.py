"""Several runs as one cell: mean, spread and number, from the lines of the results alone."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from metalabelnet.reproduction.entries import BY_ITSELF, Selection, entries
from metalabelnet.reproduction.recipes import WHATS, Entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metalabelnet.reproduction.result_lines import Line
    from metalabelnet.reproduction.results import Results

Place = tuple[str, str, str]  # method, cell, point
SELECTED, LAST = "test_accuracy", "test_accuracy_last"  # of a summary: at the selected epoch, at the last one


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The runs of one place: their lines, and how many failed."""

    lines: list[Line] = field(default_factory=list)
    failed: int = 0

    @property
    def ended(self) -> bool:
        """Whether there is a run that came to its end, good or bad."""
        return bool(self.lines or self.failed)

    def values(self, name: str = SELECTED) -> list[float]:
        """What the runs reached, as far as they know it."""
        return [line["summary"][name] for line in self.lines if line["summary"] and line["summary"][name] is not None]

    def mean(self, name: str = SELECTED) -> float | None:
        """The mean over the runs, if there is one."""
        values = self.values(name)
        return statistics.mean(values) if values else None

    def standard_error(self, name: str = SELECTED) -> float | None:
        """Of the mean; unknown for a single run."""
        values = self.values(name)
        return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None

    def text(self, name: str = SELECTED) -> str:
        """Mean ± standard deviation (number of runs); nothing where nothing was run."""
        values = self.values(name)
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        told = [f"{statistics.mean(values):.2f}{spread} ({len(values)})"] if values else []
        if self.failed:
            told.append("fail" if not values and self.failed == 1 else f"{self.failed} failed")
        return ", ".join(told)


def places(name: str, results: Results, asked: Selection = BY_ITSELF) -> dict[Place, Cell]:
    """All places of a table or figure with what was run there, whatever the number of seeds.

    What belongs to it is there in any case, and what was asked for beside that if it was run.
    """
    what = WHATS[name]
    if what.needs_data:
        return {}
    seeds = 1 + max((int(line["settings"].get("seed", 0)) for line in results.lines), default=0)
    own, more = what.smoke_cells if asked.smoke else what.cells, asked.cells or ()
    methods = tuple(method for method in what.all_methods if method in (*what.methods, *(asked.methods or ())))
    cells = tuple(cell for cell in what.all_cells if not asked.smoke or cell in (*own, *more))
    found: dict[Place, Cell] = {}
    for entry in entries(name, Selection(seeds=seeds, smoke=asked.smoke, methods=methods, cells=cells)):
        place = (entry.method, entry.cell, entry.point)
        before = found.get(place, Cell())
        found[place] = _with(before, results, entry)
    kept = [cell for cell in cells if cell in own or (cell in more and _run(found, cell)) or _worth(found, cell)]
    return {
        place: cell for place, cell in found.items() if place[1] in kept and (place[0] in what.methods or cell.ended)
    }


def _with(cell: Cell, results: Results, entry: Entry) -> Cell:
    line = results.of(entry)
    if line is None:
        return cell
    if line.get("failure"):
        return Cell(lines=cell.lines, failed=cell.failed + 1)
    return Cell(lines=[*cell.lines, line], failed=cell.failed)


def _run(found: dict[Place, Cell], column: str) -> bool:
    return any(cell.ended for (_, c, _), cell in found.items() if c == column)


def _worth(found: dict[Place, Cell], column: str) -> bool:
    """A column beyond those that belong to it has something to compare: two points with results."""
    return sum(bool(cell.lines) for (_, c, point), cell in found.items() if c == column and point) > 1


def cells_of(found: Mapping[Place, Cell]) -> list[str]:
    """The cells among these places, each once, in their order."""
    return list(dict.fromkeys(cell for _, cell, _ in found))


def losses_of(found: Mapping[Place, Cell]) -> dict[str, dict[str, Any]]:
    """The losses along a step by cell, of the first run there that has them."""
    losses: dict[str, dict[str, Any]] = {}
    for (_, name, _), cell in found.items():
        for line in cell.lines:
            if line.get("losses"):
                losses.setdefault(name, line["losses"])
    return losses


def cell_name(cell: str) -> str:
    """How a cell is written for people."""
    kind, _, rate = cell.partition(":")
    if not rate:
        return {"random1": "random 1"}.get(kind, kind)
    return f"{'feature-dependent' if kind == 'feature' else kind} {float(rate):.0%}".replace("%", " %")
