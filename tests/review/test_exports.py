"""Exports by button and by command, and training with them."""

import json
import shlex
from pathlib import Path

import pytest

from cli_runner import run_cli
from metalabelnet.data.files.list_data import ReadOptions
from metalabelnet.review import exports
from metalabelnet.review.source import open_source
from metalabelnet.review.store import ReviewStore
from metalabelnet.review.verdicts import Verdict, add_verdict
from review_client import ReviewClient
from user_data import QUICK, TABLE_COLUMNS, read_csv, table_rows, write_csv

LAST = "SELECT max(v) FROM verdicts"


def text(page: ReviewClient, name: str, **more: bool) -> str:
    return "".join(exports.csv_lines(exports.EXPORTS[name](page.store, page.source, **more)))


def judge(page: ReviewClient) -> list[int]:
    """Add a verdict of each kind, and one on the clean set page."""
    rows = page.rows("split = 'train' AND given >= 0 AND label != given")[:5]
    for row, action_name in zip(rows, ("keep", "corrected", "unusable", "skip"), strict=False):
        page.post("/verdict", n=row["n"], seen=0, action=action_name, tab="t")
    drawn = {"page": "clean", "sampling": "random", "blind": "1", "class": "birne"}
    page.post("/verdict", n=rows[4]["n"], seen=0, action="choose", **drawn)
    return [row["n"] for row in rows]


