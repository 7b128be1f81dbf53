"""Tables of the experiments beyond the paper: all methods with one recipe, and variants of `metalabelnet-plus`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.core.intervals import paired_difference
from metalabelnet.reproduction import beyond
from metalabelnet.reproduction.comparisons import (
    INTERVAL_NOTE,
    difference_texts,
    highest,
    pair_cells,
    pair_groups,
    verdicts,
)
from metalabelnet.reproduction.selection import DEFAULT_SELECTION
from metalabelnet.reproduction.table import SPREAD, Table
from metalabelnet.reproduction.table_cells import LAST, SELECTED, collect_cells, column_names, column_title

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from metalabelnet.reproduction.results import Results
    from metalabelnet.reproduction.table_cells import CellKey, TableCell

    Cells = Mapping[CellKey, TableCell]

OVERALL_NOTE = (
    "Each pair of data and noise counts once, with its mean over the common seeds. In brackets: 95 % CI by Student's "
    "t, corrected for the number of methods (Holm); p: two-sided, not corrected. Noises of one data set share images "
    "and seeds, so that the differences are not independent and the intervals too narrow."
)


def beyond_tables(cells: Cells) -> list[Table]:
    """Build a table of methods by column for each data set, then `metalabelnet-plus` against the other methods.

    Data sets without a run are left out.
    """
    run = {column for (method, column, _), cell in cells.items() if method == beyond.PLUS and cell.ended}
    shown = {_data_set(column) for (_, column, _), cell in cells.items() if cell.ended}
    columns = [column for column in column_names(cells) if _data_set(column) in shown]
    result = []
    for data in dict.fromkeys(map(_data_set, columns)):
        of_data = [column for column in columns if _data_set(column) == data]
        for epoch, name in (("selected", SELECTED), ("last", LAST)):
            result.append(
                Table(
                    title=f"{data}: test accuracy at the {epoch} epoch, {SPREAD}",
                    columns=["method", *(_noise_title(column) for column in of_data)],
                    rows=[[m, *(cells[m, column, ""].text(name) for column in of_data)] for m in beyond.METHODS],
                )
            )
    compared = {c: {m: cells[m, c, ""] for m in beyond.METHODS} for c in columns if c in run}
    return [*result, _overall_table(list(compared.values())), _comparison_table(compared)]


def _comparison_table(cells: Mapping[str, Mapping[str, TableCell]]) -> Table:
    """Compare `metalabelnet-plus` with the baselines and the best other method of each column, and name the best."""
    names = [f"{_data_set(column)}, {_noise_title(column)}" for column in cells]
    by_column = list(cells.values())
    texts = [
        difference_texts([pair_cells(one[beyond.PLUS], one[method]) for one in by_column])
        for method in beyond.BASELINES
    ]
    best = [highest(one, other_than=beyond.PLUS) for one in by_column]
    pairs = [
        None if other is None else pair_cells(one[beyond.PLUS], one[other])
        for one, other in zip(by_column, best, strict=True)
    ]
    against = [f"{m}: {text}" if m else "" for m, text in zip(best, difference_texts(pairs), strict=True)]
    rows = [list(row) for row in zip(names, *texts, against, verdicts(by_column), strict=True)]
    return Table(
        title=f"{beyond.PLUS} minus the other methods, and the best of all methods that were run",
        columns=["data and noise", *beyond.BASELINES, "highest of the other methods", "best method"],
        rows=rows,
        notes=[INTERVAL_NOTE],
    )


def _overall_table(columns: Sequence[Mapping[str, TableCell]]) -> Table:
    """Compare `metalabelnet-plus` with each other method over all data and noises on which both were run."""
    rows, overall = [], []
    for method in beyond.METHODS[:-1]:
        pairs = [pair_cells(cells[beyond.PLUS], cells[method]) for cells in columns]
        means = [round(pair.mean, 6) for pair in pairs if pair is not None]  # level in spite of rounding
        if means:
            overall.append(paired_difference(means))
            ahead, behind = sum(mean > 0 for mean in means), sum(mean < 0 for mean in means)
            rows.append([method, str(len(means)), f"{ahead} / {behind}", f"{min(means):+.2f}", f"{max(means):+.2f}"])
    return Table(
        title=f"{beyond.PLUS} minus each other method, over the pairs of data and noise on which both were run",
        columns=["method", "data and noises", "ahead / behind", "lowest", "highest", "mean difference", "p"],
        rows=[
            [*row, text, "" if (p := difference.p_value()) is None else f"{p:.2g}"]
            for row, difference, text in zip(rows, overall, difference_texts(overall), strict=True)
        ],
        notes=[OVERALL_NOTE],
    )


def learning_table(results: Results) -> Table:
    """Compare `metalabelnet-plus` with the same without learning, and with the highest of the methods to try first."""
    cells = collect_cells("beyond", results, DEFAULT_SELECTION)
    rows = []
    for column in column_names(cells):
        ours = cells[beyond.PLUS, column, ""]
        means = [(mean, m) for m in beyond.FIRST_TO_TRY if (mean := cells[m, column, ""].mean()) is not None]
        if ours.ended and means:
            _, best = max(means)
            learned = pair_cells(ours, cells[beyond.PLUS_NOT_LEARNED, column, ""])
            lead = pair_cells(ours, cells[best, column, ""])
            differences = [f"{pair.mean:+.2f}" if pair else "" for pair in (learned, lead)]
            name = f"{_data_set(column)}, {_noise_title(column)}"
            rows.append([name, ours.text(), differences[0], f"{best}: {differences[1]}"])
    return Table(
        title="Test accuracy at the selected epoch, and its lead over others (mean over the common seeds)",
        columns=["data and noise", beyond.PLUS, "lead over no learning", "lead over the highest baseline"],
        rows=rows,
        notes=[f"Baselines: {', '.join(beyond.FIRST_TO_TRY)}. The highest is chosen by its test accuracy."],
    )


def _data_set(column: str) -> str:
    return column.partition("/")[0]


def _noise_title(column: str) -> str:
    return column_title(column.partition("/")[2])


def variants_tables(cells: Cells, title: str, point_name: str, difference_name: str) -> list[Table]:
    """Build a table of points by column for each data set, with the difference from the first point.

    Differences are paired over seeds. Data sets without a run beyond the first point are left out, but for the first.
    """
    columns, points = column_names(cells), list(dict.fromkeys(point for _, _, point in cells))
    compared = {_data_set(column) for (_, column, point), cell in cells.items() if point != points[0] and cell.ended}
    shown = [data for data in dict.fromkeys(map(_data_set, columns)) if data in compared]
    return [
        _variants_table(
            {key: cell for key, cell in cells.items() if _data_set(key[1]) == data},
            title if len(shown) < 2 else f"{title}, {data}",
            point_name,
            difference_name,
        )
        for data in shown or [_data_set(columns[0])]
    ]


def _variants_table(cells: Cells, title: str, point_name: str, difference_name: str) -> Table:
    columns = column_names(cells)
    points = list(dict.fromkeys(point for _, _, point in cells))
    by_point = {point: [cells[beyond.PLUS, column, point] for column in columns] for point in points}
    first, *others = points
    differences = difference_texts([pair_groups(by_point[point], by_point[first]) for point in others])
    rows = []
    for point, difference in zip(points, ["–", *differences], strict=True):
        means = [mean for cell in by_point[point] if (mean := cell.mean()) is not None]
        overall = f"{sum(means) / len(means):.2f}" if len(means) == len(columns) else ""
        against = difference if means else ""
        rows.append([point, *(cell.text() for cell in by_point[point]), overall, against])
    return Table(
        title=f"{title}: test accuracy at the selected epoch, {SPREAD}",
        columns=[point_name, *(_noise_title(column) for column in columns), "mean", difference_name],
        rows=rows,
        notes=[f"{INTERVAL_NOTE} A seed counts once: its columns are averaged."],
    )


def length_tables(cells: Cells) -> list[Table]:
    """Build a table of methods by noise for each data set, with a row for each number of epochs.

    Data sets without a run of the last number of epochs are left out.
    """
    longest = beyond.LENGTHS[-1]
    shown = {_data_set(column) for (_, column, point), cell in cells.items() if point == longest and cell.ended}
    result = []
    for data in sorted(shown):
        columns = [column for column in column_names(cells) if _data_set(column) == data]
        rows = [
            [method, epochs, *(cells[method, column, epochs].text() for column in columns)]
            for method in beyond.LENGTH_METHODS
            for epochs in beyond.LENGTHS
        ]
        names = ["method", "epochs", *map(_noise_title, columns)]
        result.append(Table(title=f"{data}: test accuracy at the selected epoch, {SPREAD}", columns=names, rows=rows))
    return result
