"""The tables of each experiment, built from the results and the paper's numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from metalabelnet.reproduction import field, photos
from metalabelnet.reproduction.beyond_tables import beyond_tables, length_tables, variants_tables
from metalabelnet.reproduction.experiments import EXPERIMENTS, TABLE_METHODS
from metalabelnet.reproduction.paper_numbers import PAPER_NUMBERS, paper_number
from metalabelnet.reproduction.selection import DEFAULT_SELECTION, Selection, run_specs
from metalabelnet.reproduction.table import SPREAD, Table
from metalabelnet.reproduction.table_cells import (
    LAST,
    SELECTED,
    TableCell,
    collect_cells,
    column_names,
    column_title,
    end_of_warmup,
    losses_by_column,
    number_of_seeds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metalabelnet.reproduction.results import Results
    from metalabelnet.reproduction.table_cells import CellKey

    Cells = Mapping[CellKey, TableCell]


def tables(name: str, results: Results, selection: Selection = DEFAULT_SELECTION) -> list[Table]:
    """Build the tables of an experiment. Cells without runs are empty."""
    cells = collect_cells(name, results, selection)
    *others, last = _tables_of_cells(name, cells, selection) or [_empty_table(name)]
    return [*others, replace(last, notes=(*last.notes, *_source_notes(name, cells, results, selection)))]


def _empty_table(name: str) -> Table:
    return Table(title=EXPERIMENTS[name].summary, columns=["method"], rows=[], notes=("No runs yet.",))


def _source_notes(name: str, cells: Cells, results: Results, selection: Selection) -> list[str]:
    """Say how many runs are repeats of a seed, and how many are not used because the method has changed."""
    notes = []
    repeated = {id(line) for cell in cells.values() for line in cell.repeats}
    if repeated:
        notes.append(f"Repeated runs of a seed are averaged: {_count_runs(len(repeated))} beside the first.")
    superseded = results.find_superseded(run_specs(name, replace(selection, seeds=number_of_seeds(results))))
    if superseded:
        notes.append(f"Stored and not used, because the method has changed since: {_count_runs(len(superseded))}.")
    return notes


def _count_runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


VARIANT_TABLES = {  # title, name of a row, name of the difference from the first row
    "beyond-ablation": ("Each component removed on its own", "variant", "against all components"),
    "beyond-clean-given": ("Clean sets with and without given labels", "given labels of the clean set", "against keep"),
    "beyond-unlabeled": ("Labels removed", "unlabeled images", "against all labels"),
}


def _tables_of_cells(name: str, cells: Cells, selection: Selection) -> list[Table]:
    if name == "cifar10-table":
        return _cifar10_tables(cells, smoke=selection.smoke)
    builders = {"cifar10n": _cifar10n_tables, "beyond": beyond_tables, "beyond-length": length_tables}
    if name in builders:
        return builders[name](cells)
    if name == "field":
        return _field_tables(cells, smoke=selection.smoke)
    if name in VARIANT_TABLES:
        return variants_tables(cells, *VARIANT_TABLES[name])
    if EXPERIMENTS[name].needs_data:
        make_table = _photo_table if EXPERIMENTS[name].points == ("",) else _photo_points_table
        return [make_table(name, cells, smoke=selection.smoke)]
    if name == "fig-curves":
        return [_curves_table(cells)]
    if name == "fig-stability":
        return [_stability_table(cells)]
    if name == "fig-losses":
        return [_losses_table(cells)]
    return [_points_table(name, cells)]


def _cifar10_tables(cells: Cells, *, smoke: bool) -> list[Table]:
    columns = column_names(cells)
    result = []
    for kind in ("uniform", "feature"):
        of_kind = [column for column in columns if column.startswith(kind)]
        rows = []
        for method in TABLE_METHODS:
            row = [method]
            for column in of_kind:
                number = None if smoke else paper_number("cifar10-table", method, column)
                row += [cells[method, column, ""].text(), "–" if number is None else str(number)]
            rows.append(row)
        names = [name for column in of_kind for name in (column_title(column), "paper")]
        title = f"Test accuracy at the selected epoch, {column_title(kind + ':0').rpartition(' 0')[0]} noise: {SPREAD}"
        result.append(Table(title=title, columns=["method", *names], rows=rows))
    last = [[method, *(cells[method, column, ""].text(LAST) for column in columns)] for method in TABLE_METHODS]
    title = f"Test accuracy at the last epoch: {SPREAD}"
    return [*result, Table(title=title, columns=["method", *map(column_title, columns)], rows=last)]


def _cifar10n_tables(cells: Cells) -> list[Table]:
    columns = column_names(cells)
    return [
        Table(
            title=f"Test accuracy at the {epoch} epoch, human labels: {SPREAD}",
            columns=["method", *map(column_title, columns)],
            rows=[[method, *(cells[method, column, ""].text(name) for column in columns)] for method in TABLE_METHODS],
        )
        for epoch, name in (("selected", SELECTED), ("last", LAST))
    ]


def _field_tables(cells: Cells, *, smoke: bool) -> list[Table]:
    """A table for each number of GPU minutes, with the published numbers."""
    columns = [column for column in field.CELLS if column in column_names(cells)]
    methods = [method for method in field.METHODS if any(method == key[0] for key in cells)]
    result = []
    for minutes in [point for point in field.ALL_MINUTES if any(point == key[2] for key in cells)]:
        rows = []
        for method in methods:
            row = [method]
            for column in columns:
                published = {} if smoke else field.PUBLISHED.get(method, {})
                row += [cells[method, column, minutes].text(), published.get(column, "–")]
            rows.append(row)
        names = [name for column in columns for name in (column_title(column), "published")]
        unit = "GPU minute" if minutes == "1" else "GPU minutes"
        title = f"Test accuracy at the selected epoch, {minutes} {unit} for each method: {SPREAD}"
        notes = () if smoke else (field.SOURCES,)
        result.append(Table(title=title, columns=["method", *names], rows=rows, notes=notes))
    return result


POINT_NAMES = {
    "fig-warmup": "warm-up epochs",
    "fig-clean-size": "clean samples",
    "fig-unlabeled": "unlabeled images",
    "ablation-entropy": "weight of the entropy loss",
    "clothing1m-clean-size": "clean images",
    "clothing1m-unlabeled": "unlabeled images",
    "ablation-beta": "β",
    "ablation-labelnet": "label net",
    "differences": "change",
}


def _points_table(name: str, cells: Cells) -> Table:
    columns = column_names(cells)
    rows = []
    for point in EXPERIMENTS[name].points:
        of_point = [cells["metalabelnet", column, point] for column in columns]
        rows.append([point, *(text for cell in of_point for text in (cell.text(), cell.text(LAST)))])
    names = [text for column in columns for text in (column_title(column), "last epoch")]
    title = f"Test accuracy by {POINT_NAMES[name]}: {SPREAD}"
    return Table(title=title, columns=[POINT_NAMES[name], *names], rows=rows)


def _curves_table(cells: Cells) -> Table:
    rows = []
    for (method, column, _), cell in cells.items():
        ends = list(cell.mean_by_seed(end_of_warmup).values())
        mean = f"{sum(ends) / len(ends):.2f}" if ends else ""
        rows.append([f"{method}, {column_title(column)}", mean, cell.text(), cell.text(LAST)])
    return Table(
        title="Test accuracy at the end of warm-up, at the selected epoch and at the last epoch",
        columns=["run", "end of warm-up", "selected", "last"],
        rows=rows,
    )


def _stability_table(cells: Cells) -> Table:
    rows = []
    for (method, column, _), cell in cells.items():
        changes = [c for line in cell.lines_with_curves if (c := line["curves"].get("label_change"))]
        texts = ["", "", "", ""]
        if changes:
            means = [sum(values) / len(values) for values in zip(*(c["mean"] for c in changes), strict=False)]
            stds = [sum(values) / len(values) for values in zip(*(c["std"] for c in changes), strict=False)]
            texts = [f"{x:.4f}" for x in (means[0], means[-1], sum(means) / len(means), sum(stds) / len(stds))]
        rows.append([f"{method}, {column_title(column)}", *texts])
    return Table(
        title="Mean absolute change of the soft labels from one epoch to the next",
        columns=["run", "first epoch", "last epoch", "mean", "mean standard deviation over samples"],
        rows=rows,
    )


LOSS_NAMES = {
    "meta_at_theta": "loss on the clean batch at θ",
    "meta_at_theta_hat": "loss on the clean batch at θ̂, after a step on the labels before the update",
    "meta_at_new_theta_hat": "loss on the clean batch at θ̂′, after a step on the updated labels",
    "new_theta_hat_at": "position of θ̂′ along the step (θ is at 0, θ̂ at 1)",
}


def _losses_table(cells: Cells) -> Table:
    losses, columns = losses_by_column(cells), column_names(cells)
    rows = [
        [text, *(f"{losses[column][name]:.6f}" if column in losses else "" for column in columns)]
        for name, text in LOSS_NAMES.items()
    ]
    names = ["value" if column in EXPERIMENTS["fig-losses"].cells else column_title(column) for column in columns]
    return Table(title="Losses around one iteration of training", columns=["quantity", *names], rows=rows)


def _photo_table(name: str, cells: Cells, *, smoke: bool) -> Table:
    """Build a table of the paper's methods and those that were run, with top-5 accuracy where the paper has it."""
    numbers = [number for number in PAPER_NUMBERS if number.table == name]
    (cell_name,) = column_names(cells)
    columns = list(dict.fromkeys(number.column for number in numbers))
    methods = dict.fromkeys([*(number.row for number in numbers), *(method for method, _, _ in cells)])
    rows = []
    for method in methods:
        cell, row = cells.get((method, cell_name, "")), [method]
        for column in columns:
            number = None if smoke else paper_number(name, method, column)
            ours = "" if cell is None else cell.text(photos.TOP5_KEY if column == photos.TOP5 else SELECTED)
            row += [ours, "–" if number is None else str(number)]
        rows.append(row)
    names = [text for column in columns for text in (column, "paper")]
    title = f"{EXPERIMENTS[name].needs_data}: test accuracy at the selected epoch, {SPREAD}"
    return Table(title=title, columns=["method", *names], rows=rows)


def _photo_points_table(name: str, cells: Cells, *, smoke: bool) -> Table:
    """Build a table with a row per point, and the paper's numbers beside ours."""
    (cell_name,) = column_names(cells)
    methods = EXPERIMENTS[name].methods
    rows = []
    for point in EXPERIMENTS[name].points:
        row = [point]
        for method in methods:
            number = None if smoke else paper_number(name, method, point)
            row += [cells[method, cell_name, point].text(), "–" if number is None else str(number)]
        rows.append(row)
    names = [text for method in methods for text in (method, "paper")]
    title = f"{EXPERIMENTS[name].needs_data}: test accuracy at the selected epoch, {SPREAD}"
    return Table(title=title, columns=[POINT_NAMES[name], *names], rows=rows)
