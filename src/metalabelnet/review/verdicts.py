"""Adding and undoing verdicts on samples, and their history.

Each change names the verdict that was current when the page was loaded (`seen`, 0 if there was none). If another tab
has changed it since, nothing is written and `VerdictConflict` is raised (optimistic locking).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    import sqlite3

    from metalabelnet.review.store import ReviewStore

KINDS = ("label", "unusable", "skip")
SAMPLINGS = ("listed", "random", "informative")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A verdict on a sample and how the sample was presented."""

    n: int
    kind: str
    label: int | None = None
    page: str = "check"
    blind: bool = False
    sampling: str = "listed"
    tab: str = ""

    def __post_init__(self) -> None:
        if (
            self.kind not in KINDS
            or self.sampling not in SAMPLINGS
            or (self.kind == "label") != (self.label is not None)
        ):
            raise InputError(f"invalid verdict {self.kind!r}: choose from {', '.join(KINDS)}; label needs a class")


class VerdictConflict(Exception):  # noqa: N818
    """The current verdict has changed since the page was loaded."""

    def __init__(self, n: int) -> None:
        super().__init__(f"the verdict on sample {n} has changed in the meantime")
        self.n = n


def add_verdict(store: ReviewStore, verdict: Verdict, seen: int) -> int:
    """Add a verdict; returns its number. A verdict equal to the current one is no conflict."""
    with store.transaction() as db:
        store.check_unchanged()
        if db.execute("SELECT 1 FROM samples WHERE n = ?", (verdict.n,)).fetchone() is None:
            raise InputError(f"no sample {verdict.n}")
        current = db.execute("SELECT v, kind, label FROM current_verdicts WHERE n = ?", (verdict.n,)).fetchone()
        if (0 if current is None else current["v"]) != seen:
            if current is not None and (current["kind"], current["label"]) == (verdict.kind, verdict.label):
                return int(current["v"])
            raise VerdictConflict(verdict.n)
        v = _insert(db, verdict.n, verdict.kind, verdict.label, None, verdict)
        db.execute(
            "INSERT OR REPLACE INTO current_verdicts VALUES (?, ?, ?, ?)", (verdict.n, v, verdict.kind, verdict.label)
        )
        return v


def undo(store: ReviewStore, n: int, seen: int, tab: str = "") -> None:
    """Undo the current verdict; the one before it becomes current."""
    with store.transaction() as db:
        store.check_unchanged()
        _undo(db, n, seen, tab)


def undo_last(store: ReviewStore, tab: str) -> sqlite3.Row | None:
    """Undo the last current verdict of a tab; returns it, or None if there is none."""
    with store.transaction() as db:
        store.check_unchanged()
        last: sqlite3.Row | None = db.execute(
            "SELECT verdicts.* FROM verdicts JOIN current_verdicts USING (v) "
            "WHERE verdicts.tab = ? ORDER BY v DESC LIMIT 1",
            (tab,),
        ).fetchone()
        if last is not None:
            _undo(db, last["n"], last["v"], tab)
        return last


def history(store: ReviewStore, n: int) -> list[sqlite3.Row]:
    """All verdicts on a sample, latest first; `undone` marks those that were undone."""
    return (
        store.connection()
        .execute(
            "SELECT *, v IN (SELECT undoes FROM verdicts WHERE n = :n AND undoes IS NOT NULL) AS undone "
            "FROM verdicts WHERE n = :n ORDER BY v DESC",
            {"n": n},
        )
        .fetchall()
    )


def _undo(db: sqlite3.Connection, n: int, seen: int, tab: str) -> None:
    current = db.execute(
        "SELECT verdicts.* FROM current_verdicts JOIN verdicts USING (v) WHERE current_verdicts.n = ?", (n,)
    ).fetchone()
    if current is None or current["v"] != seen:
        raise VerdictConflict(n)
    undoing = Verdict(
        n=n,
        kind="skip",
        page=current["page"],
        blind=bool(current["blind"]),
        sampling=current["sampling"],
        tab=tab,
    )
    _insert(db, n, "undo", None, seen, undoing)
    before = db.execute(
        "SELECT v, kind, label FROM verdicts WHERE n = :n AND kind != 'undo' AND v NOT IN "
        "(SELECT undoes FROM verdicts WHERE n = :n AND undoes IS NOT NULL) ORDER BY v DESC LIMIT 1",
        {"n": n},
    ).fetchone()
    db.execute("DELETE FROM current_verdicts WHERE n = ?", (n,))
    if before is not None:
        db.execute(
            "INSERT INTO current_verdicts VALUES (?, ?, ?, ?)", (n, before["v"], before["kind"], before["label"])
        )


def _insert(db: sqlite3.Connection, n: int, kind: str, label: int | None, undoes: int | None, verdict: Verdict) -> int:
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    row = (n, kind, label, undoes, verdict.page, verdict.blind, verdict.sampling, verdict.tab, time)
    cursor = db.execute(
        "INSERT INTO verdicts (n, kind, label, undoes, page, blind, sampling, tab, time) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        row,
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid
