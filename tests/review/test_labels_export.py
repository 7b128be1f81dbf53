"""The labels export of the command, which reads the samples and not the database, against the export of the page."""

import subprocess
import sys
from pathlib import Path

import pytest

from cli_runner import ENVIRONMENT, run_cli
from metalabelnet.review import exports
from review_client import ReviewClient, open_review


def imported_labels(page: ReviewClient, *, spreadsheet_safe: bool = False) -> str:
    """The labels by a query on the imported samples."""
    rows = exports.corrected_labels(page.store, page.source)
    return "".join(exports.csv_lines(rows, spreadsheet_safe=spreadsheet_safe))


def add_verdicts(page: ReviewClient) -> None:
    """Add a verdict of each kind on trained and clean samples; undo one."""
    for split in ("train", "clean"):
        rows = page.rows("split = ? AND given >= 0 ORDER BY position", split)[:5]
        for row, action in zip(rows, ("keep", "unusable", "skip", "choose", "unusable"), strict=True):
            page.post("/verdict", n=row["n"], seen=0, action=action, tab=split, **{"class": page.source.classes[-1]})
        page.post("/undo", page="check", tab=split)


@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize("safe", [False, True])
def test_equal_to_the_query_on_imported_samples(
    page: ReviewClient, judged: bool, safe: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if judged:
        add_verdicts(page)
    option = ["--spreadsheet-safe"] if safe else []
    result = run_cli(["review", str(page.source.run), "--export", "labels", *option], capsys)
    assert (result.code, result.err) == (0, "")
    assert result.out == imported_labels(page, spreadsheet_safe=safe)
    assert ("person" in result.out) == judged


def test_table_with_duplicate_ids_and_unlabeled_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.csv"
    ids = ["=1+1", "b", "b", "\x1b[2J", "@e", *(str(k) for k in range(40))]
    labels = ["-1", "x", "y", "", *("xy"[k % 2] for k in range(41))]
    rows = [f"{name},{k},{label}\n" for k, (name, label) in enumerate(zip(ids, labels, strict=True))]
    file.write_text("id,a,label\n" + "".join(rows))
    result = run_cli(["review", str(file), "--export", "labels", "--spreadsheet-safe"], capsys)
    assert not (tmp_path / "t.csv.review.sqlite").exists()
    page = open_review(file)
    assert result.out == imported_labels(page, spreadsheet_safe=True)
    for row in page.rows("id = 'b'"):
        page.post("/verdict", n=row["n"], seen=0, action="choose", **{"class": "xy"[row["given"] == 0]})
    result = run_cli(["review", str(file), "--export", "labels"], capsys)
    assert result.out == imported_labels(page)
    assert "b,x,y,person," in result.out
    assert "b,y,x,person," in result.out


def test_new_classes_renumber_verdicts_without_changing_the_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page that is open keeps the classes it has imported."""
    file = tmp_path / "t.csv"
    rows = [f"i{k},{k},{'xy'[k % 2]}\n" for k in range(40)]
    file.write_text("id,a,label\n" + "".join(rows))
    page = open_review(file)
    page.post("/verdict", n=page.rows("id = 'i3'")[0]["n"], seen=0, action="choose", **{"class": "x"})
    before = list(page.store.connection().iterdump())
    file.write_text("id,a,label\n" + "".join([*rows, "i40,40,a\n", "i41,41,a\n"]))
    result = run_cli(["review", str(file), "--export", "labels"], capsys)
    assert "i3,y,x,person," in result.out
    assert list(page.store.connection().iterdump()) == before
    assert result.out == imported_labels(open_review(file))


def test_link_as_database_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.csv"
    file.write_text("id,a,label\n" + "".join(f"i{k},{k},{'xy'[k % 2]}\n" for k in range(40)))
    (tmp_path / "t.csv.review.sqlite").symlink_to(tmp_path / "elsewhere")
    result = run_cli(["review", str(file), "--export", "labels"], capsys)
    assert result.code == 2
    assert "is a symbolic link" in result.err
    assert not (tmp_path / "elsewhere").exists()


def test_pytorch_is_not_imported(page: ReviewClient) -> None:
    """It takes longer to import than 100,000 labels take to write."""
    add_verdicts(page)
    script = (
        "import sys; from metalabelnet.cli import main; run = sys.argv[1]; "
        "assert main(['review', run, '--export', 'labels', '-o', run + '/a.csv']) == 0; "
        "assert main(['labels', run, '-o', run + '/b.csv']) == 0; "
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script, str(page.source.run)]
    assert subprocess.run(command, env=ENVIRONMENT, check=False, capture_output=True).returncode == 0
