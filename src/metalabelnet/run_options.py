"""The settings of a run: name, type, default and help text of each, and the defaults of each data set.

This module imports the standard library only. The command line builds its options from it, so that `--help` does not
import PyTorch; `metalabelnet.train.settings.Run` adds checks and methods to it.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  (evaluated by get_type_hints)
from dataclasses import dataclass, field
from typing import Any

PROTOCOLS = ("default", "paper")
RECIPES = ("modern", "paper", "own")
LR_SCHEDULES = ("milestones", "cosine")
STRONG_AUGMENTATIONS = ("none", "supervised", "consistency")
DTYPES = ("float32", "float64", "bf16")
EXECUTIONS = ("auto", "eager", "compiled")
KERNELS = ("auto", "cudnn", "hopper")
ON_ERROR = ("stop", "skip")
CLEAN_GIVEN = ("keep", "drop")
TEXT_FEATURES = ("auto", "word", "char", "both")
ALL = "all"  # `--clean all`: all samples that are marked as clean, or the clean part of a data set
DATA_FORMATS = ("auto", "benchmark", "folder", "table", "npz", "packed", "memory")
HUB = "hub"  # `--pretrained` without a file: download the weights
PATH_KINDS = (
    "a folder of images, packed images, a folder saved by Hugging Face datasets, or a .csv, .tsv, .parquet or .npz file"
)

# The paper's schedule for CIFAR-10, also used by several of the compared methods' papers.
CIFAR10_SCHEDULE: dict[str, Any] = {
    "epochs": 120,
    "lr": 1e-2,
    "lr_milestones": (40, 80),
    "batch_size": 128,
    "momentum": 0.9,
    "weight_decay": 1e-4,
}
_CIFAR: dict[str, Any] = {"epochs": 120, "batch_size": 128, "clean": 5000, "augment": "flip-crop"}
_PHOTOS: dict[str, Any] = {"epochs": 10, "batch_size": 32, "augment": "flip", "net": "torchvision:resnet50"}
_WEBVISION: dict[str, Any] = {"epochs": 30, "batch_size": 16, "augment": "flip", "net": "timm:inception_resnet_v2"}
# The paper's learning rates on Clothing1M and WebVision.
_PHOTOS_SCHEDULE: dict[str, Any] = {"lr": 1e-3, "lr_milestones": (5,), "warmup": 1, "weight_decay": 1e-4}
_WEBVISION_SCHEDULE: dict[str, Any] = {"lr": 1e-2, "lr_milestones": (12,), "warmup": 14, "weight_decay": 1e-4}

# Where the settings for a data set known by name differ from the defaults of `RunOptions`, whatever the recipe.
DATASET_DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {},
    "fashion-mnist": {"clean": 1000, "batch_size": 128},
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "clothing1m": {**_PHOTOS, "clean": 14_000},
    "food101n": {**_PHOTOS, "clean": 10_000},
    "webvision": {**_WEBVISION, "clean": 20_000},
    "webvision-mini": {**_WEBVISION, "clean": 1_000},
}
IMAGE_BENCHMARKS = ("clothing1m", "food101n", "webvision", "webvision-mini")  # read from image files

# The recipe `modern`: one set of values for all methods and data, chosen without test samples on `fine-tune` and
# `cross-entropy` (docs/results/recipe.md).
MODERN: dict[str, Any] = {
    "lr": 0.05,
    "lr_schedule": "cosine",
    "weight_decay": 2e-3,
    "ema": 0.999,
    "strong_augment": "supervised",
}
MODERN_WARMUP = 3 / 8  # of the epochs
# The recipe `paper`: that of the paper on CIFAR; where the paper has no such data, the defaults of `RunOptions`.
PAPER: dict[str, dict[str, Any]] = {
    "fashion-mnist": {"lr": 1e-2},
    "cifar10": {**CIFAR10_SCHEDULE, "warmup": 44},
    "cifar100": {**CIFAR10_SCHEDULE, "warmup": 44},
    "clothing1m": _PHOTOS_SCHEDULE,
    "food101n": {**_PHOTOS_SCHEDULE, "warmup": 6},
    "webvision": _WEBVISION_SCHEDULE,
    "webvision-mini": _WEBVISION_SCHEDULE,
}


def recipe_defaults(recipe: str, data: str) -> dict[str, Any]:
    """Return the settings of a recipe for a data set, where they differ from the defaults of `RunOptions`."""
    common = DATASET_DEFAULTS.get(data, {})
    if recipe != "modern":
        return {**common, **PAPER.get(data, {})}
    warmup = max(1, round(MODERN_WARMUP * common.get("epochs", RunOptions.epochs)))
    return {**common, **MODERN, "warmup": warmup}


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


# How a network is trained; without effect on a linear layer, which is fitted until it converges.
NETWORK_OPTIONS = (
    *("recipe", "epochs", "warmup", "batch_size", "lr", "lr_schedule", "lr_milestones", "lr_warmup", "momentum"),
    *("weight_decay", "ema", "strong_augment", "strong_weight", "mixup", "label_smoothing", "select_from", "order"),
    *("snapshots", "execution"),
)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """All settings of a run, unchecked. The defaults suit small data; see `DATASET_DEFAULTS` for the others."""

    data: str = _option("digits", f"data set name ({', '.join(DATASET_DEFAULTS)}), or the path of {PATH_KINDS}")
    data_format: str = _option(
        "auto",
        "what DATA is: benchmark, folder, table, npz, packed, memory (arrays); auto: detected when the run is created",
    )
    data_dir: str | None = _option(
        None, "folder with the files of a named data set (default: $METALABELNET_DATA, else ~/.cache/metalabelnet)"
    )
    method: str = _option("metalabelnet-plus", "training method; see `metalabelnet methods`")
    recipe: str = _option(
        "paper",
        "how networks are trained: modern (EMA, strong augmentation, cosine annealing; the same for every method), "
        "paper (the schedule of the MetaLabelNet paper, none of these), own (the schedule and settings of the method's "
        "own paper); the options below change single values",
    )
    settings: Mapping[str, Any] = field(
        default_factory=dict, metadata={"help": "setting of the method; see `metalabelnet methods METHOD`"}
    )
    noise: str = _option("none", "label noise added to the training labels; see `metalabelnet noises`")
    noise_probs: str | None = _option(
        None, "class probabilities (.npy) for feature noise (default: those of a network trained for it)"
    )
    clean: int | str = _option(
        100,
        "clean set: number of samples, all (every sample marked as clean, or the clean part of clothing1m, food101n or "
        "webvision), or a file that lists the samples",
    )
    clean_file: str | None = _option(
        None,
        "same as --clean FILE: a table of ids (for arrays: row numbers from 0) and labels, or a folder of images",
    )
    clean_given: str = _option(
        "keep", "given labels of the clean samples, which show the noise: keep (where they have one), drop"
    )
    clean_column: str | None = _option(None, "column that marks the rows of the clean set")
    annotations: str | None = _option(
        None, "table of labels by several annotators: columns id, annotator, label; an empty label: abstained"
    )
    true_label: str | None = _option(None, "column of true labels, where known (default: detected)")
    label: str | None = _option(None, "column of given labels (default: detected)")
    image: str | None = _option(None, "column of image paths (default: detected)")
    text: str | None = _option(None, "column of texts (default: detected)")
    features: str | None = _option(None, "numeric and categorical columns, separated by commas (default: detected)")
    id: str | None = _option(None, "column of sample ids (default: detected)")
    test: str | None = _option(None, "folder or table with true labels to test on")
    image_size: int | None = _option(None, "side in pixels of the square that images are resized to (default: by size)")
    encoder: str | None = _option(
        None,
        "pretrained encoder whose embeddings are the samples; images: timm:NAME, torchvision:NAME, FILE (ResNet "
        "weights); texts: sentence-transformers:NAME, model2vec:NAME, wordllama (default: pixels; TF-IDF of texts)",
    )
    text_features: str = _option(
        "auto", "terms of TF-IDF: word, char (n-grams of characters), both, auto (both for linear methods, else word)"
    )
    on_error: str = _option("stop", "what to do when a sample cannot be read: stop, skip")
    memory_limit: float | None = _option(
        None, "GiB of memory for samples; more are kept on disk (default: half of the free memory)"
    )
    workers: int | None = _option(
        None, "processes that decode packed images; 0: the training process does it (default: one per core, at most 16)"
    )
    limit: int | None = _option(None, "number of training samples to use, drawn at random (default: all)")
    unlabeled: int = _option(0, "number of training samples whose label is removed")
    split: str = _option(
        "general",
        "general: take the clean set from the data's clean part, else from training samples; paper: from the test part",
    )
    protocol: str = _option(
        "default",
        "default: a fifth of the clean set is held out to select the epoch; paper: all of it trains and selects",
    )
    net: str = _option(
        "auto",
        "network: auto, cnn8, preact-resnet18, resnet34, wide-resnet-28-2, small-cnn, mlp, text-mlp, linear, "
        "timm:NAME, torchvision:NAME, MODULE:FUNCTION",
    )
    pretrained: str | None = _option(
        None, "start from pretrained weights of timm or torchvision: from FILE, or downloaded if no file is named"
    )
    head: str | None = _option(None, "name of the network's last linear layer (default: detected)")
    epochs: int = _option(30, "number of epochs; warm-up and milestones scale with it unless they are given")
    warmup: int = _option(11, "epochs of warm-up on the given labels")
    batch_size: int = _option(64, "batch size")
    lr: float = _option(0.02, "learning rate of the classifier")
    lr_schedule: str = _option("milestones", "how the learning rate falls: milestones, cosine (annealing)")
    lr_milestones: tuple[int, ...] = _option(
        (10, 20), "epochs at which the learning rate drops to a tenth, with the schedule milestones"
    )
    lr_warmup: int = _option(0, "epochs over which the learning rate rises linearly")
    momentum: float = _option(0.9, "momentum of the classifier's SGD")
    weight_decay: float = _option(1e-4, "weight decay of the classifier's SGD")
    order: str = _option("shuffled", "order of the training samples: shuffled (again in every epoch), given")
    ema: float = _option(
        0.0,
        "maximum decay of the exponential moving average (EMA) of the weights, which makes the predictions; 0: none",
    )
    augment: str = _option("none", "augmentation of the training images: none, flip (horizontal), crop, flip-crop")
    strong_augment: str = _option(
        "none",
        "additional loss on strongly augmented images: none, supervised (the method's loss), consistency (with the "
        "prediction for the image itself)",
    )
    strong_weight: float = _option(1.0, "weight of the loss on strongly augmented images")
    mixup: float = _option(0.0, "parameter alpha of MixUp; 0: no MixUp")
    label_smoothing: float = _option(0.0, "share of the uniform distribution in the labels (label smoothing)")
    select_from: float = _option(
        0.0, "fraction of the epochs after which an epoch may be selected as the result; some methods: at least 0.8"
    )
    snapshots: int = _option(
        30, "number of epochs, evenly spaced, whose predictions enter the label table; 0: only the selected epoch"
    )
    seed: int = _option(0, "random seed")
    device: str = _option("auto", "auto, cpu, cuda, cuda:1, …")
    dtype: str = _option("float32", "float32, float64, or bf16 (mixed precision: weights and results stay float32)")
    execution: str = _option("auto", "eager, compiled (CUDA graphs), or auto (compiled on CUDA, else eager)")
    kernels: str = _option("auto", "convolutions: cudnn, hopper (H100 and H200, bf16), or auto (hopper where possible)")
