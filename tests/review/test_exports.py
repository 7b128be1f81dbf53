"""What is taken away, by button and by command, and the sampling back into training."""

import json
import shlex
from pathlib import Path

import pytest

from cli_runner import run_cli
from metalabelnet.review import exports
from served import Served
from user_data import QUICK, read_csv

LAST = "SELECT max(v) FROM verdicts"


def text(page: Served, what: str, **more: bool) -> str:
    return "".join(exports.lines(exports.EXPORTS[what](page.store, page.source, **more)))


def judge(page: Served) -> list[int]:
    """Keep the first, take the suggestion for the second, call the third unusable, skip one, draw one."""
    rows = page.rows("split = 'train' AND given >= 0 AND label != given")[:5]
    for row, say in zip(rows, ("keep", "corrected", "unusable", "skip"), strict=False):
        page.post("/verdict", n=row["n"], seen=0, action=say, tab="t")
    drawn = {"page": "clean", "sampling": "random", "blind": "1", "class": "birne"}
    page.post("/verdict", n=rows[4]["n"], seen=0, action="choose", **drawn)
    return [row["n"] for row in rows]


@pytest.mark.parametrize("what", sorted(exports.EXPORTS))
def test_the_button_and_the_command_give_the_same(
    page: Served, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge(page)
    by_button = page.get(f"/export/{what}.csv")
    assert by_button.headers["content-disposition"] == f'attachment; filename="{what}.csv"'
    said = run_cli(["review", str(page.source.run), "--export", what], capsys)
    assert (said.code, said.err) == (0, "")
    assert said.out == by_button.text
    said = run_cli(["review", str(page.source.run), "--export", what, "-o", str(tmp_path / "out.csv")], capsys)
    assert (tmp_path / "out.csv").read_text() == by_button.text
    assert f"{by_button.text.count(chr(10)) - 1} rows written" in said.out


def test_the_clean_set_is_what_a_person_confirmed_and_what_the_run_had(page: Served, tmp_path: Path) -> None:
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


def test_corrected_labels_take_the_best_there_is(page: Served, tmp_path: Path) -> None:
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


def test_the_verdicts_are_all_that_was_said(page: Served, tmp_path: Path) -> None:
    judge(page)
    page.post("/undo", page="check", tab="t")
    (tmp_path / "verdicts.csv").write_text(text(page, "verdicts"))
    rows = read_csv(tmp_path / "verdicts.csv")
    assert [row["kind"] for row in rows] == ["label", "label", "unusable", "skip", "label", "undo"]
    assert rows[5]["undoes"] == rows[3]["verdict"]
    assert (rows[4]["blind"], rows[4]["sampling"], rows[4]["label"]) == ("1", "random", "birne")


def test_the_whole_way_round(page: Served, tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Judge, take the clean set away, and train with it by the command that the page shows."""
    for row in page.rows("split = 'train' AND given >= 0")[:20]:
        page.post("/verdict", n=row["n"], seen=0, action="corrected")
    file = tmp_path / "clean.csv"
    assert run_cli(["review", str(page.source.run), "--export", "clean", "-o", str(file)], capsys).code == 0
    shown = page.get("/export").text
    command = shlex.split(next(line for line in shown.splitlines() if "metalabelnet train" in line).split("<")[0])
    assert command[3:] == ["--image-size", "8", "--clean", "clean.csv"]
    command[command.index("clean.csv")] = str(file)
    said = run_cli([*command[1:], *QUICK.split(), "--out", str(tmp_path / "again")], capsys)
    assert said.code == 0, said.err
    assert "46 clean samples, 46 of them taken out of training" in said.err
    summary = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert summary["clean_accuracy"] > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("nowhere", "unknown data set 'nowhere'"),
        ("digits --port 99999999", "port 99999999 cannot be used"),
        ("digits --data x", "is not a run: leave it out"),
        ("digits --export everything", "invalid choice"),
    ],
)
def test_wrong_input_gets_one_line(
    arguments: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = run_cli(["review", *arguments.split()], capsys)
    assert said.code == 2
    assert sentence in said.err
    assert "Traceback" not in said.err


def test_without_the_extra_a_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    said = run_cli(["review", "digits"], capsys)
    assert said.code == 2
    assert "pip install 'metalabelnet[review]'" in said.err


def test_drawn_leaves_out_what_was_checked_as_a_suspect_alone(page: Served) -> None:
    confirmed, changed, unusable, skipped = page.rows("split = 'clean'")[:4]
    names = page.source.classes
    for row, said in (
        (confirmed, {"action": "choose", "class": names[confirmed["clean_label"]]}),
        (changed, {"action": "choose", "class": names[changed["clean_label"] - 1]}),
        (unusable, {"action": "unusable"}),
        (skipped, {"action": "skip"}),
    ):
        page.post("/verdict", n=row["n"], seen=0, **said)
    again, never, undone = page.rows("split = 'train' AND given >= 0")[:3]
    drawn = {"page": "clean", "sampling": "random", "blind": "1", "action": "choose", "class": "birne"}
    for row in (again, undone):
        page.post("/verdict", n=row["n"], seen=0, **drawn)
    page.post("/verdict", n=undone["n"], seen=page.store.connection().execute(LAST).fetchone()[0], action="undo")
    current_verdicts = {row["n"]: row["v"] for row in page.store.connection().execute("SELECT n, v FROM current_verdicts")}
    for row in (again, never, undone):
        page.post("/verdict", n=row["n"], seen=current_verdicts.get(row["n"], 0), action="choose", **{"class": "cherry pie"})
    found = list(exports.clean(page.store, page.source, drawn=True))[1:]
    assert (confirmed["id"], names[confirmed["clean_label"]], "run") in found
    assert [row for row in found if row[2] == "person"] == [(again["id"], "cherry pie", "person")]
    ids = [row[0] for row in found]
    assert len(ids) == len({*ids}) == 26 - 2 + 1
    assert skipped["id"] in ids
    assert not {changed["id"], unusable["id"]} & {*ids}
    assert len(list(exports.clean(page.store, page.source))) - 1 == 26 - 1 + 3
