"""Filters, and the list of samples a page at a time, the most suspicious first.

A page begins after the last sample of the one before, not at a count of rows: verdicts that take samples off the list
in the meantime make nobody miss one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3

    from metalabelnet.review.store import Store

SHOWS = ("suspects", "labeled", "unlabeled", "all")
VERDICTS = ("open", "decided", "kept", "changed", "unusable", "skipped", "any")
MOST_COUNTED = 10_000
_STANDING = {
    "open": "c.n IS NULL",
    "decided": "c.n IS NOT NULL",
    "kept": "c.kind = 'label' AND c.label = s.given",
    "changed": "c.kind = 'label' AND c.label != s.given",
    "unusable": "c.kind = 'unusable'",
    "skipped": "c.kind = 'skip'",
}
_SHOWS = {"suspects": "s.suspect = 1", "labeled": "s.given >= 0", "unlabeled": "s.given < 0"}
_FEW = {"decided", "kept", "changed", "unusable", "skipped"}  # fewer than samples: begin with the verdicts


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which samples are on the list. None: any."""

    show: str = "suspects"
    verdict: str = "open"
    split: str = "train"
    given: int | None = None
    label: int | None = None
    least: float = 0.0
    most: float = 1.0

    def where(self) -> tuple[str, dict[str, Any]]:
        """The condition in SQL, with s for samples and c for what stands."""
        parts, values = ["s.split = :split"], {"split": self.split}
        parts += [f"s.{name} = :{name}" for name in ("given", "label") if getattr(self, name) is not None]
        if (self.least, self.most) != (0.0, 1.0):
            parts.append("s.confidence BETWEEN :least AND :most")
        if self.verdict in _FEW:
            parts.append("s.n IN (SELECT n FROM standing)")
        parts += [table[key] for table, key in ((_SHOWS, self.show), (_STANDING, self.verdict)) if key in table]
        return " AND ".join(parts), {**values, **{k: getattr(self, k) for k in ("given", "label", "least", "most")}}

    def tables(self, db: sqlite3.Connection) -> str:
        """The tables, in the order and with the index that is quick."""
        if self.verdict in _FEW:
            return "samples s NOT INDEXED LEFT JOIN standing c ON c.n = s.n"
        index = ""
        if (self.least, self.most) != (0.0, 1.0):  # SQLite cannot know how many that are
            asked = (
                "SELECT count(*) FROM (SELECT 1 FROM samples INDEXED BY by_confidence "
                "WHERE split = ? AND confidence BETWEEN ? AND ? LIMIT ?)"
            )
            found = db.execute(asked, (self.split, self.least, self.most, 2 * MOST_COUNTED)).fetchone()[0]
            index = " INDEXED BY by_confidence" if found < 2 * MOST_COUNTED else ""
        return f"samples s{index} LEFT JOIN standing c ON c.n = s.n"


def page(store: Store, which: Filter, size: int, after: tuple[float, int] | None = None) -> list[sqlite3.Row]:
    """The next samples of the list, each with the verdict that stands (`seen`, 0: none)."""
    db = store.read_options()
    where, values = which.where()
    if after is not None:
        where += " AND s.suspicion <= :suspicion AND NOT (s.suspicion = :suspicion AND s.n <= :n)"
        values |= {"suspicion": after[0], "n": after[1]}
    # The numbers from an index first, then the few whole rows.
    tables = which.tables(db)
    chosen = f"SELECT s.n FROM {tables} WHERE {where} ORDER BY s.suspicion DESC, s.n LIMIT :size"  # noqa: S608
    asked = f"{_ROWS} WHERE s.n IN ({chosen}) ORDER BY s.suspicion DESC, s.n"
    return db.execute(asked, {**values, "size": size}).fetchall()


def count(store: Store, which: Filter) -> int:
    """How many samples are on the list; beyond 10,000 nobody needs to know, and it would take time."""
    db = store.read_options()
    where, values = which.where()
    asked = f"SELECT count(*) FROM (SELECT 1 FROM {which.tables(db)} WHERE {where} LIMIT {MOST_COUNTED + 1})"  # noqa: S608
    return int(db.execute(asked, values).fetchone()[0])


def sample(store: Store, n: int) -> sqlite3.Row | None:
    """One sample, with the verdict that stands."""
    found: sqlite3.Row | None = store.read_options().execute(f"{_ROWS} WHERE s.n = ?", (n,)).fetchone()
    return found


_ROWS = (
    "SELECT s.*, ifnull(c.v, 0) AS seen, c.kind AS kind, c.label AS decided "
    "FROM samples s LEFT JOIN standing c ON c.n = s.n"
)
