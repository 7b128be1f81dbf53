"""A page whose numbers come from the results: what stands between two marks is generated, the rest is written.

<!-- begin: cifar10-table -->
…
<!-- end: cifar10-table -->
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from metalabelnet.errors import InputError, unknown
from metalabelnet.reproduction.claims import agreement, claims, standing, warm_up
from metalabelnet.reproduction.entries import Selection, entries
from metalabelnet.reproduction.figures import has_figure
from metalabelnet.reproduction.recipes import WHATS
from metalabelnet.reproduction.tables import tables
from metalabelnet.reproduction.text_table import Table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from metalabelnet.reproduction.results import Results

_BLOCK = re.compile(r"(<!-- begin: (?P<name>[\w-]+) -->\n).*?(<!-- end: (?P=name) -->)", flags=re.DOTALL)
FOLDER = "reproduction"  # where the figures are, seen from the page


def update(page: Path, results: Results) -> bool:
    """Fill the page in; gives whether that changed it."""
    if not page.is_file():
        raise InputError(f"doc: there is no page {str(page)!r} to fill in")
    before = page.read_text(encoding="utf-8")
    after = fill(before, results)
    if after != before:
        page.write_text(after, encoding="utf-8")
    return after != before


def fill(text: str, results: Results) -> str:
    """The text with everything between marks made anew from the results."""

    def made(match: re.Match[str]) -> str:
        return f"{match[1]}\n{block(match['name'], results).strip()}\n\n{match[3]}"

    _check_marks(text)
    return _BLOCK.sub(made, text)


def _check_marks(text: str) -> None:
    """Refuse marks that would leave a part as it is, or take another with it."""
    marks: dict[str, list[str]] = {}
    for kind, name in re.findall(r"<!-- (begin|end): ([\w-]+) -->", text):
        marks.setdefault(name, []).append(kind)
    parts = {match["name"] for match in _BLOCK.finditer(text)}
    for name, there in marks.items():
        if there != ["begin", "end"]:
            told = f"{len(there)} marks for {name!r} ({', '.join(there)})"
            raise InputError(f"the page has {told}: one begins it, and then one ends it")
        if name not in parts:
            raise InputError(f"the marks for {name!r} lie within another part, or more is on the line of the first")


def block(name: str, results: Results) -> str:
    """What belongs between the marks of that name, as Markdown."""
    if name in OTHERS:
        return OTHERS[name](results).markdown()
    if name not in WHATS:
        raise unknown("part of the page", name, [*WHATS, *OTHERS])
    texts = [table.markdown() for table in tables(name, results)]
    if has_figure(name, results):
        texts.append(f"![{name}]({FOLDER}/{name}.svg)")
    return "\n".join(texts)


def provenance(results: Results) -> Table:
    """How much of each was run, when, on which card, at which commits."""
    rows = []
    for name, what in WHATS.items():
        if name.startswith("beyond"):  # it is not of the paper, and has a page of its own
            continue
        if what.needs_data:
            rows.append([name, "needs data", "", "", ""])
            continue
        asked = entries(name, Selection())
        lines = [line for line in map(results.of, asked) if line is not None]
        dates = sorted({line["date"] for line in lines})
        cards = sorted({str(line["versions"].get("device")) for line in lines})
        commits = sorted({str(line["commit"]) for line in lines})
        when = " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]]))
        rows.append([name, f"{len(lines)} of {len(asked)}", when, ", ".join(cards), ", ".join(commits)])
    return Table(title="What was run", columns=["what", "runs", "date", "card", "commit"], rows=rows)


OTHERS: dict[str, Callable[[Results], Table]] = {
    "provenance": provenance,
    "agreement": agreement,
    "warm-up": warm_up,
    "standing": standing,
    "claims": claims,
}
