"""Prepare a run from rows in memory: hold out validation rows, and choose a method if there is no clean set."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from metalabelnet.core.forward_pass import predict, trainable_parameters
from metalabelnet.data import UNLABELED, Rows
from metalabelnet.data.batches import to_input
from metalabelnet.data.problem import Problem
from metalabelnet.data.splits import hold_out
from metalabelnet.errors import InputError
from metalabelnet.methods import METHODS
from metalabelnet.noise import actual_noise_rate
from metalabelnet.seeds import generator
from metalabelnet.train.prepare import check_labeled, select_device

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.train.settings import Run

METHOD_WITHOUT_CLEAN_SET, SETTINGS_WITHOUT_CLEAN_SET = "gce", {"truncated": True}
MIN_LABELED_TO_HOLD_OUT = 50  # labeled rows; with fewer and no clean set, all rows train and select the epoch


class NoCleanSetWarning(UserWarning):
    """There is no clean set: labels cannot be calibrated, and the epoch is selected by given labels."""


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run and its rows."""

    run: Run
    problem: Problem


def prepare_in_memory(
    run: Run, train: Rows, clean_set: Rows | None, test: Rows | None = None, *, clean_in_train: bool = False
) -> PreparedRun:
    """Return the rows as a `Problem`, and the run with the settings that the rows change.

    Under the default protocol a fifth of the clean rows is held out to select the epoch. If there is only one clean row
    per class, all of them select it, as under the paper's protocol. If the clean rows are also training rows
    (`clean_in_train`), the held-out ones lose their training label.
    """
    check_labeled(train)
    if len(train.classes) < 2:
        raise InputError(f"there is only one class, {train.classes[0]!r}: a classifier needs two or more")
    if clean_set is None:
        run, train, validation = _prepare_without_clean_set(run, train)
        clean, holds_out = validation, False
    else:
        check_every_class(clean_set.true, clean_set.classes)
        clean, validation = clean_set, clean_set
        if run.protocol == "default":
            clean, validation = hold_out(clean_set, generator(run.seed, "hold out"))
        if len(validation) == 0:
            clean, validation, run = clean_set, clean_set, dataclasses.replace(run, protocol="paper")
        holds_out = run.protocol == "default"
        if clean_in_train and holds_out:
            train = train.with_given_labels(_remove_labels_at(train.given, positions(train, validation)))
    if run.augment != "none" and not train.is_image:
        raise InputError(f"augmentation {run.augment!r} is for images, and the samples are not images: choose none")
    device = select_device(run)
    test = train.take(torch.arange(0)) if test is None else test
    return PreparedRun(
        run=run,
        problem=Problem(
            train=train.to(device),
            clean=clean.to(device),
            validation=validation.to(device),
            test=test.to(device),
            holds_out=holds_out,
            noise_rate=actual_noise_rate(train.true, train.given),
            has_clean_set=clean_set is not None,
        ),
    )


def check_every_class(true: Tensor, classes: tuple[str, ...]) -> None:
    """Raise InputError if a class is missing from the labels of the clean set."""
    missing = torch.bincount(true, minlength=len(classes)) == 0
    if missing.any():
        name = classes[int(missing.nonzero()[0, 0])]
        raise InputError(f"class {name!r} is missing from the clean set: add at least one sample of each class")


def check_net(net: nn.Module, prepared: PreparedRun) -> None:
    """Raise InputError if the network fails on the samples, has no trainable weight, or has wrong output shape."""
    rows, dtype = prepared.problem.train, prepared.run.torch_dtype
    x = to_input(rows.x[:2], dtype)
    if isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise InputError(f"the network is wrapped in {type(net).__name__}: pass net.module")
    if not trainable_parameters(net):
        raise InputError("the network has no trainable weight: set requires_grad to True for some")
    try:
        outputs = {"eval": predict(net.to(x.device, dtype), x), "train": _predict_in_train_mode(net, x)}
    except (RuntimeError, ValueError, TypeError, AssertionError, IndexError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the network fails on a batch of shape {tuple(x.shape)}: {reason}") from error
    expected = (len(x), len(rows.classes))
    for mode, logits in outputs.items():
        shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        if shape != expected:
            raise InputError(
                f"the network returns {shape} for {len(x)} samples in {mode} mode: it must return logits of shape "
                f"{expected}"
            )


@torch.no_grad()
def _predict_in_train_mode(net: nn.Module, x: Tensor) -> Any:
    """Return the network's output in train mode; restore its mode and buffers."""
    mode, state = net.training, {name: t.clone() for name, t in net.named_buffers()}
    try:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            return net.train()(x)
    finally:
        net.train(mode)
        for name, t in net.named_buffers():
            t.copy_(state[name])


def _prepare_without_clean_set(run: Run, train: Rows) -> tuple[Run, Rows, Rows]:
    """Return a run that needs no clean set, the rows to train on, and the rows that select the epoch.

    Methods that end up fitting every label need early stopping on labels they are not trained on: a fifth is held out.
    Truncated GCE drops samples it cannot fit. It is as accurate if it trains on all rows and all rows select the
    epoch, and then every given label is in the label table. Mean test accuracy on digits (as tables) over uniform and
    feature-dependent noise of 20, 40 and 60 %, two seeds (results/no_clean_set/digits.jsonl): cross-entropy 82.0,
    bootstrap 82.4, sce 84.0, pencil 85.8, joint-optimization 86.6, gce 86.9, truncated gce 87.0, the same on all rows
    87.0.
    """
    replaced = METHODS[run.method].reads_clean(run.method_settings())
    if replaced:
        what = f"{METHOD_WITHOUT_CLEAN_SET} (truncated) is trained instead of {run.method}, which needs a clean set"
        run = dataclasses.replace(run, method=METHOD_WITHOUT_CLEAN_SET, settings=SETTINGS_WITHOUT_CLEAN_SET)
    else:
        what = f"{run.method} is trained"
    labeled = (train.given != UNLABELED).nonzero()[:, 0]
    all_rows = replaced or len(labeled) < MIN_LABELED_TO_HOLD_OUT
    selected_by = "of the training samples" if all_rows else "of a held-out fifth of the samples"
    warnings.warn(
        f"there is no clean set: {what}, and its epoch is selected by the given labels {selected_by}. "
        "Feature-dependent noise cannot be detected this way. Check a few labels of each class and pass them as clean "
        "set",
        NoCleanSetWarning,
        stacklevel=4,
    )
    given_as_true = dataclasses.replace(train, true=train.given).take(labeled)
    if all_rows:
        return run, train, given_as_true
    _, validation = hold_out(given_as_true, generator(run.seed, "hold out"))
    return run, train.with_given_labels(_remove_labels_at(train.given, positions(train, validation))), validation


def positions(rows: Rows, subset: Rows) -> Tensor:
    """Return the positions of a subset of the rows, found by index."""
    position = torch.full((int(rows.index.max()) + 1,), UNLABELED)
    position[rows.index] = torch.arange(len(rows))
    return position[subset.index]


def _remove_labels_at(given: Tensor, positions: Tensor) -> Tensor:
    """Return the given labels without those at these positions."""
    given = given.clone()
    given[positions] = UNLABELED
    return given
