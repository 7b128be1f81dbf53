"""From a run's settings to the rows it works on: read, split, corrupt, remove labels, hold out."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet import nets
from metalabelnet.data import UNLABELED, Progress, Rows, load
from metalabelnet.data.problem import Problem
from metalabelnet.data.splits import SPLITS, hold_out, limited, remove_labels
from metalabelnet.engine.compiler import importing_beside
from metalabelnet.errors import InputError
from metalabelnet.noise import Noise, corrupt, reached_rate, read_probabilities
from metalabelnet.seeds import generator, stream_seed
from metalabelnet.train.noise_probe import log_probabilities

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from metalabelnet.data import DataSet
    from metalabelnet.data.read_cache import ReadCache
    from metalabelnet.train.settings import Run


def device_of(run: Run) -> torch.device:
    """The device a run asks for; `auto` is the first CUDA card, if there is one.

    Of several cards the one that is named becomes the current one: steps are captured there, and what is captured on
    another card than the one that works would replay nothing.
    """
    name = ("cuda" if torch.cuda.is_available() else "cpu") if run.device == "auto" else run.device
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # asks for a value, which the device `meta` does not have
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {run.device!r} cannot be used ({reason}): choose cpu, or leave it to auto") from error
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


def read(
    run: Run,
    progress: Progress | None = None,
    on_samples: Progress | None = None,
    read_cache: ReadCache | None = None,
) -> DataSet:
    """The data of a run. Depends on its data settings alone: where several runs have the same, `readings` is asked."""
    how = dataclasses.replace(run.read_options(), card=_free_on(device_of(run)))
    loaded = load if read_cache is None else read_cache.load
    return loaded(
        run.data, Path(run.data_dir) if run.data_dir else None, progress, read_options=how, on_samples=on_samples
    )


def prepare(
    run: Run,
    progress: Progress | None = None,
    on_samples: Progress | None = None,
    read_cache: ReadCache | None = None,
    stop: Callable[[], bool] | None = None,
) -> Problem:
    """Read the data and make of it what the run asks for. Depends on the data settings and the seed alone.

    Where noise depends on the features, the network behind it is trained here first: `on_samples` is told how far it
    is, and `stop` is asked after each of its steps.
    """
    device = device_of(run)
    with importing_beside(on=device.type == "cuda" and run.records(device)):
        data = read(run, progress, on_samples, read_cache)
    if run.augment != "none" and not data.train.is_image:
        raise InputError(f"augmentation {run.augment!r} is for images, and {run.data} is a table: use none")
    split = SPLITS[run.split](data, run.clean, generator(run.seed, "split"))
    train = limited(split.train, run.limit, generator(run.seed, "limit"))
    probe = partial(_probe, run, data, train, on_samples=on_samples, stop=stop)
    train = train.with_given(_given(run, data, train, read_cache, probe))
    train = remove_labels(train, run.unlabeled, generator(run.seed, "unlabeled"))
    check_labeled(train)
    clean_set = split.clean.with_given(_given_to_clean(run, data, split.clean)).to(device)
    clean, validation = clean_set, clean_set
    if run.protocol == "default":
        clean, validation = hold_out(clean_set, generator(run.seed, "hold out"))
        if len(validation) == 0:
            raise InputError(
                f"with {len(clean_set)} clean samples none can be held out to select the epoch: give two for a "
                "class at least, or use --protocol paper"
            )
    return Problem(
        train=train.to(device),
        clean=clean,
        validation=validation,
        test=split.test.to(device),
        noise_rate=reached_rate(train.true, train.given),
        inputs=data.inputs,
        cells=data.cells,
        notes=data.notes,
    )


def check_labeled(train: Rows) -> None:
    """Refuse rows with fewer than two labels: batch normalisation needs two."""
    labeled = int((train.given != UNLABELED).sum())
    if labeled < 2:
        raise InputError(
            f"{'one' if labeled else 'no'} training row has a label: the classifier's first epochs need two or more"
        )


def net_name(run: Run, shape: tuple[int, ...], inputs: dict[str, Any] | None) -> str:
    """Name of the network: the one in the settings, or the default for this kind and shape of sample."""
    return nets.auto(shape, (inputs or {}).get("kind")) if run.net == "auto" else run.net


def _free_on(device: torch.device) -> int | None:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def _given(run: Run, data: DataSet, train: Rows, read_cache: ReadCache | None, probe: Callable[[], Tensor]) -> Tensor:
    """The given labels under the run's noise. Rows whose truth is unknown keep the label they have."""
    noise = Noise.parse(run.noise)
    if noise.kind == "none":
        return train.given
    scores = None
    if noise.kind == "feature":
        if run.noise_probs:
            whole = read_probabilities(Path(run.noise_probs), data.samples, len(data.classes))
            scores = whole[train.index]
        elif read_cache is None:
            scores = probe()
        else:  # runs of other methods and noise rates have the same
            names = ("split", "clean", "limit", "net", "pretrained", "augment", "seed", "device")
            same = tuple(getattr(run, name) for name in names)
            scores = read_cache.once(("probe", *same), probe)
    labels = corrupt(
        noise,
        train.true,
        train.classes,
        generator(run.seed, "noise"),
        index=train.index,
        samples=data.samples,
        probabilities=scores,
    )
    known = train.true != UNLABELED
    return torch.where(known & (train.given != UNLABELED), labels, train.given)


def _probe(run: Run, data: DataSet, train: Rows, **told: Any) -> Tensor:
    """How much every training row looks like each class."""
    shape = tuple(train.x.shape[1:])
    network = net_name(run, shape, data.inputs)
    seed = stream_seed(run.seed, "probe")
    net = nets.build(network, shape, len(data.classes), seed=seed, pretrained=run.pretrained)
    device = device_of(run)
    return log_probabilities(net.to(device), train.to(device), augment=run.augment, seed=run.seed, **told)


def _given_to_clean(run: Run, data: DataSet, clean_set: Rows) -> Tensor:
    """The untrusted label of each clean row, where it has one: from it the noise can be counted.

    Labels that came with the data, or from a file, were given to all rows, also to those that were checked later.
    Noise made here is made for the training rows alone.
    """
    noise = Noise.parse(run.noise)
    with_data = run.own_data or data.checked is not None
    if with_data and data.clean is not None and noise.kind == "none":
        return clean_set.given
    if data.clean is None and run.split == "general":
        if noise.kind == "none":
            return clean_set.given
        if noise.kind == "file":
            return corrupt(
                noise, clean_set.true, clean_set.classes, generator(run.seed, "noise"), index=clean_set.index
            )
    return torch.full_like(clean_set.given, UNLABELED)
