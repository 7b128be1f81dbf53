"""A run: every choice that decides what comes out, in one place.

A recipe is a function that gives a full run for a data set; a variant changes a field.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping  # noqa: TC003  (read by get_type_hints)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from metalabelnet.data import DATASETS, PATHS, ReadOptions
from metalabelnet.data.augment import AUGMENTS
from metalabelnet.data.batches import ORDERS
from metalabelnet.data.files import npz
from metalabelnet.data.files.reader import ON_ERROR
from metalabelnet.data.files.table_file import is_sheet
from metalabelnet.data.splits import SPLITS
from metalabelnet.errors import InputError, unknown
from metalabelnet.methods import METHODS, Schedule
from metalabelnet.methods.method import CIFAR10_RECIPE
from metalabelnet.nets import NETS
from metalabelnet.nets.external import OUTSIDE, is_outside
from metalabelnet.noise import Noise

PROTOCOLS = ("default", "paper")
PRESETS = ("paper", "own")
DTYPES = ("float32", "float64", "bf16")
EXECUTIONS = ("auto", "eager", "compiled")
IN_MEMORY = "in memory"  # the name of data that was handed over as arrays or a data set, and is read from nowhere


def _field(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class Run:
    """All settings of a run. The defaults are the recipe for small data; `recipe` gives each data set's own."""

    data: str = _field("digits", f"a data set's name, or the path of {PATHS}")
    data_dir: str | None = _field(
        None, "where the files of a data set known by name are (without: METALABELNET_DATA, else ~/.cache/metalabelnet)"
    )
    method: str = _field("metalabelnet", "how it learns; see `metalabelnet methods`")
    preset: str = _field("paper", "paper: the recipe all methods share; own: what the method's own paper used")
    settings: Mapping[str, Any] = field(
        default_factory=dict, metadata={"help": "one of the method's own settings; see `metalabelnet methods METHOD`"}
    )
    noise: str = _field("none", "noise added to the training labels; see `metalabelnet noises`")
    noise_probs: str | None = _field(
        None, "class probabilities (.npy) for feature noise; without: a network is trained for them"
    )
    clean: int = _field(100, "number of clean samples, or the file that names them; where they are marked, all of them")
    clean_file: str | None = _field(
        None,
        "the same as --clean FILE: a table of ids (of arrays row numbers, from 0) and labels, or a folder",
    )
    clean_column: str | None = _field(None, "column that marks clean rows")
    true_label: str | None = _field(None, "column of the right labels where known; guessed where clear")
    label: str | None = _field(None, "column of the label; guessed where clear, like the next four")
    image: str | None = _field(None, "column of image paths")
    text: str | None = _field(None, "column of texts")
    features: str | None = _field(None, "columns of numbers and categories, separated by commas")
    id: str | None = _field(None, "column of the samples' names")
    test: str | None = _field(None, "a folder or table to test on, with right labels")
    image_size: int | None = _field(None, "side of the square that images become; without: by their sizes")
    encoder: str | None = _field(None, "a model of sentence-transformers for texts; without: TF-IDF")
    on_error: str = _field("stop", "what a broken sample does: stop, or skip")
    memory_limit: float | None = _field(
        None, "GiB of memory that samples may take, beyond which they stay on disk; without: half of what is free"
    )
    limit: int = _field(0, "number of training samples to use, drawn at random; 0: all")
    unlabeled: int = _field(0, "number of training samples whose label is removed")
    split: str = _field(
        "general",
        "where clean samples come from: the data's clean part, else training rows (general); the test part (paper)",
    )
    protocol: str = _field(
        "default",
        "the clean samples that select the epoch: a fifth, held out (default), or all of them (paper)",
    )
    net: str = _field("auto", f"auto, {', '.join(NETS)}, {', '.join(OUTSIDE)}")
    pretrained: str | None = _field(
        None, "start from the weights in a file or, without a name, from the hub's; for timm and torchvision"
    )
    head: str | None = _field(None, "name of the network's last linear layer; without: found by itself")
    epochs: int = _field(30, "epochs in all; warm-up and drops of the rate go along in proportion")
    warmup: int = _field(11, "epochs of warm-up on the given labels")
    batch_size: int = _field(64, "samples in a batch")
    lr: float = _field(0.02, "the classifier's learning rate λ")
    lr_milestones: tuple[int, ...] = _field((10, 20), "epochs at which the rate drops to a tenth")
    momentum: float = _field(0.9, "the classifier's momentum")
    weight_decay: float = _field(1e-4, "the classifier's weight decay")
    order: str = _field(ORDERS[0], "order of the samples: shuffled every epoch, or as given")
    augment: str = _field("none", f"augmentation of the training images: {', '.join(AUGMENTS)}")
    snapshots: int = _field(
        30, "how many epochs have a part in the label table, evenly spread; 0: the selected one alone"
    )
    seed: int = _field(0, "seed of everything random")
    device: str = _field("auto", "auto, cpu, cuda, …")
    dtype: str = _field(
        "float32", "float32, float64, or bf16 (products in bfloat16 while it trains; weights and results in float32)"
    )
    execution: str = _field("auto", "eager, or recorded: compiled and replayed (auto: recorded on CUDA)")

    def __post_init__(self) -> None:
        if self.data not in ("", *DATASETS) and Path(self.data).is_dir() and not self.data.endswith("/"):
            object.__setattr__(self, "data", f"{self.data}/")  # a folder is one by its name, wherever the run is read
        _check(self)
        typed = make_settings(self.method, self.settings)  # "1e-3" and 0.001 are one setting
        object.__setattr__(self, "settings", {name: getattr(typed, name) for name in self.settings})

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of weights and samples."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    def records(self, device: torch.device) -> bool:
        """Whether the steps of this run are recorded and replayed on that device."""
        if self.execution == "auto":
            return device.type == "cuda" and METHODS[self.method].traceable
        return self.execution == "compiled"

    @property
    def schedule(self) -> Schedule:
        """How long and how fast."""
        return Schedule(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Schedule)})

    def read_options(self) -> ReadOptions:
        """How a person's own data is read."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(ReadOptions) if hasattr(self, f.name)}
        their_net = self.net.startswith(("timm:", "torchvision:"))
        return ReadOptions(**own, their_net=their_net, noise_to_come=self.noise != "none")

    @property
    def own_data(self) -> bool:
        """Whether the data is a person's own folder or table."""
        return self.data.endswith("/") or is_sheet(Path(self.data))

    def method_settings(self) -> Any:
        """The method's own settings, typed and complete."""
        return make_settings(self.method, self.settings)


