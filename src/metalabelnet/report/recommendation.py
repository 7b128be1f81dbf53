"""Which method was best here, by how much, against what spread, and how sure one can be of it."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from metalabelnet.core.intervals import is_positive, wilson_percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FEW = 30  # clean samples of a class


def recommend(summaries: Mapping[str, Mapping[int, dict[str, Any]]], classes: int) -> str:
    """A paragraph from the summaries of each method, by seed.

    Methods are compared seed by seed, because runs with one seed share their split, their noise and their luck. Where
    runs have failed, that is on the seeds most runs share, and who lacks one of them is not ranked.
    """
    done = {method: by_seed for method, by_seed in summaries.items() if by_seed}
    if not done:
        return ""
    first = next(iter(next(iter(done.values())).values()))
    measured = first["test_accuracy"] is not None
    key = "test_accuracy" if measured else "clean_accuracy"
    part = "test" if measured else "validation"
    samples = first["samples"]
    found = {method: {seed: s[key] for seed, s in by_seed.items()} for method, by_seed in done.items()}
    seeds = _shared(found)
    values = {method: {seed: v[seed] for seed in seeds} for method, v in found.items() if v.keys() >= {*seeds}}
    means = {method: statistics.mean(v.values()) for method, v in values.items()}
    order = sorted(means, key=lambda method: -means[method])
    best = order[0]
    level = [method for method in order[1:] if means[method] == means[best]]
    what = "test samples right" if measured else "held-out clean samples right, on which the epoch was selected too"
    were = f"{_list([best, *level])} were level and best here, with" if level else f"{best} was best here, with"
    if len(values) == 1 < len(found):
        were = f"Which method was best here cannot be said; {best} has"
    sentences = [f"{were} {means[best]:.2f} % of the {what}{_where(seeds, [found[method] for method in values])}"]
    others = [method for method in order[1:] if method not in level]
    if others:
        sentences.append(_against(best, others, values, samples[part]))
    if len(values) < len(found):
        sentences.append(_not_ranked(best, [method for method in found if method not in values], found))
    sentences.append(_clean({seed: done[best][seed] for seed in seeds}, samples, classes, measured=measured))
    return ". ".join(sentences) + "."


def _shared(values: Mapping[str, Mapping[int, float]]) -> list[int]:
    """The seeds of a method by which most runs are compared, or of such the ones by which most methods are."""

    def compared(one: Mapping[int, float]) -> tuple[int, int]:
        methods = sum(v.keys() >= one.keys() for v in values.values())
        return methods * len(one), methods

    most = max(values.values(), key=compared)
    return sorted(most)


def _where(seeds: Sequence[int], ranked: Sequence[Mapping[int, float]]) -> str:
    """On which seeds methods are compared, where one has more."""
    some = any(len(v) > len(seeds) for v in ranked)
    return f" (compared on seed{'s' if len(seeds) > 1 else ''} {_list([*map(str, seeds)])})" if some else ""


def _not_ranked(best: str, others: Sequence[str], values: Mapping[str, Mapping[int, float]]) -> str:
    """Which methods lack seeds, and what is known of them against the best."""
    said = []
    for method in others:
        differences = _paired(values[method], values[best])
        mean = statistics.mean(differences) if differences else 0.0
        known = f", {abs(mean):.2f} points {'behind' if mean < 0 else 'ahead'} there" if differences else ""
        said.append(f"{method} ({len(differences)} of {len(values[best])}{known})")
    return f"Too few seeds are shared with {best} to compare it with {_list(said)}"


def _against(best: str, others: Sequence[str], values: Mapping[str, Mapping[int, float]], n: int) -> str:
    """The best against the next, and which of the others cannot be told from it."""
    second = others[0]
    differences = _paired(values[best], values[second])
    if len(differences) < 2:
        seed = next(iter(values[best]))
        low, high = wilson_percent(values[best][seed], n)
        level = [method for method in others if statistics.mean(values[method].values()) >= low]
        ahead = statistics.mean(values[best].values()) - statistics.mean(values[second].values())
        told = f"and {_list(level)} cannot be told from it" if level else "and no other comes near that"
        return (
            f"That is {ahead:.2f} points ahead of {second}, in one run; from {n} samples alone its accuracy is known "
            f"as {low:.1f} to {high:.1f} % (95 %), {told}: more seeds (--seeds) would say more"
        )
    mean, spread = statistics.mean(differences), statistics.stdev(differences)
    wins = sum(d > 0 for d in differences)
    one = 100 / n
    level = [method for method in others if not is_positive(_paired(values[best], values[method]), one)]
    by = "by the spread between seeds" + (f", taken to be one sample of {n} at least," if spread < one else "")
    verdict = (
        f"{by} {_list(level)} cannot be told from it (95 %)"
        if level
        else f"{by} that is more than chance for every other method here (95 %)"
    )
    return (
        f"That is {mean:.2f} ± {spread:.2f} points ahead of {second}, seed by seed, and ahead in {wins} of "
        f"{len(differences)}; {verdict}"
    )


def _clean(by_seed: Mapping[int, dict[str, Any]], samples: Mapping[str, int], classes: int, *, measured: bool) -> str:
    """What the clean samples allow to say, which is all there is without a test set."""
    n = samples["validation"]
    accuracy = statistics.mean(s["clean_accuracy"] for s in by_seed.values())
    low, high = wilson_percent(accuracy, n)
    each = n / classes
    few = f"{each:.0f} a class" if each >= 1 else "less than one a class"
    text = (
        f"The epoch was selected on {n} clean samples ({few}): {accuracy:.1f} % of them right stand for {low:.0f} to "
        f"{high:.0f} % (95 %)"
    )
    if each < FEW:
        text += ", so that the choice of the epoch is partly chance" if measured else ", and no more is known"
    return text


def _paired(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    return [one[seed] - other[seed] for seed in one if seed in other]


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
