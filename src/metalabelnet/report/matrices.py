"""Counts of pairs of classes: a table where it fits a screen, else the most frequent pairs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from metalabelnet.report.markup import Html, join, named, table, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metalabelnet.report.source import Pairs

MOST_CLASSES = 20  # of a whole matrix
MOST_PAIRS = 30
SHADES = 10


def matrix(pairs: Pairs, classes: Sequence[str], *, rows: str, columns: str, shares: bool, caption: str) -> Html:
    """A row for each class, with what its samples are in the other respect.

    rows, columns  what the first and the second class of a pair are
    shares         per cent of the row, and at its end how many that are; else counts
    """
    if len(classes) > MOST_CLASSES:
        return _frequent(pairs, classes, rows=rows, columns=columns)
    totals = _totals(pairs)
    heads = [tag("th", tag("span", named(name, 14)), scope="col") for name in classes]
    heads += [tag("th", tag("span", "samples" if shares else "in all"), scope="col")]
    body = []
    for r, name in enumerate(classes):
        cells = []
        for c in range(len(classes)):
            n, share = pairs[r, c], pairs[r, c] / max(1, totals[r])
            text = str(n) if not shares else f"{100 * share:.1f}"
            kind = "hit" if r == c else "miss"
            cells.append(tag("td", text if n else "·", class_=f"{kind} h{_shade(share)}" if n else "none"))
        cells.append(tag("td", str(totals[r])))
        body.append(tag("tr", tag("th", named(name, 20), scope="row"), *cells))
    head = tag("thead", tag("tr", tag("th", f"{rows} ↓", tag("br"), f"{columns} →", scope="col"), *heads))
    whole = tag("table", tag("caption", tag("span", caption)), head, tag("tbody", *body), class_="matrix")
    return tag("div", whole, class_="wide")


def _frequent(pairs: Pairs, classes: Sequence[str], *, rows: str, columns: str) -> Html:
    """The pairs of different classes that many samples have."""
    totals = _totals(pairs)
    wrong = [(n, r, c) for (r, c), n in pairs.items() if r != c]
    wrong.sort(key=lambda one: (-one[0], one[1], one[2]))
    same, other = sum(n for (r, c), n in pairs.items() if r == c), sum(n for n, *_ in wrong)
    said = tag(
        "p",
        f"With {len(classes)} classes the matrix is too large for a page. {same} samples lie on its diagonal, "
        f"{other} beside it, in {len(wrong)} pair{'s' if len(wrong) != 1 else ''} of classes"
        + (f"; these are the {MOST_PAIRS} most frequent." if len(wrong) > MOST_PAIRS else "."),
    )
    found = [
        [named(classes[r]), named(classes[c]), str(n), f"{100 * n / totals[r]:.1f} %"] for n, r, c in wrong[:MOST_PAIRS]
    ]
    return join(said, table([rows, columns, "samples", f"share of the {rows}"], found) if found else Html())


def _totals(pairs: Pairs) -> Counter[int]:
    totals: Counter[int] = Counter()
    for (r, _), n in pairs.items():
        totals[r] += n
    return totals


def _shade(share: float) -> int:
    return min(SHADES, 1 + int(share * SHADES))
