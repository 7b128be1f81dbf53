"""The training loop: epochs, evaluation, selection of the epoch, checkpoints. It uses the `Method` interface only."""

from __future__ import annotations

import json
import math
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.core.state_check import check_float, check_int, check_keys, check_same_form, check_tensor
from metalabelnet.core.top_classes import (
    ClassTable,
    check_table,
    mean_abs_difference,
    table_from_state,
    table_state,
    top_probabilities,
)
from metalabelnet.data.batches import Batches
from metalabelnet.engine import Engine, wait_for_device, without_cudnn_benchmark
from metalabelnet.errors import DivergenceError, InputError, RunStopped
from metalabelnet.labels.correction import correct_labels
from metalabelnet.labels.given_check import compare_with_given, keep_given_labels
from metalabelnet.labels.label_table import LabelTable
from metalabelnet.labels.metrics import accuracy_and_loss, confusion_counts, predict_logits
from metalabelnet.labels.snapshots import (
    SnapshotPredictions,
    Snapshots,
    calibrated_distribution,
    clean_labels,
    clean_logits,
    predict_chunks,
    snapshot_predictions,
)
from metalabelnet.train import checkpoint, json_files
from metalabelnet.train.build_method import build_method
from metalabelnet.train.rank_agreement import copy_from_rank_0, gather_tables, is_set_on_any_rank, send_state
from metalabelnet.train.result import Progress, Result
from metalabelnet.train.summary import summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from torch import Tensor, nn

    from metalabelnet.data.batches import Batch
    from metalabelnet.data.problem import Problem
    from metalabelnet.train.run_folder import RunFolder
    from metalabelnet.train.settings import Run


@dataclass(frozen=True, kw_only=True)
class EpochOutputs:
    """Predictions at the end of an epoch.

    validation, test  logits of the validation rows, and of the test rows if there are any
    soft_labels       soft labels of the training rows, if the method has them
    snapshot          predictions for the label snapshots, if the epoch takes one
    """

    validation: Tensor
    test: Tensor | None
    soft_labels: ClassTable | None
    snapshot: SnapshotPredictions | None


_STATE_KEYS = ("method", "epoch", "step", "losses", "history", "best", "soft_labels", "snapshots", "seconds")
_BEST_KEYS = ("epoch", "accuracy", "loss", "model", "soft_labels")


