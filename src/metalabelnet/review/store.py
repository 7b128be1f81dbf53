"""The SQLite file of the review page: samples, imported once so that lists of a million are fast, and verdicts.

Verdicts are append-only. Undoing a verdict adds a row, and so does a second verdict on a sample; the current verdict is
the last one that was not undone. The table `current_verdicts` holds these for lists and counts and is updated in the
same transaction. WAL with full synchronization writes every verdict to disk before the page answers.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from metalabelnet.errors import InputError
from metalabelnet.input_files.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from metalabelnet.review.source import ReviewSource, SampleRow

    CurrentVerdicts = dict[int, tuple[str, int | None]]  # kind and label by the position of the sample

VERSION = "1"
LOCK_TIMEOUT_SECONDS = 30.0
_ADVICE = {  # by SQLite's primary result code; any other error means damage
    sqlite3.SQLITE_BUSY: "close the program that uses it, or use another file with --db FILE",
    sqlite3.SQLITE_LOCKED: "close the program that uses it, or use another file with --db FILE",
    sqlite3.SQLITE_FULL: "free some space, or use a file on another disk with --db FILE",
    sqlite3.SQLITE_IOERR: "check the disk, or use a file on another disk with --db FILE",
    sqlite3.SQLITE_READONLY: "make it writable, or use another file with --db FILE",
    sqlite3.SQLITE_CANTOPEN: "use a file in a folder that you can write to with --db FILE",
}
_DAMAGED_ADVICE = "the file is damaged: restore a copy of it, or use another file with --db FILE"
_TABLES = """
CREATE TABLE IF NOT EXISTS metadata (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS verdicts (
  v INTEGER PRIMARY KEY AUTOINCREMENT,
  n INTEGER NOT NULL,
  kind TEXT NOT NULL,           -- label, unusable, skip, undo
  label INTEGER,                -- the class, for kind label
  undoes INTEGER UNIQUE,        -- the undone verdict, for kind undo
  page TEXT NOT NULL,           -- check or clean
  blind INTEGER NOT NULL,       -- whether the given label was hidden
  sampling TEXT NOT NULL,            -- listed, random, informative
  tab TEXT NOT NULL,
  time TEXT NOT NULL            -- UTC
);
CREATE INDEX IF NOT EXISTS verdicts_of ON verdicts (n, v);
CREATE INDEX IF NOT EXISTS verdicts_in ON verdicts (tab, v);
CREATE TABLE IF NOT EXISTS current_verdicts (
  n INTEGER PRIMARY KEY, v INTEGER NOT NULL, kind TEXT NOT NULL, label INTEGER
);
CREATE INDEX IF NOT EXISTS current_verdicts_label ON current_verdicts (kind, label);
-- ids of samples with verdicts, also of samples removed from the data
CREATE TABLE IF NOT EXISTS sample_ids (n INTEGER PRIMARY KEY, id TEXT NOT NULL);
"""
# Imported from the source, and imported again when the source or the layout has changed.
_SAMPLES = """
CREATE TABLE samples (
  n INTEGER PRIMARY KEY,        -- hash of the id: its order is random and independent of the class
  position INTEGER NOT NULL,    -- row in the data
  id TEXT NOT NULL,
  split TEXT NOT NULL,          -- train, clean, test, left out
  given INTEGER NOT NULL,       -- −1: unlabeled
  label INTEGER NOT NULL,       -- corrected label; −1: none
  confidence REAL NOT NULL,
  suspect INTEGER NOT NULL,
  suspicion REAL NOT NULL,      -- −1: unlabeled, or no run
  informativeness REAL NOT NULL,
  stratum INTEGER NOT NULL,     -- the class for sampling: corrected label, else given label
  clean_label INTEGER NOT NULL,     -- label in the clean set of the run; −1: not in it
  probabilities TEXT NOT NULL            -- JSON [[class, probability], …], most likely first
)
"""
_STRATUM_SIZES = "CREATE TABLE stratum_sizes (split TEXT, stratum INTEGER, labeled INTEGER, count INTEGER)"
# Covering indexes: lists are read from an index alone, most suspicious first.
_INDEXES = {
    "by_suspicion": "(split, suspicion DESC, n, suspect, given, label, confidence)",
    "by_suspect": "(split, suspect, suspicion DESC, n, given, label, confidence)",
    "by_given": "(split, given, suspicion DESC, n, label, suspect, confidence)",
    "by_label": "(split, label, suspicion DESC, n, given, suspect, confidence)",
    "by_pair": "(split, given, label, suspicion DESC, n, suspect, confidence)",
    "by_confidence": "(split, confidence, suspicion DESC, n, given, label, suspect)",
    "by_stratum": "(split, stratum, n)",
    "by_informativeness": "(split, stratum, informativeness DESC, n)",
    "by_clean_label": "(position) WHERE clean_label >= 0",
}

_IS_CLASS = "(typeof({0}) = 'integer' AND {0} BETWEEN {1} AND :last_class)"
_INVALID_SAMPLE = (
    "NOT ("
    + " AND ".join(
        (
            "typeof(position) = 'integer' AND position BETWEEN 0 AND :last_position",
            *(_IS_CLASS.format(name, -1) for name in ("given", "label", "stratum", "clean_label")),
            *(f"typeof({name}) = 'real'" for name in ("confidence", "suspicion", "informativeness")),
            *(f"typeof({name}) = 'text'" for name in ("id", "split", "probabilities")),
        )
    )
    + ")"
)
_LABEL_FITS_KIND = f"CASE kind WHEN 'label' THEN {_IS_CLASS.format('label', 0)} ELSE label IS NULL END"
_INVALID_VERDICTS = {
    "current_verdicts": f"NOT (typeof(v) = 'integer' AND typeof(kind) = 'text' AND {_LABEL_FITS_KIND})",
    "verdicts": f"NOT (typeof(kind || page || time) = 'text' AND {_LABEL_FITS_KIND})",
}
_JUDGED_IDS = "SELECT id FROM {0} WHERE n IN (SELECT n FROM current_verdicts)"


class ReviewDatabaseError(InputError):
    """The SQLite file cannot be used: locked, damaged, no database at all, or the disk is full."""

    def __init__(self, path: Path, problem: sqlite3.Error | OSError | str) -> None:
        code = getattr(problem, "sqlite_errorcode", 0) & 0xFF
        advice = _ADVICE[sqlite3.SQLITE_CANTOPEN] if isinstance(problem, OSError) else _ADVICE.get(code)
        super().__init__(f"{path} cannot be used ({problem}): {advice or _DAMAGED_ADVICE}")


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Raise the errors of SQLite as `ReviewDatabaseError`."""
    try:
        yield
    except sqlite3.Error as error:
        raise ReviewDatabaseError(path, error) from error


def check_no_links(path: Path) -> None:
    """Raise InputError if the file, or one that SQLite writes beside it, is a link: it leads to another place."""
    if not path.name:
        raise InputError(f"{path} is a folder: give a file with --db FILE")
    for suffix in ("", "-wal", "-shm", "-journal"):
        file = path.with_name(path.name + suffix)
        if file.is_symlink():
            raise InputError(f"{file} is a symbolic link: remove it, or use another file with --db FILE")


class ReviewStore:
    """The SQLite file, with a connection for each thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._imported: str | None = None  # fingerprint of the samples that this process has imported
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        with database_errors(path), self.transaction() as db:
            version = db.execute("SELECT value FROM metadata WHERE name = 'version'").fetchone()
            if version is None:
                db.execute("INSERT INTO metadata VALUES ('version', ?)", (VERSION,))
            elif version[0] != VERSION:
                raise InputError(
                    f"{path} has version {version[0]}, expected {VERSION}; use another file with --db FILE"
                )

    def connection(self) -> sqlite3.Connection:
        """The connection of this thread, for statements outside a transaction."""
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = self._connect()
            self._connections.append(db)
        return db

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """An exclusive write transaction; committed to disk at the end, rolled back on an exception."""
        db = self.connection()
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # SQLite itself rolls back after some errors, such as a full disk
                db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close all connections; the next use opens new ones."""
        for db in self._connections:
            db.close()
        self._connections, self._local = [], threading.local()

    __del__ = close

    def get(self, name: str, default: str) -> str:
        """A stored setting."""
        row = self.connection().execute("SELECT value FROM metadata WHERE name = ?", (name,)).fetchone()
        return default if row is None else str(row[0])

    def set(self, **values: str) -> None:
        """Store settings."""
        with self.transaction() as db:
            db.executemany("INSERT OR REPLACE INTO metadata VALUES (?, ?)", values.items())

    def check_unchanged(self) -> None:
        """Raise InputError if another process has imported other samples: positions and classes may differ."""
        if self._imported not in (None, self.get("source", "")):
            raise InputError(f"{self.path}: another process has imported the data again; restart this one")

    def import_samples(self, source: ReviewSource, report: Callable[[str, int, int], None] | None = None) -> None:
        """Import the samples unless they are imported and unchanged. Verdicts are kept.

        `report` is called with a description, the number of samples done, and their total.
        """
        fingerprint = _database_fingerprint(source)
        if self.get("source", "") == fingerprint:
            self._check_values(self.connection(), source)
            self._imported = fingerprint
            return
        self.connection().execute("PRAGMA cache_size = -262144")  # KiB; the primary keys are in random order
        with self.transaction() as db:
            self._check_rows(db, source)
            self._renumber_classes(db, source.classes)
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'samples'").fetchone() is not None:
                judged = "SELECT n, id FROM samples WHERE n IN (SELECT n FROM verdicts)"
                db.execute(f"INSERT OR REPLACE INTO sample_ids {judged}")
            for name, table in (("samples", _SAMPLES), ("stratum_sizes", _STRATUM_SIZES)):
                db.execute(f"DROP TABLE IF EXISTS {name}")
                db.execute(table)
            columns = ", ".join(":" + name for name in _COLUMNS)
            samples = _with_progress(source.samples(), len(source), report)
            db.executemany(f"INSERT INTO samples VALUES ({columns})", (s.as_row() for s in samples))  # noqa: S608
            for name, columns in _INDEXES.items():
                db.execute(f"CREATE INDEX {name} ON samples {columns}")
            db.execute(
                "INSERT INTO stratum_sizes "
                "SELECT split, stratum, given >= 0, count(*) FROM samples GROUP BY split, stratum, 3"
            )
            self._check_values(db, source)
            db.execute("INSERT OR REPLACE INTO metadata VALUES ('source', ?)", (fingerprint,))
            db.execute("PRAGMA analysis_limit = 1000")
            db.execute("ANALYZE samples")
        self._imported = fingerprint
        self.connection().execute("PRAGMA cache_size = -8192")

    def current_verdicts(self, source: ReviewSource) -> CurrentVerdicts:
        """The current verdicts on samples of the source.

        They are checked and renumbered as by `import_samples`, but nothing is imported or changed.
        """
        db = self.connection()
        db.execute("BEGIN IMMEDIATE")
        try:
            if db.execute("SELECT 1 FROM verdicts LIMIT 1").fetchone() is None:
                return {}
            if self.get("source", "") != _database_fingerprint(source):
                self._check_rows(db, source)
                self._renumber_classes(db, source.classes)
            self._check_verdicts(db, source)
            verdicts = db.execute("SELECT n, kind, label FROM current_verdicts").fetchall()
            ids = {name for table in ("samples", "sample_ids") for (name,) in db.execute(_JUDGED_IDS.format(table))}
            positions = source.positions_of([n for n, _, _ in verdicts], ids)
            return {positions[n]: (kind, label) for n, kind, label in verdicts if n in positions}
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    def _check_values(self, db: sqlite3.Connection, source: ReviewSource) -> None:
        """Raise ReviewDatabaseError if a value is out of range: the file may come from somebody else."""
        bounds = {"last_class": len(source.classes) - 1, "last_position": len(source) - 1}
        count, invalid = db.execute(f"SELECT count(*), total({_INVALID_SAMPLE}) FROM samples", bounds).fetchone()  # noqa: S608
        if count != len(source) or invalid:
            raise ReviewDatabaseError(self.path, f"{int(invalid) or abs(count - len(source))} samples are invalid")
        self._check_verdicts(db, source)

    def _check_verdicts(self, db: sqlite3.Connection, source: ReviewSource) -> None:
        """Raise ReviewDatabaseError if a verdict has a value out of range."""
        bounds = {"last_class": len(source.classes) - 1}
        for table, condition in _INVALID_VERDICTS.items():
            if db.execute(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1", bounds).fetchone() is not None:  # noqa: S608
                raise ReviewDatabaseError(self.path, "a verdict is invalid")

    def _check_rows(self, db: sqlite3.Connection, source: ReviewSource) -> None:
        """Raise InputError if rows identified by number have verdicts and have changed; rows may be appended."""
        rows = f"{len(source)} {source.digest(len(source))}" if source.ids_are_row_numbers else ""
        before = self.get("rows", rows)
        count, _, digest = before.partition(" ")
        appended = (
            source.ids_are_row_numbers
            and count.isascii()
            and count.isdigit()
            and len(source) > int(count)
            and source.digest(int(count)) == digest
        )
        if not (before == rows or appended) and db.execute("SELECT 1 FROM verdicts LIMIT 1").fetchone() is not None:
            raise InputError(
                f"the verdicts in {self.path} are for other rows: use a new file with --db FILE; rows may change their "
                "order only if they have an id column (--id)"
            )
        db.execute("INSERT OR REPLACE INTO metadata VALUES ('rows', ?)", (rows,))

    def _renumber_classes(self, db: sqlite3.Connection, classes: Sequence[str]) -> None:
        """Update the class numbers of verdicts if the classes of the data have changed."""
        try:
            before = parse_json(self.get("classes", "[]").encode())
        except ValueError:
            raise ReviewDatabaseError(self.path, "the class names are invalid") from None
        if before and before != list(classes):
            number = {name: k for k, name in enumerate(classes)}
            used = [row[0] for row in db.execute("SELECT DISTINCT label FROM verdicts WHERE label IS NOT NULL")]
            if not (
                isinstance(before, list)
                and all(isinstance(name, str) for name in before)
                and all(isinstance(k, int) and 0 <= k < len(before) for k in used)
            ):
                raise ReviewDatabaseError(self.path, "the class names are invalid")
            removed = [before[k] for k in used if before[k] not in number]
            if removed:
                raise InputError(
                    f"{self.path} has verdicts for the class {removed[0]!r}, which is no longer in the data: "
                    "use another file with --db FILE, or restore the class"
                )
            db.execute("CREATE TEMP TABLE renumbered (old INTEGER PRIMARY KEY, new INTEGER NOT NULL)")
            db.executemany("INSERT INTO renumbered VALUES (?, ?)", [(k, number[before[k]]) for k in used])
            for table in ("verdicts", "current_verdicts"):
                new = "(SELECT new FROM renumbered WHERE old = label)"
                db.execute(f"UPDATE {table} SET label = {new} WHERE label IS NOT NULL")  # noqa: S608
            db.execute("DROP TABLE renumbered")
        db.execute("INSERT OR REPLACE INTO metadata VALUES ('classes', ?)", (json.dumps(classes),))

    def _connect(self) -> sqlite3.Connection:
        check_no_links(self.path)
        try:
            if not self.path.exists():
                self.path.touch(mode=0o600)  # SQLite gives its other files the same mode
            db = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA trusted_schema = OFF")  # the file may come from somebody else
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute(f"PRAGMA mmap_size = {1 << 30}")  # threads share the page cache of the system
            db.executescript(_TABLES)
        except (sqlite3.Error, OSError) as error:
            raise ReviewDatabaseError(self.path, error) from error
        return db


_COLUMNS = (
    *("n", "position", "id", "split", "given", "label", "confidence", "suspect", "suspicion"),
    *("informativeness", "stratum", "clean_label", "probabilities"),
)


def _database_fingerprint(source: ReviewSource) -> str:
    """A hash of the samples and of the layout of their tables."""
    layout = hashlib.sha256(repr((_SAMPLES, _STRATUM_SIZES, _INDEXES)).encode()).hexdigest()
    return f"{source.fingerprint} {layout}"


def _with_progress(
    samples: Iterable[SampleRow], total: int, report: Callable[[str, int, int], None] | None
) -> Iterator[Any]:
    for done, sample in enumerate(samples, 1):
        yield sample
        if report is not None and (done % 10_000 == 0 or done == total):
            report("importing samples", done, total)
