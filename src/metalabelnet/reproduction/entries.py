"""Which runs are meant: all of a table or figure, a part of them, or the same in small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metalabelnet.errors import InputError, unknown
from metalabelnet.methods import METHODS
from metalabelnet.reproduction.recipes import WHATS, Entry, What

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which runs of a table or figure are meant. None: as it is by itself."""

    methods: tuple[str, ...] | None = None
    cells: tuple[str, ...] | None = None
    points: tuple[str, ...] | None = None
    seeds: int | None = None
    smoke: bool = False


BY_ITSELF = Selection()


def entries(name: str, selection: Selection) -> list[Entry]:
    """The runs of a table or figure that are meant, seed by seed, so that a start gives one value everywhere."""
    what = WHATS[name]
    cells = what.smoke_cells if selection.smoke else what.cells
    chosen = {
        "methods": _chosen(selection.methods, what.all_methods, what.methods),
        "cells": _chosen(selection.cells, what.all_cells, cells),
        "points": _chosen(selection.points, what.points, what.points, same=_same_number),
    }
    seeds = selection.seeds or (1 if selection.smoke else what.seeds)
    return [
        Entry(
            what=name,
            method=method,
            cell=cell,
            point=point,
            seed=seed,
            fields=_fields(what, method, cell, point, seed, smoke=selection.smoke),
            curves=what.curves,
            kind=what.kind,
        )
        for seed in range(seeds)
        for method, cell in _in_order(chosen["methods"], chosen["cells"])
        for point in chosen["points"]
    ]


def _fields(what: What, method: str, cell: str, point: str, seed: int, *, smoke: bool) -> dict[str, Any]:
    fields = what.make(method, cell, seed, **what.vary(point))
    return small(fields) if smoke else fields


def _chosen(
    asked: Sequence[str] | None,
    there: tuple[str, ...],
    default: tuple[str, ...],
    same: Callable[[str, str], bool] = str.__eq__,
) -> tuple[str, ...]:
    if asked is None:
        return default
    return tuple(one for one in there if any(same(one, a) for a in asked))


def _same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


def _in_order(methods: tuple[str, ...], cells: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """What matters most first: the method itself, the plain baselines, the others at 40 and 80 %, MLNT last."""
    plain = ("cross-entropy", "clean-only", "fine-tune")

    def rank(pair: tuple[str, str]) -> int:
        method, cell = pair
        if method in ("metalabelnet", "metalabelnet-plus", *plain):
            return 1 if method in plain else 0
        return (4 if method == "mlnt" else 2) + (not cell.endswith(("0.4", "0.8", "worst")))

    yield from sorted(((method, cell) for method in methods for cell in cells), key=rank)


def small(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same run in a fraction of a second: `digits`, an MLP, four epochs, everything else in proportion."""
    noise, epochs = str(fields["noise"]), 4
    if noise.startswith("file:"):
        noise = {"aggregate": "uniform:0.1", "random1": "uniform:0.2", "worst": "uniform:0.4"}[noise.rpartition("-")[2]]
    settings = {"synthetic": 2} if fields["method"] == "mlnt" else {}
    return {
        "data": "digits",
        "method": fields["method"],
        "noise": noise,
        "split": "general",
        "protocol": fields["protocol"],
        "net": "mlp",
        "clean": max(20, fields.get("clean", 5000) // 25),
        "unlabeled": fields.get("unlabeled", 0) // 50,
        "epochs": epochs,
        "warmup": min(epochs - 1, max(1, round(epochs * fields.get("warmup", 44) / 120))),
        "batch_size": 128,
        "lr_milestones": (2, 3),
        "seed": fields["seed"],
        "settings": {**settings, **fields.get("settings", {})},
    }


def check(names: Sequence[str], selection: Selection) -> None:
    """Refuse what does not exist before anything is run; what one of several has is there for all."""
    for method in selection.methods or ():
        if method not in METHODS:
            raise unknown("method", method, METHODS)
    if selection.seeds is not None and selection.seeds < 1:
        raise InputError(f"seeds {selection.seeds} is too small: the least is 1")
    for kind, value, there in _not_there([WHATS[name] for name in names], selection):
        where = ", ".join([*names[:3], *(["…"] if len(names) > 3 else [])])
        raise InputError(f"{where}: {unknown(kind, value, there)}")
    if not any(entries(name, selection) for name in names):
        raise InputError(
            f"{', '.join(names)}: no run has these methods, cells and points; see metalabelnet reproduce --list"
        )


def _not_there(whats: Sequence[What], selection: Selection) -> Iterator[tuple[str, str, set[str]]]:
    """What is asked for and none of these has: its kind, itself, and what they have."""
    for kind, asked, there in (
        ("method", selection.methods, {method for what in whats for method in what.all_methods}),
        ("cell", selection.cells, {cell for what in whats for cell in what.all_cells}),
        ("point", selection.points, {point or "none" for what in whats for point in what.points}),
    ):
        for value in asked or ():
            if not any(_same_number(one, value) for one in there):
                yield kind, value, there
