"""The paper's claims, each with our result or "not run"."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from metalabelnet.core.intervals import MeanDifference, corrected_intervals, is_beyond_zero, welch_difference
from metalabelnet.reproduction.comparisons import INTERVAL_NOTE, difference_text, difference_texts, highest, pair_cells
from metalabelnet.reproduction.experiments import TABLE_METHODS
from metalabelnet.reproduction.paper_numbers import CELLS, PaperNumber, paper_number
from metalabelnet.reproduction.table import Table
from metalabelnet.reproduction.table_cells import (
    TableCell,
    collect_cells,
    column_names,
    column_title,
    end_of_warmup,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metalabelnet.reproduction.results import Results

NOT_RUN = "not run"
PAPER_RUNS = 4
BOOST_CELLS = ("uniform:0.4", "uniform:0.6", "feature:0.4", "feature:0.6")  # of the paper's figure


def paper_agreement(results: Results) -> Table:
    """Compare MetaLabelNet with the paper's mean of four runs, by Welch's t-test corrected for the eight cells."""
    cells = {name: collect_cells("cifar10-table", results)["metalabelnet", name, ""] for name in CELLS}
    numbers = {name: paper_number("cifar10-table", "metalabelnet", name) for name in CELLS}
    differences = {name: _from_paper(cells[name], numbers[name]) for name in CELLS}
    intervals = corrected_intervals(list(differences.values()))
    rows = []
    for (name, difference), interval in zip(differences.items(), intervals, strict=True):
        verdict = "" if difference is None or interval is None else _verdict(difference.mean, interval)
        shown = difference_text(difference, interval).removesuffix(", level") or NOT_RUN
        rows.append([column_title(name), cells[name].text(), str(numbers[name]), shown, verdict])
    title = "MetaLabelNet and the paper (four runs)"
    note = (
        "In brackets: 95 % CI of the difference of two means by Welch's t-test, corrected for the cells of the table "
        "(Holm). Level: the interval contains zero. Few runs give wide intervals, so that level does not mean equal."
    )
    return Table(title=title, columns=["noise", "ours", "paper", "difference", "verdict"], rows=rows, notes=[note])


def _from_paper(cell: TableCell, number: PaperNumber | None) -> MeanDifference | None:
    values, samples = cell.values(), cell.test_samples()
    if not values or number is None or number.mean is None or number.std is None:
        return None
    std = max(statistics.stdev(values), 100 / samples if samples else 0.0) if len(values) > 1 else 0.0
    ours = (statistics.mean(values), std, len(values))
    return welch_difference(ours, (number.mean, number.std, PAPER_RUNS))


def _verdict(mean: float, interval: tuple[float, float]) -> str:
    if not is_beyond_zero(interval):
        return "level"
    return "above" if mean > 0 else "below"


def warmup_accuracy(results: Results) -> Table:
    """Compare warm-up, which is cross-entropy on the given labels, with the paper's cross-entropy."""
    cells, changed, rows = collect_cells("cifar10-table", results), collect_cells("differences", results), []
    for name in CELLS:
        ends = [_end_of_warmup(cells["metalabelnet", name, ""])]
        ends.append(_end_of_warmup(changed.get(("metalabelnet", name, "not shuffled"))))
        number = paper_number("cifar10-table", "cross-entropy", name)
        rows.append([column_title(name), *ends, cells["cross-entropy", name, ""].text(), str(number)])
    title = (
        "Cross-entropy: test accuracy at the end of MetaLabelNet's warm-up, selected in a full run, and in the paper"
    )
    columns = ["noise", "end of warm-up", "end of warm-up, not shuffled", "full run", "paper"]
    return Table(title=title, columns=columns, rows=rows)


def _end_of_warmup(cell: TableCell | None) -> str:
    ends = list(cell.mean_by_seed(end_of_warmup).values()) if cell else []
    return f"{sum(ends) / len(ends):.2f} ({len(ends)})" if ends else ""


def baseline_comparison(results: Results) -> Table:
    """Compare MetaLabelNet with three baselines and with the best of the other methods."""
    cells = collect_cells("cifar10-table", results)
    by_column = [{m: cells[m, name, ""] for m in TABLE_METHODS if cells[m, name, ""].values()} for name in CELLS]
    baselines = ("fine-tune", "clean-only", "cross-entropy")
    texts = [difference_texts([pair_cells(c.get("metalabelnet"), c.get(m)) for c in by_column]) for m in baselines]
    best = [highest(c, other_than="metalabelnet") for c in by_column]
    pairs = [pair_cells(c.get("metalabelnet"), c.get(m)) if m else None for m, c in zip(best, by_column, strict=True)]
    against = [
        f"{m} (of {len(c.keys() - {'metalabelnet'})} run), {text}" if m else ""
        for m, c, text in zip(best, by_column, difference_texts(pairs), strict=True)
    ]
    ours = [cells["metalabelnet", name, ""].text() for name in CELLS]
    rows = [list(row) for row in zip(map(column_title, CELLS), ours, *texts, against, strict=True)]
    columns = ["noise", "metalabelnet", *(f"against {method}" for method in baselines)]
    title = "MetaLabelNet minus the other method, paired by seed"
    columns = [*columns, "against the highest other method"]
    return Table(title=title, columns=columns, rows=rows, notes=[INTERVAL_NOTE])


