"""Prepare the rows of a run from its settings: read, split, add noise, remove labels, hold out."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metalabelnet import nets
from metalabelnet.data import UNLABELED, ProgressCallback, Rows, load
from metalabelnet.data.benchmarks.download import data_folder
from metalabelnet.data.problem import Problem
from metalabelnet.data.splits import MIN_LABELED_ROWS, SPLITS, hold_out, limit_rows, remove_labels
from metalabelnet.engine.torch_private import preload_compiler
from metalabelnet.errors import InputError
from metalabelnet.methods import METHODS, LogisticMethod
from metalabelnet.noise import Noise, actual_noise_rate, corrupt, read_probabilities
from metalabelnet.seeds import generator, stream_seed
from metalabelnet.train.noise_probe import log_probabilities
from metalabelnet.train.noise_probe_cache import load_or_train

if TYPE_CHECKING:
    from collections.abc import Callable

    from metalabelnet.data import DataSet
    from metalabelnet.data.read_cache import ReadCache
    from metalabelnet.train.settings import Run

METHODS_WITHOUT_NETWORK = frozenset(name for name, method in METHODS.items() if issubclass(method, LogisticMethod))


def select_device(run: Run) -> torch.device:
    """Return the device of a run; `auto` is the first GPU if there is one, else the CPU.

    A GPU that is named by index becomes the current device, because CUDA graphs are captured on the current device.
    """
    name = ("cuda" if torch.cuda.is_available() else "cpu") if run.device == "auto" else run.device
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # fails on the device `meta`, which holds no values
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {run.device!r} cannot be used ({reason}): choose cpu or auto") from error
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


def read_data(
    run: Run,
    progress: ProgressCallback | None = None,
    on_samples: ProgressCallback | None = None,
    read_cache: ReadCache | None = None,
) -> DataSet:
    """Read the data of a run. The result depends on the data settings only, so runs can share it in a `read_cache`."""
    read_options = dataclasses.replace(run.read_options(), gpu_free_bytes=_free_gpu_bytes(select_device(run)))
    load_data = load if read_cache is None else read_cache.load
    return load_data(
        run.data,
        Path(run.data_dir) if run.data_dir else None,
        progress,
        read_options=read_options,
        on_samples=on_samples,
    )


def prepare(
    run: Run,
    progress: ProgressCallback | None = None,
    on_samples: ProgressCallback | None = None,
    read_cache: ReadCache | None = None,
    stop: Callable[[], bool] | None = None,
) -> Problem:
    """Return the rows of a run. They depend on the data settings and the seed only.

    progress    called during a download
    on_samples  called with the number of samples read, and while the network for feature-dependent noise is trained
    read_cache  data that several runs share
    stop        checked after every training step of that network; raises `RunStopped` if it returns True
    """
    device = select_device(run)
    with preload_compiler(on=device.type == "cuda" and run.uses_compiled_steps(device)):
        data = read_data(run, progress, on_samples, read_cache)
    if run.augment != "none" and not data.train.is_image:
        raise InputError(f"augmentation {run.augment!r} is for images, and {run.data} has none: choose none")
    split = SPLITS[run.split](data, run.clean_size, generator(run.seed, "split"))
    train = limit_rows(split.train, run.limit, generator(run.seed, "limit"))
    noisy = train.concat(split.clean) if _draws_clean_from_noisy(run, data, train) else train
    probe = partial(_probe, run, data, noisy, on_samples=on_samples, stop=stop)
    labels = _noisy_labels(run, data, noisy, read_cache, probe)
    train = train.with_given_labels(labels[: len(train)])
    train = remove_labels(train, run.unlabeled, generator(run.seed, "unlabeled"))
    check_labeled(train)
    with_clean = len(labels) > len(train)
    clean_labels = labels[len(train) :] if with_clean else _given_labels_of_clean(run, data, split.clean)
    clean_set = split.clean
    if run.clean_given == "drop":
        clean_labels = torch.full_like(clean_labels, UNLABELED)
        clean_set = clean_set.without_annotations()
    clean_set = clean_set.with_given_labels(clean_labels).to(device)
    clean, validation = clean_set, clean_set
    if run.protocol == "default":
        clean, validation = hold_out(clean_set, generator(run.seed, "hold out"))
        if len(validation) == 0:
            raise InputError(
                f"a clean set of {len(clean_set)} is too small to hold out samples that select the epoch: give at "
                "least two per class, or use --protocol paper"
            )
    return Problem(
        train=train.to(device),
        clean=clean,
        validation=validation,
        test=split.test.to(device),
        second_test=None if data.second_test is None else data.second_test.to(device),
        holds_out=run.protocol == "default",
        draws_clean=data.clean is None and data.clean_labels is None and run.split == "general",
        noise_rate=actual_noise_rate(train.true, train.given),
        encoder_config=data.encoder_config,
        cells_digest=data.cells_digest,
        notes=data.notes,
    )


def check_labeled(train: Rows) -> None:
    """Raise InputError for fewer than two given labels."""
    labeled = int((train.given != UNLABELED).sum())
    if labeled < MIN_LABELED_ROWS:
        have = "sample has" if labeled == 1 else "samples have"
        raise InputError(f"{labeled} training {have} a label: training needs at least {MIN_LABELED_ROWS}; label more")


def net_name(run: Run, shape: tuple[int, ...], encoder_config: dict[str, Any] | None) -> str:
    """Return the name of the network: that of the settings, or the default for this kind and shape of sample."""
    return nets.default_net(shape, (encoder_config or {}).get("kind")) if run.net == "auto" else run.net


def classifier_name(run: Run, shape: tuple[int, ...], encoder_config: dict[str, Any] | None) -> str:
    """Return the name of the classifier's network: a linear one for methods that are fitted to fixed features."""
    if run.net == "auto" and run.is_linear and (len(shape) == 1 or run.method in METHODS_WITHOUT_NETWORK):
        return "linear"
    return net_name(run, shape, encoder_config)


