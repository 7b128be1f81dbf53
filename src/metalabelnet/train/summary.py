"""The content of summary.json."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from metalabelnet.core.calibration import softmax_at_temperature
from metalabelnet.labels.annotator_quality import annotator_quality
from metalabelnet.labels.clean_noise import count_clean_noise
from metalabelnet.labels.label_warnings import label_warnings
from metalabelnet.labels.metrics import class_accuracy, expected_calibration_error, macro_f1, top_accuracy
from metalabelnet.labels.quality import label_quality

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from metalabelnet.data import Rows
    from metalabelnet.data.problem import Problem
    from metalabelnet.labels.given_check import GivenCheck
    from metalabelnet.labels.label_table import LabelTable
    from metalabelnet.train.settings import Run


def summarize(
    run: Run,
    problem: Problem,
    labels: LabelTable,
    *,
    train_predicted: Tensor,
    validation_logits: Tensor,
    test_logits: Tensor | None,
    second_test_logits: Tensor | None = None,
    temperature: float,
    epochs: int,
    best: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    seconds: float,
    check: GivenCheck | None,
) -> dict[str, Any]:
    """Return the summary of a run. Accuracies are per cent.

    `label_accuracy` is the accuracy of the classifier on the training rows, `right_after` that of the corrected labels.

    train_predicted  classes of the training rows predicted in the selected epoch
    *_logits     logits of the selected epoch; None without such rows
    temperature  fitted on clean rows
    epochs       epochs that the method has trained
    best         the selected epoch: its number and validation accuracy
    history      metrics of each epoch
    check        comparison of corrected and given labels on clean rows; None if it is not possible
    """
    has_truth = problem.train.true >= 0
    correct = train_predicted == problem.train.true
    summary: dict[str, Any] = {
        "method": run.method,
        "dataset": run.data,
        "noise": run.noise,
        "noise_rate": None if math.isnan(problem.noise_rate) else problem.noise_rate,
        "seed": run.seed,
        "epochs": epochs,
        "selected_epoch": best["epoch"],
        "clean_accuracy": best["accuracy"],
        **_validation_metrics(validation_logits, problem.validation),
        "test_accuracy": None,
        "test_accuracy_last": history[-1]["test_accuracy"],
        "test_top5_accuracy": None,
        "macro_f1": None,
        "ece": None,
        "ece_calibrated": None,
        "temperature": temperature,
        "class_accuracy": None,
        "label_accuracy": float(100 * correct[has_truth].double().mean()) if has_truth.any() else None,
        **label_quality(labels),
        "samples": {part: len(getattr(problem, part)) for part in ("train", "clean", "validation", "test")},
        "unlabeled": int((problem.train.given < 0).sum()),
        "clean_noise": count_clean_noise(problem),
        "annotators": annotator_quality(problem, labels),
        "given_check": None if check is None else check.to_json(),
        "warnings": label_warnings(problem, labels, check, epochs=epochs),
        "suspects": int(labels.decisions().suspect.sum()),
        "seconds": round(seconds, 3),
    }
    if test_logits is not None:
        summary |= _test_metrics(test_logits, problem.test, temperature)
    if second_test_logits is not None and problem.second_test is not None:
        true = problem.second_test.true
        summary["second_test_accuracy"] = float(100 * (second_test_logits.argmax(1) == true).double().mean())
        summary["second_test_top5_accuracy"] = top_accuracy(second_test_logits, true)
    return summary


def _validation_metrics(logits: Tensor, rows: Rows) -> dict[str, Any]:
    """Return metrics on the validation rows: without test rows they are the only ones.

    The calibration error is that before calibration, because the temperature is fitted on these rows.
    """
    p = logits.softmax(1)
    predicted = p.argmax(1)
    return {
        "clean_macro_f1": macro_f1(predicted, rows.true, len(rows.classes)),
        "clean_ece": expected_calibration_error(p, rows.true),
        "clean_class_accuracy": class_accuracy(predicted, rows.true, rows.classes),
    }


def _test_metrics(logits: Tensor, rows: Rows, temperature: float) -> dict[str, Any]:
    """Return metrics on the test rows."""
    p = logits.softmax(1)
    predicted = p.argmax(1)
    return {
        "test_accuracy": float(100 * (predicted == rows.true).double().mean()),
        "test_top5_accuracy": top_accuracy(logits, rows.true),
        "macro_f1": macro_f1(predicted, rows.true, len(rows.classes)),
        "ece": expected_calibration_error(p, rows.true),
        "ece_calibrated": expected_calibration_error(softmax_at_temperature(logits, temperature), rows.true),
        "class_accuracy": class_accuracy(predicted, rows.true, rows.classes),
    }
