"""The training loop: epochs, evaluation, selection, checkpoints. It knows methods by their interface only."""

from __future__ import annotations

import functools
import json
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import torch
from torch import Tensor, nn

from metalabelnet.data.batches import Batches
from metalabelnet.engine import Engine, drained, tensor_cores, untried
from metalabelnet.errors import InputError, Stopped
from metalabelnet.labels.correction import corrected
from metalabelnet.labels.label_table import LabelTable
from metalabelnet.labels.metrics import logits_of, scored
from metalabelnet.labels.quality import confusion
from metalabelnet.labels.snapshots import Said, Snapshots, candidate, clean_labels, clean_logits, said
from metalabelnet.train import checkpoint
from metalabelnet.train.build_method import build
from metalabelnet.train.data_digest import digest
from metalabelnet.train.prepare import prepare
from metalabelnet.train.run_folder import RunFolder
from metalabelnet.train.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from metalabelnet.data.batches import Batch
    from metalabelnet.data.problem import Problem
    from metalabelnet.data.read_cache import ReadCache
    from metalabelnet.methods import Method
    from metalabelnet.train.settings import Run


P = ParamSpec("P")


class Diverged(ArithmeticError):  # noqa: N818
    """A loss or a weight is no longer a number."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is. `metrics` is the line of the epoch that has just ended."""

    epoch: int
    epochs: int
    step: int
    steps: int
    metrics: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What the networks say at the end of an epoch.

    select, test  logits of the rows that select the epoch, and of the test rows, if there are some
    soft_labels   of the training rows, where the method makes some
    look          what the history of the run is told, if it takes part in it
    """

    validation: Tensor
    test: Tensor | None
    soft_labels: Tensor | None
    look: Said | None


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run gives back: the summary, a line an epoch, the trained method, and the label table."""

    summary: dict[str, Any]
    history: list[dict[str, Any]]
    method: Method
    labels: LabelTable

    @property
    def model(self) -> nn.Module:
        """The trained classifier, in eval mode: from samples as they were given to logits.

        Images of bytes are scaled to [−1, 1] before it reads them.
        """
        model = self.method.classifier().eval()
        learned = {name: weight.requires_grad for name, weight in self.method.net.named_parameters()}
        for name, weight in model.named_parameters():  # an average has none that is, but whoever goes on needs them
            weight.requires_grad_(learned.get(name, weight.requires_grad))
        return model


def training(
    run: Run,
    *,
    folder: Path | str | None = None,
    resume: bool = False,
    net: nn.Module | None = None,
    problem: Problem | None = None,
    read_cache: ReadCache | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    checkpoint_seconds: float = 10.0,
    concurrent_runs: int = 1,
) -> Generator[None, None, Result]:
    """Train one method on one problem, a step at a time, and leave a run folder if one is named.

    net                 your own classifier, instead of one by name; it is trained in place
    problem             the prepared rows, where several runs share them
    readings            what was read already, where several runs share the data and not the rows
    on_progress         told when an epoch begins, after every step, and when the epoch has ended
    stop                asked after every step; when it says so the run saves its state and raises `Stopped`; asked too
                        while the network behind feature-dependent noise is trained, which has nothing to save
    checkpoint_seconds  how much work a crash may cost
    company             how many runs take steps on the device at the same time, this one among them
    """
    files = None if folder is None else RunFolder(Path(folder))
    if files is not None:
        files.check(run, resume=resume)
        if files.finished:
            raise InputError(
                f"{files.path} is finished already: its result is in summary.json, labels.csv and the model"
            )
    problem = prepare(run, read_cache=read_cache, stop=stop) if problem is None else problem
    data = "" if files is None else digest(run, problem)
    if files is not None:
        files.check_data(data)
    loop = Loop(run, problem, net, files, concurrent_runs)
    if files is not None:
        own_net = None if net is None else f"{type(net).__module__}.{type(net).__qualname__}"
        is_bytes = problem.train.x.dtype == torch.uint8
        about = {"classes": problem.train.classes, "shape": problem.shape, "bytes": is_bytes, "own_net": own_net}
        files.create(run, inputs=problem.inputs, data_digest=data, **about)
    with nullcontext() if files is None else files.held():
        loop.restore()
        return (yield from loop.steps(on_progress, stop, checkpoint_seconds))


def to_the_end(turns: Generator[None, None, Result]) -> Result:
    """Take all steps of a run."""
    with tensor_cores():
        while True:
            try:
                next(turns)
            except StopIteration as end:
                result: Result = end.value
                return result


def _at_once(steps: Callable[P, Generator[None, None, Result]]) -> Callable[P, Result]:
    @functools.wraps(steps)
    def all_steps(*args: P.args, **kwargs: P.kwargs) -> Result:
        return to_the_end(steps(*args, **kwargs))

    return all_steps


