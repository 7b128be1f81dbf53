"""How long a run will take, guessed from those that were run."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from metalabelnet.reproduction.results import settings_of
from metalabelnet.train.cost_estimate import COST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from metalabelnet.reproduction.recipes import Entry
    from metalabelnet.reproduction.result_lines import Line


def effort(settings: Mapping[str, Any]) -> float:
    """The size of a run in epochs of cross-entropy."""
    return float(settings["epochs"]) * COST.get(settings["method"], 1.0)


class Estimate:
    """Seconds of a run on this machine: as the same method took here, else by its effort, else unknown."""

    def __init__(self, lines: Iterable[Line], device: str) -> None:
        self.device = device
        self._same: dict[tuple[Any, ...], list[float]] = {}
        self._rates: dict[str, list[float]] = {}
        for line in lines:
            self.learn(line)

    def learn(self, line: Line) -> None:
        """Take a finished run into account."""
        if not line.get("summary") or line["versions"].get("device") != self.device or line.get("kind", "run") != "run":
            return
        seconds = line["summary"]["seconds"] / line.get("concurrent", 1)
        settings = line["settings"]
        self._same.setdefault(_alike(settings), []).append(seconds)
        self._rates.setdefault(settings["data"], []).append(seconds / effort(settings))

    def seconds(self, entry: Entry) -> float | None:
        """The guess; None where nothing like it has been run here."""
        settings = settings_of(entry)
        if same := self._same.get(_alike(settings)):
            return statistics.median(same[-8:])
        if lr_schedule := self._rates.get(settings["data"]):
            return statistics.median(lr_schedule) * effort(settings)
        return None


def _alike(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(settings[name] for name in ("data", "method", "epochs", "batch_size", "net"))
