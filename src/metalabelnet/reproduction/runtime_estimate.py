"""Estimates of the runtime of a run, from the runs that finished."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from metalabelnet.methods import METHODS
from metalabelnet.reproduction.results import stored_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from metalabelnet.reproduction.experiment import RunSpec
    from metalabelnet.reproduction.results import ResultLine

MAX_SIMILAR_RUNS = 8  # the most recent ones


def relative_cost(settings: Mapping[str, Any]) -> float:
    """The cost of a run in epochs of cross-entropy."""
    return float(settings["epochs"]) * METHODS[settings["method"]].traits.relative_cost


class RuntimeEstimator:
    """Estimates the seconds of a run on this device.

    It uses the median of similar runs on this device; without any, the relative cost times the median seconds per unit
    of cost on the same data.
    """

    def __init__(self, lines: Iterable[ResultLine], device: str) -> None:
        self.device = device
        self._similar: dict[tuple[Any, ...], list[float]] = {}
        self._seconds_per_cost: dict[str, list[float]] = {}
        for line in lines:
            self.add(line)

    def add(self, line: ResultLine) -> None:
        """Take a finished run into account."""
        if not line.get("summary") or line["versions"].get("device") != self.device or line.get("kind", "run") != "run":
            return
        seconds = line["summary"]["seconds"] / line.get("concurrent", 1)
        settings = line["settings"]
        self._similar.setdefault(_similarity_key(settings), []).append(seconds)
        self._seconds_per_cost.setdefault(settings["data"], []).append(seconds / relative_cost(settings))

    def seconds(self, spec: RunSpec) -> float | None:
        """The estimate, or None if nothing comparable was run on this device."""
        settings = stored_settings(spec)
        if similar := self._similar.get(_similarity_key(settings)):
            return statistics.median(similar[-MAX_SIMILAR_RUNS:])
        if rates := self._seconds_per_cost.get(settings["data"]):
            return statistics.median(rates) * relative_cost(settings)
        return None


def _similarity_key(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(settings[name] for name in ("data", "method", "epochs", "batch_size", "net"))
