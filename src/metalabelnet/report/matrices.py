"""Confusion and noise matrices: a full table for few classes, else the most frequent pairs of classes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from metalabelnet.report.markup import Html, join, name_tag, table, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metalabelnet.report.finished_run import PairCounts

MAX_MATRIX_CLASSES = 20  # with more classes only pairs are listed
MAX_PAIRS = 30
SHADES = 10


def pair_table(
    pairs: PairCounts, classes: Sequence[str], *, rows: str, columns: str, shares: bool, caption: str
) -> Html:
    """A table with a row and a column for each class.

    Parameters
    ----------
    pairs : Counter
        Number of samples for each (row class, column class).
    classes : sequence of str
        Names of the classes.
    rows, columns : str
        What the rows and the columns are, such as "true" and "predicted".
    shares : bool
        Whether cells show percent of the row instead of counts.
    caption : str
        Caption of the table.
    """
    if len(classes) > MAX_MATRIX_CLASSES:
        return _frequent_pairs(pairs, classes, rows=rows, columns=columns)
    totals = _totals(pairs)
    heads = [tag("th", tag("span", name_tag(name, 14)), scope="col") for name in classes]
    heads += [tag("th", tag("span", "samples" if shares else "total"), scope="col")]
    body = []
    for r, name in enumerate(classes):
        cells = []
        for c in range(len(classes)):
            n, share = pairs[r, c], pairs[r, c] / max(1, totals[r])
            text = str(n) if not shares else f"{100 * share:.1f}"
            kind = "hit" if r == c else "miss"
            cells.append(tag("td", text if n else "·", class_=f"{kind} h{_shade(share)}" if n else "none"))
        cells.append(tag("td", str(totals[r])))
        body.append(tag("tr", tag("th", name_tag(name, 20), scope="row"), *cells))
    head = tag("thead", tag("tr", tag("th", f"{rows} ↓", tag("br"), f"{columns} →", scope="col"), *heads))
    matrix = tag("table", tag("caption", tag("span", caption)), head, tag("tbody", *body), class_="matrix")
    return tag("div", matrix, class_="wide")


def _frequent_pairs(pairs: PairCounts, classes: Sequence[str], *, rows: str, columns: str) -> Html:
    """The most frequent pairs of different classes."""
    totals = _totals(pairs)
    wrong = [(n, r, c) for (r, c), n in pairs.items() if r != c]
    wrong.sort(key=lambda one: (-one[0], one[1], one[2]))
    same, other = sum(n for (r, c), n in pairs.items() if r == c), sum(n for n, *_ in wrong)
    intro = tag(
        "p",
        f"The matrix of {len(classes)} classes is too large to show. {same} samples are on its diagonal, "
        f"{other} off it, in {len(wrong)} pair{'s' if len(wrong) != 1 else ''} of classes"
        + (f"; the table lists the {MAX_PAIRS} most frequent." if len(wrong) > MAX_PAIRS else "."),
    )
    body = [
        [name_tag(classes[r]), name_tag(classes[c]), str(n), f"{100 * n / totals[r]:.1f} %"]
        for n, r, c in wrong[:MAX_PAIRS]
    ]
    return join(intro, table([rows, columns, "samples", f"share of {rows}"], body) if body else Html())


def _totals(pairs: PairCounts) -> Counter[int]:
    totals: Counter[int] = Counter()
    for (r, _), n in pairs.items():
        totals[r] += n
    return totals


def _shade(share: float) -> int:
    return min(SHADES, 1 + int(share * SHADES))
