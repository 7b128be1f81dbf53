"""The figures of the experiments as SVG and PNG. Needs matplotlib, which is imported when a figure is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metalabelnet.errors import missing_package_error
from metalabelnet.reproduction.experiments import EXPERIMENTS
from metalabelnet.reproduction.selection import DEFAULT_SELECTION
from metalabelnet.reproduction.table_cells import TableCell, collect_cells, column_names, column_title, losses_by_column
from metalabelnet.reproduction.tables import POINT_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from metalabelnet.reproduction.results import Results
    from metalabelnet.reproduction.selection import Selection
    from metalabelnet.reproduction.table_cells import CellKey

Cells = dict["CellKey", TableCell]


def has_figure(name: str, results: Results, selection: Selection = DEFAULT_SELECTION) -> bool:
    """Whether the experiment has a figure and enough results for it."""
    if name not in FIGURES:
        return False
    cells = collect_cells(name, results, selection)
    points = {point for (_, _, point), cell in cells.items() if _drawable(name, cell)}
    return len(points) >= min(2, len(EXPERIMENTS[name].points))  # a figure compares at least two points


def draw(name: str, results: Results, folder: Path, selection: Selection = DEFAULT_SELECTION) -> list[Path]:
    """Draw the figure of an experiment; returns its files, or an empty list if there is nothing to draw."""
    if not has_figure(name, results, selection):
        return []
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_package_error("matplotlib", "plot", "a figure") from None
    cells = {key: cell for key, cell in collect_cells(name, results, selection).items() if _drawable(name, cell)}
    with mpl.rc_context({"svg.hashsalt": "metalabelnet", "svg.fonttype": "path"}):  # reproducible files
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        FIGURES[name](name, cells, figure)
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{name}.svg", folder / f"{name}.png"]
        figure.savefig(files[0], metadata={"Date": None})
        figure.savefig(files[1], dpi=150, metadata={"Software": None})
    return files


def _drawable(name: str, cell: TableCell) -> bool:
    if name == "fig-losses":
        return any(line.get("losses") for line in cell.lines)
    return bool(_values(cell, "mean").size) if name == "fig-stability" else bool(cell.lines)


def _curves(_name: str, cells: Cells, figure: Any) -> None:
    axes = figure.subplots()
    for (method, name, _), cell in cells.items():
        color = _plot_range(
            axes,
            [line["curves"]["test_accuracy"] for line in cell.lines_with_curves],
            f"{method}, {column_title(name)}",
        )
        warmup = cell.lines[0]["settings"]["warmup"]
        axes.axvline(warmup, color=color, linestyle=":", linewidth=0.8, alpha=0.6)
    axes.set(xlabel="epoch", ylabel="test accuracy (%)", title="Test accuracy by epoch (dotted: end of warm-up)")
    _finish(axes)


def _warmup(name: str, cells: Cells, figure: Any) -> None:
    axes = figure.subplots()
    for (_, _, point), cell in cells.items():
        lines = [line["curves"]["test_accuracy"] for line in cell.lines_with_curves]
        if lines:
            _plot_range(axes, lines, point)
    axes.set(xlabel="epoch", ylabel="test accuracy (%)", title=f"Test accuracy by {POINT_NAMES[name]}")
    _finish(axes)


def _stability(_name: str, cells: Cells, figure: Any) -> None:
    axes = figure.subplots()
    for (method, name, _), cell in cells.items():
        means, stds = _values(cell, "mean").mean(0), _values(cell, "std").mean(0)
        start = next(line["curves"]["label_change"]["from"] for line in cell.lines_with_curves)
        epochs = np.arange(start, start + len(means)) + 1
        (line,) = axes.plot(epochs, means, label=f"{method}, {column_title(name)}")
        axes.fill_between(
            epochs, np.maximum(means - stds, 0), means + stds, color=line.get_color(), alpha=0.15, linewidth=0
        )
    title = "Change of the soft labels between epochs (shaded: standard deviation over samples)"
    axes.set(xlabel="epoch", ylabel="mean absolute change", title=title)
    axes.title.set_fontsize(10)
    _finish(axes)


def _points(name: str, cells: Cells, figure: Any) -> None:
    axes = figure.subplots()
    points = list(EXPERIMENTS[name].points)
    for column in column_names(cells):
        values_at = [
            (points.index(p), cell.values()) for (_, c, p), cell in cells.items() if c == column and cell.values()
        ]
        if values_at:
            positions, values = zip(*values_at, strict=True)
            means = [float(np.mean(v)) for v in values]
            spread = [float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in values]
            axes.errorbar(positions, means, yerr=spread, marker="o", capsize=3, label=column_title(column))
    axes.set_xticks(range(len(points)), points)
    axes.set(xlabel=POINT_NAMES[name], ylabel="test accuracy (%)", title=f"Test accuracy by {POINT_NAMES[name]}")
    _finish(axes)


def _losses(_name: str, cells: Cells, figure: Any) -> None:
    losses_of_columns = losses_by_column(cells)
    figure.set_size_inches(6, 7)
    panels = figure.subplots(3, sharex=True)
    titles = {
        "train_before": "training loss with the soft labels before the update, L(θ, ŷ⁽ᵗ⁾)",
        "meta": "loss on the clean batch",
        "train_after": "training loss with the updated soft labels, L(θ, ŷ⁽ᵗ⁺¹⁾)",
    }
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        for cell, losses in losses_of_columns.items():
            axes.plot(losses["tau"], losses[name], label=column_title(cell))
        positions = [losses["new_theta_hat_at"] for losses in losses_of_columns.values()]
        sides = ("right", "left") if positions[0] > 1 else ("left", "right")  # keeps the two labels apart
        marks = [(0.0, "θ", "center"), (1.0, "θ̂ ", sides[0]), *((new, " θ̂′", sides[1]) for new in positions)]
        for where, label, side in marks:
            axes.axvline(where, color="grey", linestyle=":", linewidth=1)
            if axes is panels[0]:
                axes.annotate(label, (where, 1.0), xycoords=("data", "axes fraction"), ha=side, va="bottom")
        axes.set_title(title, fontsize=9, pad=14 if axes is panels[0] else 6)
        axes.grid(alpha=0.3)
    if len(losses_of_columns) > 1:
        panels[0].legend(fontsize=8)
    panels[-1].set_xlabel("τ along θ − τ α ∇L(θ, ŷ⁽ᵗ⁾)")


def _values(cell: TableCell, which: str) -> Any:
    """The changes of the soft labels, one row per run, cut to the shortest run."""
    lines = [line["curves"].get("label_change", {}).get(which, []) for line in cell.lines_with_curves]
    shortest = min(map(len, lines), default=0)
    return np.array([line[:shortest] for line in lines], dtype=float) if shortest else np.empty((0, 0))


def _plot_range(axes: Any, lines: list[list[float]], label: str) -> Any:
    shortest = min(map(len, lines))
    values = np.array([line[:shortest] for line in lines], dtype=float)
    epochs = np.arange(1, shortest + 1)
    (line,) = axes.plot(epochs, values.mean(0), label=label, linewidth=1.2)
    axes.fill_between(epochs, values.min(0), values.max(0), color=line.get_color(), alpha=0.15, linewidth=0)
    return line.get_color()


def _finish(axes: Any) -> None:
    if axes.get_xlabel() == "epoch":
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


FIGURES: dict[str, Callable[[str, Cells, Any], None]] = {
    "fig-curves": _curves,
    "fig-stability": _stability,
    "fig-warmup": _warmup,
    "fig-clean-size": _points,
    "fig-unlabeled": _points,
    "ablation-entropy": _points,
    "ablation-beta": _points,
    "ablation-labelnet": _points,
    "fig-losses": _losses,
}
