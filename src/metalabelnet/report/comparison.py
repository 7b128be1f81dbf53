"""Several runs beside each other; those that differ by their seed alone are one row."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metalabelnet.report.curves import COLORS, Series, chart, series
from metalabelnet.report.markup import Html, cut, join, named, table, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metalabelnet.report.source import FinishedRun

SHOWN = {
    "test accuracy, %": "test_accuracy",
    "last epoch, %": "test_accuracy_last",
    "macro-F1, %": "macro_f1",
    "calibration error, %": "ece_calibrated",
    "clean accuracy, %": "clean_accuracy",
    "right labels, %": "right_after",
    "precision of suspicion": "suspicion_ap",
}
SHORT = 50  # characters of a row's name beside a line
ALWAYS = ("method", "data", "noise")  # what a row is called by, where it differs


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that differ by their seed alone."""

    settings: dict[str, Any]
    runs: tuple[FinishedRun, ...]

    def values(self, key: str) -> list[float]:
        """What the summaries say, where they do."""
        return [float(run.summary[key]) for run in self.runs if run.summary.get(key) is not None]


def groups(runs: Sequence[FinishedRun]) -> list[Group]:
    """The runs by all settings but the seed, in the order they come."""
    by_key: dict[str, list[FinishedRun]] = {}
    for run in runs:
        by_key.setdefault(json.dumps(_but_seed(run), sort_keys=True), []).append(run)
    return [Group(settings=_but_seed(found[0]), runs=tuple(found)) for found in by_key.values()]


def compare(runs: Sequence[FinishedRun]) -> Html:
    """The table, and a line for each row of it over the epochs."""
    found = groups(runs)
    names = row_names(found)
    shown = {title: key for title, key in SHOWN.items() if any(group.values(key) for group in found)}
    rows: list[list[str]] = []
    for group, name in zip(found, names, strict=True):
        seeds = ", ".join(str(run.settings.get("seed", "–")) for run in group.runs)
        digits = {"suspicion_ap": 3}
        cells = [spread(group.values(key), digits.get(key, 2)) for key in shown.values()]
        rows.append([named(name, 80), cut(seeds, 30), *cells, spread(group.values("seconds"), 1)])
    several = any(len(group.runs) > 1 for group in found)
    caption = "Mean ± standard deviation over runs that differ by their seed alone" if several else "One run a row"
    return join(table(["run", "seeds", *shown, "seconds"], rows, caption=caption, class_="numbers"), draw(found, names))


def draw(found: Sequence[Group], names: Sequence[str]) -> Html:
    """The accuracy of each row by epoch, of the best where there are many."""
    key = "test_accuracy" if any(group.values("test_accuracy") for group in found) else "clean_accuracy"
    title = "Test accuracy" if key == "test_accuracy" else "Accuracy on the held-out clean samples"
    order = sorted(zip(found, names, strict=True), key=lambda row: -statistics.mean(row[0].values(key) or [0.0]))
    lines = [mean_line(group, cut(name, SHORT), key) for group, name in order]
    drawn = [line for line in lines if line.points][:COLORS]
    if not drawn:
        return Html()
    said = f"The {COLORS} best of {len(lines)} rows are drawn, the best first." if len(lines) > COLORS else ""
    note = tag("p", said, class_="note") if said else Html()
    return join(tag("div", chart(title, drawn, unit="%"), class_="charts"), note)


def row_names(found: Sequence[Group]) -> list[str]:
    """The method, and every setting in which rows differ; a method's own settings are compared within the method.

    Where that is so long that rows would read alike, the folder of the first run comes before it.
    """
    values: dict[str, set[str]] = {}
    for group in found:
        for key, value in group.settings.items():
            values.setdefault(key, set()).add(json.dumps(value, sort_keys=True))
    differ = [key for key, several in values.items() if len(several) > 1]
    names = []
    for group in found:
        said = [str(group.settings.get("method"))]
        for key in sorted((key for key in differ if key != "method"), key=lambda key: key not in ALWAYS):
            value = group.settings.get(key)
            if value is not None:
                said.append(f"{key} {value if isinstance(value, str | int | float) else json.dumps(value)}")
        names.append(", ".join(said))
    if len({cut(name, SHORT) for name in names}) < len(names):
        names = [f"{group.runs[0].name}: {name}" for group, name in zip(found, names, strict=True)]
    return names


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The mean, and the standard deviation where there are several."""
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def mean_line(group: Group, name: str, key: str) -> Series:
    """The mean over the group's runs, for the epochs that all of them have."""
    lines = [dict(series(name, run.metrics, key).points) for run in group.runs]
    epochs = sorted(set(lines[0]).intersection(*lines[1:]))
    return Series(name=name, points=[(epoch, statistics.mean(line[epoch] for line in lines)) for epoch in epochs])


def _but_seed(run: FinishedRun) -> dict[str, Any]:
    own = {f"{run.settings['method']}.{name}": value for name, value in run.about["method_settings"].items()}
    return {key: value for key, value in run.settings.items() if key not in ("seed", "settings")} | own
