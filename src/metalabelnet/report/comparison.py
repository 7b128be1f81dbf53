"""Comparison of several runs; runs that differ only in their seed share a row."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metalabelnet.report.markup import Html, join, name_tag, table, tag, truncate
from metalabelnet.report.svg_chart import COLORS, Series, chart, series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metalabelnet.report.finished_run import FinishedRun

RESULT_COLUMNS = {
    "test accuracy, %": "test_accuracy",
    "last epoch, %": "test_accuracy_last",
    "macro-F1, %": "macro_f1",
    "calibration error, %": "ece_calibrated",
    "clean accuracy, %": "clean_accuracy",
    "correct labels, %": "right_after",
    "average precision of suspects": "suspicion_ap",
}
MAX_LEGEND_CHARACTERS = 50
MAIN_SETTINGS = ("method", "data", "noise")  # come first in the name of a row


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """Runs that differ only in their seed."""

    settings: dict[str, Any]
    runs: tuple[FinishedRun, ...]

    def values(self, key: str) -> list[float]:
        """The values of a summary key in the runs that have one."""
        return [float(run.summary[key]) for run in self.runs if run.summary.get(key) is not None]


def group_runs(runs: Sequence[FinishedRun]) -> list[RunGroup]:
    """Group the runs by all settings except the seed, in order of first appearance."""
    by_key: dict[str, list[FinishedRun]] = {}
    for run in runs:
        by_key.setdefault(json.dumps(_settings_without_seed(run), sort_keys=True), []).append(run)
    return [RunGroup(settings=_settings_without_seed(members[0]), runs=tuple(members)) for members in by_key.values()]


def comparison_html(runs: Sequence[FinishedRun]) -> Html:
    """The table of results, one row per group, and a chart of accuracy by epoch."""
    groups = group_runs(runs)
    names = row_names(groups)
    shown = {title: key for title, key in RESULT_COLUMNS.items() if any(group.values(key) for group in groups)}
    rows: list[list[str]] = []
    for group, name in zip(groups, names, strict=True):
        seeds = ", ".join(str(run.settings.get("seed", "–")) for run in group.runs)
        digits = {"suspicion_ap": 3}
        cells = [format_spread(group.values(key), digits.get(key, 2)) for key in shown.values()]
        rows.append([name_tag(name, 80), truncate(seeds, 30), *cells, format_spread(group.values("seconds"), 1)])
    several = any(len(group.runs) > 1 for group in groups)
    caption = "Mean ± standard deviation over seeds" if several else "One run per row"
    return join(
        table(["run", "seeds", *shown, "seconds"], rows, caption=caption, class_="numbers"),
        accuracy_chart(groups, names),
    )


def accuracy_chart(groups: Sequence[RunGroup], names: Sequence[str]) -> Html:
    """A chart of the accuracy of each group by epoch; only the best groups if there are many."""
    key = "test_accuracy" if any(group.values("test_accuracy") for group in groups) else "clean_accuracy"
    title = "Test accuracy" if key == "test_accuracy" else "Accuracy on the validation samples"
    ranking = sorted(zip(groups, names, strict=True), key=lambda row: -statistics.mean(row[0].values(key) or [0.0]))
    lines = [mean_line(group, truncate(name, MAX_LEGEND_CHARACTERS), key) for group, name in ranking]
    shown = [line for line in lines if line.points][:COLORS]
    if not shown:
        return Html()
    text = f"The chart shows the {COLORS} best of {len(lines)} rows, best first." if len(lines) > COLORS else ""
    note = tag("p", text, class_="note") if text else Html()
    return join(tag("div", chart(title, shown, unit="%"), class_="charts"), note)


def row_names(groups: Sequence[RunGroup]) -> list[str]:
    """Name each group by its method and the settings in which the groups differ.

    Settings of a method are compared only among groups of that method. If names are still equal after truncation, the
    folder of the first run comes first.
    """
    values: dict[str, set[str]] = {}
    for group in groups:
        for key, value in group.settings.items():
            values.setdefault(key, set()).add(json.dumps(value, sort_keys=True))
    differ = [key for key, several in values.items() if len(several) > 1]
    names = []
    for group in groups:
        parts = [str(group.settings.get("method"))]
        for key in sorted((key for key in differ if key != "method"), key=lambda key: key not in MAIN_SETTINGS):
            value = group.settings.get(key)
            if value is not None:
                parts.append(f"{key} {value if isinstance(value, str | int | float) else json.dumps(value)}")
        names.append(", ".join(parts))
    if len({truncate(name, MAX_LEGEND_CHARACTERS) for name in names}) < len(names):
        names = [f"{group.runs[0].name}: {name}" for group, name in zip(groups, names, strict=True)]
    return names


def format_spread(values: Sequence[float], digits: int = 2) -> str:
    """Format as "mean ± standard deviation", or as the value alone; "–" without values."""
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def mean_line(group: RunGroup, name: str, key: str) -> Series:
    """The mean over the runs of a group, for the epochs that all of them have."""
    lines = [dict(series(name, run.metrics, key).points) for run in group.runs]
    epochs = sorted(set(lines[0]).intersection(*lines[1:]))
    return Series(name=name, points=[(epoch, statistics.mean(line[epoch] for line in lines)) for epoch in epochs])


def _settings_without_seed(run: FinishedRun) -> dict[str, Any]:
    own = {f"{run.settings['method']}.{name}": value for name, value in run.metadata["method_settings"].items()}
    return {key: value for key, value in run.settings.items() if key not in ("seed", "settings")} | own
