"""A verdict on a sample, its undoing and its history.

Whoever decides says which verdict stood when they looked (`seen`, 0: none). If another tab has decided since, nothing
is written and `Conflict` shows what stands now: they look again, and decide again if they still want to.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    import sqlite3

    from metalabelnet.review.store import Store

KINDS = ("label", "unusable", "skip")
WAYS = ("listed", "random", "informative")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a person says of a sample, and how they came to see it."""

    n: int
    kind: str
    label: int | None = None
    page: str = "check"
    blind: bool = False
    way: str = "listed"
    tab: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.way not in WAYS or (self.kind == "label") != (self.label is not None):
            raise InputError(f"a verdict is one of {', '.join(KINDS)}, the first with a class, not {self.kind!r}")


class Conflict(Exception):  # noqa: N818
    """Another tab has decided since the sample was looked at."""

    def __init__(self, n: int) -> None:
        super().__init__(f"sample {n} was decided elsewhere in the meantime")
        self.n = n


def decide(store: Store, verdict: Verdict, seen: int) -> int:
    """Write a verdict down; gives its number. One that says what already stands is no conflict."""
    with store.writing() as db:
        store.check()
        if db.execute("SELECT 1 FROM samples WHERE n = ?", (verdict.n,)).fetchone() is None:
            raise InputError(f"there is no sample {verdict.n}")
        now = db.execute("SELECT v, kind, label FROM standing WHERE n = ?", (verdict.n,)).fetchone()
        if (0 if now is None else now["v"]) != seen:
            if now is not None and (now["kind"], now["label"]) == (verdict.kind, verdict.label):
                return int(now["v"])
            raise Conflict(verdict.n)
        v = _add(db, verdict.n, verdict.kind, verdict.label, None, verdict)
        db.execute("INSERT OR REPLACE INTO standing VALUES (?, ?, ?, ?)", (verdict.n, v, verdict.kind, verdict.label))
        return v


def undo(store: Store, n: int, seen: int, tab: str = "") -> None:
    """Undo the verdict that stands; the one before it stands again."""
    with store.writing() as db:
        store.check()
        _undo(db, n, seen, tab)


def undo_last(store: Store, tab: str) -> sqlite3.Row | None:
    """Undo the last verdict that this tab has made and that still stands; gives it, or None where there is none."""
    with store.writing() as db:
        store.check()
        last: sqlite3.Row | None = db.execute(
            "SELECT verdicts.* FROM verdicts JOIN standing USING (v) WHERE verdicts.tab = ? ORDER BY v DESC LIMIT 1",
            (tab,),
        ).fetchone()
        if last is not None:
            _undo(db, last["n"], last["v"], tab)
        return last


def history(store: Store, n: int) -> list[sqlite3.Row]:
    """All that was ever said of a sample, the last first; `undone` marks what does not stand any more."""
    return (
        store.read_options()
        .execute(
            "SELECT *, v IN (SELECT undoes FROM verdicts WHERE n = :n AND undoes IS NOT NULL) AS undone "
            "FROM verdicts WHERE n = :n ORDER BY v DESC",
            {"n": n},
        )
        .fetchall()
    )


def _undo(db: sqlite3.Connection, n: int, seen: int, tab: str) -> None:
    now = db.execute("SELECT verdicts.* FROM standing JOIN verdicts USING (v) WHERE standing.n = ?", (n,)).fetchone()
    if now is None or now["v"] != seen:
        raise Conflict(n)
    same = Verdict(n=n, kind="skip", page=now["page"], blind=bool(now["blind"]), way=now["way"], tab=tab)
    _add(db, n, "undo", None, seen, same)
    before = db.execute(
        "SELECT v, kind, label FROM verdicts WHERE n = :n AND kind != 'undo' AND v NOT IN "
        "(SELECT undoes FROM verdicts WHERE n = :n AND undoes IS NOT NULL) ORDER BY v DESC LIMIT 1",
        {"n": n},
    ).fetchone()
    db.execute("DELETE FROM standing WHERE n = ?", (n,))
    if before is not None:
        db.execute("INSERT INTO standing VALUES (?, ?, ?, ?)", (n, before["v"], before["kind"], before["label"]))


def _add(db: sqlite3.Connection, n: int, kind: str, label: int | None, undoes: int | None, how: Verdict) -> int:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    row = (n, kind, label, undoes, how.page, how.blind, how.way, how.tab, at)
    done = db.execute(
        "INSERT INTO verdicts (n, kind, label, undoes, page, blind, way, tab, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        row,
    )
    assert done.lastrowid is not None
    return done.lastrowid
