"""Plot of the learning curves with matplotlib."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from metalabelnet.atomic_write import write_atomically
from metalabelnet.errors import missing_package_error
from metalabelnet.methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from metalabelnet.train import Run


def draw_curves(path: Path, runs: Sequence[tuple[Run, list[dict[str, Any]]]]) -> None:
    """Plot accuracy by epoch, one line per method: the mean over seeds, with their range shaded.

    The accuracy is that on the test set, or on the validation samples without a test set.

    Parameters
    ----------
    path : Path
        Image file to write; its extension selects the format.
    runs : sequence of (Run, list of dict)
        Settings and epoch metrics of each run.

    Raises
    ------
    InputError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_package_error("matplotlib", "plot", "a plot of the learning curves") from None
    tested = any(line["test_accuracy"] is not None for _, history in runs for line in history)
    key, part = ("test_accuracy", "test") if tested else ("clean_accuracy", "validation")
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for method in dict.fromkeys(run.method for run, _ in runs):
        lines = [[m[key] for m in history] for run, history in runs if run.method == method]
        shortest = min(map(len, lines))
        values = np.array([line[:shortest] for line in lines], dtype=float)
        epochs = np.arange(1, shortest + 1)
        (curve,) = axes.plot(epochs, values.mean(0), label=method)
        axes.fill_between(epochs, values.min(0), values.max(0), color=curve.get_color(), alpha=0.15, linewidth=0)
    first = runs[0][0]
    if any(METHODS[run.method].traits.has_warmup for run, _ in runs):
        axes.axvline(first.warmup, color="grey", linestyle=":", linewidth=1)
        axes.annotate(
            " end of warm-up", (first.warmup, 0.02), xycoords=("data", "axes fraction"), color="grey", fontsize=8
        )
    noise = "" if first.noise == "none" else f"added noise {first.noise}, "
    title = f"{first.data}, {noise}{first.clean or 'all'} clean samples"
    axes.set(xlabel="epoch", ylabel=f"accuracy on {part} samples (%)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    write_atomically(path, content.getbuffer(), sync=False)
