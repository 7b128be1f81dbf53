"""Selection of the runs of an experiment: all, a part, or small versions for a smoke test."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  (the type of a dataclass field)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.methods import METHODS
from metalabelnet.reproduction import photos
from metalabelnet.reproduction.epoch_seconds import epochs_within
from metalabelnet.reproduction.experiment import Experiment, RunSpec
from metalabelnet.reproduction.experiments import EXPERIMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The runs selected from an experiment. None means the experiment's default.

    `epoch_seconds` are the measured seconds per epoch by method; an experiment with equal GPU minutes has no runs of a
    method that was not measured.
    """

    methods: tuple[str, ...] | None = None
    cells: tuple[str, ...] | None = None
    points: tuple[str, ...] | None = None
    seeds: int | None = None
    smoke: bool = False
    epoch_seconds: Mapping[str, float] = field(default_factory=dict)


DEFAULT_SELECTION = Selection()


def run_specs(name: str, selection: Selection) -> list[RunSpec]:
    """The selected runs of an experiment, ordered by seed, so that every cell has a value early."""
    experiment = EXPERIMENTS[name]
    cells = experiment.smoke_cells if selection.smoke else experiment.cells
    selected = {
        "methods": _select(selection.methods, experiment.all_methods, experiment.methods),
        "cells": _select(selection.cells, experiment.all_cells, cells),
        "points": _select(selection.points, experiment.selectable_points, experiment.points, equal=_equal_values),
    }
    if experiment.budgeted and not selection.smoke:
        selected["methods"] = tuple(m for m in selected["methods"] if m in selection.epoch_seconds)
    seeds = selection.seeds or (1 if selection.smoke else experiment.seeds)
    return [
        RunSpec(
            experiment=name,
            method=method,
            cell=cell,
            point=point,
            seed=seed,
            fields=_run_fields(experiment, method, cell, point, seed, selection),
            curves=experiment.curves,
            kind=experiment.kind,
        )
        for seed in range(seeds)
        for method, cell in _by_priority(selected["methods"], selected["cells"])
        for point in selected["points"]
    ]


def _run_fields(
    experiment: Experiment, method: str, cell: str, point: str, seed: int, selection: Selection
) -> dict[str, Any]:
    fields = experiment.make_fields(method, cell, seed, **experiment.vary(point))
    if selection.smoke:
        return photos.smoke_fields(fields) if photos.is_photo_run(fields) else smoke_fields(fields)
    if experiment.budgeted:
        fields["epochs"] = epochs_within(float(point), selection.epoch_seconds[method])
    return fields


def _select(
    requested: Sequence[str] | None,
    available: tuple[str, ...],
    default: tuple[str, ...],
    equal: Callable[[str, str], bool] = str.__eq__,
) -> tuple[str, ...]:
    if requested is None:
        return default
    return tuple(value for value in available if any(equal(value, r) for r in requested))


def _equal_values(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


def _by_priority(methods: tuple[str, ...], cells: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (method, cell) pairs: MetaLabelNet, simple baselines, the others at 40 and 80 % noise; slow MLNT last."""
    simple = ("cross-entropy", "clean-only", "fine-tune")

    def rank(pair: tuple[str, str]) -> int:
        method, cell = pair
        if method in ("metalabelnet", "metalabelnet-plus", *simple):
            return 1 if method in simple else 0
        return (4 if method == "mlnt" else 2) + (not cell.endswith(("0.4", "0.8", "worst")))

    yield from sorted(((method, cell) for method in methods for cell in cells), key=rank)


def smoke_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run scaled down to a fraction of a second: `digits`, an MLP, four epochs."""
    noise, epochs = str(fields["noise"]), 4
    if noise.startswith("cifar10n:"):
        noise = {"aggregate": "uniform:0.1", "random1": "uniform:0.2", "worst": "uniform:0.4"}[noise.rpartition(":")[2]]
    noise = noise.replace("asymmetric:", "class:")  # digits have no similar classes
    settings = {"mlnt": {"synthetic": 2}, "dmlp": {"steps": 20}}.get(fields["method"], {})
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


def check_selection(names: Sequence[str], selection: Selection) -> None:
    """Check the selection before anything is run. A value is valid if one of the experiments has it.

    Raises
    ------
    InputError
        If a value is unknown or nothing is selected.
    """
    for method in selection.methods or ():
        if method.partition(":")[0] not in METHODS:
            raise unknown_name_error("method", method, METHODS)
    if selection.seeds is not None and selection.seeds < 1:
        raise InputError(f"seeds {selection.seeds} is too small: use at least 1")
    for kind, value, available in _unknown_values([EXPERIMENTS[name] for name in names], selection):
        where = ", ".join([*names[:3], *(["…"] if len(names) > 3 else [])])
        raise InputError(f"{where}: {unknown_name_error(kind, value, available)}")
    if not any(EXPERIMENTS[name].budgeted or run_specs(name, selection) for name in names):
        raise InputError(
            f"{', '.join(names)}: no run has these methods, cells and points; see: metalabelnet reproduce --list"
        )


def _unknown_values(experiments: Sequence[Experiment], selection: Selection) -> Iterator[tuple[str, str, set[str]]]:
    """Yield each selected value that no experiment has: its kind, the value, and the available values."""
    for kind, requested, available in (
        ("method", selection.methods, {method for experiment in experiments for method in experiment.all_methods}),
        ("cell", selection.cells, {cell for experiment in experiments for cell in experiment.all_cells}),
        ("point", selection.points, {point or "none" for e in experiments for point in e.selectable_points}),
    ):
        for value in requested or ():
            if not any(_equal_values(one, value) for one in available):
                yield kind, value, available
