"""Output encoding: terminals that lack characters, and tables without rows."""

import io
import shlex
import sys
from pathlib import Path

import pytest

from cli_runner import run_cli
from metalabelnet.review import server
from user_data import QUICK, TABLE_COLUMNS, table_rows, write_csv, write_photos

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def use_ascii_stdout(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """Replace standard output by an ASCII stream."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    return written


@pytest.mark.parametrize("words", ["train --help", "methods"])
def test_unprintable_characters_are_replaced_on_terminal(
    words: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = use_ascii_stdout(monkeypatch)
    assert run_cli(words.split(), capsys).code == 0
    assert b"?" in written.getvalue()


def test_data_output_is_never_changed(work_dir: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(work_dir / "table.csv", TABLE_COLUMNS, table_rows(60))
    assert run_cli(f"train table.csv --clean-column checked {QUICK} --out run".split(), capsys).code == 0
    written = use_ascii_stdout(monkeypatch)
    for words in (["labels", "run"], ["predict", "run", "table.csv"]):
        result = run_cli(words, capsys)
        assert result.code == 2
        assert "'✓' cannot be written in ascii: name a file with -o" in result.err.splitlines()[-1]
        assert b"?" not in written.getvalue()
    assert run_cli(["labels", "run", "-o", "labels.csv"], capsys).code == 0
    assert (work_dir / "labels.csv").read_bytes() == (work_dir / "run" / "labels.csv").read_bytes()


def test_header_without_predictions(work_dir: Path, capsys: Capture) -> None:
    true_label = write_photos(work_dir / "photos", count=30)
    write_csv(work_dir / "checked.csv", ["id", "label"], [*true_label[6:18], *true_label[30:32]])
    assert run_cli(f"train photos --clean checked.csv {QUICK} --out run".split(), capsys).code == 0
    (work_dir / "new").mkdir()
    (work_dir / "new" / "broken.png").write_bytes(b"no picture")
    result = run_cli(["predict", "run", "new", "--on-error", "skip", "-o", "out.csv"], capsys)
    assert result.code == 0
    assert "1 sample skipped" in result.err
    lines = (work_dir / "out.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("id,label,confidence,p_")


def test_review_export_is_never_changed(work_dir: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photos(work_dir / "photos", count=12)
    words = ["review", "photos", "--export", "labels"]
    assert run_cli([*words, "-o", "labels.csv"], capsys).out == "15 rows written to labels.csv\n"
    expected = (work_dir / "labels.csv").read_bytes()
    assert "bild ü".encode() in expected
    assert run_cli([*words, "-o", "-"], capsys).out.encode() == expected
    assert not (work_dir / "-").exists()
    written = use_ascii_stdout(monkeypatch)
    result = run_cli(words, capsys)
    assert result.code == 2
    assert "cannot be written in ascii: name a file with -o" in result.err.splitlines()[-1]
    assert b"?" not in written.getvalue()


def test_failed_review_export_keeps_existing_file(
    work_dir: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photos(work_dir / "photos", count=12)
    words = ["review", "photos", "--export", "labels", "-o"]
    assert "the folder nowhere does not exist" in run_cli([*words, "nowhere/out.csv"], capsys).err
    (work_dir / "out.csv").write_text("before")

    def full(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        result = run_cli([*words, "out.csv"], capsys)
    assert (result.code, result.out) == (2, "")
    assert "No space left" in result.err
    assert (work_dir / "out.csv").read_text() == "before"
    assert run_cli([*words, "out.csv"], capsys).code == 0
    assert (work_dir / "out.csv").read_text(encoding="utf-8").startswith("id,given,label")


def test_stopped_review_prints_resume_command(work_dir: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "check_installed", lambda: None)
    monkeypatch.setattr(server, "serve", stopped)
    write_csv(work_dir / "my table.csv", TABLE_COLUMNS, table_rows(20))
    words = ["review", "my table.csv", "--label", "label", "--db", "my verdicts.sqlite", "--port", "8123"]
    result = run_cli(words, capsys)
    assert result.code == 0
    assert shlex.split(result.err.partition("resume with: ")[2]) == ["metalabelnet", *words]
