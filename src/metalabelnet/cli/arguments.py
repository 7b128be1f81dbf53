"""The settings of a run as command-line options, generated from the fields of `RunOptions`."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any, get_type_hints

from metalabelnet.run_options import DATASET_DEFAULTS, HUB, RunOptions, recipe_defaults

if TYPE_CHECKING:
    from collections.abc import Callable


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of integers such as 40,80") from None


def _count_or_name(text: str) -> int | str:
    """Parse the size of the clean set, or return the text: `all`, or the file that lists it."""
    try:
        return int(text)
    except ValueError:
        return text


# Parser and placeholder of the option, by the type of the field.
OPTION_TYPES: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "N"),
    float: (float, "X"),
    int | None: (int, "N"),
    float | None: (float, "X"),
    tuple[int, ...]: (_integers, "N,N"),
}
METAVARS = {  # placeholders of text options; the others have NAME
    **dict.fromkeys(("clean_column", "true_label", "label", "image", "text", "id"), "COL"),
    **dict.fromkeys(("noise_probs", "clean_file", "annotations"), "FILE"),
    "data_dir": "DIR",
    "noise": "KIND:RATE",
    "features": "COL,COL",
    "test": "PATH",
}
OPTION_GROUPS = {
    "data": ("data_dir", "noise", "noise_probs", "clean", "clean_file", "clean_given", "limit", "unlabeled", "split"),
    "your own folder of images or table": (
        *("label", "image", "text", "features", "id", "clean_column", "true_label", "annotations", "test"),
        *("image_size", "encoder", "text_features", "on_error", "memory_limit", "workers"),
    ),
    "method": ("method", "settings", "protocol", "snapshots"),
    "network and training": (
        *("net", "pretrained", "head", "recipe", "epochs", "warmup", "batch_size", "lr", "lr_schedule"),
        *("lr_milestones", "lr_warmup", "momentum", "weight_decay", "ema", "augment", "strong_augment"),
        *("strong_weight", "mixup", "label_smoothing", "select_from", "order", "seed", "device", "dtype"),
        *("execution", "kernels"),
    ),
}


def add_run_arguments(parser: argparse.ArgumentParser, *, several_methods: bool = False) -> None:
    """Add an option for every setting of a run. An option that is not given takes the default of the data set."""
    types, fields = get_type_hints(RunOptions), {field.name: field for field in dataclasses.fields(RunOptions)}
    parser.add_argument("data", metavar="DATA", help=fields["data"].metadata["help"])
    for title, names in OPTION_GROUPS.items():
        add = parser.add_argument_group(title).add_argument
        for name in names:
            text = str(fields[name].metadata["help"]).replace("%", "%%") + _default_text(name)
            if name == "method" and several_methods:
                continue
            if name == "settings":
                metavar = "METHOD.NAME=VALUE" if several_methods else "NAME=VALUE"
                add("--set", dest=name, action="append", default=[], metavar=metavar, help=f"{text}; repeatable")
            elif name == "clean":
                add("--clean", type=_count_or_name, metavar="N|all|FILE", help=text)
            elif name == "pretrained":
                add("--pretrained", nargs="?", const=HUB, metavar="FILE", help=text)
            else:
                parse, metavar = OPTION_TYPES.get(types[name], (str, METAVARS.get(name, "NAME")))
                add(f"--{name.replace('_', '-')}", type=parse, metavar=metavar, help=text)


def _default_text(name: str) -> str:
    """Return ` (default: …)` for a setting, with the data sets whose default differs."""
    default = {"recipe": "modern", **recipe_defaults("modern", "")}.get(name, getattr(RunOptions, name, None))
    exceptions: dict[str, list[str]] = {}
    for dataset in DATASET_DEFAULTS:
        values = recipe_defaults("modern", dataset)
        if name in values and values[name] != default:
            exceptions.setdefault(_format_value(values[name]), []).append(dataset)
    if default is None or (default == "none" and not exceptions):
        return ""
    parts = [_format_value(default), *(f"{value} for {', '.join(names)}" for value, names in exceptions.items())]
    return f" (default: {'; '.join(parts)})"


def _format_value(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
