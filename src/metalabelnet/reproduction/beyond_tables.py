"""The tables of `reproduce beyond`: every method in every cell, and where `metalabelnet-plus` wins, ties or loses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from metalabelnet.reproduction.beyond import METHODS
from metalabelnet.reproduction.cells import LAST, SELECTED, Cell, cell_name, cells_of
from metalabelnet.reproduction.text_table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metalabelnet.reproduction.cells import Place

PLUS = "metalabelnet-plus"
FIRST_TRIED = ("clean-only", "fine-tune", "metalabelnet")


def beyond_tables(found: Mapping[Place, Cell]) -> list[Table]:
    """For each data set the methods by cell; then `metalabelnet-plus` against the others, cell by cell.

    A cell that was not run is empty; data on which `metalabelnet-plus` was not run at all are left out.
    """
    run = {cell for (method, cell, _), one in found.items() if method == PLUS and (one.lines or one.failed)}
    shown = {cell.partition("/")[0] for cell in run}
    cells = [cell for cell in cells_of(found) if cell.partition("/")[0] in shown]
    made = []
    for data in dict.fromkeys(cell.partition("/")[0] for cell in cells):
        columns = [cell for cell in cells if cell.partition("/")[0] == data]
        for epoch, name in (("selected", SELECTED), ("last", LAST)):
            made.append(
                Table(
                    title=f"{data}: test accuracy at the {epoch} epoch, mean ± standard deviation (runs)",
                    columns=["method", *(cell_name(cell.partition("/")[2]) for cell in columns)],
                    rows=[[method, *(found[method, cell, ""].text(name) for cell in columns)] for method in METHODS],
                )
            )
    rows = [_standing(cell, {method: found[method, cell, ""] for method in METHODS}) for cell in cells if cell in run]
    title = f"{PLUS} against the others, in points and in standard errors of the difference"
    best = "the best of the others that were run"
    return [*made, Table(title=title, columns=["cell", *FIRST_TRIED, best], rows=rows)]


def ablation_table(found: Mapping[Place, Cell]) -> Table:
    """Each ingredient taken out alone."""
    return _against_first(found, "Each ingredient taken out alone", "variant", "against all of it")


def unlabeled_table(found: Mapping[Place, Cell]) -> Table:
    """Most of the labels taken away."""
    return _against_first(found, "Labels taken away", "without a label", "against all labels")


def _against_first(found: Mapping[Place, Cell], what: str, point_name: str, apart_name: str) -> Table:
    """The points by cell, and how far each is from the first of them, paired over cells and seeds."""
    cells = cells_of(found)
    points = list(dict.fromkeys(point for _, _, point in found))
    rows = []
    for point in points:
        here = [found[PLUS, cell, point] for cell in cells]
        first = [found[PLUS, cell, points[0]] for cell in cells]
        means = [cell.mean() for cell in here]
        known = [mean for mean in means if mean is not None]
        mean = f"{sum(known) / len(known):.2f}" if len(known) == len(cells) else ""
        apart = "–" if point == points[0] and known else _mean_difference(here, first)
        rows.append([point, *(cell.text() for cell in here), mean, apart])
    return Table(
        title=f"{what}: test accuracy at the selected epoch, mean ± standard deviation (runs)",
        columns=[point_name, *(cell_name(cell.partition("/")[2]) for cell in cells), "mean", apart_name],
        rows=rows,
    )


def _standing(cell: str, found: Mapping[str, Cell]) -> list[str]:
    ours = found[PLUS]
    others = {method: one for method, one in found.items() if method != PLUS and one.values()}
    best = max(others, key=lambda method: others[method].mean() or 0.0, default=None)
    text = "" if best is None else f"{best}: {against(ours, others[best])}"
    data, _, noise = cell.partition("/")
    return [f"{data}, {cell_name(noise)}", *(against(ours, found[method]) for method in FIRST_TRIED), text]


def against(ours: Cell, theirs: Cell) -> str:
    """Ahead or behind, seed by seed: runs with one seed share their rows, their noise and their luck."""
    differences = _paired(ours, theirs)
    if not differences:
        return ""
    mean, error = _mean_and_error(differences)
    if error is None:
        return f"{mean:+.2f}"
    return f"{mean:+.2f} ({_in_errors(mean, error)})"


def _in_errors(mean: float, error: float) -> str:
    return f"{mean / error:+.1f} s.e." if error > 0 else "s.e. 0"


def _paired(ours: Cell, theirs: Cell) -> list[float]:
    by_seed = [
        {line["settings"]["seed"]: line["summary"][SELECTED] for line in cell.lines if line["summary"]}
        for cell in (ours, theirs)
    ]
    return [by_seed[0][seed] - by_seed[1][seed] for seed in by_seed[0] if seed in by_seed[1]]


def _mean_and_error(values: list[float]) -> tuple[float, float | None]:
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return mean, None
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)


def _mean_difference(here: list[Cell], whole: list[Cell]) -> str:
    differences = [d for one, all_of_it in zip(here, whole, strict=True) for d in _paired(one, all_of_it)]
    if not differences:
        return ""
    mean, error = _mean_and_error(differences)
    return f"{mean:+.2f}" + ("" if error is None else f" ({_in_errors(mean, error)})")