def recipe(data: str, **changes: Any) -> Run:
    """The run for a data set, with fields changed as given.

    With `preset="own"` the settings of the method's own paper come in between. Another number of epochs takes the
    warm-up and the drops of the rate along in proportion, unless they are given too.

    CIFAR has the paper's recipe: 120 epochs with rate 1e-2, 1e-3 from epoch 40 and 1e-4 from epoch 80, 44 of
    them warm-up, batches of 128, flips both ways and crops.
    """
    own: dict[str, Any] = {}
    if data in ("cifar10", "cifar100"):
        own = {**CIFAR10_RECIPE, "warmup": 44, "clean": 5000, "augment": "flip-crop"}
    elif data == "fashion-mnist":
        own = {"clean": 1000, "batch_size": 128, "lr": 1e-2}
    if (
        changes.get("clean_file")
        or changes.get("clean_column")
        or (_brings_clean(data) and changes.get("split") != "paper")
    ):
        own |= {"clean": 0}  # all there are
    if changes.get("preset") == "own" and changes.get("method", Run.method) in METHODS:
        published = METHODS[changes.get("method", Run.method)].own
        own |= published
        changes["settings"] = {**published.get("settings", {}), **changes.get("settings", {})}
    if changes.get("epochs", 0) > 0:
        own |= proportions(changes["epochs"], own)
    return Run(**{"data": data, **own, **changes})


def _brings_clean(data: str) -> bool:
    """Whether the data is an .npz file with a clean set in it."""
    return data not in DATASETS and data.lower().endswith(".npz") and npz.has_clean(Path(data))


