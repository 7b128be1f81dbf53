"""Verdicts: none is lost, none is written over, all are remembered."""

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
from metalabelnet.review.verdicts import Verdict, VerdictConflict, decide, history, undo, undo_last
from stores import Made, made_store


def current_verdicts(store: ReviewStore, n: int) -> tuple[int, str, int | None] | None:
    row = store.connection().execute("SELECT v, kind, label FROM current_verdicts WHERE n = ?", (n,)).fetchone()
    return None if row is None else tuple(row)


def test_a_second_look_keeps_the_first(tmp_path: Path) -> None:
    store, made = made_store(tmp_path)
    n = made.rows[1].n
    first = decide(store, Verdict(n=n, kind="label", label=0), seen=0)
    second = decide(store, Verdict(n=n, kind="unusable"), seen=first)
    assert current_verdicts(store, n) == (second, "unusable", None)
    assert [(look["kind"], look["label"], look["undone"]) for look in history(store, n)] == [
        ("unusable", None, 0),
        ("label", 0, 0),
    ]


def test_undo_brings_back_what_stood_before_and_is_itself_remembered(tmp_path: Path) -> None:
    store, made = made_store(tmp_path)
    n = made.rows[1].n
    first = decide(store, Verdict(n=n, kind="label", label=0), seen=0)
    second = decide(store, Verdict(n=n, kind="skip"), seen=first)
    undo(store, n, second)
    assert current_verdicts(store, n) == (first, "label", 0)
    undo(store, n, first)
    assert current_verdicts(store, n) is None
    third = decide(store, Verdict(n=n, kind="label", label=2), seen=0)
    assert current_verdicts(store, n) == (third, "label", 2)
    kinds = [(look["kind"], look["undone"]) for look in history(store, n)]
    assert kinds == [("label", 0), ("undo", 0), ("undo", 0), ("skip", 1), ("label", 1)]


def test_a_tab_undoes_its_own_verdicts_the_last_first(tmp_path: Path) -> None:
    store, made = made_store(tmp_path)
    a, b, c = (row.n for row in made.rows[:3])
    for n, tab in ((a, "one"), (b, "two"), (c, "one")):
        decide(store, Verdict(n=n, kind="skip", tab=tab), seen=0)
    assert [undo_last(store, "one")["n"], undo_last(store, "one")["n"], undo_last(store, "one")] == [c, a, None]
    assert current_verdicts(store, b) is not None


def test_two_tabs_do_not_write_over_each_other(tmp_path: Path) -> None:
    store, made = made_store(tmp_path)
    n = made.rows[1].n
    first = decide(store, Verdict(n=n, kind="label", label=0, tab="one"), seen=0)
    with pytest.raises(VerdictConflict):
        decide(store, Verdict(n=n, kind="label", label=1, tab="two"), seen=0)  # has looked before the other decided
    with pytest.raises(VerdictConflict):
        undo(store, n, 0, "two")
    assert current_verdicts(store, n) == (first, "label", 0)
    assert decide(store, Verdict(n=n, kind="label", label=0, tab="two"), seen=0) == first  # they agree
    assert len(history(store, n)) == 1
    second = decide(store, Verdict(n=n, kind="label", label=1, tab="two"), seen=first)  # after a second look
    assert current_verdicts(store, n) == (second, "label", 1)


