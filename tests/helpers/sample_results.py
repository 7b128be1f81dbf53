"""Result lines with chosen values, as a finished run would write them."""

from pathlib import Path
from typing import Any

from metalabelnet.reproduction.experiment import RunSpec
from metalabelnet.reproduction.results import Results, make_result_line
from metalabelnet.reproduction.selection import Selection, run_specs
from metalabelnet.train.settings import make_settings

METADATA = {
    "run": {"dtype": "bf16", "execution": "auto", "snapshots": 0},
    "versions": {"metalabelnet": "0.1.0", "torch": "2.11.0+cu130", "device": "NVIDIA H200"},
    "commit": "0123456789ab",
}


def run_spec(
    experiment: str, method: str = "metalabelnet", cell: str = "feature:0.6", point: str = "", seed: int = 0
) -> RunSpec:
    """The run of an experiment with this method, cell, point and seed."""
    points = (point,) if point else None
    specs = run_specs(experiment, Selection(methods=(method,), cells=(cell,), points=points, seeds=seed + 1))
    return next(spec for spec in specs if spec.seed == seed)


def epoch_metrics(epochs: int = 120, start: int = 44) -> list[dict[str, Any]]:
    """The metrics of each epoch, with changes of the soft labels from the start of phase 2 on."""
    history: list[dict[str, Any]] = []
    for epoch in range(epochs):
        accuracy = 50 + 28 * epoch / epochs + 1 / 3
        metrics: dict[str, Any] = {"epoch": epoch, "test_accuracy": accuracy}
        metrics |= {"clean_accuracy": accuracy + 1, "clean_loss": 1 / (1 + epoch)}
        if epoch > start:
            metrics |= {"label_change": 0.0123456789 / (1 + epoch), "label_change_std": 0.00456789123}
        history.append(metrics)
    return history


def result_line(spec: RunSpec, accuracy: float | None = 78.0, *, curves: bool = False, **more: Any) -> dict[str, Any]:
    """The line of a run with this test accuracy, or of a failed run if it is None."""
    metadata = {
        **METADATA,
        "method_settings": vars(make_settings(spec.fields["method"], spec.fields.get("settings", {}))),
    }
    if accuracy is None:
        return make_result_line(spec, metadata=metadata, failure="the loss is nan", **more)
    summary = {
        "method": spec.fields["method"],
        "dataset": "cifar10",
        "noise": f"file:/a/path/of/a/machine/{spec.cell}.npy",
        "noise_rate": 0.6,
        "seed": spec.seed,
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
    history = epoch_metrics() if curves else ()
    return make_result_line(spec, metadata=metadata, summary=summary, history=history, **more)


def write_results(folder: Path, *lines: dict[str, Any]) -> Results:
    """Write these lines to a results folder."""
    results = Results(folder)
    for line in lines:
        results.add(line)
    return results
