"""Filtered and paged list of samples, most suspicious first.

A page starts after the last sample of the previous page (keyset pagination), so that verdicts which remove samples from
the list do not make the next page skip any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3

    from metalabelnet.review.store import ReviewStore

SHOWS = ("suspects", "labeled", "unlabeled", "all")
VERDICTS = ("open", "decided", "kept", "changed", "unusable", "skipped", "any")
MAX_COUNT = 10_000  # lists are counted up to here
_VERDICT_CONDITIONS = {
    "open": "c.n IS NULL",
    "decided": "c.n IS NOT NULL",
    "kept": "c.kind = 'label' AND c.label = s.given",
    "changed": "c.kind = 'label' AND c.label != s.given",
    "unusable": "c.kind = 'unusable'",
    "skipped": "c.kind = 'skip'",
}
_SHOW_CONDITIONS = {"suspects": "s.suspect = 1", "labeled": "s.given >= 0", "unlabeled": "s.given < 0"}
# These have far fewer rows than samples: the query starts with the verdicts.
_DECIDED = {"decided", "kept", "changed", "unusable", "skipped"}


@dataclass(frozen=True, kw_only=True)
class SampleFilter:
    """The samples on the list. None means any class."""

    show: str = "suspects"
    verdict: str = "open"
    split: str = "train"
    given: int | None = None
    label: int | None = None
    min_confidence: float = 0.0
    max_confidence: float = 1.0

    def where(self) -> tuple[str, dict[str, Any]]:
        """The SQL condition and its parameters; s are the samples, c the current verdicts."""
        parts, values = ["s.split = :split"], {"split": self.split}
        parts += [f"s.{name} = :{name}" for name in ("given", "label") if getattr(self, name) is not None]
        if (self.min_confidence, self.max_confidence) != (0.0, 1.0):
            parts.append("s.confidence BETWEEN :min_confidence AND :max_confidence")
        if self.verdict in _DECIDED:
            parts.append("s.n IN (SELECT n FROM current_verdicts)")
        parts += [
            table[key]
            for table, key in ((_SHOW_CONDITIONS, self.show), (_VERDICT_CONDITIONS, self.verdict))
            if key in table
        ]
        return " AND ".join(parts), {
            **values,
            **{k: getattr(self, k) for k in ("given", "label", "min_confidence", "max_confidence")},
        }

    def tables(self, db: sqlite3.Connection) -> str:
        """The SQL tables, with the order and index that are fastest."""
        if self.verdict in _DECIDED:
            return "samples s NOT INDEXED LEFT JOIN current_verdicts c ON c.n = s.n"
        index = ""
        if (self.min_confidence, self.max_confidence) != (0.0, 1.0):
            # SQLite cannot estimate how selective this is, so count.
            query = (
                "SELECT count(*) FROM (SELECT 1 FROM samples INDEXED BY by_confidence "
                "WHERE split = ? AND confidence BETWEEN ? AND ? LIMIT ?)"
            )
            matches = db.execute(
                query, (self.split, self.min_confidence, self.max_confidence, 2 * MAX_COUNT)
            ).fetchone()[0]
            index = " INDEXED BY by_confidence" if matches < 2 * MAX_COUNT else ""
        return f"samples s{index} LEFT JOIN current_verdicts c ON c.n = s.n"


def list_samples(
    store: ReviewStore, sample_filter: SampleFilter, size: int, after: tuple[float, int] | None = None
) -> list[sqlite3.Row]:
    """The next samples of the list, each with its current verdict (`seen`, 0 if there is none)."""
    db = store.connection()
    where, values = sample_filter.where()
    if after is not None:
        where += " AND s.suspicion <= :suspicion AND NOT (s.suspicion = :suspicion AND s.n <= :n)"
        values |= {"suspicion": after[0], "n": after[1]}
    # First the numbers from a covering index, then the full rows.
    tables = sample_filter.tables(db)
    numbers = f"SELECT s.n FROM {tables} WHERE {where} ORDER BY s.suspicion DESC, s.n LIMIT :size"  # noqa: S608
    query = f"{_ROWS} WHERE s.n IN ({numbers}) ORDER BY s.suspicion DESC, s.n"
    return db.execute(query, {**values, "size": size}).fetchall()


def count_samples(store: ReviewStore, sample_filter: SampleFilter) -> int:
    """The number of samples on the list, at most `MAX_COUNT` + 1, as counting more takes time."""
    db = store.connection()
    where, values = sample_filter.where()
    query = f"SELECT count(*) FROM (SELECT 1 FROM {sample_filter.tables(db)} WHERE {where} LIMIT {MAX_COUNT + 1})"  # noqa: S608
    return int(db.execute(query, values).fetchone()[0])


def get_sample(store: ReviewStore, n: int) -> sqlite3.Row | None:
    """One sample with its current verdict, or None."""
    row: sqlite3.Row | None = store.connection().execute(f"{_ROWS} WHERE s.n = ?", (n,)).fetchone()
    return row


_ROWS = (
    "SELECT s.*, ifnull(c.v, 0) AS seen, c.kind AS kind, c.label AS decided "
    "FROM samples s LEFT JOIN current_verdicts c ON c.n = s.n"
)
