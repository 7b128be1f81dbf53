"""The paper's claims, each with our result or "not run"."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from metalabelnet.reproduction.experiments import TABLE_METHODS
from metalabelnet.reproduction.paper_numbers import CELLS, paper_number
from metalabelnet.reproduction.table_cells import TableCell, collect_cells, column_names, column_title
from metalabelnet.reproduction.tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metalabelnet.reproduction.results import Results

NOT_RUN = "not run"


def paper_agreement(results: Results) -> Table:
    """Compare MetaLabelNet with the paper; the tolerance is 1.0 or two standard errors, whichever is larger."""
    cells, rows = collect_cells("cifar10-table", results), []
    for name in CELLS:
        cell, number = cells["metalabelnet", name, ""], paper_number("cifar10-table", "metalabelnet", name)
        assert number is not None
        assert number.mean is not None
        mean = cell.mean()
        if mean is None:
            rows.append([column_title(name), "", str(number), "", NOT_RUN])
            continue
        error = cell.standard_error()
        tolerance = (
            1.0 if error is None else max(1.0, 2 * math.hypot(error, (number.std or 0) / 2))
        )  # the paper has 4 runs
        difference = mean - number.mean
        verdict = "within" if abs(difference) <= tolerance else "above" if difference > 0 else "below"
        rows.append([column_title(name), cell.text(), str(number), f"{difference:+.2f}", f"{verdict} {tolerance:.2f}"])
    title = "MetaLabelNet and the paper: tolerance 1.0, or two standard errors of the difference if that is larger"
    return Table(title=title, columns=["noise", "ours", "paper", "difference", "verdict"], rows=rows)


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
    lines = [line for line in cell.lines if line.get("curves")] if cell else []
    ends = [line["curves"]["test_accuracy"][line["settings"]["warmup"] - 1] for line in lines]
    return f"{sum(ends) / len(ends):.2f} ({len(ends)})" if ends else ""


def baseline_comparison(results: Results) -> Table:
    """Compare MetaLabelNet with three baselines and with the best of the other methods."""
    cells, rows = collect_cells("cifar10-table", results), []
    for name in CELLS:
        ours = cells["metalabelnet", name, ""]
        others = {m: cells[m, name, ""] for m in TABLE_METHODS if m != "metalabelnet" and cells[m, name, ""].values()}
        best = max(others, key=lambda m: others[m].mean() or 0.0, default=None)
        baselines = [_difference(ours, others.get(method)) for method in ("fine-tune", "clean-only", "cross-entropy")]
        best_text = "" if best is None else f"{best} (of {len(others)} run), {_difference(ours, others[best])}"
        rows.append([column_title(name), ours.text(), *baselines, best_text])
    columns = ["noise", "metalabelnet", "against fine-tune", "against clean-only", "against cross-entropy"]
    title = "MetaLabelNet minus the other method (±: two standard errors, where both have several runs)"
    return Table(title=title, columns=[*columns, "against the best other method"], rows=rows)


def _difference(ours: TableCell, other: TableCell | None) -> str:
    mean, other_mean = ours.mean(), None if other is None else other.mean()
    if other is None or mean is None or other_mean is None:
        return ""
    error, other_error = ours.standard_error(), other.standard_error()
    spread = "" if error is None or other_error is None else f" ± {2 * math.hypot(error, other_error):.2f}"
    return f"{mean - other_mean:+.2f}{spread}"


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
