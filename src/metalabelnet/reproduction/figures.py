"""Figures, as SVG and PNG, from the results. matplotlib is an extra and is imported when the first is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metalabelnet.errors import missing_package
from metalabelnet.reproduction.cells import Cell, cell_name, cells_of, losses_of, places
from metalabelnet.reproduction.entries import BY_ITSELF
from metalabelnet.reproduction.recipes import WHATS
from metalabelnet.reproduction.tables import POINT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from metalabelnet.reproduction.cells import Place
    from metalabelnet.reproduction.entries import Selection
    from metalabelnet.reproduction.results import Results

Estimates = dict["Place", Cell]


def has_figure(name: str, results: Results, asked: Selection = BY_ITSELF) -> bool:
    """Whether there is something to draw."""
    if name not in FIGURES:
        return False
    found = places(name, results, asked)
    points = {point for (_, _, point), cell in found.items() if _drawable(name, cell)}
    return len(points) >= min(2, len(WHATS[name].points))  # one point alone compares nothing


def draw(name: str, results: Results, folder: Path, asked: Selection = BY_ITSELF) -> list[Path]:
    """Draw the figure of a WHAT and give its files; none where it has no figure or nothing was run."""
    if not has_figure(name, results, asked):
        return []
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_package("matplotlib", "plot", "a figure") from None
    found = {place: cell for place, cell in places(name, results, asked).items() if _drawable(name, cell)}
    with mpl.rc_context({"svg.hashsalt": "metalabelnet", "svg.fonttype": "path"}):  # the same file for the same results
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        FIGURES[name](name, found, figure)
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{name}.svg", folder / f"{name}.png"]
        figure.savefig(files[0], metadata={"Date": None})
        figure.savefig(files[1], dpi=150, metadata={"Software": None})
    return files


def _drawable(name: str, cell: Cell) -> bool:
    if name == "fig-losses":
        return any(line.get("losses") for line in cell.lines)
    return bool(_values(cell, "mean").size) if name == "fig-stability" else bool(cell.lines)


def _curves(_name: str, found: Estimates, figure: Any) -> None:
    axes = figure.subplots()
    for (method, name, _), cell in found.items():
        drawn = _band(axes, [line["curves"]["test_accuracy"] for line in cell.lines], f"{method}, {cell_name(name)}")
        warmup = cell.lines[0]["settings"]["warmup"]
        axes.axvline(warmup, color=drawn, linestyle=":", linewidth=0.8, alpha=0.6)
    axes.set(xlabel="epoch", ylabel="test accuracy (%)", title="Test accuracy by epoch (dotted: warm-up ends)")
    _finish(axes)


def _warmup(name: str, found: Estimates, figure: Any) -> None:
    axes = figure.subplots()
    for (_, _, point), cell in found.items():
        lines = [line["curves"]["test_accuracy"] for line in cell.lines if line.get("curves")]
        if lines:
            _band(axes, lines, point)
    axes.set(xlabel="epoch", ylabel="test accuracy (%)", title=f"Test accuracy by {POINT[name]}")
    _finish(axes)


def _stability(_name: str, found: Estimates, figure: Any) -> None:
    axes = figure.subplots()
    for (method, name, _), cell in found.items():
        means, stds = _values(cell, "mean").mean(0), _values(cell, "std").mean(0)
        start = cell.lines[0]["curves"]["label_change"]["from"]
        epochs = np.arange(start, start + len(means)) + 1
        (drawn,) = axes.plot(epochs, means, label=f"{method}, {cell_name(name)}")
        axes.fill_between(
            epochs, np.maximum(means - stds, 0), means + stds, color=drawn.get_color(), alpha=0.15, linewidth=0
        )
    title = "Change of the soft labels between epochs (shaded: standard deviation over samples)"
    axes.set(xlabel="epoch", ylabel="mean absolute change", title=title)
    axes.title.set_fontsize(10)
    _finish(axes)


def _points(name: str, found: Estimates, figure: Any) -> None:
    axes = figure.subplots()
    points = list(WHATS[name].points)
    for cell in cells_of(found):
        there = [(points.index(p), c.values()) for (_, other, p), c in found.items() if other == cell and c.values()]
        if there:
            where, values = zip(*there, strict=True)
            means = [float(np.mean(v)) for v in values]
            spread = [float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in values]
            axes.errorbar(where, means, yerr=spread, marker="o", capsize=3, label=cell_name(cell))
    axes.set_xticks(range(len(points)), points)
    axes.set(xlabel=POINT[name], ylabel="test accuracy (%)", title=f"Test accuracy by {POINT[name]}")
    _finish(axes)


def _losses(_name: str, found: Estimates, figure: Any) -> None:
    several = losses_of(found)
    figure.set_size_inches(6, 7)
    panels = figure.subplots(3, sharex=True)
    titles = {
        "train_before": "training loss with the soft labels before the update, L(θ, ŷ⁽ᵗ⁾)",
        "meta": "loss on the clean batch",
        "train_after": "training loss with the updated soft labels, L(θ, ŷ⁽ᵗ⁺¹⁾)",
    }
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        for cell, losses in several.items():
            axes.plot(losses["tau"], losses[name], label=cell_name(cell))
        news = [losses["new_theta_hat_at"] for losses in several.values()]
        sides = ("right", "left") if news[0] > 1 else ("left", "right")  # the two may be close together
        marks = [(0.0, "θ", "center"), (1.0, "θ̂ ", sides[0]), *((new, " θ̂′", sides[1]) for new in news)]
        for where, label, side in marks:
            axes.axvline(where, color="grey", linestyle=":", linewidth=1)
            if axes is panels[0]:
                axes.annotate(label, (where, 1.0), xycoords=("data", "axes fraction"), ha=side, va="bottom")
        axes.set_title(title, fontsize=9, pad=14 if axes is panels[0] else 6)
        axes.grid(alpha=0.3)
    if len(several) > 1:
        panels[0].legend(fontsize=8)
    panels[-1].set_xlabel("τ along θ − τ α ∇L(θ, ŷ⁽ᵗ⁾)")


def _values(cell: Cell, which: str) -> Any:
    """The changes of the soft labels, a row a run, cut to the shortest."""
    lines = [(line.get("curves") or {}).get("label_change", {}).get(which, []) for line in cell.lines]
    shortest = min(map(len, lines), default=0)
    return np.array([line[:shortest] for line in lines], dtype=float) if shortest else np.empty((0, 0))


def _band(axes: Any, lines: list[list[float]], label: str) -> Any:
    shortest = min(map(len, lines))
    values = np.array([line[:shortest] for line in lines], dtype=float)
    epochs = np.arange(1, shortest + 1)
    (drawn,) = axes.plot(epochs, values.mean(0), label=label, linewidth=1.2)
    axes.fill_between(epochs, values.min(0), values.max(0), color=drawn.get_color(), alpha=0.15, linewidth=0)
    return drawn.get_color()


def _finish(axes: Any) -> None:
    if axes.get_xlabel() == "epoch":
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


FIGURES: dict[str, Callable[[str, Estimates, Any], None]] = {
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
