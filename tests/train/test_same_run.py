"""Every method gets the same run: what is executed is recorded and compared, not the settings.

Recorded are the initial weights, every batch that reaches the method, the learning rate of the classifier in each step,
and the samples that are evaluated after each epoch. The differences that methods may have are listed here.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import metalabelnet.train.loop as loop_module
from metalabelnet.core.optimizers import SGD
from metalabelnet.data.batches import Batch
from metalabelnet.train.build_method import build_method
from metalabelnet.train.loop import TrainingLoop
from small_runs import TRAINED_METHODS, small_problem, small_run, tiny_cnn

EPOCHS, STEPS = 2, 4
RECIPE = {
    "epochs": EPOCHS,
    "warmup": 1,
    "augment": "crop",
    "lr_schedule": "cosine",
    "lr_warmup": 1,
    "ema": 0.9,
    "strong_augment": "supervised",
    "mixup": 0.5,
}
# Methods whose own paper prescribes another number of epochs or learning rate in some of them.
# Some have a stage that estimates, or train twice.
OWN_LENGTH = {"forward", "glc", "co-teaching", "joint-optimization", "t-revision"}
OWN_LR = {"joint-optimization", "pencil", "t-revision"}
OWN_MIXUP = {"elr-plus"}  # with the α of its paper


@dataclass
class ExecutedRun:
    """What a run has executed, in order."""

    initial: list[Tensor] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)
    lrs: list[float] = field(default_factory=list)
    evaluated: list[tuple[int, str]] = field(default_factory=list)  # epoch and part


def tensors_of(batch: Batch) -> dict[str, Any]:
    views, clean = batch.views, batch.clean_views
    return {
        "index": batch.index,
        "given": batch.given,
        "weak": views.weak,
        "strong": views.strong,
        "partner": views.partner,
        "share": views.share,
        "seed": batch.seed,
        "clean_weak": clean.weak,
        "clean_y": batch.clean_y,
    }


@cache
def execute(method: str, **changes: Any) -> ExecutedRun:
    """Train with a method and record what it gets."""
    problem, record, run = small_problem(), ExecutedRun(), small_run(method, **RECIPE, snapshots=0, **changes)
    record.initial = list(build_method(run, problem).net.state_dict().values())
    loop = TrainingLoop(run, problem, tiny_cnn(), None)
    step, predict_logits = loop.method.step, loop_module.predict_logits

    def recorded_step(batch: Batch) -> Tensor:
        record.batches.append(tensors_of(batch))
        assert isinstance(loop.method.sgd, SGD)
        record.lrs.append(float(loop.method.sgd.lr))
        return step(batch)

    def recorded_predict(predictor: Any, x: Tensor) -> Tensor:
        parts = {"train": problem.train, "clean": problem.clean, "validation": problem.validation, "test": problem.test}
        record.evaluated += [(loop.epoch, name) for name, rows in parts.items() if x is rows.x]
        return predict_logits(predictor, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.method, "step", recorded_step)
        patch.setattr(loop_module, "predict_logits", recorded_predict)
        for _ in loop.steps(None, None, 1e9):
            pass
    return record


def assert_equal(one: Any, other: Any, what: str) -> None:
    assert torch.equal(one, other) if isinstance(one, Tensor) else one == other, what


@pytest.mark.parametrize("method", TRAINED_METHODS)
def test_initial_weights_are_the_same(method: str) -> None:
    for one, other in zip(execute(method).initial, execute("cross-entropy").initial, strict=True):
        assert_equal(one, other, f"{method} starts from other weights")


@pytest.mark.parametrize("method", TRAINED_METHODS)
def test_batches_are_the_same(method: str) -> None:
    """The same samples in the same order, with the same augmentation, MixUp partners and seeds.

    Clean samples are the same too; they are augmented if and only if the classifier is trained on them.
    """
    ours, theirs = execute(method).batches, execute("cross-entropy").batches
    augmented = execute("fine-tune").batches
    trains_on_clean = TrainingLoop(small_run(method, **RECIPE), small_problem(), None, None).method.learns_from_clean
    assert len(ours) >= len(theirs) == EPOCHS * STEPS
    for step, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        expected = {**other, "clean_weak": (augmented if trains_on_clean else theirs)[step]["clean_weak"]}
        for name, tensor in one.items():
            if name == "share" and method in OWN_MIXUP:
                continue
            assert_equal(tensor, expected[name], f"{method}, step {step}: {name}")


@pytest.mark.parametrize("method", TRAINED_METHODS)
def test_learning_rates_and_length_are_the_same(method: str) -> None:
    """One cycle of the schedule, at its end for a method with a stage before."""
    ours, expected = execute(method).lrs, execute("cross-entropy").lrs
    recipe = small_run("cross-entropy", **RECIPE).make_recipe()
    assert expected == pytest.approx([recipe.lr_at(epoch) for epoch in range(EPOCHS) for _ in range(STEPS)])
    if method not in OWN_LR:
        assert ours[-len(expected) :] == expected
    assert (len(ours) > len(expected)) == (method in OWN_LENGTH)


@pytest.mark.parametrize("method", TRAINED_METHODS)
def test_evaluations_are_the_same(method: str) -> None:
    """The validation and the test samples once after each epoch, and the test samples again with the selected model."""
    record = execute(method)
    epochs = len(record.batches) // STEPS
    expected = [(epoch, part) for epoch in range(epochs) for part in ("validation", "test")]
    assert record.evaluated == [*expected, (epochs, "test")]


@pytest.mark.parametrize("changes", [{"seed": 1}, {"augment": "none"}, {"lr": 0.04}, {"mixup": 0.4}])
def test_a_difference_is_seen(changes: dict[str, Any]) -> None:
    """The record of a run with another seed, augmentation, learning rate or MixUp differs."""
    base, other = execute("gce"), execute_with(changes)
    same_batches = all(
        torch.equal(one[name], two[name])
        for one, two in zip(base.batches, other.batches, strict=True)
        for name in ("index", "weak", "share")
    )
    assert not (same_batches and base.lrs == other.lrs)


def execute_with(changes: dict[str, Any]) -> ExecutedRun:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            if name in RECIPE:
                patch.setitem(RECIPE, name, value)
        return execute.__wrapped__("gce", **{k: v for k, v in changes.items() if k not in RECIPE})
