"""One SQLite file: the samples, read in once so that a page of a million is quick, and the verdicts on them.

Verdicts are only ever added. Undoing one adds a line that says so, and a second look adds another verdict; what stands
is the last that was not undone. `standing` holds just that, for lists and counts, and is changed in the same
transaction. The write-ahead log with full synchronisation has every verdict on the disk before the page is answered.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from metalabelnet.review.source import Sample, Source

VERSION = "1"
_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS verdicts (
  v INTEGER PRIMARY KEY AUTOINCREMENT,
  n INTEGER NOT NULL,
  kind TEXT NOT NULL,           -- label, unusable, skip, undo
  label INTEGER,                -- the class, where the kind is label
  undoes INTEGER UNIQUE,        -- the verdict that does not stand any more, where the kind is undo
  page TEXT NOT NULL,           -- check or clean
  blind INTEGER NOT NULL,       -- whether it was made without the given label in sight
  way TEXT NOT NULL,            -- how the sample was come by: listed, random, informative
  tab TEXT NOT NULL,
  at TEXT NOT NULL              -- UTC
);
CREATE INDEX IF NOT EXISTS verdicts_of ON verdicts (n, v);
CREATE INDEX IF NOT EXISTS verdicts_in ON verdicts (tab, v);
CREATE TABLE IF NOT EXISTS standing (n INTEGER PRIMARY KEY, v INTEGER NOT NULL, kind TEXT NOT NULL, label INTEGER);
CREATE INDEX IF NOT EXISTS standing_label ON standing (kind, label);
CREATE TABLE IF NOT EXISTS names (n INTEGER PRIMARY KEY, id TEXT NOT NULL);  -- of samples with verdicts, which may go
"""
# What is read in from elsewhere, and made anew when that or this has changed.
_SAMPLES = """
CREATE TABLE samples (
  n INTEGER PRIMARY KEY,        -- a number made of the id: its order is random, and says nothing of the class
  position INTEGER NOT NULL,    -- in the data
  id TEXT NOT NULL,
  split TEXT NOT NULL,          -- train, clean, test, left out
  given INTEGER NOT NULL,       -- −1: none
  label INTEGER NOT NULL,       -- what the run suggests; −1: nothing
  confidence REAL NOT NULL,
  suspect INTEGER NOT NULL,
  suspicion REAL NOT NULL,      -- −1: no given label, or no run
  informative REAL NOT NULL,
  stratum INTEGER NOT NULL,     -- the class it is drawn for: the best guess there is
  checked INTEGER NOT NULL,     -- the right label, for samples of the run's clean set; −1 elsewhere
  bars TEXT NOT NULL            -- [[class, probability], …], the most likely first
)
"""
_SIZES = "CREATE TABLE sizes (split TEXT, stratum INTEGER, labeled INTEGER, count INTEGER)"
# Covering: a filter is answered from an index alone, most suspicious first.
_INDEXES = {
    "by_suspicion": "(split, suspicion DESC, n, suspect, given, label, confidence)",
    "by_suspect": "(split, suspect, suspicion DESC, n, given, label, confidence)",
    "by_given": "(split, given, suspicion DESC, n, label, suspect, confidence)",
    "by_label": "(split, label, suspicion DESC, n, given, suspect, confidence)",
    "by_pair": "(split, given, label, suspicion DESC, n, suspect, confidence)",
    "by_confidence": "(split, confidence, suspicion DESC, n, given, label, suspect)",
    "by_stratum": "(split, stratum, n)",
    "by_informative": "(split, stratum, informative DESC, n)",
    "by_checked": "(position) WHERE checked >= 0",
}


