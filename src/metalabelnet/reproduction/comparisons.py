"""Paired differences between table cells, with intervals corrected for the number of cells.

Runs with the same seed share their split, noise and initial weights, so that methods are compared seed by seed: the
95 % CI is that of the mean difference by Student's t, corrected by Holm's procedure for the number of comparisons of a
column. The standard deviation is taken to be at least the accuracy of one test sample. Where the interval contains zero
the methods are level; one seed has no interval.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from metalabelnet.core.intervals import (
    MeanDifference,
    corrected_intervals,
    holm_levels,
    is_beyond_zero,
    paired_difference,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from metalabelnet.reproduction.table_cells import TableCell

ONE_SEED = "one seed, no interval"
INTERVAL_NOTE = (
    "In brackets: 95 % CI of the paired difference by Student's t over the common seeds, corrected for the comparisons "
    "of a column (Holm). Level: the interval contains zero."
)


def pair_cells(ours: TableCell | None, theirs: TableCell | None) -> MeanDifference | None:
    """The difference of two cells over their common seeds, or None without any."""
    return None if ours is None or theirs is None else pair_groups([ours], [theirs])


def pair_groups(ours: Sequence[TableCell], theirs: Sequence[TableCell]) -> MeanDifference | None:
    """The mean difference of cells over the seeds that all of them have, or None without any.

    The cells of a seed share their data, so that they are averaged and count as one value.
    """
    pairs = [(one.by_seed(), other.by_seed()) for one, other in zip(ours, theirs, strict=True)]
    seeds = set.intersection(*(set(one) & set(other) for one, other in pairs))
    if not seeds:
        return None
    differences = [statistics.mean(one[seed] - other[seed] for one, other in pairs) for seed in sorted(seeds)]
    counts = [count for cell in (*ours, *theirs) if (count := cell.test_samples())]
    return paired_difference(differences, min_std=100 / min(counts) if counts else 0.0)


def difference_texts(differences: Sequence[MeanDifference | None]) -> list[str]:
    """Format one column of comparisons, such as "+1.23 (+0.40 to +2.06)"; empty where there is no pair."""
    intervals = corrected_intervals(differences)
    return [difference_text(d, interval) for d, interval in zip(differences, intervals, strict=True)]


def difference_text(difference: MeanDifference | None, interval: tuple[float, float] | None) -> str:
    """Format a difference with its interval, and mark it where it is level or has none."""
    if difference is None:
        return ""
    if interval is None:
        return f"{difference.mean:+.2f} ({ONE_SEED})"
    low, high = interval
    level = "" if is_beyond_zero(interval) else ", level"
    return f"{difference.mean:+.2f} ({low:+.2f} to {high:+.2f}){level}"


def verdicts(columns: Sequence[Mapping[str, TableCell]]) -> list[str]:
    """Say for each column which method is best, or which methods are level with the one of the highest mean.

    A method is best if it is beyond the interval of every other method. The p-value of that statement is the largest
    one, which is corrected for the number of columns.
    """
    leads = [_leads(cells) for cells in columns]
    p_values = [[p for d in pairs.values() if d is not None and (p := d.p_value()) is not None] for _, pairs in leads]
    levels = holm_levels([max(ps, default=None) for ps in p_values])
    return [_verdict(best, pairs, level) for (best, pairs), level in zip(leads, levels, strict=True)]


def _leads(cells: Mapping[str, TableCell]) -> tuple[str | None, dict[str, MeanDifference | None]]:
    """The method with the highest mean and its lead over each other method that was run, closest first."""
    means = {method: mean for method, cell in cells.items() if (mean := cell.mean()) is not None}
    if not means:
        return None, {}
    best, *others = sorted(means, key=lambda method: -means[method])
    return best, {method: pair_cells(cells[best], cells[method]) for method in others}


def highest(cells: Mapping[str, TableCell], *, other_than: str) -> str | None:
    """The method with the highest mean among the others that were run, or None."""
    means = {m: mean for m, cell in cells.items() if m != other_than and (mean := cell.mean()) is not None}
    return max(means, key=lambda method: means[method], default=None)


def _verdict(best: str | None, pairs: Mapping[str, MeanDifference | None], level: float) -> str:
    if best is None:
        return ""
    intervals = {method: None if d is None else d.interval(level) for method, d in pairs.items()}
    uncertain = [method for method, interval in intervals.items() if interval is None]
    similar = [method for method, i in intervals.items() if i is not None and not is_beyond_zero(i)]
    note = f" (fewer than two common seeds: {', '.join(uncertain)})" if uncertain else ""
    if len(uncertain) == len(pairs):
        return f"{best} is highest ({ONE_SEED})"
    return f"level: {', '.join([best, *similar])}{note}" if similar else f"best: {best}{note}"
