"""The paper's claims, each answered by what was run: a number, or "not run"."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from metalabelnet.reproduction.cells import Cell, cell_name, cells_of, places
from metalabelnet.reproduction.paper_numbers import CELLS, paper_number
from metalabelnet.reproduction.recipes import TABLE_METHODS
from metalabelnet.reproduction.text_table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metalabelnet.reproduction.results import Results

NOT_RUN = "not run"


def agreement(results: Results) -> Table:
    """MetaLabelNet beside the paper: within 1.0, or two standard errors where that is more."""
    found, rows = places("cifar10-table", results), []
    for name in CELLS:
        cell, number = found["metalabelnet", name, ""], paper_number("cifar10-table", "metalabelnet", name)
        assert number is not None
        assert number.mean is not None
        mean = cell.mean()
        if mean is None:
            rows.append([cell_name(name), "", str(number), "", NOT_RUN])
            continue
        error = cell.standard_error()
        room = 1.0 if error is None else max(1.0, 2 * math.hypot(error, (number.std or 0) / 2))  # the paper: 4 runs
        apart = mean - number.mean
        verdict = "within" if abs(apart) <= room else "above" if apart > 0 else "below"
        rows.append([cell_name(name), cell.text(), str(number), f"{apart:+.2f}", f"{verdict} {room:.2f}"])
    title = "MetaLabelNet and the paper: within 1.0, or two standard errors of the difference if that is more"
    return Table(title=title, columns=["noise", "ours", "paper", "difference", "verdict"], rows=rows)


def warm_up(results: Results) -> Table:
    """What warm-up, which is cross-entropy on the given labels, reaches beside the paper's cross-entropy."""
    found, changed, rows = places("cifar10-table", results), places("differences", results), []
    for name in CELLS:
        ends = [_end_of_warm_up(found["metalabelnet", name, ""])]
        ends.append(_end_of_warm_up(changed.get(("metalabelnet", name, "not shuffled"))))
        number = paper_number("cifar10-table", "cross-entropy", name)
        rows.append([cell_name(name), *ends, found["cross-entropy", name, ""].text(), str(number)])
    title = (
        "Cross-entropy: test accuracy at the end of MetaLabelNet's warm-up, selected in a whole run, and in the paper"
    )
    columns = ["noise", "end of warm-up", "… images not shuffled", "whole run", "paper"]
    return Table(title=title, columns=columns, rows=rows)


def _end_of_warm_up(cell: Cell | None) -> str:
    lines = [line for line in cell.lines if line.get("curves")] if cell else []
    ends = [line["curves"]["test_accuracy"][line["settings"]["warmup"] - 1] for line in lines]
    return f"{sum(ends) / len(ends):.2f} ({len(ends)})" if ends else ""


def standing(results: Results) -> Table:
    """Where MetaLabelNet wins and where it loses, to the two baselines the paper leaves out first."""
    found, rows = places("cifar10-table", results), []
    for name in CELLS:
        ours = found["metalabelnet", name, ""]
        others = {m: found[m, name, ""] for m in TABLE_METHODS if m != "metalabelnet" and found[m, name, ""].values()}
        best = max(others, key=lambda m: others[m].mean() or 0.0, default=None)
        against = [_against(ours, others.get(method)) for method in ("fine-tune", "clean-only", "cross-entropy")]
        of_all = "" if best is None else f"{best} (of {len(others)} run), {_against(ours, others[best])}"
        rows.append([cell_name(name), ours.text(), *against, of_all])
    columns = ["noise", "metalabelnet", "against fine-tune", "against clean-only", "against cross-entropy"]
    title = (
        "MetaLabelNet less the other (positive: MetaLabelNet wins; ±: two standard errors where both have several runs)"
    )
    return Table(title=title, columns=[*columns, "against the best of the others"], rows=rows)


def _against(ours: Cell, other: Cell | None) -> str:
    mean, its = ours.mean(), None if other is None else other.mean()
    if other is None or mean is None or its is None:
        return ""
    one, two = ours.standard_error(), other.standard_error()
    spread = "" if one is None or two is None else f" ± {2 * math.hypot(one, two):.2f}"
    return f"{mean - its:+.2f}{spread}"


def _points(what: str, wanted: Sequence[str]) -> Callable[[Results], str]:
    """The means at these points, noise by noise, where two of them or more were run."""

    def answer(results: Results) -> str:
        found = places(what, results)
        told = []
        for name in cells_of(found):
            texts = {point: found["metalabelnet", name, point].text() for point in wanted}
            if sum(map(bool, texts.values())) > 1:
                told.append(f"{cell_name(name)}: " + ", ".join(f"{p} → {t}" for p, t in texts.items() if t))
        return "; ".join(told) or NOT_RUN

    return answer


def _steadier(results: Results) -> str:
    found, means = places("fig-stability", results), {}
    for (method, _, _), cell in found.items():
        changes = [(line.get("curves") or {}).get("label_change") for line in cell.lines]
        values = [x for change in changes if change for x in change["mean"]]
        if values:
            means[method] = sum(values) / len(values)
    if len(means) < 2:
        return NOT_RUN
    return "mean absolute change an epoch: " + ", ".join(f"{method} {mean:.4f}" for method, mean in means.items())


def _best_under_feature_noise(results: Results) -> str:
    found, told = places("cifar10-table", results), []
    for name in CELLS[4:]:
        means = {m: found[m, name, ""].mean() for m in TABLE_METHODS}
        there = {m: mean for m, mean in means.items() if mean is not None}
        if "metalabelnet" in there and len(there) > 1:
            order = sorted(there, key=lambda m: -there[m])
            place = order.index("metalabelnet") + 1
            told.append(f"{cell_name(name)}: {place} of {len(order)} run, first {order[0]} with {there[order[0]]:.2f}")
    return "; ".join(told) or NOT_RUN


CLAIMS: dict[str, Callable[[Results], str]] = {
    "best of all methods at every level of feature-dependent noise": _best_under_feature_noise,
    "about 1,000 clean samples suffice": _points("fig-clean-size", ("100", "1000", "5000")),
    "72 % of the labels can go (36,000 of 50,000 unlabeled)": _points("fig-unlabeled", ("0", "36000", "49000")),
    "warm-up should end a few epochs after the first rate drop (40)": _points(
        "fig-warmup", ("20", "40", "44", "50", "60", "80")
    ),
    "β between 1e-2 and 1e-3": _points("ablation-beta", ("0.0001", "0.001", "0.01", "0.1")),
    "a single layer is enough": _points(
        "ablation-labelnet", ("single-layer", "mlp", "mlp-batchnorm", "mlp-batchnorm-dropout")
    ),
    "the entropy loss helps": _points("ablation-entropy", ("0", "0.5", "1")),
    "soft labels steadier than MSLG's": _steadier,
}


def claims(results: Results) -> Table:
    """Claim by claim."""
    rows = [[claim, answer(results)] for claim, answer in CLAIMS.items()]
    return Table(title="The paper's claims", columns=["claim", "what we found"], rows=rows)
