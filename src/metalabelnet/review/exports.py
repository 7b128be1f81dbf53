"""What is taken away: the clean set, the corrected labels, the verdicts, each as lines of a CSV file."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from metalabelnet.review.source import Source
    from metalabelnet.review.store import Store

    Rows = Iterator[tuple[Any, ...]]

# Whether the sample c has a verdict of the page for clean sets that was not undone.
_DRAWN = (
    "EXISTS (SELECT 1 FROM verdicts v WHERE v.n = c.n AND v.page = 'clean' AND v.kind = 'label' "
    "AND NOT EXISTS (SELECT 1 FROM verdicts u WHERE u.undoes = v.v))"
)


def clean(store: Store, source: Source, *, drawn: bool = False) -> Rows:
    """The clean set as `train --clean` reads it: every sample whose class a person has confirmed, and the run's own.

    What a person says of a sample counts more than what the run's clean set said. With `drawn` only samples that were
    drawn on the page for clean sets, without those that were checked as suspects alone; the run's own stay, unless a
    person has contradicted.

    A sample that the data itself marks as clean would be clean again. Where a person or the run's clean set says that
    it is not, it comes last, without a label, and `train` leaves it out.
    """
    yield "id", "label", "from"
    asked = (
        "SELECT s.position, s.id, c.label, 'person' AS origin FROM samples s NOT INDEXED "  # noqa: S608
        "JOIN standing c ON c.n = s.n WHERE s.n IN (SELECT n FROM standing) "
        f"AND c.kind = 'label' AND (NOT :drawn OR {_DRAWN}) "
        "UNION ALL SELECT s.position, s.id, s.checked, 'run' FROM samples s INDEXED BY by_checked WHERE s.checked >= 0 "
        "AND NOT EXISTS (SELECT 1 FROM standing c WHERE c.n = s.n AND (c.kind = 'unusable' OR c.kind = 'label' "
        f"AND (NOT :drawn OR c.label != s.checked OR {_DRAWN}))) ORDER BY 1"
    )
    taken = set()
    for row in store.read_options().execute(asked, {"drawn": drawn}):
        taken.add(row["position"])
        yield row["id"], source.classes[row["label"]], row["origin"]
    contradicted = "SELECT s.position FROM standing c JOIN samples s ON s.n = c.n WHERE c.kind IN ('label', 'unusable')"
    judged = {row["position"] for row in store.read_options().execute(contradicted)} if source.marked else ()
    for position in sorted(source.marked - taken):
        if position in judged or position not in source.checked:
            yield source.ids[position], "", "left out"


def labels(store: Store, source: Source) -> Rows:
    """A label for every sample but the unusable: a person's, else the run's best guess, else the given one."""
    yield "id", "given", "label", "from", "confidence"
    names = [*source.classes, ""]
    asked = (
        "SELECT s.id, s.given, s.label, s.checked, s.confidence, c.kind, c.label AS decided FROM samples s "
        "LEFT JOIN standing c ON c.n = s.n WHERE c.kind IS NULL OR c.kind != 'unusable' ORDER BY s.position"
    )
    for row in store.read_options().execute(asked):
        guesses = (
            ("person", row["decided"] if row["kind"] == "label" else -1),
            ("clean", row["checked"]),
            ("run", row["label"]),
            ("given", row["given"]),
        )
        origin, label = next(((origin, label) for origin, label in guesses if label >= 0), ("", -1))
        confidence = f"{row['confidence']:.6f}" if origin == "run" else ""
        yield row["id"], names[row["given"]], names[label], origin, confidence


def verdicts(store: Store, source: Source) -> Rows:
    """Everything that was ever said, in order, also of samples that have gone since."""
    yield "verdict", "at", "id", "given", "suggested", "kind", "label", "undoes", "page", "blind", "way", "tab"
    names = [*source.classes, ""]
    asked = (
        "SELECT v.*, coalesce(s.id, names.id, '') AS id, s.given, s.label AS suggested FROM verdicts v "
        "LEFT JOIN samples s ON s.n = v.n LEFT JOIN names ON names.n = v.n ORDER BY v.v"
    )
    for row in store.read_options().execute(asked):
        label = "" if row["label"] is None else names[row["label"]]
        said = ("", "") if row["given"] is None else (names[row["given"]], names[row["suggested"]])
        how = (row["undoes"] or "", row["page"], row["blind"], row["way"], row["tab"])
        yield row["v"], row["at"], row["id"], *said, row["kind"], label, *how


TAKES: dict[str, Callable[[Store, Source], Rows]] = {"clean": clean, "labels": labels, "verdicts": verdicts}


def lines(rows: Rows) -> Iterator[str]:
    """The rows as lines of CSV."""
    for row in rows:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(row)
        yield text.getvalue()
