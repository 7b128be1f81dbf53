"""`metalabelnet methods`, `datasets` and `noises`: list the names to choose from."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, get_args, get_type_hints

from metalabelnet.cli.console import Console
from metalabelnet.data import DATASETS, data_folder
from metalabelnet.data.benchmarks.download import FOLDER_VARIABLE
from metalabelnet.errors import unknown_name_error
from metalabelnet.methods import METHODS
from metalabelnet.noise import NOISE_KINDS

if TYPE_CHECKING:
    import argparse

    from metalabelnet.methods import Method


def methods(args: argparse.Namespace) -> None:
    """List the methods, or the settings of one."""
    console = Console()
    if args.name is None:
        rows = [
            [name, m.traits.summary, "used" if m.traits.uses_unlabeled else "ignored", m.traits.reference]
            for name, m in METHODS.items()
        ]
        console.table(["method", "description", "unlabeled samples", "reference"], rows)
        return
    if args.name not in METHODS:
        raise unknown_name_error("method", args.name, METHODS)
    method = METHODS[args.name]
    console.print(f"{args.name}: {method.traits.summary} ({method.traits.reference})")
    fields = dataclasses.fields(method.Settings)
    rows = [
        [field.name, str(field.default), str(field.metadata["help"]) + _choices(method, field.name)] for field in fields
    ]
    console.table(["--set NAME=VALUE", "default", "description"], rows or [["–", "–", "no settings"]])


def _choices(method: type[Method], name: str) -> str:
    """Return the names a setting can be, in parentheses; empty if it is not a choice of names."""
    words = [word for word in get_args(get_type_hints(method.Settings)[name]) if isinstance(word, str)]
    return f" ({', '.join(words)})" if words else ""


def datasets(args: argparse.Namespace) -> None:
    """List the data sets, or where to get one and how its folder must look."""
    console = Console()
    if args.name is None:
        rows = [[name, data.summary, data.reference] for name, data in DATASETS.items()]
        console.table(["data set", "description", "reference"], rows)
        return
    if args.name not in DATASETS:
        raise unknown_name_error("data set", args.name, DATASETS)
    data = DATASETS[args.name]
    console.print(f"{args.name}: {data.summary} ({data.reference})")
    console.print(f"Source: {data.source}")
    console.print(f"Files, in the folder of --data-dir or ${FOLDER_VARIABLE} (now {data_folder()}):")
    for line in data.layout.strip("\n").splitlines():
        console.print(line)


def noises(_args: argparse.Namespace) -> None:
    """List the kinds of noise."""
    rows = [[kind.usage, kind.summary, kind.reference] for kind in NOISE_KINDS.values()]
    Console().table(["noise", "description", "reference"], rows)
