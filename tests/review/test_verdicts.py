"""Verdicts: none is lost or overwritten, and all are kept."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from metalabelnet.errors import InputError
from metalabelnet.review.store import ReviewStore
from metalabelnet.review.verdicts import Verdict, VerdictConflict, add_verdict, history, undo, undo_last
from random_store import RandomSource, random_store


def current_verdicts(store: ReviewStore, n: int) -> tuple[int, str, int | None] | None:
    row = store.connection().execute("SELECT v, kind, label FROM current_verdicts WHERE n = ?", (n,)).fetchone()
    return None if row is None else tuple(row)


def test_second_verdict_keeps_the_first(tmp_path: Path) -> None:
    store, source = random_store(tmp_path)
    n = source.rows[1].n
    first = add_verdict(store, Verdict(n=n, kind="label", label=0), seen=0)
    second = add_verdict(store, Verdict(n=n, kind="unusable"), seen=first)
    assert current_verdicts(store, n) == (second, "unusable", None)
    assert [(verdict["kind"], verdict["label"], verdict["undone"]) for verdict in history(store, n)] == [
        ("unusable", None, 0),
        ("label", 0, 0),
    ]


def test_undo_restores_previous_verdict_and_is_stored(tmp_path: Path) -> None:
    store, source = random_store(tmp_path)
    n = source.rows[1].n
    first = add_verdict(store, Verdict(n=n, kind="label", label=0), seen=0)
    second = add_verdict(store, Verdict(n=n, kind="skip"), seen=first)
    undo(store, n, second)
    assert current_verdicts(store, n) == (first, "label", 0)
    undo(store, n, first)
    assert current_verdicts(store, n) is None
    third = add_verdict(store, Verdict(n=n, kind="label", label=2), seen=0)
    assert current_verdicts(store, n) == (third, "label", 2)
    kinds = [(verdict["kind"], verdict["undone"]) for verdict in history(store, n)]
    assert kinds == [("label", 0), ("undo", 0), ("undo", 0), ("skip", 1), ("label", 1)]


def test_undo_last_undoes_own_verdicts_only(tmp_path: Path) -> None:
    store, source = random_store(tmp_path)
    a, b, c = (row.n for row in source.rows[:3])
    for n, tab in ((a, "one"), (b, "two"), (c, "one")):
        add_verdict(store, Verdict(n=n, kind="skip", tab=tab), seen=0)
    assert [undo_last(store, "one")["n"], undo_last(store, "one")["n"], undo_last(store, "one")] == [c, a, None]
    assert current_verdicts(store, b) is not None


def test_tabs_do_not_overwrite_each_other(tmp_path: Path) -> None:
    store, source = random_store(tmp_path)
    n = source.rows[1].n
    first = add_verdict(store, Verdict(n=n, kind="label", label=0, tab="one"), seen=0)
    with pytest.raises(VerdictConflict):
        add_verdict(store, Verdict(n=n, kind="label", label=1, tab="two"), seen=0)  # loaded before the other verdict
    with pytest.raises(VerdictConflict):
        undo(store, n, 0, "two")
    assert current_verdicts(store, n) == (first, "label", 0)
    assert (
        add_verdict(store, Verdict(n=n, kind="label", label=0, tab="two"), seen=0) == first
    )  # equal verdicts do not conflict
    assert len(history(store, n)) == 1
    second = add_verdict(store, Verdict(n=n, kind="label", label=1, tab="two"), seen=first)  # after reloading
    assert current_verdicts(store, n) == (second, "label", 1)


def test_one_of_many_concurrent_verdicts_is_stored(tmp_path: Path) -> None:
    store, source = random_store(tmp_path)
    samples = [row.n for row in source.rows[:15]]
    outcomes: list[tuple[int, int]] = []

    def work(label: int) -> None:
        own_store = ReviewStore(store.path)
        for n in samples:
            with contextlib.suppress(VerdictConflict):
                outcomes.append(
                    (n, add_verdict(own_store, Verdict(n=n, kind="label", label=label, tab=str(label)), seen=0))
                )
        own_store.close()

    threads = [threading.Thread(target=work, args=(label,)) for label in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(n for n, _ in outcomes) == sorted(samples)
    assert all(current_verdicts(store, n)[0] == v for n, v in outcomes)
    assert store.connection().execute("SELECT count(*) FROM verdicts").fetchone()[0] == len(samples)


def test_killed_process_loses_no_confirmed_verdict(tmp_path: Path) -> None:
    store, source = random_store(tmp_path, 3000)
    (tmp_path / "numbers").write_text("\n".join(str(row.n) for row in source.rows))
    code = """
