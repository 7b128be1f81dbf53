"""Where output goes: streams that do not know every character, and tables without a row."""

import io
import shlex
import sys
from pathlib import Path

import pytest

from files import QUICK, TABLE, photos, table_rows, write_csv
from metalabelnet.review import server
from shell import call

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ascii_only(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """Make standard output what it is where the terminal knows no more than ASCII."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    return written


@pytest.mark.parametrize("words", ["train --help", "methods"])
def test_a_terminal_without_a_character_gets_another(
    words: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = ascii_only(monkeypatch)
    assert call(words.split(), capsys).code == 0
    assert b"?" in written.getvalue()


def test_data_is_never_written_with_other_characters(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(here / "table.csv", TABLE, table_rows(60))
    assert call(f"train table.csv --clean-column checked {QUICK} --out run".split(), capsys).code == 0
    written = ascii_only(monkeypatch)
    for words in (["labels", "run"], ["predict", "run", "table.csv"]):
        said = call(words, capsys)
        assert said.code == 2
        assert "'✓' cannot be written in ascii: name a file with -o" in said.err.splitlines()[-1]
        assert b"?" not in written.getvalue()
    assert call(["labels", "run", "-o", "labels.csv"], capsys).code == 0
    assert (here / "labels.csv").read_bytes() == (here / "run" / "labels.csv").read_bytes()


def test_predictions_of_nothing_but_broken_samples_have_a_header(here: Path, capsys: Capture) -> None:
    true_label = photos(here / "photos", count=30)
    write_csv(here / "checked.csv", ["id", "label"], [*true_label[6:18], *true_label[30:32]])
    assert call(f"train photos --clean checked.csv {QUICK} --out run".split(), capsys).code == 0
    (here / "new").mkdir()
    (here / "new" / "broken.png").write_bytes(b"no picture")
    said = call(["predict", "run", "new", "--on-error", "skip", "-o", "out.csv"], capsys)
    assert said.code == 0
    assert "1 samples left out" in said.err
    lines = (here / "out.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("id,label,confidence,p_")


def test_what_review_leaves_is_never_written_with_other_characters(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(here / "photos", count=12)
    words = ["review", "photos", "--take", "labels"]
    assert call([*words, "-o", "labels.csv"], capsys).out == "15 rows written to labels.csv\n"
    expected = (here / "labels.csv").read_bytes()
    assert "bild ü".encode() in expected
    assert call([*words, "-o", "-"], capsys).out.encode() == expected
    assert not (here / "-").exists()
    written = ascii_only(monkeypatch)
    said = call(words, capsys)
    assert said.code == 2
    assert "cannot be written in ascii: name a file with -o" in said.err.splitlines()[-1]
    assert b"?" not in written.getvalue()


def test_what_review_cannot_write_leaves_the_file_that_was_there(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(here / "photos", count=12)
    words = ["review", "photos", "--take", "labels", "-o"]
    assert "there is no folder nowhere" in call([*words, "nowhere/out.csv"], capsys).err
    (here / "out.csv").write_text("before")

    def full(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        said = call([*words, "out.csv"], capsys)
    assert (said.code, said.out) == (2, "")
    assert "No space left" in said.err
    assert (here / "out.csv").read_text() == "before"
    assert call([*words, "out.csv"], capsys).code == 0
    assert (here / "out.csv").read_text(encoding="utf-8").startswith("id,given,label")


def test_a_stopped_review_says_the_whole_command(here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "check_installed", lambda: None)
    monkeypatch.setattr(server, "serve", stopped)
    write_csv(here / "my table.csv", TABLE, table_rows(20))
    words = ["review", "my table.csv", "--label", "label", "--db", "my verdicts.sqlite", "--port", "8123"]
    said = call(words, capsys)
    assert said.code == 0
    assert shlex.split(said.err.partition("go on with: ")[2]) == ["metalabelnet", *words]
