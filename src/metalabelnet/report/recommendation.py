"""Which method was best in a comparison, by how much, and how certain that is."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from metalabelnet.core.intervals import (
    MeanDifference,
    corrected_intervals,
    is_beyond_zero,
    paired_difference,
    wilson_percent,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NORMAL_DF = 1e6  # degrees of freedom with which Student's t is the normal distribution
RELIABLE_SAMPLES_PER_CLASS = 30  # validation samples; with fewer the selection of the epoch is partly random


def recommend(summaries: Mapping[str, Mapping[int, dict[str, Any]]], classes: int) -> str:
    """Describe which method was best, its lead over the others and the uncertainty of it.

    Methods are compared seed by seed, because runs with the same seed share their split, noise and initial weights. A
    method is called best only if the 95 % CI of its lead over every other method, corrected for the number of other
    methods (Holm), lies beyond zero; otherwise it is level with the others. Fits without randomness have the same
    result with every seed: their interval is over the samples on which they are evaluated. If runs have failed, the
    methods are compared on the seeds that most runs share; a method without one of these seeds is not ranked.

    Parameters
    ----------
    summaries : mapping of str to mapping of int to dict
        For each method, the summary of each seed (the content of summary.json).
    classes : int
        Number of classes.

    Returns
    -------
    str
        A paragraph of plain text; empty without summaries.

    Examples
    --------
    >>> from metalabelnet.report.recommendation import recommend
    >>> samples = {"train": 1000, "clean": 80, "validation": 400, "test": 500}
    >>> def summaries(*accuracies):
    ...     return {
    ...         seed: {"test_accuracy": a, "clean_accuracy": a, "samples": samples}
    ...         for seed, a in enumerate(accuracies)
    ...     }
    >>> text = recommend({"gce": summaries(90.0, 91.0), "fine-tune": summaries(95.0, 96.1)}, classes=10)
    >>> text.partition(". ")[0]
    'fine-tune was best, with 95.55 % of the test samples correct'
    """
    finished = {method: by_seed for method, by_seed in summaries.items() if by_seed}
    if not finished:
        return ""
    first = next(iter(next(iter(finished.values())).values()))
    tested = first["test_accuracy"] is not None
    key, part = ("test_accuracy", "test") if tested else ("clean_accuracy", "validation")
    samples = first["samples"]
    accuracies = {method: {seed: s[key] for seed, s in by_seed.items()} for method, by_seed in finished.items()}
    seeds = _common_seeds(accuracies)
    ranked = {method: {seed: a[seed] for seed in seeds} for method, a in accuracies.items() if a.keys() >= {*seeds}}
    means = {method: statistics.mean(a.values()) for method, a in ranked.items()}
    ranking = sorted(means, key=lambda method: -means[method])
    best, others = ranking[0], ranking[1:]
    result = f"{means[best]:.2f} % of the {part} samples correct"
    result += "" if tested else " (the samples on which the epoch was selected)"
    result += _seeds_text(seeds, [accuracies[method] for method in ranked])
    if len(ranked) == 1:
        subject = "No method can be called best; " if len(accuracies) > 1 else ""
        sentences = [f"{subject}{best} has {result}"]
    elif len(seeds) == 1:
        sentences = [f"{best} had the highest accuracy, {result}", _single_run_text(best, others, means, samples[part])]
    else:
        level, lead = _compare(best, others, ranked, samples[part])
        level_text = f"{best} had the highest accuracy, {result}, but is level with {_join(level)}" if level else ""
        sentences = [level_text or f"{best} was best, with {result}", lead]
    if len(ranked) < len(accuracies):
        unranked = [method for method in accuracies if method not in ranked]
        sentences.append(_unranked_text(best, unranked, accuracies))
    sentences.append(_selection_text({seed: finished[best][seed] for seed in seeds}, samples, classes, tested=tested))
    return ". ".join(sentences) + "."


def _common_seeds(accuracies: Mapping[str, Mapping[int, float]]) -> list[int]:
    """The seeds of the method that compares the most runs; among equals, the one that compares the most methods."""

    def count_runs_and_methods(by_seed: Mapping[int, float]) -> tuple[int, int]:
        methods = sum(a.keys() >= by_seed.keys() for a in accuracies.values())
        return methods * len(by_seed), methods

    most_compared: Mapping[int, float] = max(accuracies.values(), key=count_runs_and_methods)
    return sorted(most_compared)


def _seeds_text(seeds: Sequence[int], ranked: Sequence[Mapping[int, float]]) -> str:
    """The seeds of the comparison, if a method has more than these."""
    subset = any(len(by_seed) > len(seeds) for by_seed in ranked)
    return f" (compared on seed{'s' if len(seeds) > 1 else ''} {_join([*map(str, seeds)])})" if subset else ""


def _unranked_text(best: str, methods: Sequence[str], accuracies: Mapping[str, Mapping[int, float]]) -> str:
    """The methods without enough common seeds, and their difference from the best on the common ones."""
    texts = []
    for method in methods:
        differences = _paired_differences(accuracies[method], accuracies[best])
        mean = statistics.mean(differences) if differences else 0.0
        lead = f", {abs(mean):.2f} points {'behind' if mean < 0 else 'ahead'}" if differences else ""
        texts.append(f"{method} ({len(differences)} of {len(accuracies[best])} seeds in common{lead})")
    return f"Not ranked against {best} because too few seeds are in common: {_join(texts)}"


def _single_run_text(best: str, others: Sequence[str], means: Mapping[str, float], n: int) -> str:
    """The lead in a single run, which has no interval over seeds, and the interval of its accuracy over samples."""
    low, high = wilson_percent(means[best], n)
    similar = [method for method in others if means[method] >= low]
    verdict = f"which includes {_join(similar)}" if similar else "which includes no other method"
    return (
        f"It is {means[best] - means[others[0]]:.2f} points ahead of {others[0]} in a single run, which has no "
        f"interval over seeds; with {n} samples its 95 % CI is {low:.1f}–{high:.1f} %, {verdict}: use more seeds "
        "(--seeds)"
    )


def _compare(
    best: str, others: Sequence[str], ranked: Mapping[str, Mapping[int, float]], n: int
) -> tuple[list[str], str]:
    """The methods that are level with the best one, and a sentence about its lead over the second."""
    differences = {method: _difference(ranked[best], ranked[method], n) for method in others}
    intervals = corrected_intervals(list(differences.values()))
    level = [method for method, interval in zip(others, intervals, strict=True) if not is_beyond_zero(interval)]
    values, interval = _paired_differences(ranked[best], ranked[others[0]]), intervals[0]
    assert interval is not None
    correction = f", corrected for {len(others)} comparisons" if len(others) > 1 else ""
    if _is_constant(ranked[best]) and _is_constant(ranked[others[0]]):
        wide, over = "at least as wide as ", f"{n} samples{correction}"
        end = f". Both have the same result with each of {len(values)} seeds"
    else:
        floor = f", with a spread of at least one of {n} samples" if statistics.stdev(values) < 100 / n else ""
        wide, over = "", f"{len(values)} seeds, paired{correction}{floor}"
        end = f", and ahead on {sum(d > 0 for d in values)} of them"
    text = (
        f"It is {statistics.mean(values):.2f} points ahead of {others[0]} (95 % CI {wide}{interval[0]:.2f} "
        f"to {interval[1]:.2f} over {over}){end}"
    )
    return level, text


def _difference(one: Mapping[int, float], other: Mapping[int, float], n: int) -> MeanDifference:
    """The mean difference over the seeds; its standard deviation is at least the accuracy of one sample.

    Seeds that change neither method say nothing about its error. The least that n samples allow is then taken: that of
    methods which differ only on the samples of the difference.
    """
    values = _paired_differences(one, other)
    if not (_is_constant(one) and _is_constant(other)):
        return paired_difference(values, 100 / n)
    share = abs(values[0]) / 100
    return MeanDifference(mean=values[0], standard_error=100 * math.sqrt(share * (1 - share) / n), df=NORMAL_DF)


def _is_constant(by_seed: Mapping[int, float]) -> bool:
    return len({*by_seed.values()}) == 1


def _selection_text(
    by_seed: Mapping[int, dict[str, Any]], samples: Mapping[str, int], classes: int, *, tested: bool
) -> str:
    """The number of validation samples, and the accuracy on them with its confidence interval."""
    n = samples["validation"]
    accuracy = statistics.mean(s["clean_accuracy"] for s in by_seed.values())
    low, high = wilson_percent(accuracy, n)
    per_class = n / classes
    size = f"{per_class:.0f} per class" if per_class >= 1 else "less than one per class"
    correct = f"{accuracy:.1f} % correct (95 % CI {low:.0f}–{high:.0f} %)"
    if all(s.get("epochs") == 0 for s in by_seed.values()):  # fitted, not trained in epochs
        return f"Cross-validation on {n} clean samples: {correct}"
    text = f"The epoch was selected on {n} validation samples ({size}): {correct}"
    if per_class < RELIABLE_SAMPLES_PER_CLASS:
        text += ", so the selected epoch is partly random" if tested else ", and there is no test set"
    return text


def _paired_differences(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    return [one[seed] - other[seed] for seed in one if seed in other]


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
