"""Print stored results of several methods on the same draws: means, and paired differences to one of them."""

from __future__ import annotations

import json
import math
import statistics
from typing import TYPE_CHECKING, Any

from metalabelnet.core.intervals import paired_difference

if TYPE_CHECKING:
    from pathlib import Path


def read_draws(results: Path) -> dict[str, dict[str, dict[int, dict[str, Any]]]]:
    """Return the lines of a file by set, method and draw; a later line of a draw replaces an earlier one."""
    sets: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for line in map(json.loads, results.read_text().splitlines()):
        sets.setdefault(line["set"], {}).setdefault(line["method"], {})[line["draw"]] = line
    return sets


def show(results: Path, own: str, metrics: tuple[str, ...]) -> None:
    """Print mean and standard deviation of every method, and the difference of `own` to each of the others."""
    for name, by_method in read_draws(results).items():
        print(f"\n{name}, {len(by_method[own])} draws")
        width = max(map(len, by_method))
        for method, draws in by_method.items():
            values = {key: [line[key] for line in draws.values() if line[key] is not None] for key in metrics}
            cells = [f"{key} {statistics.mean(v):.2f} ± {statistics.pstdev(v):.2f}" for key, v in values.items() if v]
            print(f"  {method:{width}s} " + ", ".join(cells))
        for method in [method for method in by_method if method != own]:
            both = sorted(by_method[own].keys() & by_method[method].keys())
            gains = [by_method[own][draw]["test_accuracy"] - by_method[method][draw]["test_accuracy"] for draw in both]
            difference = paired_difference(gains)
            low, high = difference.interval() or (math.nan, math.nan)
            print(f"  {own} − {method}: {difference.mean:+.2f} (95 % CI {low:+.2f} to {high:+.2f})")