class TrainingLoop:
    """The state of a run during training. `save` writes all of it to the checkpoint."""

    def __init__(
        self, run: Run, problem: Problem, net: nn.Module | None, files: RunFolder | None, concurrent_runs: int = 1
    ) -> None:
        self.run, self.problem, self.files = run, problem, files  # of several ranks, only rank 0 has files
        self.method = build_method(run, problem, net)
        device = problem.train.x.device
        self.batches = Batches(
            train=problem.train,
            clean=problem.clean,
            size=run.batch_size,
            augment=run.augment,
            augment_clean=self.method.learns_from_clean,
            dtype=run.torch_dtype,
            seed=run.seed,
            order=run.order,
            strong_augment_from=self.method.strong_augment_from,
            mixup=self.method.mixup,
            second_view=self.method.second_view,
        )
        # The batch is made inside the traced step, unless samples are read from disk.
        make_batch: Callable[[Any], Batch] = (
            (lambda batch: batch) if self.batches.reads_from_disk else self.batches.make_batch
        )
        bf16 = run.dtype == "bf16"
        self.engine = Engine(
            self.method,
            make_batch,
            traced=run.uses_compiled_steps(device),
            bf16=bf16,
            kernels=run.kernels,
            concurrent_runs=concurrent_runs,
            on_fallback=None if files is None else files.write_executed,
        )
        self.epoch, self.step = 0, 0
        self.losses = torch.zeros(0)
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None  # the selected epoch so far
        self.soft_labels: ClassTable | None = None
        self.snapshots = Snapshots(run.snapshots, self.method.epochs)
        self.seconds, self.saved_at = 0.0, ""

    def steps(
        self,
        on_progress: Callable[[Progress], None] | None,
        stop: Callable[[], bool] | None,
        checkpoint_seconds: float,
    ) -> Generator[None, None, Result]:
        """Train the remaining epochs, yielding after every step; then evaluate the selected epoch."""
        start, last_saved = time.monotonic() - self.seconds, time.monotonic()
        method, epochs, device = self.method, self.method.epochs, self.problem.train.x.device
        step_inputs = self.step_inputs(self.epoch, start=self.step)
        report = on_progress or (lambda _progress: None)
        while self.epoch < epochs:
            steps = self.batches.steps(labeled_only=method.labeled_only(self.epoch))
            method.begin_epoch(self.epoch)
            copy_from_rank_0(method)
            if self.step == 0:
                self.losses = torch.zeros(steps, device=device)
            report(Progress(epoch=self.epoch, epochs=epochs, step=self.step, steps=steps))
            with closing(step_inputs):
                for inputs in step_inputs:
                    self.losses[self.step] = self.engine.step(inputs)
                    self.step += 1
                    self.seconds = time.monotonic() - start
                    stopping = stop is not None and stop()
                    if is_set_on_any_rank(stopping or time.monotonic() - last_saved >= checkpoint_seconds):
                        stopping = is_set_on_any_rank(stopping)
                        yield from wait_for_device(device)
                        self.save()
                        last_saved = time.monotonic()
                    if stopping:
                        is_set_on_any_rank(stopping)  # waits until rank 0 has saved
                        raise RunStopped
                    report(Progress(epoch=self.epoch, epochs=epochs, step=self.step, steps=steps))
                    yield
            step_inputs = self.step_inputs(self.epoch + 1)  # planned on the CPU while the GPU finishes this epoch
            yield from wait_for_device(device)
            self.check_finite()
            method.end_epoch(self.epoch)
            outputs = self.predict()
            yield from wait_for_device(device)
            self.evaluate(outputs)
            if self.batches.reads_from_disk:  # the memory of the host is short
                self.engine.stop_compile_workers()
            self.epoch, self.step = self.epoch + 1, 0
            if self.files is not None:
                self.files.write_metrics(self.history, sync=False)  # the checkpoint has them, too
            report(Progress(epoch=self.epoch, epochs=epochs, step=0, steps=steps, metrics=self.history[-1]))
        self.seconds = time.monotonic() - start
        return self.finish()

    def step_inputs(self, epoch: int, start: int = 0) -> Generator[Any, None, None]:
        """Return the inputs of the engine for the steps of an epoch. Reading from disk starts with the first step."""
        plan = self.batches.epoch if self.batches.reads_from_disk else self.batches.plan_epoch
        return plan(epoch, labeled_only=self.method.labeled_only(epoch), start=start)

    def predict(self) -> EpochOutputs:
        """Compute the predictions for the evaluation of the epoch. On CUDA the work is queued, not finished."""
        problem, engine = self.problem, self.engine
        validation = predict_logits(engine, problem.validation.x)
        with without_cudnn_benchmark():
            soft_labels = self.method.soft_labels()
        return EpochOutputs(
            validation=validation,
            test=predict_logits(engine, problem.test.x) if len(problem.test) else None,
            soft_labels=None if soft_labels is None else top_probabilities(soft_labels, problem.train.given),
            snapshot=snapshot_predictions(self.method, problem, engine, validation)
            if self.snapshots.is_due(self.epoch)
            else None,
        )

    @without_cudnn_benchmark()
    def evaluate(self, outputs: EpochOutputs) -> None:
        """Add the metrics of the epoch to the history, and keep the weights if it is the best epoch so far."""
        accuracy, loss = accuracy_and_loss(outputs.validation, self.problem.validation.true)
        if not math.isfinite(loss):  # the weights are finite, but a product of them is not
            when = f"after epoch {self.epoch} with learning rate {self.method.lr_at(self.epoch):g}"
            raise DivergenceError(f"the loss on clean samples is {loss} {when}: try a lower lr")
        metrics: dict[str, Any] = {
            "epoch": self.epoch,
            "phase": self.method.phase(),
            "candidate": self.epoch >= self.method.first_candidate,
            "lr": self.method.lr_at(self.epoch),
            "loss": float(self.losses.double().mean()),
            "clean_accuracy": accuracy,
            "clean_loss": loss,
            "test_accuracy": None
            if outputs.test is None
            else accuracy_and_loss(outputs.test, self.problem.test.true)[0],
        }
        soft_labels = outputs.soft_labels
        if soft_labels is not None and self.soft_labels is not None:
            change = mean_abs_difference(soft_labels, self.soft_labels)
            metrics |= {"label_change": float(change.mean()), "label_change_std": float(change.std())}
        self.soft_labels = soft_labels
        self.history.append(metrics | {"seconds": round(self.seconds, 3)})
        if outputs.snapshot is not None:
            self.snapshots.add_epoch(self.method, self.problem, self.epoch, outputs.snapshot)
        if self.is_best(accuracy, loss):
            model = {name: tensor.detach().clone() for name, tensor in self.method.model_state_dict().items()}
            self.best = {
                "epoch": self.epoch,
                "accuracy": accuracy,
                "loss": loss,
                "model": model,
                "soft_labels": soft_labels,
            }

    def is_best(self, accuracy: float, loss: float) -> bool:
        """Return whether this epoch has a higher validation accuracy than the best so far, or the same at lower loss.

        Warm-up epochs, and those before the window of the recipe, are never selected. Under the paper's protocol, the
        classifier of some methods is trained on the validation rows; then the last epoch is selected.
        """
        if self.epoch < self.method.first_candidate:
            return False
        if self.best is None or (self.run.protocol == "paper" and self.method.learns_from_clean):
            return True
        return (accuracy, -loss) > (self.best["accuracy"], -self.best["loss"])

    def check_finite(self) -> None:
        """Raise DivergenceError if a loss or a weight is not finite, before a checkpoint of it replaces a good one."""
        bad_steps = (~torch.isfinite(self.losses)).nonzero()
        weights_finite = bool(
            torch.stack([torch.isfinite(t).all() for t in self.method.model_state_dict().values()]).all()
        )
        if len(bad_steps) == 0 and weights_finite:
            return
        step = int(bad_steps[0, 0]) if len(bad_steps) else self.step - 1
        what = f"the loss is {float(self.losses[step])}" if len(bad_steps) else "a weight is not finite"
        lr = self.method.lr_at(self.epoch)
        saved = f"the last checkpoint is {self.saved_at}" if self.saved_at else "there is no checkpoint yet"
        raise DivergenceError(
            f"{what} at step {step + 1} of epoch {self.epoch} with learning rate {lr:g}; {saved}: try a lower lr"
        )

    def save(self) -> None:
        """Write the checkpoint, if there is a run folder. Raise DivergenceError if the state is not finite."""
        self.check_finite()
        method_state = gather_tables(self.method.state_dict())
        if self.files is None:
            return
        checkpoint.save(
            self.files.checkpoint,
            {
                "method": method_state,
                "epoch": self.epoch,
                "step": self.step,
                "losses": self.losses,
                "history": self.history,
                "best": self.best and self.best | {"soft_labels": table_state(self.best["soft_labels"])},
                "soft_labels": table_state(self.soft_labels),
                "snapshots": self.snapshots.state(),
                "seconds": self.seconds,
            },
        )
        self.saved_at = f"{self.files.checkpoint} (epoch {self.epoch}, step {self.step})"

    def restore(self) -> None:
        """Load the last intact checkpoint, if there is one: on rank 0, which sends it to the others."""
        device = self.problem.train.x.device
        latest = None if self.files is None else checkpoint.load_latest(self.files.checkpoint, device)
        state, file = (None, Path()) if latest is None else latest
        if state is not None:
            self.load(state, file)
        send_state(state, self.method, device, self.load)
        if self.files is None or state is None:
            return
        if file != self.files.checkpoint:  # the next checkpoint must keep this one, not a damaged one
            file.replace(self.files.checkpoint)
        self.files.write_metrics(self.history)
        self.saved_at = f"{self.files.checkpoint} (epoch {self.epoch}, step {self.step})"

    def load(self, state: dict[str, Any], file: Path = Path()) -> None:
        """Continue from the state in a file. It is checked before it is used."""
        try:
            self.check_state(state)
            self.method.load_state_dict(state["method"])
            if state["best"] is not None:
                check_same_form(state["best"]["model"], self.method.model_state_dict(), "best.model")
        except (InputError, RuntimeError, KeyError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise InputError(
                f"{file} is no checkpoint of this run ({reason}): remove {file.parent} to train from the start"
            ) from error
        self.epoch, self.step, self.seconds = state["epoch"], state["step"], state["seconds"]
        self.losses, self.soft_labels = state["losses"], table_from_state(state["soft_labels"])
        self.history, best = state["history"], state["best"]
        self.best = best and best | {"soft_labels": table_from_state(best["soft_labels"])}
        self.snapshots.load_state(state["snapshots"])

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise InputError for a state that `save` cannot have written in this run. `Method` checks its own part."""
        check_keys(state, _STATE_KEYS, "the checkpoint")
        check_keys(state["method"], state["method"], "method")  # a dict, whose keys the method checks
        check_int(state["epoch"], 0, self.method.epochs - 1, "epoch")
        steps = self.batches.steps(labeled_only=self.method.labeled_only(state["epoch"]))
        check_int(state["step"], 1, steps, "step")
        check_float(state["seconds"], "seconds", low=0.0)
        check_tensor(state["losses"], (steps,), torch.float32, "losses")
        history = state["history"]
        if not isinstance(history, list) or len(history) != state["epoch"]:
            raise InputError(f"history has not the metrics of {state['epoch']} epochs")
        for epoch, metrics in enumerate(history):
            check_keys(metrics, metrics, "history")
            json_files.check_fields("history", metrics, json_files.METRICS, json_files.OPTIONAL_METRICS)
            check_int(metrics["epoch"], epoch, epoch, "history.epoch")
        soft_labels = [("soft_labels", state["soft_labels"])]
        if (best := state["best"]) is not None:
            check_keys(best, _BEST_KEYS, "best")
            check_int(best["epoch"], 0, state["epoch"] - 1, "best.epoch")
            check_float(best["accuracy"], "best.accuracy")
            if type(best["loss"]) is not float:  # NaN is possible
                raise InputError("best.loss is not a number")
            soft_labels.append(("best.soft_labels", best["soft_labels"]))
        for name, value in soft_labels:
            if value is not None:
                check_table(value, (len(self.problem.train), len(self.problem.train.classes)), name)
        self.snapshots.check_state(state["snapshots"], self.method, self.problem)

    @without_cudnn_benchmark()
    def finish(self) -> Result:
        """Evaluate the weights of the selected epoch, and write the result. Each part is predicted once."""
        assert self.best is not None
        self.method.load_model_state_dict(self.best["model"])
        problem, epoch = self.problem, self.best["epoch"]
        clean_rows_logits, true = clean_logits(self.method, problem, self.method)
        validation = clean_rows_logits[: len(problem.validation)]
        test = predict_logits(self.method, problem.test.x) if len(problem.test) else None
        train = predict_chunks(self.method, problem.train)
        selected = calibrated_distribution(train, clean_rows_logits, true, (epoch, epoch))
        # Epoch 0: all clean rows that any snapshot was evaluated on.
        clean = clean_labels(self.method, problem, epoch=0) if problem.has_clean_set else None
        reads_given = self.method.traits.reads_given
        corrected, suspicion = correct_labels(
            self.snapshots, selected, problem.train.given, clean, reads_given=reads_given
        )
        p, check = corrected.p, None
        if clean is not None:
            evaluated = clean.rows_evaluated_by(corrected)
            check = compare_with_given(corrected.clean_p.argmax(1), evaluated.given, evaluated.true)
        if check is not None and check.keeps_given:
            p = keep_given_labels(p, problem.train.given, check)
        labels = LabelTable(
            rows=problem.train,
            probabilities=p,
            suspicion=suspicion,
            soft_labels=self.best["soft_labels"],
            calibrated=problem.has_clean_set,
        )
        calibration = {**selected.provenance(), "labels": corrected.provenance()}
        summary = summarize(
            self.run,
            problem,
            labels,
            train_predicted=selected.p.argmax(1),
            validation_logits=validation,
            test_logits=test,
            second_test_logits=None
            if problem.second_test is None
            else predict_logits(self.method, problem.second_test.x),
            temperature=selected.temperature,
            epochs=self.method.epochs,
            best=self.best,
            history=self.history,
            seconds=self.seconds,
            check=check,
        )
        if self.files is not None:
            self.files.write_model(self.best["model"])
            self.files.write_json("calibration.json", calibration)
            self.files.write("labels.csv", labels.csv_chunks())
            for name, array in labels.arrays().items():
                self.files.write_array(name, array)
            part, part_logits = ("validation", validation) if test is None else ("test", test)
            counts = confusion_counts(part_logits.argmax(1), getattr(problem, part).true)
            self.files.write("confusion.json", json.dumps({"part": part, "counts": counts}) + "\n")
            self.files.write_metrics(self.history)
            self.files.write_executed(self.engine.executed())
            self.files.finish(summary)
        return Result(summary=summary, history=self.history, method=self.method, labels=labels)
