"""The entry for people who have a network and data sets of PyTorch: `metalabelnet.fit`."""

from __future__ import annotations

import dataclasses
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from metalabelnet.data import ReadOptions
from metalabelnet.data.arrays import class_names, collect, kind_of
from metalabelnet.data.rows import UNLABELED, Rows, make_rows
from metalabelnet.errors import InputError, unknown
from metalabelnet.methods import METHODS
from metalabelnet.train import Progress, Result, Run, train
from metalabelnet.train.in_memory import check_net, settle
from metalabelnet.train.settings import IN_MEMORY, proportions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch.utils.data import Dataset

# What is said by the data sets themselves, or is for data that is read from files.
_NOT_SETTINGS = {"data", "data_dir", "noise", "noise_probs", "clean", "unlabeled", "limit"}
_NOT_SETTINGS |= {"split", "net", "settings", "preset"} | {f.name for f in dataclasses.fields(ReadOptions)}


def fit(
    net: nn.Module | str,
    train_set: Dataset[Any],
    clean_set: Dataset[Any] | None,
    unlabeled: Dataset[Any] | None = None,
    test: Dataset[Any] | None = None,
    *,
    folder: Path | str | None = None,
    resume: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> Result:
    """Train a classifier on a data set with untrusted labels and a clean one; gives model, labels and history.

    net          any module from a batch of samples to logits; or a network's name, or "auto". A module is trained in
                 place, but what comes out is the result's `model`: with some methods an average or another network
    train_set    pairs (sample, label) whose label may be wrong; −1 means none
    clean_set     pairs (sample, label) whose label is right, some of every class; None: see `NoCleanSet`
    unlabeled    samples, or tuples that begin with one, whose label is not looked at
    test         pairs with right labels, which decide nothing: they are only measured
    folder       where to leave a run folder
    resume       go on with the run in that folder, which was stopped; the data must be the same
    on_progress  told when an epoch begins, after every step, and when the epoch has ended
    settings     fields of a run (`method`, `epochs`, `warmup`, `batch_size`, `rate`, `augment`, `seed`, `device`, …)
                 and the method's own (`beta`, …), by name; warm-up and rate drops follow the epochs, unless given

    Every item is read once, before training, and kept in memory as a tensor. A transform that draws at random is
    drawn once, then: let data sets give samples as they are, and have images of bytes augmented here
    (`augment="flip-crop"`). Images of bytes (uint8, as PIL opens them) are scaled to [−1, 1]; floating-point samples
    of any shape are read as they are, in single precision.

    The result's `model` is the trained module in eval mode, `labels` a table with a row for each item of the training
    set followed by the unlabeled ones, `history` a line an epoch, `summary` the numbers of the selected epoch.
    """
    if not isinstance(net, nn.Module | str):
        raise InputError(
            f"net is {kind_of(net)}: give a module, the name of a network, or 'auto', before the data sets"
        )
    run = _run(settings, net)
    sets = {"train_set": train_set, "clean_set": clean_set, "unlabeled": unlabeled, "test": test}
    parts = {
        name: collect(items, name, labeled=name != "unlabeled") for name, items in sets.items() if items is not None
    }
    for name, (x, _) in parts.items():
        first = parts["train_set"][0]
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            raise InputError(
                f"samples are {x.dtype} of shape {tuple(x.shape[1:])} in {name}, but {first.dtype} of shape "
                f"{tuple(first.shape[1:])} in train_set; they must agree"
            )
    classes = class_names({name: sets[name] for name in parts}, [labels for _, labels in parts.values()])
    rows = {
        name: make_rows(x, labels, classes=classes, what=name, true=None if name == "train_set" else labels)
        for name, (x, labels) in parts.items()
    }
    for name in ("clean_set", "test"):
        if name in rows and (rows[name].true == UNLABELED).any():
            at = int((rows[name].true == UNLABELED).nonzero()[0, 0])
            raise InputError(f"{name}: item {at} has no label (-1), but each one's must be known and right")
    clean_rows = rows.get("clean_set")
    if clean_rows is not None:
        clean_rows = clean_rows.with_given(torch.full_like(clean_rows.given, UNLABELED))
    settled = settle(run, _joined(rows["train_set"], rows.get("unlabeled")), clean_rows, rows.get("test"))
    own = net if isinstance(net, nn.Module) else None
    if own is not None:
        check_net(own, settled)
    return train(settled.run, net=own, problem=settled.problem, folder=folder, resume=resume, on_progress=on_progress)


def _run(settings: dict[str, Any], net: nn.Module | str) -> Run:
    """The run these settings ask for: its own fields, and those of the method."""
    fields = {f.name for f in dataclasses.fields(Run)} - _NOT_SETTINGS
    method = settings.get("method", Run.method)
    if method not in METHODS:
        raise unknown("method", str(method), METHODS)
    own = {f.name for f in dataclasses.fields(METHODS[method].Settings)} - fields
    for name in settings:
        if name not in fields | own:
            raise unknown(f"setting of a run or of {method}", name, fields | own)
    epochs = settings.get("epochs", Run.epochs)
    given = {name: value for name, value in settings.items() if name in fields}
    return Run(
        data=IN_MEMORY,
        net="auto" if isinstance(net, nn.Module) else net,
        settings={name: value for name, value in settings.items() if name in own},
        **(proportions(int(epochs)) if isinstance(epochs, Integral) else {}) | given,
    )


def _joined(train_set: Rows, unlabeled: Rows | None) -> Rows:
    """Training rows and the unlabeled ones after them."""
    if unlabeled is None:
        return train_set
    return make_rows(
        torch.cat([train_set.x[:], unlabeled.x[:]]),
        torch.cat([train_set.given, unlabeled.given]),
        classes=train_set.classes,
        what="train_set and unlabeled",
    )