def _means_at(experiment: str, points: Sequence[str]) -> Callable[[Results], str]:
    """Return a function that formats the means at these points for each noise with at least two of them."""

    def answer(results: Results) -> str:
        cells = collect_cells(experiment, results)
        texts = []
        for name in column_names(cells):
            means = {point: cells["metalabelnet", name, point].text() for point in points}
            if sum(map(bool, means.values())) > 1:
                texts.append(f"{column_title(name)}: " + ", ".join(f"{p} → {t}" for p, t in means.items() if t))
        return "; ".join(texts) or NOT_RUN

    return answer


def _boost(results: Results) -> str:
    """The gain of phase 2 over the end of warm-up, and over cross-entropy trained as long, for each noise."""
    cells, texts = collect_cells("cifar10-table", results), []
    for name in BOOST_CELLS:
        ours = cells["metalabelnet", name, ""]
        ends, finals = ours.mean_by_seed(end_of_warmup), ours.by_seed()
        gains = [finals[seed] - ends[seed] for seed in ends if seed in finals]
        if not gains:
            continue
        text = f"{column_title(name)}: {statistics.mean(gains):+.1f} over the end of warm-up"
        against = pair_cells(ours, cells["cross-entropy", name, ""])
        texts.append(text + ("" if against is None else f", {against.mean:+.1f} over cross-entropy for all epochs"))
    return "; ".join(texts) or NOT_RUN


def _feature_noise_overtakes(results: Results) -> str:
    """At 40 %: accuracy at the end of warm-up and at the selected epoch, uniform and feature-dependent noise."""
    cells, texts = collect_cells("cifar10-table", results), []
    for name in ("uniform:0.4", "feature:0.4"):
        cell = cells["metalabelnet", name, ""]
        if end := _end_of_warmup(cell):
            texts.append(f"{column_title(name)}: {end} after warm-up, {cell.text()} in the end")
    return "; ".join(texts) or NOT_RUN


def _label_change(results: Results) -> str:
    cells, means = collect_cells("fig-stability", results), {}
    for (method, _, _), cell in cells.items():
        changes = [(line.get("curves") or {}).get("label_change") for line in cell.lines]
        values = [x for change in changes if change for x in change["mean"]]
        if values:
            means[method] = sum(values) / len(values)
    if len(means) < 2:
        return NOT_RUN
    return "mean absolute change per epoch: " + ", ".join(f"{method} {mean:.4f}" for method, mean in means.items())


def _rank_under_feature_noise(results: Results) -> str:
    cells, texts = collect_cells("cifar10-table", results), []
    for name in CELLS[4:]:
        means = {m: cells[m, name, ""].mean() for m in TABLE_METHODS}
        known = {m: mean for m, mean in means.items() if mean is not None}
        if "metalabelnet" in known and len(known) > 1:
            ranking = sorted(known, key=lambda m: -known[m])
            rank = ranking.index("metalabelnet") + 1
            first = f"{ranking[0]} with {known[ranking[0]]:.2f}"
            texts.append(f"{column_title(name)}: rank {rank} of {len(ranking)} run, first {first}")
    return "; ".join(texts) or NOT_RUN


CLAIMS: dict[str, Callable[[Results], str]] = {
    "best of all methods at every level of feature-dependent noise": _rank_under_feature_noise,
    "phase 2 boosts accuracy by about 10 % at feature-dependent and 5 % at uniform noise": _boost,
    "at 40 %, feature-dependent noise is behind uniform noise after warm-up and ahead in the end": (
        _feature_noise_overtakes
    ),
    "about 1,000 clean samples suffice": _means_at("fig-clean-size", ("100", "1000", "5000")),
    "72 % of the labels can be removed (36,000 of 50,000 unlabeled)": _means_at(
        "fig-unlabeled", ("0", "36000", "49000")
    ),
    "warm-up should end a few epochs after the first learning rate drop (40)": _means_at(
        "fig-warmup", ("20", "40", "44", "50", "60", "80")
    ),
    "β between 1e-2 and 1e-3": _means_at("ablation-beta", ("0.0001", "0.001", "0.01", "0.1")),
    "a single layer suffices for the label net": _means_at(
        "ablation-labelnet", ("single-layer", "mlp", "mlp-batchnorm", "mlp-batchnorm-dropout")
    ),
    "the entropy loss helps": _means_at("ablation-entropy", ("0", "0.5", "1")),
    "soft labels change less than MSLG's": _label_change,
}


def claims_table(results: Results) -> Table:
    """The claims with our results."""
    rows = [[claim, answer(results)] for claim, answer in CLAIMS.items()]
    return Table(title="The paper's claims", columns=["claim", "our result"], rows=rows)