@pytest.mark.parametrize("name", sorted(exports.EXPORTS))
def test_button_and_command_export_the_same(
    page: ReviewClient, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge(page)
    by_button = page.get(f"/export/{name}.csv")
    assert by_button.headers["content-disposition"] == f'attachment; filename="{name}.csv"'
    result = run_cli(["review", str(page.source.run), "--export", name], capsys)
    assert (result.code, result.err) == (0, "")
    assert result.out == by_button.text
    result = run_cli(["review", str(page.source.run), "--export", name, "-o", str(tmp_path / "out.csv")], capsys)
    assert (tmp_path / "out.csv").read_text() == by_button.text
    assert f"{by_button.text.count(chr(10)) - 1} rows written" in result.out


def test_clean_set_has_confirmed_samples_and_the_clean_set_of_the_run(page: ReviewClient, tmp_path: Path) -> None:
    kept, suggested, _, _, drawn = judge(page)
    (clean,) = page.rows("split = 'clean' AND id = (SELECT min(id) FROM samples WHERE split = 'clean')")
    other = next(name for k, name in enumerate(page.source.classes) if k != clean["clean_label"])
    page.post("/verdict", n=clean["n"], seen=0, action="choose", **{"class": other})
    (tmp_path / "clean.csv").write_text(text(page, "clean"))
    found = {row["id"]: (row["label"], row["from"]) for row in read_csv(tmp_path / "clean.csv")}
    names = page.source.classes
    assert len(found) == 3 + 26
    assert found[page.row(kept)["id"]] == (names[page.row(kept)["given"]], "person")
    assert found[page.row(suggested)["id"]] == (names[page.row(suggested)["label"]], "person")
    assert found[page.row(drawn)["id"]] == ("birne", "person")
    assert found[clean["id"]] == (other, "person")
    assert sum(origin == "run" for _, origin in found.values()) == 25
    assert text(page, "clean", drawn=True).count("person") == 1


def test_corrected_labels(page: ReviewClient, tmp_path: Path) -> None:
    kept, _, unusable, skipped, _ = judge(page)
    (tmp_path / "labels.csv").write_text(text(page, "labels"))
    found = {row["id"]: row for row in read_csv(tmp_path / "labels.csv")}
    names = page.source.classes
    assert len(found) == len(page.rows()) - 1
    assert page.row(unusable)["id"] not in found
    assert found[page.row(kept)["id"]]["from"] == "person"
    assert found[page.row(skipped)["id"]]["label"] == names[page.row(skipped)["label"]]
    assert all(row["label"] for row in found.values())
    clean = page.rows("split = 'clean'")[0]
    assert (found[clean["id"]]["label"], found[clean["id"]]["from"]) == (names[clean["clean_label"]], "clean")


def test_verdicts(page: ReviewClient, tmp_path: Path) -> None:
    judge(page)
    page.post("/undo", page="check", tab="t")
    (tmp_path / "verdicts.csv").write_text(text(page, "verdicts"))
    rows = read_csv(tmp_path / "verdicts.csv")
    assert [row["kind"] for row in rows] == ["label", "label", "unusable", "skip", "label", "undo"]
    assert rows[5]["undoes"] == rows[3]["verdict"]
    assert (rows[4]["blind"], rows[4]["sampling"], rows[4]["label"]) == ("1", "random", "birne")


def test_train_with_the_exported_clean_set(
    page: ReviewClient, tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Export the clean set and train with the command shown on the page."""
    for row in page.rows("split = 'train' AND given >= 0")[:20]:
        page.post("/verdict", n=row["n"], seen=0, action="corrected")
    file = tmp_path / "clean.csv"
    assert run_cli(["review", str(page.source.run), "--export", "clean", "-o", str(file)], capsys).code == 0
    shown = page.get("/export").text
    command = shlex.split(next(line for line in shown.splitlines() if "metalabelnet train" in line).split("<")[0])
    assert command[3:] == ["--image-size", "8", "--clean", "clean.csv"]
    command[command.index("clean.csv")] = str(file)
    result = run_cli([*command[1:], *QUICK.split(), "--out", str(tmp_path / "again")], capsys)
    assert result.code == 0, result.err
    assert "46 clean samples, 46 of them removed from the training rows" in result.err
    summary = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert summary["clean_accuracy"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nowhere", "nowhere: no such file, folder, run or data set"),
        ("runs/nowhere", "runs/nowhere: no such file, folder or run; give a run folder, a folder of images"),
        ("digits --port 99999999", "port 99999999 cannot be used"),
        ("digits --data x", "is not a run: leave it out"),
        ("digits --export everything", "invalid choice"),
    ],
)
def test_wrong_input_is_a_one_line_error(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_cli(["review", *arguments.split()], capsys)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = run_cli(["review", "digits"], capsys)
    assert result.code == 2
    assert "pip install 'metalabelnet[review]'" in result.err


def test_drawn_excludes_checked_suspects(page: ReviewClient) -> None:
    confirmed, changed, unusable, skipped = page.rows("split = 'clean'")[:4]
    names = page.source.classes
    for row, result in (
        (confirmed, {"action": "choose", "class": names[confirmed["clean_label"]]}),
        (changed, {"action": "choose", "class": names[changed["clean_label"] - 1]}),
        (unusable, {"action": "unusable"}),
        (skipped, {"action": "skip"}),
    ):
        page.post("/verdict", n=row["n"], seen=0, **result)
    again, never, undone = page.rows("split = 'train' AND given >= 0")[:3]
    drawn = {"page": "clean", "sampling": "random", "blind": "1", "action": "choose", "class": "birne"}
    for row in (again, undone):
        page.post("/verdict", n=row["n"], seen=0, **drawn)
    page.post("/verdict", n=undone["n"], seen=page.store.connection().execute(LAST).fetchone()[0], action="undo")
    current_verdicts = {
        row["n"]: row["v"] for row in page.store.connection().execute("SELECT n, v FROM current_verdicts")
    }
    for row in (again, never, undone):
        page.post(
            "/verdict", n=row["n"], seen=current_verdicts.get(row["n"], 0), action="choose", **{"class": "cherry pie"}
        )
    found = list(exports.clean_set(page.store, page.source, drawn=True))[1:]
    assert (confirmed["id"], names[confirmed["clean_label"]], "run") in found
    assert [row for row in found if row[2] == "person"] == [(again["id"], "cherry pie", "person")]
    ids = [row[0] for row in found]
    assert len(ids) == len({*ids}) == 26 - 2 + 1
    assert skipped["id"] in ids
    assert not {changed["id"], unusable["id"]} & {*ids}
    assert len(list(exports.clean_set(page.store, page.source))) - 1 == 26 - 1 + 3


def test_annotations_and_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The export has the annotations of the run and the verdicts, and can be trained on."""
    monkeypatch.chdir(tmp_path)
    rows = table_rows(60)
    write_csv(Path("t.csv"), TABLE_COLUMNS, rows)
    labels = [("yes ✓", "no, never")[k % 2] for k in range(60)]
    entries = [[f"r{k}", who, label] for k, label in enumerate(labels) for who in ("ann", "reviewer")]
    entries[4][2] = ""
    write_csv(Path("a.csv"), ["id", "annotator", "label"], entries)
    command = ["train", "t.csv", "--clean-column", "checked", "--device", "cpu", "--annotations"]
    assert run_cli([*command, "a.csv", "--out", "run"], capsys).code == 0
    source = open_source("run", ReadOptions())
    assert source.train_arguments[-2:] == ("--annotations", "a.csv")
    store = ReviewStore(source.database)
    store.import_samples(source)
    assert run_cli(["review", "run", "--export", "annotations", "-o", "b.csv"], capsys).code == 0
    assert [list(row.values()) for row in read_csv(Path("b.csv"))] == entries
    (sample,) = store.connection().execute("SELECT * FROM samples WHERE id = 'r3'")
    add_verdict(store, Verdict(n=int(sample["n"]), kind="label", label=0), seen=0)
    assert run_cli(["review", "run", "--export", "annotations", "-o", "b.csv"], capsys).code == 0
    assert list(read_csv(Path("b.csv"))[-1].values()) == ["r3", "reviewer'", source.classes[0]]
    assert run_cli([*command, "b.csv", "--out", "again"], capsys).code == 0
