"""The settings of a run, and the recipes: the settings for each data set."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping  # noqa: TC003  (evaluated by get_type_hints)
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from metalabelnet.data import DATASETS, PATH_KINDS, ReadOptions
from metalabelnet.data.augment import AUGMENTATIONS
from metalabelnet.data.batches import SAMPLE_ORDERS
from metalabelnet.data.files import npz
from metalabelnet.data.files.table_file import is_table_file
from metalabelnet.data.splits import SPLITS
from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.methods import METHODS, Schedule
from metalabelnet.nets import NETS
from metalabelnet.nets.external import EXTERNAL_FORMS, is_external
from metalabelnet.noise import Noise
from metalabelnet.run_options import (
    ALL,
    DATA_FORMATS,
    DATASET_DEFAULTS,
    DTYPES,
    EXECUTIONS,
    KERNELS,
    ON_ERROR,
    PRESETS,
    PROTOCOLS,
    RunOptions,
)

MAX_EPOCHS, MAX_SAMPLES, MAX_SEED = 10**6, 10**12, 2**63 - 1
IN_MEMORY = "in memory"  # `Run.data` of data passed as arrays or as a data set; its `data_format` is "memory"


@dataclass(frozen=True, kw_only=True)
class Run(RunOptions):
    """All settings of a run, checked. `recipe` returns the run with the defaults of a data set.

    Parameters
    ----------
    data : str, default "digits"
        Name of a data set (digits, fashion-mnist, cifar10, cifar100), or path of a folder of images, a table (.csv,
        .tsv, .parquet) or an .npz file.
    data_format : {"auto", "benchmark", "folder", "table", "npz", "memory"}, default "auto"
        What `data` is. "auto" is replaced by one of the others when the run is created.
    data_dir : str, optional
        Folder with the files of a named data set. Default: $METALABELNET_DATA, else ~/.cache/metalabelnet.
    method : str, default "metalabelnet"
        Training method, a key of `metalabelnet.methods.METHODS`.
    preset : {"paper", "own"}, default "paper"
        The schedule that all methods share, or the schedule and settings of the method's own paper.
    settings : mapping, optional
        Settings of the method by name. Values may be text.
    noise : str, default "none"
        Label noise added to the training labels, such as "uniform:0.4".
    noise_probs : str, optional
        Path of class probabilities (.npy) for feature-dependent noise. Default: those of a network trained for it.
    clean : int or "all", default 100
        Size of the clean set, or all samples that are marked as clean.
    clean_file : str, optional
        Table of ids and labels, or folder of images, that lists the clean set.
    clean_column, true_label, label, image, text, features, id : str, optional
        Column names of a table. Default: detected.
    test : str, optional
        Folder or table with true labels to test on.
    image_size : int, optional
        Side in pixels of the square that images are resized to. Default: from the sizes of the images.
    encoder : str, optional
        sentence-transformers model for texts. Default: TF-IDF.
    on_error : {"stop", "skip"}, default "stop"
        What to do when a sample cannot be read.
    memory_limit : float, optional
        GiB of memory for samples; more are kept on disk. Default: half of the free memory.
    limit : int, optional
        Number of training samples to use, drawn at random. Default: all.
    unlabeled : int, default 0
        Number of training samples whose label is removed.
    split : {"general", "paper"}, default "general"
        Source of the clean set: the data's clean part, else training samples; or the test part, as in the paper.
    protocol : {"default", "paper"}, default "default"
        Clean samples that select the epoch: a held-out fifth, or all of them.
    net : str, default "auto"
        Network: auto, cnn8, small-cnn, mlp, text-mlp, timm:NAME, torchvision:NAME, MODULE:FUNCTION.
    pretrained : str, optional
        Weights file to start from, or "hub" to download them (timm and torchvision only).
    head : str, optional
        Name of the network's last linear layer. Default: detected.
    epochs, warmup, batch_size : int, default 30, 11, 64
        Number of epochs, epochs of warm-up on the given labels, and batch size.
    lr, momentum, weight_decay : float, default 0.02, 0.9, 1e-4
        Of the classifier's SGD.
    lr_milestones : tuple of int, default (10, 20)
        Epochs at which the learning rate drops to a tenth.
    order : {"shuffled", "given"}, default "shuffled"
        Order of the training samples.
    augment : str, default "none"
        Augmentation of the training images: none, crop, flip-crop.
    snapshots : int, default 30
        Number of epochs, evenly spaced, whose predictions enter the label table; 0: only the selected epoch.
    seed : int, default 0
        Random seed.
    device : str, default "auto"
        PyTorch device.
    dtype : {"float32", "float64", "bf16"}, default "float32"
        bf16 is mixed precision: weights and results stay float32.
    execution : {"auto", "eager", "compiled"}, default "auto"
        auto: compiled on CUDA, else eager.
    kernels : {"auto", "cudnn", "hopper"}, default "auto"
        Convolution kernels of compiled steps. hopper: custom kernels for H100 and H200 in bf16, or an error where they
        cannot be used; cudnn: never custom kernels; auto: custom kernels where they can be used.

    Raises
    ------
    InputError
        If a value is not allowed.

    Examples
    --------
    >>> from metalabelnet.train import Run
    >>> run = Run(data="digits", noise="uniform:0.4", epochs=10, warmup=3)
    >>> run.data_format, run.clean
    ('benchmark', 100)
    """

    def __post_init__(self) -> None:
        if self.data_format == "auto":
            object.__setattr__(self, "data_format", find_data_format(self.data))
        _check(self)
        typed = make_settings(self.method, self.settings)  # "1e-3" and 0.001 are the same setting
        object.__setattr__(self, "settings", {name: getattr(typed, name) for name in self.settings})

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of weights and samples."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    def uses_compiled_steps(self, device: torch.device) -> bool:
        """Return whether the steps of this run are traced, compiled and replayed on that device."""
        if self.execution == "auto":
            return device.type == "cuda" and METHODS[self.method].traits.traceable
        return self.execution == "compiled"

    @property
    def schedule(self) -> Schedule:
        """Epochs, batch size and optimizer settings."""
        return Schedule(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Schedule)})

    @property
    def clean_size(self) -> int | None:
        """The number of clean samples; None: all that are marked as clean."""
        return self.clean if isinstance(self.clean, int) else None

    @property
    def is_folder_or_table(self) -> bool:
        """Whether the data is a folder of images or a table, rather than arrays."""
        return self.data_format in ("folder", "table")

    def read_options(self) -> ReadOptions:
        """Return how a folder or table is read."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(ReadOptions) if hasattr(self, f.name)}
        external_net = self.net.startswith(("timm:", "torchvision:"))
        return ReadOptions(**fields, external_net=external_net, adds_noise=self.noise != "none")

    def method_settings(self) -> Any:
        """Return the settings of the method, typed and with defaults filled in."""
        return make_settings(self.method, self.settings)