train = _at_once(training)


class Loop:
    """A run under way. Everything that changes is in `state`, and `state` is the checkpoint."""

    def __init__(
        self, run: Run, problem: Problem, net: nn.Module | None, files: RunFolder | None, concurrent_runs: int = 1
    ) -> None:
        self.run, self.problem, self.files = run, problem, files
        self.method = build(run, problem, net)
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
            strong_from=self.method.strong_from,
        )
        # Making the batch is a part of the step and recorded with it, unless samples must first be read from disk.
        batch_of: Callable[[Any], Batch] = (lambda batch: batch) if self.batches.streamed else self.batches.batch
        bf16 = run.dtype == "bf16"
        self.engine = Engine(
            self.method, batch_of, recorded=run.records(device), bf16=bf16, concurrent_runs=concurrent_runs
        )
        self.epoch, self.step = 0, 0
        self.losses = torch.zeros(0)
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self.soft_labels: Tensor | None = None
        self.snapshots = Snapshots(run.snapshots, self.method.epochs)
        self.seconds = 0.0
        self.saved_at = ""

    def steps(
        self,
        on_progress: Callable[[Progress], None] | None,
        stop: Callable[[], bool] | None,
        checkpoint_seconds: float,
    ) -> Generator[None, None, Result]:
        """Train the epochs that are left, pausing after every step; then evaluate the selected one."""
        began, saved = time.monotonic() - self.seconds, time.monotonic()
        method, epochs, device = self.method, self.method.epochs, self.problem.train.x.device
        planned = self.planned(self.epoch, start=self.step)
        tell = on_progress or (lambda _progress: None)
        while self.epoch < epochs:
            steps = self.batches.steps(labeled_only=method.labeled_only(self.epoch))
            method.begin_epoch(self.epoch)
            if self.step == 0:
                self.losses = torch.zeros(steps, device=device)
            tell(Progress(epoch=self.epoch, epochs=epochs, step=self.step, steps=steps))
            with closing(planned):
                for given in planned:
                    self.losses[self.step] = self.engine.step(given)
                    self.step += 1
                    self.seconds = time.monotonic() - began
                    stopping = stop is not None and stop()
                    if stopping or time.monotonic() - saved >= checkpoint_seconds:
                        yield from drained(device)
                        self.save()
                        saved = time.monotonic()
                    if stopping:
                        raise Stopped
                    tell(Progress(epoch=self.epoch, epochs=epochs, step=self.step, steps=steps))
                    yield
            planned = self.planned(self.epoch + 1)  # while the card is at work on this one
            yield from drained(device)
            self.check_finite()
            method.end_epoch(self.epoch)
            answers = self.ask()
            yield from drained(device)
            self.evaluate(answers)
            self.epoch, self.step = self.epoch + 1, 0
            if self.files is not None:
                self.files.write_metrics(self.history, sync=False)  # a checkpoint has them too
            tell(Progress(epoch=self.epoch, epochs=epochs, step=0, steps=steps, metrics=self.history[-1]))
        self.seconds = time.monotonic() - began
        return self.finish()

    def planned(self, epoch: int, start: int = 0) -> Generator[Any, None, None]:
        """What the steps of an epoch are given. Samples on disk are not read before the first is asked for."""
        plan = self.batches.epoch if self.batches.streamed else self.batches.plan
        return plan(epoch, labeled_only=self.method.labeled_only(epoch), start=start)

    def ask(self) -> Answers:
        """Have the networks say what the end of the epoch is judged by. A card has then yet to do it."""
        problem, engine = self.problem, self.engine
        validation = logits_of(engine, problem.validation.x)
        with untried():
            soft_labels = self.method.soft_labels()
        return Answers(
            validation=validation,
            test=logits_of(engine, problem.test.x) if len(problem.test) else None,
            soft_labels=soft_labels,
            look=said(self.method, problem, validation, engine) if self.snapshots.due(self.epoch) else None,
        )

    @untried()
    def evaluate(self, answers: Answers) -> None:
        """Add the epoch's line to the history, and keep the model if it is the best so far."""
        accuracy, loss = scored(answers.validation, self.problem.validation.true)
        line: dict[str, Any] = {
            "epoch": self.epoch,
            "phase": self.method.phase(),
            "candidate": self.epoch >= self.method.candidates_from,
            "lr": self.method.lr_at(self.epoch),
            "loss": float(self.losses.double().mean()),
            "clean_accuracy": accuracy,
            "clean_loss": loss,
            "test_accuracy": None if answers.test is None else scored(answers.test, self.problem.test.true)[0],
        }
        soft = answers.soft_labels
        if soft is not None and self.soft_labels is not None:
            change = (soft - self.soft_labels).abs().double().mean(1)
            line |= {"label_change": float(change.mean()), "label_change_std": float(change.std())}
        self.soft_labels = soft
        self.history.append(line | {"seconds": round(self.seconds, 3)})
        if answers.look is not None:
            self.snapshots.look(self.method, self.problem, self.epoch, answers.look)
        if self.selects(accuracy, loss):
            model = {name: tensor.detach().clone() for name, tensor in self.method.model().items()}
            self.best = {"epoch": self.epoch, "accuracy": accuracy, "loss": loss, "model": model, "soft_labels": soft}

    def selects(self, accuracy: float, loss: float) -> bool:
        """Whether this epoch is the one to keep: more clean samples right, or as many with a lower loss.

        What only prepares, such as warm-up, is never the result. Under the paper's protocol a method whose weights
        follow the clean samples cannot be selected on them, and its last epoch counts.
        """
        if self.epoch < self.method.candidates_from:
            return False
        if self.best is None or (self.run.protocol == "paper" and self.method.learns_from_clean):
            return True
        return (accuracy, -loss) > (self.best["accuracy"], -self.best["loss"])

    def check_finite(self) -> None:
        """Stop a run whose numbers are lost, before a checkpoint of it replaces a good one."""
        bad = (~torch.isfinite(self.losses)).nonzero()
        sound = bool(torch.stack([torch.isfinite(t).all() for t in self.method.model().values()]).all())
        if len(bad) == 0 and sound:
            return
        step = int(bad[0, 0]) if len(bad) else self.step - 1
        what = f"the loss is {float(self.losses[step])}" if len(bad) else "a weight is not a number"
        lr = self.method.lr_at(self.epoch)
        kept = f"the last good checkpoint is {self.saved_at}" if self.saved_at else "there is no checkpoint yet"
        raise Diverged(
            f"{what} at step {step + 1} of epoch {self.epoch} with learning rate {lr:g}; {kept}: try a lower rate"
        )

    def save(self) -> None:
        """Write the checkpoint, if there is a folder to write to and the numbers are sound."""
        self.check_finite()
        if self.files is None:
            return
        checkpoint.save(
            self.files.checkpoint,
            {
                "method": self.method.state(),
                "epoch": self.epoch,
                "step": self.step,
                "losses": self.losses,
                "history": self.history,
                "best": self.best,
                "soft_labels": self.soft_labels,
                "snapshots": self.snapshots.state(),
                "seconds": self.seconds,
            },
        )
        self.saved_at = f"{self.files.checkpoint} (epoch {self.epoch}, step {self.step})"

    def restore(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if self.files is None or not self.files.checkpoint.exists():
            return
        state = checkpoint.load(self.files.checkpoint, self.problem.train.x.device)
        self.method.load_state(state.pop("method"))
        self.snapshots.load_state(state.pop("snapshots"))
        for name, value in state.items():
            setattr(self, name, value)
        self.files.write_metrics(self.history)
        self.saved_at = f"{self.files.checkpoint} (epoch {self.epoch}, step {self.step})"

    @untried()
    def finish(self) -> Result:
        """Take the selected epoch's networks, measure them, and write down what came out."""
        assert self.best is not None
        self.method.load_model(self.best["model"])
        problem, epoch = self.problem, self.best["epoch"]
        clean, true = clean_logits(self.method, problem)
        logits = logits_of(self.method, problem.train.x)
        selected = candidate(logits, clean, true, (epoch, epoch))
        checked = (
            clean_labels(self.method, problem, epoch=0) if problem.has_clean_set else None
        )  # all that any look asked
        found, suspicion = corrected(self.snapshots, selected, problem.train.given, checked)
        labels = LabelTable(
            rows=problem.train,
            probabilities=found.p,
            suspicion=suspicion,
            soft_labels=self.best["soft_labels"],
            calibrated=problem.has_clean_set,
        )
        calibration = {**selected.about(), "labels": found.about()}
        summary = summarise(
            self.run,
            problem,
            self.method,
            labels,
            predicted=logits.argmax(1),
            temperature=selected.temperature,
            best=self.best,
            history=self.history,
            seconds=self.seconds,
        )
        if self.files is not None:
            self.files.write_model(self.best["model"])
            self.files.write_json("calibration.json", calibration)
            self.files.write("labels.csv", labels.to_csv())
            for name, array in labels.arrays().items():
                self.files.write_array(name, array)
            self.files.write("confusion.json", json.dumps(confusion(self.method, problem)) + "\n")
            self.files.write_metrics(self.history)
            self.files.write_json("summary.json", summary)
            self.files.clean_up()
        return Result(summary=summary, history=self.history, method=self.method, labels=labels)
