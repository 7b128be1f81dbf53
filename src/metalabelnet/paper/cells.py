"""Several runs as one cell: mean, spread and number, from the lines of the results alone."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from metalabelnet.paper.entries import Selection, entries
from metalabelnet.paper.recipes import WHATS, Entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metalabelnet.paper.results import Line, Results

Place = tuple[str, str, str]  # method, cell, point
SELECTED, LAST = "test_accuracy", "test_accuracy_last"  # of a summary: at the selected epoch, at the last one


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The runs of one place: their lines, and how many failed."""

    lines: list[Line] = field(default_factory=list)
    failed: int = 0

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


def places(name: str, results: Results, *, smoke: bool = False) -> dict[Place, Cell]:
    """All places of a table or figure with what was run there, whatever the number of seeds."""
    seeds = 1 + max((int(line["settings"].get("seed", 0)) for line in results.lines), default=0)
    what = WHATS[name]
    if what.needs_data:
        return {}
    selection = Selection(seeds=seeds, smoke=smoke, cells=None if smoke else what.all_cells)
    found: dict[Place, Cell] = {}
    for entry in entries(name, selection):
        place = (entry.method, entry.cell, entry.point)
        before = found.get(place, Cell())
        found[place] = _with(before, results, entry)
    kept = what.smoke_cells if smoke else tuple(c for c in what.all_cells if c in what.cells or _worth(found, c))
    return {place: cell for place, cell in found.items() if place[1] in kept}


def _with(cell: Cell, results: Results, entry: Entry) -> Cell:
    line = results.of(entry)
    if line is None:
        return cell
    if line.get("failure"):
        return Cell(lines=cell.lines, failed=cell.failed + 1)
    return Cell(lines=[*cell.lines, line], failed=cell.failed)


def _worth(found: dict[Place, Cell], column: str) -> bool:
    """A column beyond those that belong to it has something to compare: two points with results."""
    return sum(bool(cell.lines) for (_, c, point), cell in found.items() if c == column and point) > 1


def cells_of(found: Mapping[Place, Cell]) -> list[str]:
    """The cells among these places, each once, in their order."""
    return list(dict.fromkeys(cell for _, cell, _ in found))


def cell_name(cell: str) -> str:
    """How a cell is written for people."""
    kind, _, rate = cell.partition(":")
    if not rate:
        return {"random1": "random 1"}.get(kind, kind)
    return f"{'feature-dependent' if kind == 'feature' else kind} {float(rate):.0%}".replace("%", " %")
