"""What came of a run, in one screen: the content of summary.json."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from metalabelnet.core.calibration import at_temperature
from metalabelnet.labels.metrics import calibration_error, logits_of, macro_f1
from metalabelnet.labels.quality import class_accuracy, held_out, label_quality

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from metalabelnet.data.problem import Problem
    from metalabelnet.labels.label_table import LabelTable
    from metalabelnet.methods import Method
    from metalabelnet.train.settings import Run


def summarise(
    run: Run,
    problem: Problem,
    method: Method,
    labels: LabelTable,
    *,
    predicted: Tensor,
    temperature: float,
    best: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    seconds: float,
) -> dict[str, Any]:
    """The result of a run. Accuracies are per cent.

    `label_accuracy` is the classifier's on the training rows, `right_after` that of the label table.

    method       with the networks of the selected epoch
    predicted    the class it gives each training row
    temperature  what its logits are divided by to be calibrated
    best         the selected epoch, as the loop keeps it
    history      a line an epoch
    """
    known = problem.train.true >= 0
    right = predicted == problem.train.true
    summary: dict[str, Any] = {
        "method": run.method,
        "dataset": run.data,
        "noise": run.noise,
        "noise_rate": None if math.isnan(problem.noise_rate) else problem.noise_rate,
        "seed": run.seed,
        "epochs": method.epochs,
        "selected_epoch": best["epoch"],
        "clean_accuracy": best["accuracy"],
        **held_out(method, problem.validation),
        "test_accuracy": None,
        "test_accuracy_last": history[-1]["test_accuracy"],
        "macro_f1": None,
        "ece": None,
        "ece_calibrated": None,
        "temperature": temperature,
        "class_accuracy": None,
        "label_accuracy": float(100 * right[known].double().mean()) if known.any() else None,
        **label_quality(labels),
        "samples": {part: len(getattr(problem, part)) for part in ("train", "clean", "validation", "test")},
        "unlabeled": int((problem.train.given < 0).sum()),
        "suspects": int(labels.verdict().suspect.sum()),
        "seconds": round(seconds, 3),
    }
    if len(problem.test):
        summary |= _tested(method, problem, temperature)
    return summary


def _tested(method: Method, problem: Problem, temperature: float) -> dict[str, Any]:
    """What the test rows say; they decide nothing."""
    logits, true, classes = logits_of(method, problem.test.x), problem.test.true, problem.test.classes
    p = logits.softmax(1)
    predicted = p.argmax(1)
    return {
        "test_accuracy": float(100 * (predicted == true).double().mean()),
        "macro_f1": macro_f1(predicted, true, len(classes)),
        "ece": calibration_error(p, true),
        "ece_calibrated": calibration_error(at_temperature(logits, temperature), true),
        "class_accuracy": class_accuracy(predicted, true, classes),
    }