def recipe(data: str, **changes: Any) -> Run:
    """Return the run for a data set, with fields changed.

    Parameters
    ----------
    data : str
        Name of a data set, or path of a folder, table or .npz file.
    **changes
        Fields of `Run`. With `preset="own"`, the settings of the method's own paper come before them. If `epochs` is
        given, `warmup` and `lr_milestones` scale with it unless they are given, too. Where the data marks a clean set,
        `clean` is "all" unless it is given.

    Returns
    -------
    Run
        CIFAR has the paper's settings: 120 epochs with learning rate 1e-2, 1e-3 from epoch 40 and 1e-4 from epoch 80,
        44 epochs of warm-up, batch size 128, flips and crops. Other data has the defaults of `Run`.

    Raises
    ------
    InputError
        If a value is not allowed.

    Examples
    --------
    >>> from metalabelnet.train import recipe
    >>> run = recipe("cifar10", noise="uniform:0.4", epochs=60)
    >>> run.warmup, run.lr_milestones, run.batch_size
    (22, (20, 40), 128)
    """
    defaults = dict(DATASET_DEFAULTS.get(data, {}))
    if (
        changes.get("clean_file")
        or changes.get("clean_column")
        or (_is_npz_with_clean_set(data) and changes.get("split") != "paper")
    ):
        defaults |= {"clean": ALL}
    if changes.get("preset") == "own" and changes.get("method", Run.method) in METHODS:
        published = METHODS[changes.get("method", Run.method)].traits.own_preset
        defaults |= published
        changes["settings"] = {**published.get("settings", {}), **changes.get("settings", {})}
    if 0 < changes.get("epochs", 0) <= MAX_EPOCHS:
        defaults |= scale_schedule(changes["epochs"], defaults)
    return Run(**{"data": data, **defaults, **changes})


