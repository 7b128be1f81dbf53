"""Results made up for tests: lines as a run would leave them, without the run."""

from pathlib import Path
from typing import Any

from metalabelnet.reproduction.entries import Selection, entries
from metalabelnet.reproduction.recipes import Entry
from metalabelnet.reproduction.results import Results, make_line
from metalabelnet.train.settings import make_settings

ABOUT = {
    "run": {"dtype": "bf16", "execution": "auto", "snapshots": 0},
    "versions": {"metalabelnet": "0.1.0", "torch": "2.11.0+cu130", "device": "NVIDIA H200"},
    "commit": "0123456789ab",
}


def entry(what: str, method: str = "metalabelnet", cell: str = "feature:0.6", point: str = "", seed: int = 0) -> Entry:
    """The entry in that place."""
    points = (point,) if point else None
    chosen = entries(what, Selection(methods=(method,), cells=(cell,), points=points, seeds=seed + 1))
    return next(e for e in chosen if e.seed == seed)


def history(epochs: int = 120, start: int = 44) -> list[dict[str, Any]]:
    """A line an epoch, with soft labels from the start of phase 2 on."""
    lines: list[dict[str, Any]] = []
    for epoch in range(epochs):
        line: dict[str, Any] = {"epoch": epoch, "test_accuracy": 50 + 28 * epoch / epochs + 1 / 3}
        if epoch > start:
            line |= {"label_change": 0.0123456789 / (1 + epoch), "label_change_std": 0.00456789123}
        lines.append(line)
    return lines


def line(of: Entry, accuracy: float | None = 78.0, *, curves: bool = False, **more: Any) -> dict[str, Any]:
    """The line of a run that reached this accuracy, or failed."""
    about = {**ABOUT, "method_settings": vars(make_settings(of.method, of.fields.get("settings", {})))}
    if accuracy is None:
        return make_line(of, about=about, failure="the loss is nan", **more)
    summary = {
        "method": of.method,
        "dataset": "cifar10",
        "noise": f"file:/a/path/of/a/machine/{of.cell}.npy",
        "noise_rate": 0.6,
        "seed": of.seed,
        "epochs": 120,
        "selected_epoch": 118,
        "clean_accuracy": 79.123456789,
        "test_accuracy": accuracy,
        "test_accuracy_last": accuracy - 1,
        "macro_f1": 77.123456789,
        "ece": 8.123456789,
        "label_accuracy": 77.123456789,
        "samples": {"train": 50000, "clean": 5000, "validation": 5000, "test": 5000},
        "unlabeled": 0,
        "suspects": 30000,
        "seconds": 166.123,
    }
    return make_line(of, about=about, summary=summary, history=history() if curves else (), **more)


def store(folder: Path, *lines: dict[str, Any]) -> Results:
    """A folder of results with these lines."""
    results = Results(folder)
    for one in lines:
        results.add(one)
    return results
