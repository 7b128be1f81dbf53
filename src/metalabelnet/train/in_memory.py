"""From rows in memory to a run: who is learned from, who selects the epoch, and what is done without a clean set."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from metalabelnet.core.forward_pass import predict, trainable
from metalabelnet.data import UNLABELED, Rows
from metalabelnet.data.batches import to_input
from metalabelnet.data.problem import Problem
from metalabelnet.data.splits import hold_out
from metalabelnet.errors import InputError
from metalabelnet.methods import METHODS
from metalabelnet.noise import reached_rate
from metalabelnet.seeds import generator
from metalabelnet.train.prepare import check_labeled, device_of

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.train.settings import Run

WITHOUT_CLEAN = "gce"
TRUNCATED = {"truncated": True}
FEW = 50  # labeled rows: of fewer, none are put aside to select the epoch by labels nobody trusts


class NoCleanSet(UserWarning):
    """There is no clean set: the labels cannot be corrected against anything, and the epoch is selected on noise."""


@dataclass(frozen=True, kw_only=True)
class Settled:
    """A run and the rows it works on."""

    run: Run
    problem: Problem


def settle(
    run: Run, train: Rows, clean_set: Rows | None, test: Rows | None = None, *, clean_in_train: bool = False
) -> Settled:
    """The problem of these rows, and the run with what they change in it.

    A fifth of the clean rows selects the epoch, under the default protocol. Where they are too few, one for each
    class, all of them do, as under the paper's. Where the clean rows are among those trained on (`meta_in_train`),
    the ones that select are without a label there.
    """
    check_labeled(train)
    if len(train.classes) < 2:
        raise InputError(f"there is one class only, {train.classes[0]!r}: a classifier needs two or more")
    if clean_set is None:
        run, train, validation = _without_clean(run, train)
        clean = validation
    else:
        check_every_class(clean_set)
        clean, validation = clean_set, clean_set
        if run.protocol == "default":
            clean, validation = hold_out(clean_set, generator(run.seed, "hold out"))
        if len(validation) == 0:
            clean, validation, run = clean_set, clean_set, dataclasses.replace(run, protocol="paper")
        elif clean_in_train and validation is not clean_set:
            train = train.with_given(_without(train.given, positions(train, validation)))
    if run.augment != "none" and not train.is_image:
        raise InputError(f"augmentation {run.augment!r} is for images, and these are none: use none")
    device = device_of(run)
    test = train.take(torch.arange(0)) if test is None else test
    return Settled(
        run=run,
        problem=Problem(
            train=train.to(device),
            clean=clean.to(device),
            validation=validation.to(device),
            test=test.to(device),
            noise_rate=reached_rate(train.true, train.given),
            has_clean_set=clean_set is not None,
        ),
    )


def check_every_class(clean_set: Rows) -> None:
    """Refuse a clean set that lacks a class, naming it."""
    missing = torch.bincount(clean_set.true, minlength=len(clean_set.classes)) == 0
    if missing.any():
        name = clean_set.classes[int(missing.nonzero()[0, 0])]
        raise InputError(f"class {name!r} is missing from the clean set, which needs a sample of each class")


def check_net(net: nn.Module, settled: Settled) -> None:
    """Refuse a network that cannot read these samples, cannot learn, or does not give a number for each class."""
    rows, dtype = settled.problem.train, settled.run.torch_dtype
    few = to_input(rows.x[:2], dtype)
    if isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise InputError(f"the network is in a {type(net).__name__}: give the module inside, net.module")
    if not trainable(net):
        raise InputError("the network has no weight that is learned: all of them are frozen (requires_grad is False)")
    try:
        given = {"gives": predict(net.to(few.device, dtype), few), "gives in training": _in_training(net, few)}
    except (RuntimeError, ValueError, TypeError, AssertionError, IndexError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the network cannot read a batch of shape {tuple(few.shape)}: {reason}") from error
    wanted = (len(few), len(rows.classes))
    for gives, logits in given.items():
        shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        if shape != wanted:
            raise InputError(f"the network {gives} {shape} for {len(few)} samples, not logits of shape {wanted}")


@torch.no_grad()
def _in_training(net: nn.Module, x: Tensor) -> Any:
    """What the network gives in train mode, which is to leave it as it was."""
    mode, state = net.training, {name: t.clone() for name, t in net.named_buffers()}
    try:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            return net.train()(x)
    finally:
        net.train(mode)
        for name, t in net.named_buffers():
            t.copy_(state[name])


def _without_clean(run: Run, train: Rows) -> tuple[Run, Rows, Rows]:
    """A run that needs no clean set; the rows to train on, and those that select the epoch.

    Methods that come to fit every label are best stopped early, by labels they have not seen: a fifth is put aside.
    Truncated GCE drops what it cannot fit, and does as well when it learns from all rows and is selected by their
    labels, which leaves no given label out of the label table. On digits as tables, mean test accuracy over uniform and
    feature-dependent noise of 20, 40 and 60 % (two seeds, results/no_clean_set/digits.jsonl): cross-entropy 82.0,
    bootstrap 82.4, sce 84.0, pencil 85.8, joint-optimization 86.6, gce 86.9, truncated 87.0, on all rows 87.0.
    """
    replaced = METHODS[run.method].reads_clean(run.method_settings())
    if replaced:
        instead = f"{WITHOUT_CLEAN} (truncated) is trained instead of {run.method}, which needs one"
        run = dataclasses.replace(run, method=WITHOUT_CLEAN, settings=TRUNCATED)
    else:
        instead = f"{run.method} is trained"
    labeled = (train.given != UNLABELED).nonzero()[:, 0]
    all_rows = replaced or len(labeled) < FEW
    by = "those it is trained on" if all_rows else "of a fifth of the samples, put aside"
    warnings.warn(
        f"there is no clean set: {instead}, and its epoch is selected by untrusted labels ({by}). Noise that depends "
        "on the sample will stay unseen. Check a few labels of each class and say which they are",
        NoCleanSet,
        stacklevel=4,
    )
    trusted_as_given = dataclasses.replace(train, true=train.given).take(labeled)
    if all_rows:
        return run, train, trusted_as_given
    _, validation = hold_out(trusted_as_given, generator(run.seed, "hold out"))
    return run, train.with_given(_without(train.given, positions(train, validation))), validation


def positions(rows: Rows, some: Rows) -> Tensor:
    """Where some of the rows stand among all, by their index."""
    place = torch.full((int(rows.index.max()) + 1,), UNLABELED)
    place[rows.index] = torch.arange(len(rows))
    return place[some.index]


def _without(given: Tensor, at: Tensor) -> Tensor:
    """These labels, removed at some positions."""
    given = given.clone()
    given[at] = UNLABELED
    return given