def _free_gpu_bytes(device: torch.device) -> int | None:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def _noisy_labels(
    run: Run, data: DataSet, train: Rows, read_cache: ReadCache | None, probe: Callable[[], Tensor]
) -> Tensor:
    """Return the given labels with the run's noise. Rows without a true label keep the label they have."""
    noise = Noise.parse(run.noise)
    if noise.kind == "none":
        return train.given
    scores = None
    if noise.kind == "feature":
        if run.noise_probs:
            scores = read_probabilities(Path(run.noise_probs), data.index_size, len(data.classes))[train.index]
        elif read_cache is None:
            scores = probe()
        else:  # shared by runs that differ in other settings, such as method and noise rate
            names = ("split", "clean", "limit", "net", "pretrained", "augment", "seed", "device")
            key = ("probe", *(getattr(run, name) for name in names))
            scores = read_cache.get_or_compute(key, probe)
    labels = corrupt(
        noise,
        train.true,
        train.classes,
        generator(run.seed, "noise"),
        index=train.index,
        samples=data.index_size,
        probabilities=scores,
        read_samples=train.x.__getitem__,
        folder=data_folder(Path(run.data_dir) if run.data_dir else None),
    )
    has_truth = train.true != UNLABELED
    return torch.where(has_truth & (train.given != UNLABELED), labels, train.given)


def _probe(run: Run, data: DataSet, train: Rows, **callbacks: Any) -> Tensor:
    """Return log-probabilities of the classes for every training row, from the noise probe, trained now or earlier."""
    shape, device = tuple(train.x.shape[1:]), select_device(run)
    network = net_name(run, shape, data.encoder_config)

    def train_probe() -> Tensor:
        net = nets.build(
            network, shape, len(data.classes), seed=stream_seed(run.seed, "probe"), pretrained=run.pretrained
        )
        return log_probabilities(net.to(device), train.to(device), augment=run.augment, seed=run.seed, **callbacks)

    if run.pretrained:  # its weights are in a file that may change
        return train_probe()
    folder = data_folder(Path(run.data_dir) if run.data_dir else None)
    return load_or_train(folder, train, train_probe, device=device, net=network, augment=run.augment, seed=run.seed)


def _draws_clean_from_noisy(run: Run, data: DataSet, train: Rows) -> bool:
    """Return whether noise is added to all rows before the clean set is drawn, so that clean rows keep a given label.

    Samples on disk are an exception: they are not concatenated.
    """
    return data.clean is None and run.split == "general" and isinstance(train.x, Tensor)


def _given_labels_of_clean(run: Run, data: DataSet, clean_set: Rows) -> Tensor:
    """Return the given label of each clean row, or −1. With it, clean rows show how many given labels are wrong."""
    has_given_labels = run.is_folder_or_table or data.clean_labels is not None or data.clean is None
    has_given_labels = data.is_split or (has_given_labels and run.split == "general")
    if has_given_labels and Noise.parse(run.noise).kind == "none":
        return clean_set.given
    return torch.full_like(clean_set.given, UNLABELED)
