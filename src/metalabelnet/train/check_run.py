"""Checks of a run's settings, before anything is read or written."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from metalabelnet.data import ReadOptions
from metalabelnet.data.augment import AUGMENTATIONS
from metalabelnet.data.batches import SAMPLE_ORDERS
from metalabelnet.data.splits import SPLITS
from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.methods import METHODS
from metalabelnet.nets import NETS
from metalabelnet.nets.external import EXTERNAL_FORMS, is_external
from metalabelnet.noise import Noise
from metalabelnet.run_options import (
    ALL,
    CLEAN_GIVEN,
    DATA_FORMATS,
    DTYPES,
    EXECUTIONS,
    IMAGE_BENCHMARKS,
    KERNELS,
    LR_SCHEDULES,
    ON_ERROR,
    PROTOCOLS,
    RECIPES,
    STRONG_AUGMENTATIONS,
    TEXT_FEATURES,
)

if TYPE_CHECKING:
    from metalabelnet.train.settings import Run

MAX_EPOCHS, MAX_SAMPLES, MAX_SEED, MAX_WORKERS = 10**6, 10**12, 2**63 - 1, 1024
# Of numbers that are 0 or more. Beyond them, training cannot converge or a product overflows.
MAXIMA = {"memory_limit": 1e9, "weight_decay": 1.0, "strong_weight": 1e3, "mixup": 1e3}


def check_run(run: Run) -> None:
    """Raise InputError for settings that cannot be run, before anything is read or written."""
    for what, name, allowed in (
        ("data format", run.data_format, DATA_FORMATS),
        ("method", run.method, METHODS),
        ("split", run.split, SPLITS),
        ("protocol", run.protocol, PROTOCOLS),
        ("value for clean-given", run.clean_given, CLEAN_GIVEN),
        ("recipe", run.recipe, RECIPES),
        ("learning rate schedule", run.lr_schedule, LR_SCHEDULES),
        ("strong augmentation", run.strong_augment, STRONG_AUGMENTATIONS),
        ("network", run.net, (run.net,) if is_external(run.net) else ("auto", *NETS, *EXTERNAL_FORMS)),
        ("augmentation", run.augment, AUGMENTATIONS),
        ("order", run.order, SAMPLE_ORDERS),
        ("dtype", run.dtype, DTYPES),
        ("execution", run.execution, EXECUTIONS),
        ("value for kernels", run.kernels, KERNELS),
        ("value for on-error", run.on_error, ON_ERROR),
        ("value for text-features", run.text_features, TEXT_FEATURES),
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
    if run.workers is not None and run.data_format != "packed" and run.data not in IMAGE_BENCHMARKS:
        raise InputError(f"--workers is for packed images, and {run.data} is not packed: leave it out")
    allowed = _read_options_of(run)
    names = [f.name for f in dataclasses.fields(ReadOptions) if getattr(run, f.name, f.default) != f.default]
    for name in [] if run.data_format in ("folder", "table") else names:
        if name not in allowed:
            option = name.replace("_", "-")
            raise InputError(
                f"--{option} is for a folder of images or a table, and {run.data} is neither: leave it out"
            )
    if run.annotations is not None and (run.noise != "none" or run.unlabeled):
        option = f"noise {run.noise}" if run.noise != "none" else f"unlabeled {run.unlabeled}"
        raise InputError(f"{option} changes given labels, not those of --annotations {run.annotations}: leave one out")
    if run.image_size is not None and not 4 <= run.image_size <= 1024:
        raise InputError(f"image-size {run.image_size} is out of range: choose from 4 to 1024")
    if run.pretrained is not None and not run.net.startswith(("timm:", "torchvision:")):
        raise InputError(f"pretrained weights are for networks of timm or torchvision, not for {run.net!r}")


def _read_options_of(run: Run) -> set[str]:
    """Return the options of folders and tables that other data has, too."""
    allowed = {"split"} | (set() if run.data_format == "memory" else {"clean_file", "encoder"})
    allowed |= {"image_size", "on_error", "memory_limit", "workers"} if run.data in IMAGE_BENCHMARKS else set()
    return allowed | {"npz": {"annotations"}, "packed": {"image_size", "workers"}}.get(run.data_format, set())


def _check_counts(run: Run) -> None:
    """Check that whole numbers are in their range. The maxima prevent overflow; no real run comes near them."""
    for name, minimum, maximum in (
        ("epochs", 1, MAX_EPOCHS),
        ("warmup", 0, MAX_EPOCHS),
        ("lr_warmup", 0, MAX_EPOCHS),
        ("batch_size", 2, MAX_SAMPLES),
        ("clean_size", 1, MAX_SAMPLES),
        ("limit", 2, MAX_SAMPLES),
        ("unlabeled", 0, MAX_SAMPLES),
        ("snapshots", 0, MAX_EPOCHS),
        ("workers", 0, MAX_WORKERS),
        ("seed", 0, MAX_SEED),
    ):
        value = getattr(run, name)
        option = name.removesuffix("_size") if name == "clean_size" else name.replace("_", "-")
        if value is not None and value < minimum:
            raise InputError(f"{option} {value} is too small: the minimum is {minimum}")
        if value is not None and value > maximum:
            raise InputError(f"{option} {value} is too large: the maximum is {maximum}")


def _check_numbers(run: Run) -> None:
    if run.clean != ALL and not isinstance(run.clean, int):
        raise InputError(f"clean {run.clean!r} is not valid: give a number of samples, or {ALL}")
    _check_counts(run)
    marks_clean = run.clean_file or run.clean_column or run.data_format in ("npz", "packed")
    if run.clean == ALL and not (marks_clean or run.data in IMAGE_BENCHMARKS):
        raise InputError(f"clean {ALL}: {run.data} marks no samples as clean; give a number, or a file that lists them")
    for epoch in run.lr_milestones:
        if not 0 <= epoch <= MAX_EPOCHS:
            raise InputError(f"lr-milestones {str(epoch)[:40]} is out of range: choose from 0 to {MAX_EPOCHS}")
    if METHODS[run.method].traits.has_warmup and run.warmup >= run.epochs:
        epochs = f"{run.epochs} epoch{'' if run.epochs == 1 else 's'}"
        raise InputError(
            f"warmup {run.warmup} is too large for {epochs} of {run.method}: the maximum is {run.epochs - 1}"
        )
    _check_recipe(run)


def _check_recipe(run: Run) -> None:
    if not (math.isfinite(run.lr) and run.lr > 0):
        raise InputError(f"lr {run.lr} is out of range: give a number above 0")
    if not 0 <= run.momentum < 1:
        raise InputError(f"momentum {run.momentum} is out of range: give a number from 0 to below 1")
    for name, maximum in MAXIMA.items():
        value = getattr(run, name)
        if value is not None and not 0 <= value <= maximum:
            unit = " GiB" if name == "memory_limit" else ""
            raise InputError(f"{name.replace('_', '-')} {value} is out of range: choose from 0 to {maximum:g}{unit}")
    for name in ("ema", "label_smoothing", "select_from"):
        if not 0 <= getattr(run, name) < 1:
            option, value = name.replace("_", "-"), getattr(run, name)
            raise InputError(f"{option} {value} is out of range: give a number from 0 to below 1")
