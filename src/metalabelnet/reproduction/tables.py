"""The tables of each WHAT, from the results and the paper's numbers. Needs nothing but Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.reproduction.beyond_tables import ablation_table, beyond_tables, unlabeled_table
from metalabelnet.reproduction.cells import LAST, SELECTED, Cell, cell_name, cells_of, losses_of, places
from metalabelnet.reproduction.entries import BY_ITSELF
from metalabelnet.reproduction.paper_numbers import NUMBERS, paper_number
from metalabelnet.reproduction.recipes import TABLE_METHODS, WHATS
from metalabelnet.reproduction.text_table import Table

if TYPE_CHECKING:
    from metalabelnet.reproduction.cells import Place
    from metalabelnet.reproduction.entries import Selection
    from metalabelnet.reproduction.results import Results


def tables(name: str, results: Results, asked: Selection = BY_ITSELF) -> list[Table]:
    """The tables of a WHAT. A cell that was not run is empty."""
    if WHATS[name].needs_data:
        return [_of_the_paper(name)]
    found = places(name, results, asked)
    if name == "cifar10-table":
        return _cifar10(found, smoke=asked.smoke)
    if name == "cifar10n":
        return _cifar10n(found)
    if name == "beyond":
        return beyond_tables(found)
    if name == "beyond-ablation":
        return [ablation_table(found)]
    if name == "beyond-unlabeled":
        return [unlabeled_table(found)]
    if name == "fig-curves":
        return [_curves(found)]
    if name == "fig-stability":
        return [_stability(found)]
    if name == "fig-losses":
        return [_losses(found)]
    return [_points(name, found)]


def _cifar10(found: dict[Place, Cell], *, smoke: bool) -> list[Table]:
    made = []
    cells = cells_of(found)
    for kind in ("uniform", "feature"):
        columns = [cell for cell in cells if cell.startswith(kind)]
        rows = []
        for method in TABLE_METHODS:
            row = [method]
            for cell in columns:
                number = None if smoke else paper_number("cifar10-table", method, cell)
                row += [found[method, cell, ""].text(), "–" if number is None else str(number)]
            rows.append(row)
        names = [name for cell in columns for name in (cell_name(cell), "paper")]
        title = f"Test accuracy at the selected epoch, {cell_name(kind + ':0').rpartition(' 0')[0]} noise"
        made.append(Table(title=f"{title}: mean ± standard deviation (runs)", columns=["method", *names], rows=rows))
    last = [[method, *(found[method, cell, ""].text(LAST) for cell in cells)] for method in TABLE_METHODS]
    title = "Test accuracy at the last epoch: mean ± standard deviation (runs)"
    return [*made, Table(title=title, columns=["method", *map(cell_name, cells)], rows=last)]


def _cifar10n(found: dict[Place, Cell]) -> list[Table]:
    cells = cells_of(found)
    return [
        Table(
            title=f"Test accuracy at the {epoch} epoch, labels given by people: mean ± standard deviation (runs)",
            columns=["method", *map(cell_name, cells)],
            rows=[[method, *(found[method, cell, ""].text(name) for cell in cells)] for method in TABLE_METHODS],
        )
        for epoch, name in (("selected", SELECTED), ("last", LAST))
    ]


POINT = {
    "fig-warmup": "epochs of warm-up",
    "fig-clean-size": "clean samples",
    "fig-unlabeled": "unlabeled images",
    "ablation-entropy": "weight of the entropy loss",
    "ablation-beta": "β",
    "ablation-labelnet": "label net",
    "differences": "what is changed",
}


def _points(name: str, found: dict[Place, Cell]) -> Table:
    cells = cells_of(found)
    rows = []
    for point in WHATS[name].points:
        texts = [(found["metalabelnet", c, point].text(), found["metalabelnet", c, point].text(LAST)) for c in cells]
        rows.append([point, *(text for pair in texts for text in pair)])
    names = [text for cell in cells for text in (cell_name(cell), "last epoch")]
    title = f"Test accuracy by {POINT[name]}: mean ± standard deviation (runs)"
    return Table(title=title, columns=[POINT[name], *names], rows=rows)


def _curves(found: dict[Place, Cell]) -> Table:
    rows = []
    for (method, name, _), cell in found.items():
        warm = [line["curves"]["test_accuracy"][line["settings"]["warmup"] - 1] for line in cell.lines]
        end = f"{sum(warm) / len(warm):.2f}" if warm else ""
        rows.append([f"{method}, {cell_name(name)}", end, cell.text(), cell.text(LAST)])
    return Table(
        title="Test accuracy at the end of warm-up, at the selected epoch and at the last",
        columns=["run", "end of warm-up", "selected", "last"],
        rows=rows,
    )


def _stability(found: dict[Place, Cell]) -> Table:
    rows = []
    for (method, name, _), cell in found.items():
        changes = [line["curves"]["label_change"] for line in cell.lines if line["curves"].get("label_change")]
        texts = ["", "", "", ""]
        if changes:
            means = [sum(values) / len(values) for values in zip(*(c["mean"] for c in changes), strict=False)]
            stds = [sum(values) / len(values) for values in zip(*(c["std"] for c in changes), strict=False)]
            texts = [f"{x:.4f}" for x in (means[0], means[-1], sum(means) / len(means), sum(stds) / len(stds))]
        rows.append([f"{method}, {cell_name(name)}", *texts])
    return Table(
        title="Mean absolute change of the soft labels from one epoch to the next",
        columns=["run", "first epoch", "last epoch", "mean", "mean spread over samples"],
        rows=rows,
    )


FACTS = {
    "meta_at_theta": "loss on the clean batch at θ",
    "meta_at_theta_hat": "loss on the clean batch at θ̂, after a step on the labels before the update",
    "meta_at_new_theta_hat": "loss on the clean batch at θ̂′, after a step on the updated labels",
    "new_theta_hat_at": "place of θ̂′ along the step (θ is at 0, θ̂ at 1)",
}


def _losses(found: dict[Place, Cell]) -> Table:
    losses, cells = losses_of(found), cells_of(found)
    rows = [[text, *(f"{losses[c][name]:.6f}" if c in losses else "" for c in cells)] for name, text in FACTS.items()]
    names = ["value" if cell in WHATS["fig-losses"].cells else cell_name(cell) for cell in cells]
    return Table(title="Losses around one real iteration", columns=["what", *names], rows=rows)


def _of_the_paper(name: str) -> Table:
    numbers = [number for number in NUMBERS if number.table == name]
    columns = list(dict.fromkeys(number.column for number in numbers))
    rows = list(dict.fromkeys(number.row for number in numbers))
    names = [text for column in columns for text in (column, "paper")]
    told = [[row, *(t for column in columns for t in ("", str(paper_number(name, row, column))))] for row in rows]
    return Table(title=f"{WHATS[name].needs_data}: not run, it needs data", columns=["method", *names], rows=told)
