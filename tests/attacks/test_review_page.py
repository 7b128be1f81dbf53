"""The review page, its database and its exports against other users of the computer and files from strangers."""

import csv
import io
import os
import random
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from starlette.testclient import TestClient

from cli_runner import CliResult, run_cli
from metalabelnet.cli import main
from metalabelnet.cli.console import Console
from metalabelnet.cli.printable import MAX_ERROR_CHARACTERS, escape_control_characters, shorten
from metalabelnet.data.files.spreadsheet import escape_formula, unescape_formula
from metalabelnet.review import server, store
from metalabelnet.review.app import ReviewApp
from metalabelnet.review.store import ReviewStore
from random_store import random_store
from review_browser import ReviewServer, wait_until
from review_client import HOST, TOKEN, ReviewClient, open_review
from user_data import QUICK, TABLE_COLUMNS, picture, read_csv, table_rows, write_csv

Capture = pytest.CaptureFixture[str]
ADDRESS = "http://127.0.0.1:5000/?token=secret-token"
ESCAPE = "\x1b]0;owned\x07"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `table.csv` and `run`, trained on it."""
    folder = tmp_path_factory.mktemp("table")
    write_csv(folder / "table.csv", TABLE_COLUMNS, table_rows(60))
    arguments = f"--clean-column checked {QUICK} --method cross-entropy --out {folder}/run"
    assert main(["train", str(folder / "table.csv"), *arguments.split()]) == 0
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained / "run", tmp_path / "run"))


@pytest.fixture
def page(run: Path) -> ReviewClient:
    return open_review(run)


def check_one_line(result: CliResult, *words: str) -> None:
    """Assert exit code 2 and one line of allowed length with these words."""
    assert result.code == 2, result
    assert result.out == ""
    assert len(result.err.splitlines()) == 1, result.err
    assert len(result.err.rstrip("\n")) <= MAX_ERROR_CHARACTERS
    for word in words:
        assert word in result.err


# The token


def test_browser_is_opened_without_the_token_in_its_arguments(
    run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments of a process are visible to all users; the file that leads to the address is not."""
    opened: list[str] = []
    files: list[Path] = []

    def open_browser(address: str) -> bool:
        opened.append(address)
        file = Path(unquote(urlparse(address).path))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert ADDRESS in file.read_text()
        files.append(file)
        return True

    def serve(_source: object, _store: object, _port: int, on_ready: Callable, on_visit: Callable) -> None:
        on_ready(ADDRESS)
        assert files[0].exists()
        on_visit(f"{ADDRESS}-2")
        assert not files[0].parent.exists()
        on_visit(f"{ADDRESS}-3")

    monkeypatch.setattr(webbrowser, "open", open_browser)
    monkeypatch.setattr(server, "serve", serve)
    result = run_cli(["review", str(run), "--open"], capsys)
    assert result.code == 0, result.err
    assert opened[0].startswith("file://")
    assert "secret-token" not in opened[0]
    assert result.out == f"{ADDRESS}\n"
    assert f"{ADDRESS}-3" in result.err


@pytest.mark.browser
def test_redirect_file_leads_to_the_page(chromium: Any, run: Path, tmp_path: Path) -> None:
    program = tmp_path / "browser"  # writes its arguments instead of opening a page
    program.write_text(
        f'#!/bin/sh\necho "$@" > "{tmp_path}/arguments.tmp"\nmv "{tmp_path}/arguments.tmp" "{tmp_path}/arguments"\n'
    )
    program.chmod(0o700)
    review = ReviewServer(run, "--open", BROWSER=str(program))
    try:
        wait_until((tmp_path / "arguments").exists)
        address = (tmp_path / "arguments").read_text().strip()
        assert review.address.partition("token=")[2] not in address
        page = chromium.new_context().new_page()
        page.goto(address)
        page.wait_for_selector("h1")
        assert page.url.startswith(review.base)
        wait_until(lambda: not Path(unquote(urlparse(address).path)).parent.exists())
    finally:
        review.stop()


