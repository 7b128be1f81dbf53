"""The settings of a run, and their values for each data set and recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping  # noqa: TC003  (evaluated by get_type_hints)
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from metalabelnet.data import DATASETS, ReadOptions
from metalabelnet.data.datasets import unknown_data_error
from metalabelnet.data.files import npz
from metalabelnet.data.files.arrow_file import is_saved_dataset
from metalabelnet.data.files.table_file import is_table_file
from metalabelnet.data.packed.index import has_clean_set, is_pack
from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.methods import LINEAR_METHODS, METHODS, Recipe
from metalabelnet.run_options import (
    ALL,
    RECIPES,
    RunOptions,
    recipe_defaults,
)
from metalabelnet.train.check_run import MAX_EPOCHS, check_run
from metalabelnet.train.option_types import convert_options

IN_MEMORY = "in memory"  # `Run.data` of data passed as arrays or as a data set; its `data_format` is "memory"
MAX_SETTING = 10**9  # of a method; beyond it, products overflow in float32


@dataclass(frozen=True, kw_only=True)
class Run(RunOptions):
    """All settings of a run, checked. `make_run` returns the run with the defaults of a data set and a recipe.

    Paths may be `pathlib.Path`, numbers may be NumPy scalars, and `lr_milestones` may be a list.

    Parameters
    ----------
    data : str, default "digits"
        Name of a data set (a key of `metalabelnet.data.DATASETS`), or path of a folder of images, a table (.csv, .tsv,
        .parquet) or an .npz file.
    data_format : {"auto", "benchmark", "folder", "table", "npz", "packed", "memory"}, default "auto"
        What `data` is. "auto" is replaced by one of the others when the run is created.
    data_dir : str, optional
        Folder with the files of a named data set. Default: $METALABELNET_DATA, else ~/.cache/metalabelnet.
    method : str, default "metalabelnet-plus"
        Training method, a key of `metalabelnet.methods.METHODS`.
    recipe : {"modern", "paper", "own"}, default "paper"
        Name of the recipe that the values of the training come from; see `make_run`.
    settings : mapping, optional
        Settings of the method by name. Values may be text.
    noise : str, default "none"
        Label noise added to the training labels, such as "uniform:0.4".
    noise_probs : str, optional
        Path of class probabilities (.npy) for feature-dependent noise. Default: those of a network trained for it,
        which are stored in `noise-probes` of the data folder for later runs.
    clean : int or "all", default 100
        Size of the clean set, or all samples that are marked as clean (clothing1m, food101n, webvision: clean part).
    clean_file : str, optional
        Table of ids and labels, or folder of images, that lists the clean set.
    clean_given : {"keep", "drop"}, default "keep"
        Whether clean samples keep their given label, which shows the noise.
    annotations : str, optional
        Table of labels by several annotators, with columns id, annotator and label. Samples without a given label get
        the majority vote; metalabelnet-plus on tables and texts uses every annotation.
    clean_column, true_label, label, image, text, features, id : str, optional
        Column names of a table. Default: detected.
    test : str, optional
        Folder or table with true labels to test on.
    image_size : int, optional
        Side in pixels of the square that images are resized to. Default: from the sizes of the images.
    encoder : str, optional
        Pretrained encoder whose embeddings are the samples. Images: "timm:NAME", "torchvision:NAME" or a file of ResNet
        weights. Texts: "sentence-transformers:NAME", "model2vec:NAME" or "wordllama". Default: pixels; TF-IDF of texts.
    text_features : {"auto", "word", "char", "both"}, default "auto"
        Terms of TF-IDF: words and word pairs, character n-grams, or both. "auto": both for methods that are fitted to
        fixed features, else words.
    on_error : {"stop", "skip"}, default "stop"
        What to do when a sample cannot be read.
    memory_limit : float, optional
        GiB of memory for samples; more are kept on disk. Default: half of the free memory.
    workers : int, optional
        Processes that decode packed images. They do not change the result. 0: none. Default: one per core, at
        most 16; runs at the same time share the cores.
    limit : int, optional
        Number of training samples to use, drawn at random. Default: all.
    unlabeled : int, default 0
        Number of training samples whose label is removed.
    split : {"general", "paper"}, default "general"
        Source of the clean set: the data's clean part, else training samples; or the test part, as in the paper.
    protocol : {"default", "paper"}, default "default"
        Clean samples that select the epoch: a held-out fifth, or all of them.
    net : str, default "auto"
        Network: auto, cnn8, preact-resnet18, resnet34, wide-resnet-28-2, small-cnn, mlp, text-mlp, linear,
        timm:NAME, torchvision:NAME, MODULE:FUNCTION.
    pretrained : str, optional
        Weights file to start from, or "hub" to download them (timm and torchvision only).
    head : str, optional
        Name of the network's last linear layer. Default: detected.
    epochs, warmup, batch_size : int, default 30, 11, 64
        Number of epochs, epochs of warm-up on the given labels, and batch size.
    lr, momentum, weight_decay : float, default 0.02, 0.9, 1e-4
        Learning rate, momentum and weight decay of the classifier's SGD.
    lr_schedule : {"milestones", "cosine"}, default "milestones"
        How the learning rate falls.
    lr_milestones : tuple of int, default (10, 20)
        Epochs at which the learning rate drops to a tenth, with the schedule "milestones".
    lr_warmup : int, default 0
        Epochs over which the learning rate rises linearly.
    ema : float, default 0
        Maximum decay of the exponential moving average of the weights that predicts. 0: none.
    strong_augment : {"none", "supervised", "consistency"}, default "none"
        Additional loss on strongly augmented images: the method's loss, or the cross-entropy with the prediction for
        the image itself.
    strong_weight : float, default 1
        Weight of that loss.
    mixup : float, default 0
        Parameter α of MixUp. 0: no MixUp.
    label_smoothing : float, default 0
        Share of the uniform distribution in the labels.
    select_from : float, default 0
        Fraction of the epochs after which an epoch may be selected as the result.
    order : {"shuffled", "given"}, default "shuffled"
        Order of the training samples.
    augment : str, default "none"
        Augmentation of the training images: none, flip, crop, flip-crop.
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
        If a value is of another type, or not allowed.

    Examples
    --------
    >>> from metalabelnet.train import Run
    >>> run = Run(data="digits", noise="uniform:0.4", epochs=10, warmup=3)
    >>> run.data_format, run.clean
    ('benchmark', 100)
    """

    def __post_init__(self) -> None:
        for name, value in convert_options({f.name: getattr(self, f.name) for f in dataclasses.fields(self)}).items():
            object.__setattr__(self, name, value)
        if self.data_format == "auto":
            object.__setattr__(self, "data_format", find_data_format(self.data))
        check_run(self)
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

    def make_recipe(self) -> Recipe:
        """Return how the networks are trained."""
        return Recipe(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Recipe)})

    @property
    def clean_size(self) -> int | None:
        """The number of clean samples; None: all that are marked as clean."""
        return self.clean if isinstance(self.clean, int) else None

    @property
    def is_folder_or_table(self) -> bool:
        """Whether the data is a folder of images, packed images or a table, rather than arrays."""
        return self.data_format in ("folder", "packed", "table")

    def read_options(self) -> ReadOptions:
        """Return how a folder or table is read."""
        return dataclasses.replace(ReadOptions.of_run(self), sparse_text=self.is_linear)

    @property
    def is_linear(self) -> bool:
        """Whether tables and texts are classified by a linear layer that is fitted, not trained."""
        return self.net in ("auto", "linear") and self.method in LINEAR_METHODS

    def method_settings(self) -> Any:
        """Return the settings of the method, typed and with defaults filled in."""
        return make_settings(self.method, self.settings)


def make_run(data: str | Path, *, recipe: str = "modern", **changes: Any) -> Run:
    """Return the run for a data set with the values of a recipe, with fields changed.

    Parameters
    ----------
    data : str or Path
        Name of a data set, or path of a folder, table or .npz file.
    recipe : {"modern", "paper", "own"}, default "modern"
        How the networks are trained. modern: one set of values for all methods and data (EMA, strong augmentation,
        cosine annealing). paper: the paper's schedule on CIFAR and a similar one on other data. own: the schedule and
        settings of the method's own paper.
    **changes
        Fields of `Run`. If `epochs` is given, `warmup` and `lr_milestones` scale with it unless they are given, too.
        Where the data marks a clean set, `clean` is "all" unless it is given.

    Returns
    -------
    Run
        The settings.

    Raises
    ------
    InputError
        If there is no such setting, or a value is of another type or not allowed.

    Examples
    --------
    >>> from metalabelnet.train import make_run
    >>> run = make_run("cifar10", recipe="paper", noise="uniform:0.4", epochs=60)
    >>> run.warmup, run.lr_milestones, run.batch_size
    (22, (20, 40), 128)
    """
    changes = convert_options({"data": data, "recipe": recipe, **changes})
    source = changes["data"]
    if changes["recipe"] not in RECIPES:
        raise unknown_name_error("recipe", changes["recipe"], RECIPES)
    defaults = recipe_defaults(recipe, source)
    if (
        changes.get("clean_file")
        or changes.get("clean_column")
        or (_is_npz_with_clean_set(source) and changes.get("split") != "paper")
        or (source not in DATASETS and has_clean_set(Path(source)))
    ):
        defaults |= {"clean": ALL}
    if changes.get("encoder"):  # embeddings are neither augmented nor classified by a network for images
        defaults |= {"augment": "none", "net": "auto"}
    if recipe == "own" and changes.get("method", Run.method) in METHODS:
        published = METHODS[changes.get("method", Run.method)].traits.own_recipe
        defaults |= published
        changes["settings"] = {**published.get("settings", {}), **changes.get("settings", {})}
    if 0 < changes.get("epochs", 0) <= MAX_EPOCHS:
        defaults |= scale_schedule(changes["epochs"], defaults)
    return Run(**{**defaults, **changes})


def find_data_format(data: str) -> str:
    """Return what `data` is: benchmark, packed, folder, table or npz."""
    path = Path(data)
    if data in DATASETS:
        return "benchmark"
    if data and is_pack(path):
        return "packed"
    if data and (path.is_dir() or data.endswith("/")) and not is_saved_dataset(path):
        return "folder"
    if is_table_file(path):
        return "table"
    if path.suffix.lower() == ".npz":
        return "npz"
    raise unknown_data_error(data)


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
        raise unknown_name_error(f"setting of {method}", str(name), types)
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
            raise InputError(f"{name}={text[:40]}: choose from true, false")
        return text.lower() == "true"
    try:
        number = kind(text)
    except ValueError:
        expected = "an integer" if kind is int else "a number"
        raise InputError(f"{name}={text[:40]}: give {' or '.join([expected, *words])}") from None
    if not 0 <= number <= MAX_SETTING:
        raise InputError(f"{name}={text[:40]}: give a number that is 0 or more, at most {MAX_SETTING:g}")
    return number
