"""A run of a logistic method: one fit in place of epochs. It writes the same files as `train/loop.py`.

There is no checkpoint: a run that was stopped is fitted again. All clean rows are used, and every one of them is
evaluated by a model that was fitted without it (cross-validation), so that none has to be held out.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metalabelnet.core.calibration import fit_temperature, softmax_at_temperature
from metalabelnet.core.top_classes import value_at
from metalabelnet.errors import RunStopped
from metalabelnet.labels.given_check import compare_with_given, keep_given_labels
from metalabelnet.labels.label_table import LabelTable
from metalabelnet.labels.metrics import accuracy_and_loss, confusion_counts
from metalabelnet.methods import LogisticMethod
from metalabelnet.methods.logistic import predict_samples
from metalabelnet.train.build_method import build_method
from metalabelnet.train.result import Progress, Result
from metalabelnet.train.summary import summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data.problem import Problem
    from metalabelnet.methods.logistic import FittedLabels
    from metalabelnet.train.run_folder import RunFolder
    from metalabelnet.train.settings import Run


class LogisticRun:
    """Fits a logistic method and writes its result. It has the interface of `TrainingLoop`."""

    def __init__(self, run: Run, problem: Problem, files: RunFolder | None) -> None:
        self.run, self.files, self.problem = run, files, with_all_clean_rows(problem)
        method = build_method(run, self.problem)
        assert isinstance(method, LogisticMethod)
        self.method = method

    def restore(self) -> None:
        """Do nothing: there is no checkpoint."""

    def steps(
        self,
        on_progress: Callable[[Progress], None] | None,
        stop: Callable[[], bool] | None,
        checkpoint_seconds: float,
    ) -> Generator[None, None, Result]:
        """Fit, yielding after every logistic regression; then evaluate."""
        start, report = time.monotonic(), on_progress or (lambda _progress: None)
        report(Progress(epoch=0, epochs=1, step=0, steps=0))
        for done, _ in enumerate(self.method.fit(), start=1):
            if stop is not None and stop():
                raise RunStopped
            report(Progress(epoch=0, epochs=1, step=done, steps=0))
            yield
        return self.finish(time.monotonic() - start, report)

    def finish(self, seconds: float, report: Callable[[Progress], None]) -> Result:
        """Calibrate, evaluate and write the result."""
        fitted, problem = self.method.result, self.problem
        assert fitted is not None
        device = problem.train.x.device
        clean_logits = torch.from_numpy(fitted.clean_logits).to(device)
        temperature, _ = fit_temperature(clean_logits, problem.clean.true)
        p: ClassTable = _label_probabilities(fitted, temperature).to(device, self.run.torch_dtype)
        check, clean = None, problem.clean
        if problem.has_clean_set:
            corrected = clean_logits.argmax(1) if fitted.clean_labels is None else torch.from_numpy(fitted.clean_labels)
            check = compare_with_given(corrected.to(device), clean.given, clean.true)
        given = problem.train.given
        suspicion = 1 - value_at(p, given)  # of the classifier, also where the table keeps the given labels
        if fitted.suspicion is not None:
            suspicion = torch.from_numpy(fitted.suspicion).to(device, p.dtype)
        if check is not None and check.keeps_given:
            p = keep_given_labels(p, given, check)
        soft = self.method.soft_labels()
        labels = LabelTable(
            rows=problem.train,
            probabilities=p,
            suspicion=suspicion,
            soft_labels=soft,
            calibrated=problem.has_clean_set,
        )
        accuracy, loss = accuracy_and_loss(clean_logits, problem.clean.true)
        test = predict_samples(self.method.net, problem.test.x) if len(problem.test) else None
        metrics: dict[str, Any] = {
            "epoch": 0,
            "phase": self.method.phase(),
            "candidate": True,
            "loss": loss,
            "clean_accuracy": accuracy,
            "clean_loss": loss,
            "test_accuracy": None if test is None else accuracy_and_loss(test, problem.test.true)[0],
            "seconds": round(seconds, 3),
        }
        summary = summarize(
            self.run,
            problem,
            labels,
            train_predicted=predict_samples(self.method.net, problem.train.x).argmax(1),
            validation_logits=clean_logits,
            test_logits=test,
            temperature=temperature,
            epochs=0,
            best={"epoch": 0, "accuracy": accuracy},
            history=[metrics],
            seconds=seconds,
            check=check,
        )
        if self.files is not None:
            _write(self.files, self.method, labels, clean_logits, test, problem, temperature, metrics, summary)
        report(Progress(epoch=1, epochs=1, step=0, steps=0, metrics=metrics))
        return Result(summary=summary, history=[metrics], method=self.method, labels=labels)


def with_all_clean_rows(problem: Problem) -> Problem:
    """Return the problem with the held-out clean rows among the clean rows, which then are the validation rows, too."""
    if not problem.holds_out:
        return problem
    clean = problem.clean.concat(problem.validation)
    return dataclasses.replace(problem, clean=clean, validation=clean, holds_out=False)


def _label_probabilities(fitted: FittedLabels, temperature: float) -> Tensor:
    log_p = torch.from_numpy(fitted.log_p)
    return softmax_at_temperature(log_p, 1.0 if fitted.calibrated else temperature)


def _write(
    files: RunFolder,
    method: LogisticMethod,
    labels: LabelTable,
    clean_logits: Tensor,
    test: Tensor | None,
    problem: Problem,
    temperature: float,
    metrics: dict[str, Any],
    summary: dict[str, Any],
) -> None:
    files.write_model(method.model_state_dict())
    files.write_json("calibration.json", {"temperature": temperature})
    files.write("labels.csv", labels.to_csv())
    for name, array in labels.arrays().items():
        files.write_array(name, array)
    part, part_logits = ("validation", clean_logits) if test is None else ("test", test)
    counts = confusion_counts(part_logits.argmax(1), getattr(problem, part).true)
    files.write("confusion.json", json.dumps({"part": part, "counts": counts}) + "\n")
    files.write_metrics([metrics])
    files.write_executed({"execution": "eager", "kernels": "none", "fallbacks": [], "device": "cpu"})
    files.finish(summary)