def proportions(epochs: int, recipe: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Warm-up and drops of the rate for so many epochs, as a recipe has them, or without one a run's defaults."""
    whole = {name: (recipe or {}).get(name, getattr(Run, name)) for name in ("epochs", "warmup", "lr_milestones")}
    share = epochs / whole["epochs"]
    return {
        "warmup": max(0, min(max(1, round(share * whole["warmup"])), epochs - 1)),
        "lr_milestones": tuple(max(1, round(share * drop)) for drop in whole["lr_milestones"]),
    }


def make_settings(method: str, values: Mapping[str, Any]) -> Any:
    """A method's settings from values by name, each checked against its type.

    Text is read as the type asks for, so that `--set beta=0.01` and `settings={"beta": 0.01}` mean the same.
    """
    kind = METHODS[method].Settings
    types = get_type_hints(kind)
    return kind(**{name: _typed(method, name, value, types) for name, value in values.items()})


def _typed(method: str, name: str, value: Any, types: Mapping[str, Any]) -> Any:
    if name not in types:
        raise unknown(f"setting of {method}", name, types or ["no setting"])
    kind, text = types[name], str(value)
    choices, words = get_args(kind), ()
    if choices and choices[0] is float:  # a number, or a word that stands for one: float | Literal["auto"]
        kind, words, choices = float, get_args(choices[1]), ()
    if choices:
        if text not in choices:
            raise unknown(f"value for {name}", text, choices)
        return text
    if kind is str or text in words:
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise InputError(f"{name}={text}: give true or false")
        return text.lower() == "true"
    try:
        number = kind(text)
    except ValueError:
        raise InputError(f"{name}={text}: give {' or '.join(['a number', *words])}") from None
    if not math.isfinite(number) or number < 0:
        raise InputError(f"{name}={text}: give a number that is 0 or more")
    return number


def _check(run: Run) -> None:
    """Refuse what cannot be run, before anything is read or written."""
    if run.data not in (*DATASETS, IN_MEMORY) and not run.own_data and not run.data.lower().endswith(".npz"):
        raise unknown("data set", run.data, [*DATASETS, f"the path of {PATHS}"])
    for what, name, known in (
        ("method", run.method, METHODS),
        ("split", run.split, SPLITS),
        ("protocol", run.protocol, PROTOCOLS),
        ("preset", run.preset, PRESETS),
        ("network", run.net, (run.net,) if is_outside(run.net) else ("auto", *NETS, *OUTSIDE)),
        ("augmentation", run.augment, AUGMENTS),
        ("order", run.order, ORDERS),
        ("dtype", run.dtype, DTYPES),
        ("execution", run.execution, EXECUTIONS),
        ("way to treat errors", run.on_error, ON_ERROR),
    ):
        if name not in known:
            raise unknown(what, name, known)
    Noise.parse(run.noise)
    _check_own(run)
    if run.execution == "compiled" and not METHODS[run.method].traceable:
        raise InputError(f"the steps of {run.method} cannot be recorded: use --execution eager, or auto")
    _check_numbers(run)


def _check_own(run: Run) -> None:
    """Refuse what goes with a person's own data only, and a network that has no weights to start from."""
    given = [f.name for f in dataclasses.fields(ReadOptions) if getattr(run, f.name, f.default) != f.default]
    given = [
        name for name in given if name != "clean_file" or run.data == IN_MEMORY
    ]  # for all that is read from a file
    if given and not run.own_data:
        name = given[0].replace("_", "-")
        raise InputError(f"--{name} is for a folder of images or a table, and {run.data} is neither: leave it out")
    if run.image_size is not None and not 4 <= run.image_size <= 1024:
        raise InputError(f"image-size {run.image_size} is not from 4 to 1024")
    if run.memory_limit is not None and not (math.isfinite(run.memory_limit) and run.memory_limit >= 0):
        raise InputError(f"memory-limit {run.memory_limit} is not a number of GiB that is 0 or more")
    if run.pretrained is not None and not run.net.startswith(("timm:", "torchvision:")):
        raise InputError(f"pretrained weights are for networks of timm or torchvision, not for {run.net!r}")


def _check_numbers(run: Run) -> None:
    for name, least in (
        ("epochs", 1),
        ("warmup", 0),
        ("batch_size", 2),
        ("clean", 0 if run.clean_file or run.clean_column or run.data.lower().endswith(".npz") else 1),
        ("limit", 0),
        ("unlabeled", 0),
        ("snapshots", 0),
        ("seed", 0),
    ):
        if getattr(run, name) < least:
            raise InputError(f"{name.replace('_', '-')} {getattr(run, name)} is too small: the least is {least}")
    if any(drop < 0 for drop in run.lr_milestones):
        raise InputError(f"lr-milestones {','.join(map(str, run.lr_milestones))}: epochs count from 0")
    if METHODS[run.method].has_warmup and run.warmup >= run.epochs:
        raise InputError(
            f"warmup {run.warmup} leaves nothing of {run.epochs} epochs for {run.method}: give at most {run.epochs - 1}"
        )
    if not (math.isfinite(run.lr) and run.lr > 0):
        raise InputError(f"lr {run.lr} is not a positive number")
    if not 0 <= run.momentum < 1:
        raise InputError(f"momentum {run.momentum} is not in [0, 1)")
    if not (math.isfinite(run.weight_decay) and run.weight_decay >= 0):
        raise InputError(f"weight-decay {run.weight_decay} is not a number that is 0 or more")