import pathlib, sys
from metalabelnet.review.store import ReviewStore
from metalabelnet.review.verdicts import Verdict, add_verdict
store = ReviewStore(pathlib.Path(sys.argv[1]) / "review.sqlite")
for n in pathlib.Path(sys.argv[1], "numbers").read_text().split():
    print(n, add_verdict(store, Verdict(n=int(n), kind="label", label=1), 0), flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(50)]
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.read().splitlines()
    process.wait()
    process.stdout.close()
    confirmed = [tuple(map(int, line.split())) for line in lines if len(line.split()) == 2]
    assert 50 <= len(confirmed) < 3000
    again = ReviewStore(store.path)
    assert all(current_verdicts(again, n) == (v, "label", 1) for n, v in confirmed)
    assert again.connection().execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_import_keeps_verdicts(tmp_path: Path) -> None:
    store, source = random_store(tmp_path)
    n = source.rows[5].n
    v = add_verdict(store, Verdict(n=n, kind="label", label=1), seen=0)
    longer = RandomSource(80)
    longer.rows[: len(source.rows)] = source.rows
    store.import_samples(longer)  # type: ignore[arg-type]
    assert store.connection().execute("SELECT count(*) FROM samples").fetchone()[0] == 80
    assert current_verdicts(store, n) == (v, "label", 1)


def test_verdicts_keep_their_class_when_classes_change(tmp_path: Path) -> None:
    store, source = random_store(tmp_path, classes=3)
    a, b, c, d = (row.n for row in source.rows[1:5])
    for n, label in ((a, 0), (b, 1), (c, 2)):
        add_verdict(store, Verdict(n=n, kind="label", label=label), seen=0)
    add_verdict(store, Verdict(n=d, kind="skip"), seen=0)
    source.classes, source.fingerprint = ("B", "a", "b", "c"), "one class more, the first of all"
    store.import_samples(source)  # type: ignore[arg-type]
    assert [current_verdicts(store, n)[2] for n in (a, b, c, d)] == [1, 2, 3, None]
    assert [history(store, n)[0]["label"] for n in (a, b, c)] == [1, 2, 3]
    source.classes, source.fingerprint = ("a", "c"), "one gone that is in use"
    with pytest.raises(InputError, match="has verdicts for the class 'b', which is no longer in the data"):
        store.import_samples(source)  # type: ignore[arg-type]
    assert current_verdicts(store, b)[2] == 2


def test_failed_import_changes_nothing(tmp_path: Path) -> None:
    store, source = random_store(tmp_path)
    broken = RandomSource(90)
    broken.rows[40] = broken.rows[39]  # duplicate number
    with pytest.raises(sqlite3.IntegrityError):
        store.import_samples(broken)  # type: ignore[arg-type]
    assert store.connection().execute("SELECT count(*) FROM samples").fetchone()[0] == len(source.rows)
    assert store.get("source", "").startswith(source.fingerprint)


def test_older_layout_is_imported_again(tmp_path: Path) -> None:
    store, source = random_store(tmp_path)
    v = add_verdict(store, Verdict(n=source.rows[5].n, kind="skip"), seen=0)
    with store.transaction() as db:
        db.execute("DROP INDEX by_clean_label")
        db.execute("UPDATE metadata SET value = 'older layout' WHERE name = 'source'")
    store.import_samples(source)  # type: ignore[arg-type]
    assert current_verdicts(store, source.rows[5].n) == (v, "skip", None)
    assert store.connection().execute("SELECT 1 FROM sqlite_master WHERE name = 'by_clean_label'").fetchone()


def test_invalid_verdict_is_rejected(tmp_path: Path) -> None:
    store, source = random_store(tmp_path)
    with pytest.raises(InputError, match="no sample"):
        add_verdict(store, Verdict(n=12, kind="skip"), seen=0)
    with pytest.raises(InputError, match="invalid verdict"):
        Verdict(n=source.rows[0].n, kind="label")
    with pytest.raises(InputError, match="invalid verdict"):
        Verdict(n=source.rows[0].n, kind="undo")


def test_other_file_or_version_is_rejected(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    other.write_bytes(b"this is not a database but some other file" * 50)
    with pytest.raises(InputError, match=r"cannot be used .*not a database"):
        ReviewStore(other)
    store, _ = random_store(tmp_path)
    store.set(version="2")
    with pytest.raises(InputError, match="has version 2"):
        ReviewStore(store.path)


def test_no_verdicts_after_another_process_imports(tmp_path: Path) -> None:
    store, source = random_store(tmp_path)
    n, m = source.rows[5].n, source.rows[6].n
    v = add_verdict(store, Verdict(n=n, kind="skip", tab="t"), seen=0)
    longer, other = RandomSource(61), ReviewStore(store.path)
    longer.rows[:60] = source.rows
    other.import_samples(longer)  # type: ignore[arg-type]
    refused = (
        lambda: add_verdict(store, Verdict(n=m, kind="label", label=1), seen=0),
        lambda: undo(store, n, v),
        lambda: undo_last(store, "t"),
        store.check_unchanged,
    )
    for what in refused:
        with pytest.raises(InputError, match="another process has imported the data again; restart this one"):
            what()
    assert len(history(other, n)) == 1
    assert history(other, m) == []
    assert add_verdict(other, Verdict(n=m, kind="label", label=1), seen=0) > v