def test_redirect_file_is_removed_if_the_page_is_never_visited(
    run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def serve(_source: object, _store: object, _port: int, on_ready: Callable, _on_visit: Callable) -> None:
        on_ready(ADDRESS)
        raise KeyboardInterrupt

    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(server, "serve", serve)
    assert run_cli(["review", str(run), "--open"], capsys).code == 0
    assert not Path(unquote(urlparse(opened[0]).path)).parent.exists()


def test_token_is_accepted_once_and_is_not_the_cookie(page: ReviewClient) -> None:
    new_tokens: list[str] = []
    app = ReviewApp(page.source, page.store).guarded(5000, TOKEN, new_tokens.append)
    first, second = (TestClient(app, base_url=HOST) for _ in range(2))
    answer = first.get(f"/?token={TOKEN}")
    assert answer.status_code == 200
    ((name, value),) = answer.cookies.items()
    assert name == "metalabelnet_review_5000"
    assert TOKEN not in value
    assert first.get("/export").status_code == 200
    assert second.get(f"/?token={TOKEN}").status_code == 403
    assert second.get("/export", headers={"Cookie": f"{name}={TOKEN}"}).status_code == 403
    assert len(new_tokens) == 1
    assert value not in new_tokens
    assert first.get(f"/?token={TOKEN}").status_code == 200  # a reload in the browser that has the cookie
    assert second.get(f"/?token={new_tokens[0]}").status_code == 200  # another browser, with the next address
    assert second.get("/export").status_code == 200
    assert len(new_tokens) == 2


def test_cookie_of_another_port_is_rejected(page: ReviewClient) -> None:
    value = next(iter(page.client.cookies.values()))
    other = TestClient(ReviewApp(page.source, page.store).guarded(5001, "other"), base_url="http://127.0.0.1:5001")
    for name in ("metalabelnet_review_5000", "metalabelnet_review_5001"):
        assert other.get("/export", headers={"Cookie": f"{name}={value}"}).status_code == 403


# The database


def test_database_is_private(run: Path, tmp_path: Path) -> None:
    previous = os.umask(0o022)
    try:
        for file in (run / "review.sqlite", tmp_path / "other.sqlite"):
            page = open_review(run, db=file)
            page.store.set(target="3")
            for name in (file.name, f"{file.name}-wal", f"{file.name}-shm"):
                assert stat.S_IMODE(file.with_name(name).stat().st_mode) == 0o600
    finally:
        os.umask(previous)


def fill_disk(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the database have no page more than now."""
    connect = ReviewStore._connect

    def limited(self: ReviewStore) -> sqlite3.Connection:
        db = connect(self)
        db.execute("PRAGMA max_page_count = 1")  # is raised to the present number of pages
        return db

    monkeypatch.setattr(ReviewStore, "_connect", limited)


def lock(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOCK_TIMEOUT_SECONDS", 0.05)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(sys.modules[__name__], "_locking_connection", other, raising=False)  # keeps it open


def damage_pages(file: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytearray(file.read_bytes())
    content[4096:] = random.Random(0).randbytes(len(content) - 4096)
    file.write_bytes(content)


def write_other_content(file: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(b"this is not a database, but a text " * 100)


def change(statement: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    """Return a function that changes the content of the database."""

    def apply(file: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
        db = sqlite3.connect(file)
        db.execute(statement)
        db.commit()
        db.close()

    return apply


DAMAGES = {
    "locked": (lock, "locked"),
    "damaged pages": (damage_pages, "malformed"),
    "not a database": (write_other_content, "not a database"),
    "other columns": (change("ALTER TABLE samples RENAME COLUMN given TO taken"), "damaged"),
    "samples missing": (change("DROP TABLE samples"), "damaged"),
    "unknown class": (change("UPDATE samples SET label = 99"), "damaged"),
    "unknown class in a verdict": (change("INSERT INTO current_verdicts VALUES (7, 1, 'label', 99)"), "damaged"),
    "text for a number": (change("UPDATE samples SET confidence = 'high'"), "damaged"),
    "position outside of the data": (change("UPDATE samples SET position = 1000"), "damaged"),
    "classes are not JSON": (change("UPDATE metadata SET value = '[' WHERE name IN ('classes', 'source')"), "damaged"),
    "text is not UTF-8": (change("UPDATE samples SET id = CAST(x'ff41' AS TEXT)"), "decode"),
}


@pytest.mark.parametrize("name", sorted(DAMAGES))
def test_export_from_a_bad_database_is_a_one_line_error(
    name: str, run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, word = DAMAGES[name]
    file = run / "review.sqlite"
    assert run_cli(["review", str(run), "--export", "clean", "-o", str(run / "out.csv")], capsys).code == 0
    before = (run / "out.csv").read_bytes()
    apply(file, monkeypatch)
    result = run_cli(["review", str(run), "--export", "clean", "-o", str(run / "out.csv")], capsys)
    check_one_line(result, str(file), word, "--db FILE")
    assert (run / "out.csv").read_bytes() == before


# Damage to columns that the labels export does not read: it reads the samples from the data.
UNREAD = ("other columns", "position outside of the data", "text for a number", "unknown class")


@pytest.mark.parametrize("name", sorted(DAMAGES))
def test_labels_from_a_bad_database_are_the_same_or_a_one_line_error(
    name: str, page: ReviewClient, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k, row in enumerate(page.rows("split = 'train' LIMIT 20")):
        page.post("/verdict", n=row["n"], seen=0, action=("unusable", "keep")[k % 2])
    page.store.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    page.store.close()
    file = page.store.path
    export = ["review", str(page.source.run), "--export", "labels", "-o", str(file.with_name("out.csv"))]
    assert run_cli(export, capsys).code == 0
    before = file.with_name("out.csv").read_bytes()
    assert b",person," in before
    apply, word = DAMAGES[name]
    apply(file, monkeypatch)
    result = run_cli(export, capsys)
    if name in UNREAD:
        assert result.code == 0, result.err
    else:
        check_one_line(result, str(file), word, "--db FILE")
    assert file.with_name("out.csv").read_bytes() == before


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE samples SET id = 'another'",
        "UPDATE samples SET id = (SELECT max(id) FROM samples AS other WHERE other.id != samples.id)",
        "DELETE FROM samples",
        "INSERT INTO current_verdicts VALUES (7, 1, 'unusable', NULL)",
    ],
)
def test_labels_do_not_trust_the_ids_in_the_database(statement: str, page: ReviewClient, capsys: Capture) -> None:
    """A verdict belongs to the sample whose id has its hash, whatever the database says."""
    n = page.rows("split = 'train' AND given = 0")[0]["n"]
    page.post("/verdict", n=n, seen=0, action="choose", **{"class": page.source.classes[1]})
    export = ["review", str(page.source.run), "--export", "labels"]
    before = run_cli(export, capsys).out
    assert before.count(",person,") == 1
    page.store.connection().execute(statement)
    page.store.close()
    assert run_cli(export, capsys).out == before


def test_full_disk_on_import_is_a_one_line_error(run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_disk(run, monkeypatch)
    check_one_line(run_cli(["review", str(run), "--export", "clean"], capsys), "full", "free some space")


def check_error_page(answer: Any) -> None:
    """Assert that a response is the error page, which names the file and says what to do."""
    assert answer.status_code == 500, answer.text
    assert re.search(r'<p class="alert" role="alert">.*review.sqlite cannot be used .*--db FILE', answer.text)
    assert ("not saved" in answer.text) == (answer.request.method == "POST")


@pytest.mark.parametrize("name", ["damaged pages", "not a database", "samples missing", "text is not UTF-8", "locked"])
def test_bad_database_while_serving_is_a_page(name: str, page: ReviewClient, monkeypatch: pytest.MonkeyPatch) -> None:
    n = page.rows()[0]["n"]
    page.store.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    page.store.close()
    DAMAGES[name][0](page.store.path, monkeypatch)
    if name == "locked":  # reading is possible
        assert page.get("/export/labels.csv").status_code == 200
    else:
        for address in ("/?show=all&verdict=any", "/export/labels.csv"):
            check_error_page(page.get(address))
    check_error_page(page.post("/verdict", n=n, seen=0, action="skip"))
    for answer in (page.get("/clean"), page.get("/export"), page.post("/undo", page="check", tab="t")):
        assert answer.status_code in (200, 303, 500)


def test_full_disk_while_serving_is_a_page(page: ReviewClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page stays usable, and saves verdicts again when there is space."""
    page.store.close()
    with monkeypatch.context() as patch:
        fill_disk(page.store.path, patch)
        answers = (page.post("/verdict", n=row["n"], seen=0, action="skip", tab="t" * 40) for row in page.rows())
        failed = next(answer for answer in answers if answer.status_code != 303)
        check_error_page(failed)
        assert "full" in failed.text
        assert page.get("/clean").status_code == 200
        count = len(page.current_verdicts())
        page.store.close()
    n = next(row["n"] for row in page.rows() if row["n"] not in page.current_verdicts())
    assert page.post("/verdict", n=n, seen=0, action="skip").status_code == 303
    assert len(page.current_verdicts()) == count + 1


def test_failed_commit_ends_the_transaction(tmp_path: Path) -> None:
    review_store, _ = random_store(tmp_path)
    review_store.connection().execute("CREATE TABLE parents (n INTEGER PRIMARY KEY)")
    review_store.connection().execute("PRAGMA foreign_keys = ON")
    review_store.connection().execute(
        "CREATE TABLE children (n INTEGER REFERENCES parents (n) DEFERRABLE INITIALLY DEFERRED)"
    )

    def insert_child() -> None:
        with review_store.transaction() as db:
            db.execute("INSERT INTO children VALUES (1)")

    with pytest.raises(sqlite3.IntegrityError):
        insert_child()  # fails on COMMIT
    review_store.set(target="5")
    assert review_store.get("target", "") == "5"


def test_numbers_beyond_64_bits_are_not_found(page: ReviewClient) -> None:
    for number in ("9999999999999999999", "9" * 20, "0" * 20 + "9" * 20, "0" * 5000, "9" * 5000):
        assert page.get(f"/sample/{number}/small").status_code == 404, number
    for number in ("9999999999999999999", "9" * 20, "0" * 20 + "9" * 20, "0" * 20 + "9" * 5000):
        for address in ("/?n=", "/clean?n=", "/clean?target=", "/?after=0.5,"):
            assert page.get(f"{address}{number}").status_code == 400, address + number[:30]
        for name in ("n", "seen"):
            fields = {"n": 1, "seen": 0, "action": "skip", name: number}
            assert page.post("/verdict", **fields).status_code == 400


# Speed


def test_download_of_many_labels_is_fast(tmp_path: Path) -> None:
    """20,000 rows took 8 s when each line was sent on its own; a tenth of a second of CPU time is usual."""
    review_store, source = random_store(tmp_path, 20_000)
    app = ReviewApp(source, review_store).guarded(5000, TOKEN)  # type: ignore[arg-type]
    client = TestClient(app, base_url=HOST)
    client.get(f"/?token={TOKEN}")
    start = time.process_time()
    answer = client.get("/export/labels.csv")
    assert time.process_time() - start < 2
    assert answer.text.count("\n") == 20_001
    assert answer.headers["content-length"] == str(len(answer.content))


# Text for terminals and spreadsheets


@pytest.mark.parametrize("text", [ESCAPE, "a\nb", "a\rb", "\x9b31m", "\x7f", "a\u2028b", "\u202etxt.exe", "\x00"])
def test_control_characters_are_escaped(text: str) -> None:
    escaped = escape_control_characters(text)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", escaped)
    assert "\\" in escaped
    assert escape_control_characters("Äpfel ✓ 苹果 👩‍🔬") == "Äpfel ✓ 苹果 👩‍🔬"


def test_console_prints_no_control_characters(capsys: Capture) -> None:
    console = Console()
    console.print(f"a {ESCAPE}\nb")
    console.log(f"c {ESCAPE}\nd")
    console.table([f"x{ESCAPE}", "y"], [[f"1\n{ESCAPE}", "2"]])
    with console.progress() as display:
        display.samples(f"reading {ESCAPE}", 5, 5)
    captured = capsys.readouterr()
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", captured.out + captured.err)
    assert captured.out.count("\n") == 1 + 3
    assert captured.err.count("\n") == 1 + 1


def test_names_in_messages_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [(k, 1 + k % 2 * 5 + k / 100, ("a", "b")[k % 2]) for k in range(20)]
    table = write_csv(tmp_path / f"t{ESCAPE}\n.csv", ("id", f"w{ESCAPE}", "label"), rows)
    clean = write_csv(tmp_path / "clean.csv", ("id", "label"), [(k, f"c{ESCAPE}") for k in range(4)])
    for words in (
        ["train", table.name],
        ["train", table.name, "--clean", clean.name],
        ["train", table.name, "--label", f"x{ESCAPE}"],
        ["train", f"{ESCAPE}\nnowhere"],
        ["train", table.name, "--epochs", f"x{ESCAPE}"],
        ["review", table.name, "--export", "labels", "-o", f"{ESCAPE}/x"],
        ["labels", f"{ESCAPE}\nnowhere"],
    ):
        check_one_line(run_cli(words, capsys), "x1b")
    result = run_cli(["review", table.name, "--export", "labels", "-o", f"o{ESCAPE}\n.csv"], capsys)
    assert result.code == 0
    assert "\x1b" not in result.out + result.err
    assert result.out == "20 rows written to o\\x1b]0;owned\\x07\\n.csv\n"


def test_data_on_a_terminal_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A file or pipe gets the exact bytes."""
    rows = [(f"{k}{ESCAPE}", k % 2, ("a", "b")[k % 2]) for k in range(20)]
    table = write_csv(tmp_path / "table.csv", ("id", "width", "label"), rows)
    words = ["review", str(table), "--export", "labels"]
    exact = run_cli(words, capsys).out
    assert exact.count(ESCAPE) == 20
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run_cli(words, capsys).out == exact.replace(ESCAPE, "\\x1b]0;owned\\x07")


def test_long_messages_keep_the_advice() -> None:
    path = "/data/" + "folder/" * 60 + "mine.csv"
    message = f"{path}: the column {'n' * 400!r} does not exist; name another column with --label"
    short = shorten(message)
    assert len(short) <= MAX_ERROR_CHARACTERS
    assert short.startswith("/data/folder/")
    assert short.endswith("does not exist; name another column with --label")
    assert "mine.csv" in short
    names = ", ".join(f"column {k}" for k in range(100))
    short = shorten(f"cannot tell which column is the label: {names}; rename it to label")
    assert len(short) <= MAX_ERROR_CHARACTERS
    assert short.startswith("cannot tell which column is the label: column 0")
    assert short.endswith("column 99; rename it to label")
    assert shorten("short") == "short"


def test_command_prints_at_most_300_characters(tmp_path: Path, capsys: Capture) -> None:
    rows = [(k, k % 2, ("a", "b")[k % 2]) for k in range(20)]
    table = write_csv(tmp_path / "table.csv", ("id", "w" * 1000, "label"), rows)
    check_one_line(run_cli(["review", str(table), "--export", "labels", "--label", "x" * 999], capsys), "choose from")
    check_one_line(run_cli(["train", str(table), "--epochs", "9" * 99 + "x" * 999], capsys), "--help")


FORMULAS = ("=1+1", "+cmd", "-2+3", "@SUM(A1)", "\tx", "\rx", "'=1", "''-x", "＝1")
PLAIN = ("-1", "0.5", "+3e-5", "-.5", "a=b", "'quoted'", "'", "", "it's")


def test_formulas_are_escaped_and_numbers_are_not() -> None:
    for cell in FORMULAS:
        assert escape_formula(cell) == f"'{cell}"
        assert unescape_formula(f"'{cell}") == cell
    for cell in PLAIN:
        assert escape_formula(cell) == cell
        assert unescape_formula(cell) == cell
    assert unescape_formula("'-1") == "'-1"  # is not the escape of a number


@pytest.fixture
def formula_photos(tmp_path: Path) -> Path:
    """Photos of two classes whose names are formulas."""
    import numpy as np

    noise = np.random.default_rng(0)
    for k in range(24):
        file = tmp_path / "photos" / ("=1+1", "@dog")[k % 2] / f"{k}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture(k % 2, noise).save(file)
    return tmp_path / "photos"


def first_cells_are_safe(text: str) -> bool:
    return all(escape_formula(cell) == cell or cell[:1] == "'" for row in csv.reader(io.StringIO(text)) for cell in row)


def test_exported_formulas_train_again(formula_photos: Path, tmp_path: Path, capsys: Capture) -> None:
    """The page escapes, the command escapes on request, and training with either file is the same."""
    page = open_review(formula_photos)
    for row in page.rows()[:16]:
        class_name = page.source.classes[row["given"]]
        page.post("/verdict", n=row["n"], seen=0, page="clean", action="choose", **{"class": class_name})
    words = ["review", str(formula_photos), "--export", "clean"]
    raw, safe = run_cli(words, capsys).out, run_cli([*words, "--spreadsheet-safe"], capsys).out
    assert "'" not in raw
    assert safe.count("'=1+1") + safe.count("'@dog") == 2 * 16
    assert page.get("/export/clean.csv").text == safe
    for name in ("labels", "verdicts"):
        assert first_cells_are_safe(page.get(f"/export/{name}.csv").text)
    notes = []
    for name, text in (("raw", raw), ("safe", safe)):
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
        arguments = f"--clean {tmp_path}/{name}.csv {QUICK} --method cross-entropy --out {tmp_path}/{name}"
        result = run_cli(["train", str(formula_photos), *arguments.split()], capsys)
        assert result.code == 0, result.err
        notes.append(re.findall("[0-9]+ clean samples, .*", result.err))
    assert notes[0] == notes[1] != []
    for file in ("labels.csv", "model.safetensors"):
        assert (tmp_path / "raw" / file).read_bytes() == (tmp_path / "safe" / file).read_bytes()
    table = run_cli(["labels", str(tmp_path / "raw"), "--spreadsheet-safe"], capsys).out
    assert first_cells_are_safe(table)
    own = read_csv(tmp_path / "raw" / "labels.csv")
    for row, safe_row in zip(own, csv.DictReader(io.StringIO(table)), strict=True):
        assert list(row.values()) == [unescape_formula(cell) for cell in safe_row.values()]
    assert (
        run_cli(["labels", str(tmp_path / "raw")], capsys).out.encode()
        == (tmp_path / "raw" / "labels.csv").read_bytes()
    )
    result = run_cli(["labels", str(tmp_path / "raw"), "--spreadsheet-safe", "--format", "fiftyone"], capsys)
    check_one_line(result, "--spreadsheet-safe", "fiftyone", "csv")


def test_ids_with_apostrophes_are_never_confused(tmp_path: Path, capsys: Capture) -> None:
    """Ids that differ in an escape alone are refused if the file could mean either."""
    rows = [(f"r{k}", k % 2 * 5 + k / 100, ("a", "b")[k % 2]) for k in range(30)]
    rows[0], rows[2] = ("=x", 0.2, "a"), ("'=x", 0.1, "a")
    table = write_csv(tmp_path / "table.csv", ("id", "width", "label"), rows)
    others = [(f"r{k}", ("a", "b")[k % 2]) for k in range(10, 20)]
    for ids, code in ((["=x", "'=x"], 0), (["'=x"], 2)):
        clean = write_csv(tmp_path / "clean.csv", ("id", "label"), [*((name, "a") for name in ids), *others])
        arguments = f"--clean {clean} {QUICK} --method cross-entropy --out {tmp_path}/run{len(ids)}"
        result = run_cli(["train", str(table), *arguments.split()], capsys)
        assert result.code == code, result.err
    check_one_line(result, "'=x", "rename")
    write_csv(table, ("id", "width", "label"), [("r0", 0.2, "a"), *rows[1:]])  # the apostrophe is part of the only id
    assert run_cli(["train", str(table), *arguments.split()], capsys).code == 0


# Options without effect


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("RUN --export clean --label color", ("--label", "is a run", "leave it out")),
        ("RUN --export clean --id id", ("--id", "is a run")),
        ("RUN --features width,noise", ("--features", "is a run")),
        ("RUN --image x", ("--image", "is a run")),
        ("RUN --text x", ("--text", "is a run")),
        ("digits --export clean --label x", ("--label", "digits", "leave it out")),
        ("RUN -o out.csv", ("-o", "--export")),
        ("RUN --drawn", ("--drawn", "--export clean")),
        ("RUN --export labels --drawn", ("--drawn", "--export clean")),
        ("RUN --spreadsheet-safe", ("--spreadsheet-safe", "--export")),
        ("RUN --export labels --open", ("--open", "--export")),
        ("RUN --export labels --port 8000", ("--port", "--export")),
    ],
)
def test_options_without_effect_are_refused(
    arguments: str, words: tuple[str, ...], run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    monkeypatch.setattr(server, "serve", lambda *_: pytest.fail("the page was served"))
    check_one_line(run_cli(["review", *arguments.replace("RUN", "run").split()], capsys), *words)
    assert not (run.parent / "out.csv").exists()
    assert not list(run.parent.rglob("*.sqlite"))


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("exists", [True, False])
def test_database_that_is_a_link_is_refused(
    suffix: str, exists: bool, run: Path, tmp_path: Path, capsys: Capture
) -> None:
    """A link in a folder from a stranger leads to any file; a link to no file would create it."""
    target = tmp_path / "target"
    if exists:
        target.write_text("mine")
    link = run / f"review.sqlite{suffix}"
    link.symlink_to(target)
    check_one_line(run_cli(["review", str(run), "--export", "labels"], capsys), f"{link} is a symbolic link: remove it")
    if not suffix:
        result = run_cli(["review", str(run), "--export", "labels", "--db", str(link)], capsys)
        check_one_line(result, "use another file with --db FILE")
    assert target.read_text() == "mine" if exists else not target.exists()


def test_labels_are_exported_without_pytorch(run: Path, tmp_path: Path) -> None:
    """Importing it takes longer than the export of 100,000 samples."""
    words = ["review", str(run), "--export", "labels", "-o", str(tmp_path / "labels.csv")]
    code = (
        f"import sys; from metalabelnet.cli import main; assert main({words}) == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert len(read_csv(tmp_path / "labels.csv")) == 60


@pytest.mark.parametrize("folder", [".", "/"])
def test_folder_without_a_name_is_no_database(folder: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_cli(["review", str(run), "--export", "labels", "--db", folder], capsys)
    check_one_line(result, f"{folder} is a folder: give a file with --db FILE")
