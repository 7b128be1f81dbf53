"""A run's settings as arguments: the fields of `Run`, read from there."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any, get_type_hints

from metalabelnet.data import DATASETS
from metalabelnet.errors import InputError
from metalabelnet.methods import METHODS
from metalabelnet.nets.external import HUB
from metalabelnet.train import Run, recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers like 40,80") from None


def _count_or_file(text: str) -> int | str:
    """A clean set by its size, or by the file that names it."""
    try:
        return int(text)
    except ValueError:
        return text


KINDS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "N"),
    float: (float, "X"),
    int | None: (int, "N"),
    float | None: (float, "X"),
    tuple[int, ...]: (_numbers, "N,N"),
}
METAVARS = {  # of texts that are no names
    **dict.fromkeys(("clean_column", "true_label", "label", "image", "text", "id"), "COL"),
    **dict.fromkeys(("noise_probs", "clean_file"), "FILE"),
    "data_dir": "DIR",
    "noise": "KIND:RATE",
    "features": "COL,COL",
    "test": "PATH",
}
GROUPS = {
    "the data": ("data_dir", "noise", "noise_probs", "clean", "clean_file", "limit", "unlabeled", "split"),
    "a folder or a table of your own": (
        *("label", "image", "text", "features", "id", "clean_column", "true_label", "test"),
        *("image_size", "encoder", "on_error", "memory_limit"),
    ),
    "the method": ("method", "preset", "settings", "protocol", "snapshots"),
    "the network and how it is trained": (
        *("net", "pretrained", "head", "epochs", "warmup", "batch_size", "lr", "lr_milestones", "momentum"),
        *("weight_decay", "order", "augment", "seed", "device", "dtype", "execution"),
    ),
}


def add_run_arguments(parser: argparse.ArgumentParser, *, several_methods: bool = False) -> None:
    """An argument for every field of a run. What is not given comes from the data set's recipe."""
    types, fields = get_type_hints(Run), {field.name: field for field in dataclasses.fields(Run)}
    recipes = [recipe(data) for data in DATASETS]
    parser.add_argument("data", metavar="DATA", help=fields["data"].metadata["help"])
    for title, names in GROUPS.items():
        add = parser.add_argument_group(title).add_argument
        for name in names:
            text = str(fields[name].metadata["help"]).replace("%", "%%") + _default(name, recipes)
            if name == "method" and several_methods:
                continue
            if name == "settings":
                form = "METHOD.NAME=VALUE" if several_methods else "NAME=VALUE"
                add("--set", dest=name, action="append", default=[], metavar=form, help=f"{text}; repeatable")
            elif name == "clean":
                add("--clean", type=_count_or_file, metavar="N|FILE", help=text)
            elif name == "pretrained":
                add("--pretrained", nargs="?", const=HUB, metavar="FILE", help=text)
            else:
                kind, metavar = KINDS.get(types[name], (str, METAVARS.get(name, "NAME")))
                add(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text)


def _default(name: str, recipes: Sequence[Run]) -> str:
    """What a field is where nobody says it, and for which data sets it is something else."""
    default = getattr(Run, name, None)
    others: dict[str, list[str]] = {}
    for run in recipes:
        if (value := getattr(run, name)) != default:
            others.setdefault(_shown(value), []).append(run.data)
    if default is None or (default in ("none", "stop") and not others):
        return ""
    said = [_shown(default), *(f"{value} for {', '.join(names)}" for value, names in others.items())]
    return f" (default: {'; '.join(said)})"


def run_from(args: argparse.Namespace, **changes: Any) -> Run:
    """The run these arguments ask for."""
    given = {f.name: getattr(args, f.name, None) for f in dataclasses.fields(Run)}
    if isinstance(given["clean"], str):
        given |= {"clean": None, "clean_file": given["clean"]}
    settings = dict(_pair(text) for text in given["settings"] or ())
    # Of several methods each has settings of its own.
    given["settings"] = settings_of(changes["method"], settings) if "methods" in args else settings
    return recipe(**{name: value for name, value in (given | changes).items() if value is not None})


def settings_of(method: str, settings: dict[str, str]) -> dict[str, str]:
    """The settings meant for this method, out of METHOD.NAME=VALUE."""
    for name in settings:
        if name.partition(".")[0] not in METHODS:
            raise InputError(f"--set {name}={settings[name]}: write METHOD.NAME=VALUE, such as metalabelnet.beta=0.001")
    return {name.partition(".")[2]: value for name, value in settings.items() if name.partition(".")[0] == method}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text}: write NAME=VALUE")
    return name, value


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
