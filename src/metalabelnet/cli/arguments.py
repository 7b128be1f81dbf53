"""A run's settings as arguments: the fields of `Run`, read from there."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any, get_type_hints

from metalabelnet.errors import InputError
from metalabelnet.methods import METHODS
from metalabelnet.nets.outside import HUB
from metalabelnet.train import Run, recipe

if TYPE_CHECKING:
    from collections.abc import Callable


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


def add_run_arguments(parser: argparse.ArgumentParser, leave_out: tuple[str, ...] = ()) -> None:
    """An argument for every field of a run. What is not given comes from the data set's recipe."""
    types = get_type_hints(Run)
    for field in dataclasses.fields(Run):
        if field.name in leave_out:
            continue
        text = str(field.metadata["help"]).replace("%", "%%")
        if field.name == "data":
            parser.add_argument("data", metavar="DATA", help=text)
        elif field.name == "settings":
            parser.add_argument(
                "--set",
                dest="settings",
                action="append",
                default=[],
                metavar="NAME=VALUE",
                help=f"one of {text}; repeatable",
            )
        elif field.name == "meta":
            parser.add_argument("--meta", type=_count_or_file, metavar="N|FILE", help=f"{text} (small data: 100)")
        elif field.name == "pretrained":
            parser.add_argument("--pretrained", nargs="?", const=HUB, metavar="FILE", help=text)
        else:
            kind, metavar = KINDS.get(types[field.name], (str, "NAME"))
            shown = "" if field.default in (None, "none", "stop") else f" (small data: {_shown(field.default)})"
            parser.add_argument(
                f"--{field.name.replace('_', '-')}",
                type=kind,
                metavar=metavar,
                help=text + shown,
            )


def run_from(args: argparse.Namespace, **changes: Any) -> Run:
    """The run these arguments ask for."""
    given = {f.name: getattr(args, f.name, None) for f in dataclasses.fields(Run)}
    if isinstance(given["meta"], str):
        given |= {"meta": None, "meta_file": given["meta"]}
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
