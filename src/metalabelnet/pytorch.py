"""The PyTorch interface, `metalabelnet.fit`: train a network on data sets with noisy labels."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from metalabelnet.data import ReadOptions
from metalabelnet.data.arrays import class_names, collect, type_name
from metalabelnet.data.rows import UNLABELED, Rows, make_rows
from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.methods import METHODS
from metalabelnet.train import Progress, Result, Run, train
from metalabelnet.train.in_memory import check_net, prepare_in_memory
from metalabelnet.train.settings import IN_MEMORY, make_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch.utils.data import Dataset

# Fields of a run that `fit` takes from its other arguments, or that apply only to data read from files.
_EXCLUDED_FIELDS = {"data", "data_format", "data_dir", "noise", "noise_probs", "clean", "unlabeled", "limit"}
_EXCLUDED_FIELDS |= {"split", "net", "settings"} | {f.name for f in dataclasses.fields(ReadOptions)}


def fit(
    net: nn.Module | str,
    train_set: Dataset[Any],
    clean_set: Dataset[Any] | None,
    unlabeled_set: Dataset[Any] | None = None,
    test_set: Dataset[Any] | None = None,
    *,
    folder: Path | str | None = None,
    resume: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> Result:
    """Train a network on noisy labels with a small clean set.

    Every item of a data set is read once and kept in memory as a tensor. A random transform is therefore applied only
    once: pass images without augmentation as uint8 and set `augment="flip-crop"`. Images in uint8 (PIL images included)
    are scaled to [−1, 1]; floating-point samples of any shape are used unchanged, as float32.

    Parameters
    ----------
    net : nn.Module or str
        Module that maps a batch of samples to logits, or the name of a network, or "auto". A module is trained in
        place. Use the `model` of the result: for some methods it is an EMA of the module or another network.
    train_set : Dataset
        Pairs (sample, label). Labels may be wrong; −1 means unlabeled.
    clean_set : Dataset or None
        Pairs (sample, label) with correct labels, at least one per class. With None, a method that needs no clean
        set is trained instead and a `NoCleanSetWarning` is issued.
    unlabeled_set : Dataset, optional
        Samples, or tuples that start with a sample. Labels are ignored.
    test_set : Dataset, optional
        Pairs (sample, label) with correct labels, used only to report test accuracy.
    folder : path-like, optional
        Where to write a run folder.
    resume : bool, default False
        Resume the interrupted run in `folder`. The data must be the same.
    on_progress : callable, optional
        Called with a `Progress` at the start of an epoch, after every step, and at the end of the epoch.
    **settings
        Settings of the run (`method`, `epochs`, `warmup`, `batch_size`, `lr`, `lr_milestones`, `augment`, `seed`,
        `device`, `execution`, …; see `metalabelnet.train.Run`) and of the method (`beta`, …). Warm-up and milestones
        scale with the epochs unless they are given.

    Returns
    -------
    Result
        `model` is the trained module in eval mode. `labels` is the label table: a row for each item of `train_set`,
        then of `unlabeled_set`. `history` has the metrics of each epoch, `summary` those of the selected epoch.

    Raises
    ------
    InputError
        If a setting is unknown, the data sets do not fit together, or the network does not fit the data.
    DivergenceError
        If a loss or a weight becomes NaN or infinite.

    Examples
    --------
    >>> import torch, metalabelnet
    >>> from torch.utils.data import TensorDataset
    >>> x, y = torch.randn(400, 2), torch.arange(400) % 2
    >>> x[:, 0] += 6 * y
    >>> noisy = torch.where(torch.rand(300) < 0.2, 1 - y[:300], y[:300])
    >>> train_set, clean_set = TensorDataset(x[:300], noisy), TensorDataset(x[300:], y[300:])
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> result = metalabelnet.fit(net, train_set, clean_set, epochs=3, device="cpu")
    >>> result.model(x[:5]).shape
    torch.Size([5, 2])
    >>> corrected = result.labels.decisions().label
    >>> len(corrected)
    300
    """
    if not isinstance(net, nn.Module | str):
        raise InputError(
            f"net is {type_name(net)}: give a module, the name of a network, or 'auto', as the first argument"
        )
    if train_set is None:
        raise InputError("train_set=None: give a data set of pairs (sample, label)")
    run = _build_run(settings, net)
    sets = {"train_set": train_set, "clean_set": clean_set, "unlabeled_set": unlabeled_set, "test_set": test_set}
    tensors = {
        name: collect(items, name, labeled=name != "unlabeled_set") for name, items in sets.items() if items is not None
    }
    first = tensors["train_set"][0]
    for name, (x, _) in tensors.items():
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            raise InputError(
                f"samples are {x.dtype} of shape {tuple(x.shape[1:])} in {name}, but {first.dtype} of shape "
                f"{tuple(first.shape[1:])} in train_set; give all data sets the same type and shape"
            )
    classes = class_names({name: sets[name] for name in tensors}, [labels for _, labels in tensors.values()])
    rows = {
        name: make_rows(x, labels, classes=classes, what=name, true=None if name == "train_set" else labels)
        for name, (x, labels) in tensors.items()
    }
    for name in ("clean_set", "test_set"):
        if name in rows and (rows[name].true == UNLABELED).any():
            item = int((rows[name].true == UNLABELED).nonzero()[0, 0])
            raise InputError(f"{name}: item {item} is unlabeled (-1); every item needs a correct label")
    clean_rows = rows.get("clean_set")
    if clean_rows is not None:
        clean_rows = clean_rows.with_given_labels(torch.full_like(clean_rows.given, UNLABELED))
    train_rows = _concatenate(rows["train_set"], rows.get("unlabeled_set"))
    prepared = prepare_in_memory(run, train_rows, clean_rows, rows.get("test_set"))
    module = net if isinstance(net, nn.Module) else None
    if module is not None:
        check_net(module, prepared)
    return train(
        prepared.run, net=module, problem=prepared.problem, folder=folder, resume=resume, on_progress=on_progress
    )


def _build_run(settings: dict[str, Any], net: nn.Module | str) -> Run:
    """Return the run with these settings, which are fields of a run or settings of the method."""
    fields = {f.name for f in dataclasses.fields(Run)} - _EXCLUDED_FIELDS
    method = settings.get("method", Run.method)
    if not isinstance(method, str) or method not in METHODS:
        raise unknown_name_error("method", str(method), METHODS)
    method_settings = {f.name for f in dataclasses.fields(METHODS[method].Settings)} - fields
    for name in settings:
        if name not in fields | method_settings:
            raise unknown_name_error(f"setting of a run or of {method}", name, fields | method_settings)
    return make_run(
        IN_MEMORY,
        data_format="memory",
        net="auto" if isinstance(net, nn.Module) else net,
        settings={name: value for name, value in settings.items() if name in method_settings},
        **{name: value for name, value in settings.items() if name in fields},
    )


def _concatenate(train_set: Rows, unlabeled_set: Rows | None) -> Rows:
    """Return the training rows followed by the unlabeled rows."""
    if unlabeled_set is None:
        return train_set
    return make_rows(
        torch.cat([train_set.x[:], unlabeled_set.x[:]]),
        torch.cat([train_set.given, unlabeled_set.given]),
        classes=train_set.classes,
        what="train_set and unlabeled_set",
    )