class Store:
    """The file, with a connection for each thread that asks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filled: str | None = None  # what this program knows the samples by
        self._mine = threading.local()
        self._all: list[sqlite3.Connection] = []
        with self.writing() as db:
            found = db.execute("SELECT value FROM about WHERE name = 'version'").fetchone()
            if found is None:
                db.execute("INSERT INTO about VALUES ('version', ?)", (VERSION,))
            elif found[0] != VERSION:
                raise InputError(f"{path} is of version {found[0]}, and this program writes {VERSION}; give --db FILE")

    def read_options(self) -> sqlite3.Connection:
        """This thread's connection, for a single statement or several that need not agree."""
        db: sqlite3.Connection | None = getattr(self._mine, "db", None)
        if db is None:
            db = self._mine.db = self._connect()
            self._all.append(db)
        return db

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, alone with the file from its first line on: on the disk at its end, or nothing of it."""
        db = self.read_options()
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    def close(self) -> None:
        """Close all connections; whoever asks next gets a new one."""
        for db in self._all:
            db.close()
        self._all, self._mine = [], threading.local()

    __del__ = close

    def get(self, name: str, default: str) -> str:
        """A remembered choice."""
        found = self.read_options().execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
        return default if found is None else str(found[0])

    def set(self, **values: str) -> None:
        """Remember choices."""
        with self.writing() as db:
            db.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", values.items())

    def check(self) -> None:
        """Refuse once another program has read the samples in anew: their places and classes are others than here."""
        if self._filled not in (None, self.get("source", "")):
            raise InputError(f"{self.path}: the data was read in anew by another program; start this one again")

    def fill(self, source: Source, tell: Callable[[str, int, int], None] | None = None) -> None:
        """Read the samples in, unless this has been done and nothing has changed since. Verdicts stay."""
        layout = hashlib.sha256(repr((_SAMPLES, _SIZES, _INDEXES)).encode()).hexdigest()
        fingerprint = f"{source.fingerprint} {layout}"
        if self.get("source", "") == fingerprint:
            self._filled = fingerprint
            return
        self.read_options().execute("PRAGMA cache_size = -262144")  # KiB: the order of the numbers is random
        with self.writing() as db:
            self._check_rows(db, source)
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'samples'").fetchone() is not None:
                judged = "SELECT n, id FROM samples WHERE n IN (SELECT n FROM verdicts)"
                db.execute(f"INSERT OR REPLACE INTO names {judged}")
            for name, table in (("samples", _SAMPLES), ("sizes", _SIZES)):
                db.execute(f"DROP TABLE IF EXISTS {name}")
                db.execute(table)
            columns = ", ".join(":" + name for name in _COLUMNS)
            counted = _told(source.samples(), len(source), tell)
            db.executemany(f"INSERT INTO samples VALUES ({columns})", (s.as_row() for s in counted))  # noqa: S608
            for name, columns in _INDEXES.items():
                db.execute(f"CREATE INDEX {name} ON samples {columns}")
            db.execute(
                "INSERT INTO sizes SELECT split, stratum, given >= 0, count(*) FROM samples GROUP BY split, stratum, 3"
            )
            self._renumber(db, source.classes)
            db.execute("INSERT OR REPLACE INTO about VALUES ('source', ?)", (fingerprint,))
            db.execute("PRAGMA analysis_limit = 1000")
            db.execute("ANALYZE samples")
        self._filled = fingerprint
        self.read_options().execute("PRAGMA cache_size = -8192")

    def _check_rows(self, db: sqlite3.Connection, source: Source) -> None:
        """Refuse rows without names if verdicts were given on others: their numbers say nothing. More may follow."""
        rows = f"{len(source)} {source.digest(len(source))}" if source.numbered else ""
        before = self.get("rows", rows)
        count, _, digest = before.partition(" ")
        more = source.numbered and bool(count) and len(source) > int(count) and source.digest(int(count)) == digest
        if not (before == rows or more) and db.execute("SELECT 1 FROM verdicts LIMIT 1").fetchone() is not None:
            raise InputError(
                f"the verdicts in {self.path} were given on other rows: give --db FILE for a new one; with a column of "
                "names, given with --id, rows may change places"
            )
        db.execute("INSERT OR REPLACE INTO about VALUES ('rows', ?)", (rows,))

    def _renumber(self, db: sqlite3.Connection, classes: Sequence[str]) -> None:
        """Let verdicts mean the classes they meant, where the data has others than before and their numbers changed."""
        before = json.loads(self.get("classes", "[]"))
        if before and before != list(classes):
            number = {name: k for k, name in enumerate(classes)}
            used = [row[0] for row in db.execute("SELECT DISTINCT label FROM verdicts WHERE label IS NOT NULL")]
            gone = [before[k] for k in used if before[k] not in number]
            if gone:
                raise InputError(
                    f"{self.path} has verdicts for the class {gone[0]!r}, which is not in the data any more: "
                    "give another file with --db FILE, or bring the class back"
                )
            db.execute("CREATE TEMP TABLE renumbered (old INTEGER PRIMARY KEY, new INTEGER NOT NULL)")
            db.executemany("INSERT INTO renumbered VALUES (?, ?)", [(k, number[before[k]]) for k in used])
            for table in ("verdicts", "standing"):
                new = "(SELECT new FROM renumbered WHERE old = label)"
                db.execute(f"UPDATE {table} SET label = {new} WHERE label IS NOT NULL")  # noqa: S608
            db.execute("DROP TABLE renumbered")
        db.execute("INSERT OR REPLACE INTO about VALUES ('classes', ?)", (json.dumps(classes),))

    def _connect(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(self.path, timeout=30.0, isolation_level=None, check_same_thread=False)
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute(f"PRAGMA mmap_size = {1 << 30}")  # a page of the file without a copy of it for each thread
            db.executescript(_TABLES)
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"{self.path} cannot be used for verdicts ({error}); give another with --db FILE"
            ) from error
        return db


_COLUMNS = (
    *("n", "position", "id", "split", "given", "label", "confidence", "suspect", "suspicion"),
    *("informative", "stratum", "checked", "bars"),
)


def _told(samples: Iterable[Sample], total: int, tell: Callable[[str, int, int], None] | None) -> Iterator[Any]:
    for done, sample in enumerate(samples, 1):
        yield sample
        if tell is not None and (done % 10_000 == 0 or done == total):
            tell("reading labels", done, total)