def find_data_format(data: str) -> str:
    """Return what `data` is: benchmark, folder, table or npz."""
    path = Path(data)
    if data in DATASETS:
        return "benchmark"
    if data and (path.is_dir() or data.endswith("/")):
        return "folder"
    if is_table_file(path):
        return "table"
    if path.suffix.lower() == ".npz":
        return "npz"
    raise unknown_name_error("data set", data, [*DATASETS, f"the path of {PATH_KINDS}"])


def _is_npz_with_clean_set(data: str) -> bool:
    return data not in DATASETS and data.lower().endswith(".npz") and npz.has_clean_set(Path(data))


def scale_schedule(epochs: int, recipe: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return warm-up and milestones of a recipe scaled to this many epochs; without a recipe, of the defaults."""
    full = {name: (recipe or {}).get(name, getattr(Run, name)) for name in ("epochs", "warmup", "lr_milestones")}
    share = epochs / full["epochs"]
    return {
        "warmup": max(0, min(max(1, round(share * full["warmup"])), epochs - 1)),
        "lr_milestones": tuple(max(1, round(share * epoch)) for epoch in full["lr_milestones"]),
    }


def make_settings(method: str, values: Mapping[str, Any]) -> Any:
    """Return a method's settings from values by name, each converted to the type of the setting.

    Text is converted, so that `--set beta=0.01` and `settings={"beta": 0.01}` are the same.
    """
    settings_class = METHODS[method].Settings
    types = get_type_hints(settings_class)
    return settings_class(**{name: _convert(method, name, value, types) for name, value in values.items()})


def _convert(method: str, name: str, value: Any, types: Mapping[str, Any]) -> Any:
    if name not in types:
        raise unknown_name_error(f"setting of {method}", name, types)
    kind, text = types[name], str(value)
    choices, words = get_args(kind), ()
    if choices and choices[0] is float:  # a number or a word: float | Literal["auto"]
        kind, words, choices = float, get_args(choices[1]), ()
    if choices:
        if text not in choices:
            raise unknown_name_error(f"value for {name}", text, choices)
        return text
    if kind is str or text in words:
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise InputError(f"{name}={text}: choose from true, false")
        return text.lower() == "true"
    try:
        number = kind(text)
    except ValueError:
        raise InputError(f"{name}={text}: give {' or '.join(['a number', *words])}") from None
    if not math.isfinite(number) or number < 0:
        raise InputError(f"{name}={text}: give a number that is 0 or more")
    return number


def _check(run: Run) -> None:
    """Raise InputError for settings that cannot be run, before anything is read or written."""
    for what, name, allowed in (
        ("data format", run.data_format, DATA_FORMATS),
        ("method", run.method, METHODS),
        ("split", run.split, SPLITS),
        ("protocol", run.protocol, PROTOCOLS),
        ("preset", run.preset, PRESETS),
        ("network", run.net, (run.net,) if is_external(run.net) else ("auto", *NETS, *EXTERNAL_FORMS)),
        ("augmentation", run.augment, AUGMENTATIONS),
        ("order", run.order, SAMPLE_ORDERS),
        ("dtype", run.dtype, DTYPES),
        ("execution", run.execution, EXECUTIONS),
        ("value for kernels", run.kernels, KERNELS),
        ("value for on-error", run.on_error, ON_ERROR),
    ):
        if name not in allowed:
            raise unknown_name_error(what, name, allowed)
    Noise.parse(run.noise)
    _check_read_options(run)
    if run.execution == "compiled" and not METHODS[run.method].traits.traceable:
        raise InputError(f"execution compiled: the steps of {run.method} cannot be traced; choose from eager, auto")
    if run.kernels == "hopper":
        _check_hopper(run)
    _check_numbers(run)


def _check_hopper(run: Run) -> None:
    """Reject runs that have no use for Hopper kernels; the engine checks the GPU."""
    if run.dtype != "bf16":
        raise InputError(f"kernels hopper needs dtype bf16, not {run.dtype}: choose auto or cudnn")
    if run.execution == "eager" or not METHODS[run.method].traits.traceable:
        raise InputError("kernels hopper needs compiled steps, and these run eagerly: choose auto or cudnn")


def _check_read_options(run: Run) -> None:
    """Reject options of folders and tables for other data, and pretrained weights for networks that have none."""
    names = [f.name for f in dataclasses.fields(ReadOptions) if getattr(run, f.name, f.default) != f.default]
    if run.data_format != "memory":
        names = [name for name in names if name != "clean_file"]  # allowed for everything that is read from a file
    if names and not run.is_folder_or_table:
        name = names[0].replace("_", "-")
        raise InputError(f"--{name} is for a folder of images or a table, and {run.data} is neither: leave it out")
    if run.image_size is not None and not 4 <= run.image_size <= 1024:
        raise InputError(f"image-size {run.image_size} is out of range: choose from 4 to 1024")
    if run.memory_limit is not None and not (math.isfinite(run.memory_limit) and run.memory_limit >= 0):
        raise InputError(f"memory-limit {run.memory_limit} is not valid: give a number of GiB that is 0 or more")
    if run.pretrained is not None and not run.net.startswith(("timm:", "torchvision:")):
        raise InputError(f"pretrained weights are for networks of timm or torchvision, not for {run.net!r}")


def _check_counts(run: Run) -> None:
    """Check that whole numbers are in their range. The maxima prevent overflow; no real run comes near them."""
    for name, minimum, maximum in (
        ("epochs", 1, MAX_EPOCHS),
        ("warmup", 0, MAX_EPOCHS),
        ("batch_size", 2, MAX_SAMPLES),
        ("clean_size", 1, MAX_SAMPLES),
        ("limit", 2, MAX_SAMPLES),
        ("unlabeled", 0, MAX_SAMPLES),
        ("snapshots", 0, MAX_EPOCHS),
        ("seed", 0, MAX_SEED),
    ):
        value = getattr(run, name)
        option = name.removesuffix("_size") if name == "clean_size" else name.replace("_", "-")
        if value is not None and value < minimum:
            raise InputError(f"{option} {value} is too small: the minimum is {minimum}")
        if value is not None and value > maximum:
            raise InputError(f"{option} {value} is too large: the maximum is {maximum}")


def _check_numbers(run: Run) -> None:
    if run.clean != ALL and (isinstance(run.clean, bool) or not isinstance(run.clean, int)):
        raise InputError(f"clean {run.clean!r} is not valid: give a number of samples, or {ALL}")
    _check_counts(run)
    if run.clean == ALL and not (run.clean_file or run.clean_column or run.data_format == "npz"):
        raise InputError(f"clean {ALL}: {run.data} marks no samples as clean; give a number, or a file that lists them")
    if any(epoch < 0 for epoch in run.lr_milestones):
        raise InputError(f"lr-milestones {','.join(map(str, run.lr_milestones))}: give epochs that are 0 or more")
    if METHODS[run.method].traits.has_warmup and run.warmup >= run.epochs:
        raise InputError(
            f"warmup {run.warmup} is too large for {run.epochs} epochs of {run.method}: the maximum is {run.epochs - 1}"
        )
    if not (math.isfinite(run.lr) and run.lr > 0):
        raise InputError(f"lr {run.lr} is not a positive number")
    if not 0 <= run.momentum < 1:
        raise InputError(f"momentum {run.momentum} is not in [0, 1)")
    if not (math.isfinite(run.weight_decay) and run.weight_decay >= 0):
        raise InputError(f"weight-decay {run.weight_decay} is not a number that is 0 or more")