def test_of_many_at_once_on_the_same_samples_exactly_one_gets_through(tmp_path: Path) -> None:
    store, made = made_store(tmp_path)
    samples = [row.n for row in made.rows[:15]]
    outcomes: list[tuple[int, int]] = []

    def work(label: int) -> None:
        mine = ReviewStore(store.path)
        for n in samples:
            with contextlib.suppress(VerdictConflict):
                outcomes.append((n, decide(mine, Verdict(n=n, kind="label", label=label, tab=str(label)), seen=0)))
        mine.close()

    threads = [threading.Thread(target=work, args=(label,)) for label in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(n for n, _ in outcomes) == sorted(samples)
    assert all(current_verdicts(store, n)[0] == v for n, v in outcomes)
    assert store.connection().execute("SELECT count(*) FROM verdicts").fetchone()[0] == len(samples)


def test_a_killed_process_loses_nothing_it_has_confirmed(tmp_path: Path) -> None:
    store, made = made_store(tmp_path, 3000)
    (tmp_path / "numbers").write_text("\n".join(str(row.n) for row in made.rows))
    code = """
import pathlib, sys
from metalabelnet.review.store import Store
from metalabelnet.review.verdicts import Verdict, decide
store = Store(pathlib.Path(sys.argv[1]) / "review.sqlite")
for n in pathlib.Path(sys.argv[1], "numbers").read_text().split():
    print(n, decide(store, Verdict(n=int(n), kind="label", label=1), 0), flush=True)
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


def test_samples_read_in_again_keep_their_verdicts(tmp_path: Path) -> None:
    store, made = made_store(tmp_path)
    n = made.rows[5].n
    v = decide(store, Verdict(n=n, kind="label", label=1), seen=0)
    longer = Made(80)
    longer.rows[: len(made.rows)] = made.rows
    store.fill(longer)  # type: ignore[arg-type]
    assert store.connection().execute("SELECT count(*) FROM samples").fetchone()[0] == 80
    assert current_verdicts(store, n) == (v, "label", 1)


def test_verdicts_keep_their_class_when_the_data_gets_more_of_them(tmp_path: Path) -> None:
    store, made = made_store(tmp_path, classes=3)
    a, b, c, d = (row.n for row in made.rows[1:5])
    for n, label in ((a, 0), (b, 1), (c, 2)):
        decide(store, Verdict(n=n, kind="label", label=label), seen=0)
    decide(store, Verdict(n=d, kind="skip"), seen=0)
    made.classes, made.fingerprint = ("B", "a", "b", "c"), "one class more, the first of all"
    store.fill(made)  # type: ignore[arg-type]
    assert [current_verdicts(store, n)[2] for n in (a, b, c, d)] == [1, 2, 3, None]
    assert [history(store, n)[0]["label"] for n in (a, b, c)] == [1, 2, 3]
    made.classes, made.fingerprint = ("a", "c"), "one gone that is in use"
    with pytest.raises(InputError, match="has verdicts for the class 'b', which is not in the data any more"):
        store.fill(made)  # type: ignore[arg-type]
    assert current_verdicts(store, b)[2] == 2


def test_a_reading_that_breaks_off_leaves_what_was_there(tmp_path: Path) -> None:
    store, made = made_store(tmp_path)
    broken = Made(90)
    broken.rows[40] = broken.rows[39]  # the same number twice
    with pytest.raises(sqlite3.IntegrityError):
        store.fill(broken)  # type: ignore[arg-type]
    assert store.connection().execute("SELECT count(*) FROM samples").fetchone()[0] == len(made.rows)
    assert store.get("source", "").startswith(made.fingerprint)


def test_samples_of_an_older_layout_are_read_in_again(tmp_path: Path) -> None:
    store, made = made_store(tmp_path)
    v = decide(store, Verdict(n=made.rows[5].n, kind="skip"), seen=0)
    with store.transaction() as db:
        db.execute("DROP INDEX by_clean_label")
        db.execute("UPDATE metadata SET value = 'what an older version wrote' WHERE name = 'source'")
    store.fill(made)  # type: ignore[arg-type]
    assert current_verdicts(store, made.rows[5].n) == (v, "skip", None)
    assert store.connection().execute("SELECT 1 FROM sqlite_master WHERE name = 'by_clean_label'").fetchone()


def test_what_is_no_verdict_is_refused(tmp_path: Path) -> None:
    store, made = made_store(tmp_path)
    with pytest.raises(InputError, match="no sample"):
        decide(store, Verdict(n=12, kind="skip"), seen=0)
    with pytest.raises(InputError, match="a verdict is one of"):
        Verdict(n=made.rows[0].n, kind="label")
    with pytest.raises(InputError, match="a verdict is one of"):
        Verdict(n=made.rows[0].n, kind="undo")


def test_another_file_or_version_is_refused_with_a_sentence(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    other.write_bytes(b"this is no database, it is a letter to my mother" * 50)
    with pytest.raises(InputError, match="cannot be used for verdicts"):
        ReviewStore(other)
    store, _ = made_store(tmp_path)
    store.set(version="2")
    with pytest.raises(InputError, match="is of version 2"):
        ReviewStore(store.path)


def test_samples_that_another_program_read_in_anew_are_judged_by_nobody_else(tmp_path: Path) -> None:
    store, made = made_store(tmp_path)
    n, m = made.rows[5].n, made.rows[6].n
    v = decide(store, Verdict(n=n, kind="skip", tab="t"), seen=0)
    longer, other = Made(61), ReviewStore(store.path)
    longer.rows[:60] = made.rows
    other.fill(longer)  # type: ignore[arg-type]
    refused = (
        lambda: decide(store, Verdict(n=m, kind="label", label=1), seen=0),
        lambda: undo(store, n, v),
        lambda: undo_last(store, "t"),
        store.check,
    )
    for what in refused:
        with pytest.raises(InputError, match="was read in anew by another program; start this one again"):
            what()
    assert len(history(other, n)) == 1
    assert history(other, m) == []
    assert decide(other, Verdict(n=m, kind="label", label=1), seen=0) > v
