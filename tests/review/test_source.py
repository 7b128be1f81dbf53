"""Where samples come from: benchmarks by name, tables, many classes."""

import csv
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli_runner import run_cli
from metalabelnet.data import ReadOptions, load
from metalabelnet.errors import InputError
from metalabelnet.review import source as sources
from metalabelnet.review.run_label_table import likely_classes
from tiny_data import CLASSES, write_npz
from user_data import QUICK, TABLE_COLUMNS, table_rows, write_csv, write_photos


def test_a_run_on_a_benchmark_knows_what_was_put_aside(make_page, tmp_path: Path, capsys) -> None:
    arguments = (
        "train digits --method cross-entropy --epochs 1 --noise uniform:0.4 --clean 100 --device cpu --snapshots 0"
    )
    assert run_cli([*arguments.split(), "--out", str(tmp_path / "run")], capsys).code == 0
    page = make_page(tmp_path / "run")
    parts = {split: page.rows("split = ?", split) for split in ("train", "clean", "test", "left out")}
    assert {split: len(rows) for split, rows in parts.items()} == {
        "train": 1197,
        "clean": 100,
        "test": 500,
        "left out": 0,
    }
    data = load("digits").train
    with (tmp_path / "run" / "labels.csv").open() as file:
        table = {int(row["index"]): row for row in csv.DictReader(file)}
    for row in parts["train"][:50]:
        line = table[row["position"]]
        assert (str(row["given"]), str(row["label"])) == (line["given"], line["label"])
        assert row["suspicion"] == float(line["suspicion"])
    assert any(row["given"] != data.true[row["position"]] for row in parts["train"])
    assert all(row["clean_label"] == data.true[row["position"]] for row in parts["clean"])
    row = parts["train"][0]
    shown = Image.open(io.BytesIO(page.get(f"/sample/{row['n']}/small").content))
    assert (np.asarray(shown) == data.x[row["position"], 0].numpy()).all()


def test_a_run_on_a_table_shows_the_cells_of_its_rows(make_page, tmp_path: Path, capsys) -> None:
    rows = table_rows(80)
    write_csv(tmp_path / "mine.csv", TABLE_COLUMNS, rows)
    arguments = (
        f"train {tmp_path}/mine.csv --clean-column checked --method cross-entropy --epochs 1 --device cpu --snapshots 0"
    )
    assert run_cli([*arguments.split(), "--out", str(tmp_path / "run")], capsys).code == 0
    page = make_page(tmp_path / "run")
    by_id = {row[0]: row for row in rows}
    for row in page.rows("split = 'train'"):
        cells = dict(page.source.contents.cells(row["position"]))
        assert cells["width"] == by_id[row["id"]][1]
        assert [*page.source.classes, ""][row["given"]] == by_id[row["id"]][4]
    assert len(page.rows("split = 'clean'")) == sum(row[5] == "yes" for row in rows)
    assert "--clean-column checked" in page.get("/export").text


def test_samples_that_were_left_out_do_not_shift_the_others(make_page, tmp_path: Path, capsys) -> None:
    true_label = write_photos(tmp_path / "photos", count=60, unlabeled=0)
    broken = tmp_path / "photos" / true_label[0][0]
    broken.write_bytes(b"no picture")
    write_csv(tmp_path / "checked.csv", ("id", "label"), [*true_label[1:16], *true_label[-3:-1]])
    arguments = (
        f"train {tmp_path}/photos --clean {tmp_path}/checked.csv --on-error skip --method cross-entropy --epochs 1"
    )
    said = run_cli([*arguments.split(), "--device", "cpu", "--snapshots", "0", "--out", str(tmp_path / "run")], capsys)
    assert said.code == 0, said.err
    page = make_page(tmp_path / "run")
    assert [row["id"] for row in page.rows("split = 'left out'")] == [true_label[0][0]]
    for row in page.rows("split = 'train'"):
        assert page.source.contents.items[row["position"]] == tmp_path / "photos" / row["id"]
        assert page.source.classes[row["given"]] == Path(row["id"]).parts[0]


def test_of_many_classes_the_five_most_likely_are_known() -> None:
    columns = ["index", "id", *(f"{kind}_{k}" for k in range(1, 6) for kind in ("class", "p"))]
    number = {f"kind {k}": k for k in range(60)}
    likely = likely_classes(columns, number)
    row = ["0", "x", "kind 7", "0.5", "kind 59", "0.2", "kind 0", "0.1", "kind 1", "0.05", "kind 2", "0.05"]
    assert likely(row) == [(7, 0.5), (59, 0.2), (0, 0.1), (1, 0.05), (2, 0.05)]


def test_the_same_id_twice_is_two_samples(tmp_path: Path) -> None:
    rows = [("same" if k < 2 else str(k), f"a text of words {k}", "ab"[k % 2]) for k in range(30)]
    source = sources.of(str(write_csv(tmp_path / "t.csv", ("id", "text", "label"), rows)), ReadOptions())
    assert len({sample.n for sample in source.samples()}) == 30
    assert "1 samples have the id of another" in source.notes[0]  # whose clean set cannot be trained with


def test_a_table_that_is_none_is_refused(make_page, trained: Path, tmp_path: Path) -> None:
    make_page()
    (tmp_path / "run" / "labels.csv").write_text("something else\n1\n")
    with pytest.raises(InputError, match="is not a label table of this version"):
        make_page(tmp_path / "run")


def test_a_picture_that_has_gone_takes_no_verdict_with_it(make_page, trained: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(trained / "photos", tmp_path / "photos")
    page = make_page()
    first, *others = page.rows("split = 'train' AND given >= 0")[:4]
    for row in (first, *others):
        page.post("/verdict", n=row["n"], seen=0, action="keep")
    (tmp_path / "photos" / first["id"]).unlink()
    command = ["review", str(tmp_path / "run"), "--data", str(tmp_path / "photos"), "--export", "clean"]
    said = run_cli(command, capsys)
    assert said.code == 0, said.err
    by_person = [line.split(",")[0] for line in said.out.splitlines() if line.endswith(",person")]
    assert sorted(by_person) == sorted(row["id"] for row in others)
    assert "1 samples of the run are not in" in said.err
    assert f"any more, as {first['id']!r}: left out" in said.err
    for row in page.rows("split = 'train'")[:60]:
        (tmp_path / "photos" / row["id"]).unlink(missing_ok=True)
    said = run_cli(command, capsys)
    assert said.code == 2
    assert "give --data PATH" in said.err


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda table: table[: len(table) * 2 // 3].rpartition(",")[0], "is not a whole label table"),
        (lambda table: table + "1,x", "is not a whole label table"),
        (lambda table: table.replace("0.", "zero", 1), "is not a whole label table"),
        (lambda table: table.replace("birne,", "pear,").replace("cherry pie,", "pie,"), "has the class"),
    ],
)
def test_a_table_that_is_not_whole_gets_a_sentence(make_page, tmp_path: Path, change, sentence: str) -> None:
    make_page()
    file = tmp_path / "run" / "labels.csv"
    file.write_text(change(file.read_text()))
    with pytest.raises(InputError, match=sentence):
        make_page(tmp_path / "run")
    file.unlink()
    with pytest.raises(InputError, match=r"labels.csv is missing: copy the run folder again"):
        make_page(tmp_path / "run")


def test_a_class_of_arrays_that_got_another_name(make_page, tmp_path: Path, capsys) -> None:
    write_npz(tmp_path / "mine.npz", classes=np.array(CLASSES))
    arguments = f"train {tmp_path}/mine.npz --clean 12 {QUICK} --method cross-entropy --out {tmp_path}/run"
    assert run_cli(arguments.split(), capsys).code == 0
    whole = make_page(tmp_path / "run")
    write_npz(tmp_path / "mine.npz", classes=np.array(["renamed", *CLASSES[1:]]))
    page = make_page(tmp_path / "run")
    (note,) = page.source.notes
    assert f"that {tmp_path}/mine.npz does not have, as {CLASSES[0]!r}" in note
    lost = int(note.split()[0])
    assert len(page.rows("split = 'train'")) == len(whole.source.ids) - 12 - lost - len(page.rows("split = 'test'"))
    assert 0 < lost == len(page.rows("split = 'left out'"))


def test_a_clean_class_that_came_after_the_run_is_left_out(make_page, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "photos", tmp_path / "photos")
    make_page()
    (tmp_path / "photos" / "new").mkdir()
    picture = Image.new("RGB", (12, 12), "red")
    picture.save(tmp_path / "photos" / "new" / "0.png")
    checked = (trained / "checked.csv").read_text()
    (tmp_path / "checked.csv").write_text(f"{checked}new/0.png,new\n")
    about = tmp_path / "run" / "run.json"
    about.write_text(about.read_text().replace(str(trained), str(tmp_path)))
    page = make_page(tmp_path / "run")
    assert page.source.notes == ("1 clean samples have a class that the run does not know, as 'new': left out",)
    assert len(page.rows("split = 'clean'")) == 26


def test_a_clean_set_that_was_moved_is_named_again(make_page, trained: Path, tmp_path: Path) -> None:
    before = make_page().rows("split = 'clean'")
    about = tmp_path / "run" / "run.json"
    about.write_text(about.read_text().replace(str(trained / "checked.csv"), str(tmp_path / "gone.csv")))
    with pytest.raises(InputError, match=r"gone.csv is not where it was when .* was trained: give --clean PATH"):
        make_page(tmp_path / "run")
    page = make_page(tmp_path / "run", clean=str(trained / "checked.csv"))
    assert len(page.rows("split = 'clean'")) == len(before)
    assert page.source.named[1:] == ("--clean", str(trained / "checked.csv"))
    with pytest.raises(InputError, match="--clean says where the clean set of a run lies"):
        make_page(trained / "photos", clean="checked.csv")


def test_clean_pictures_that_have_gone_are_left_out(make_page, trained: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(trained / "photos", tmp_path / "photos")
    before = make_page()
    clean = before.rows("split = 'clean'")
    (tmp_path / "photos" / clean[0]["id"]).unlink()
    page = make_page(tmp_path / "run", data=str(tmp_path / "photos"))
    note = f"1 clean samples of the run are not in {tmp_path}/photos/ any more, as {clean[0]['id']!r}: left out"
    assert page.source.notes == (note,)
    assert [row["id"] for row in page.rows("split = 'clean'")] == [row["id"] for row in clean[1:]]
    assert len(page.rows("split = 'train'")) == len(before.rows("split = 'train'"))
    command = ["review", str(tmp_path / "run"), "--data", str(tmp_path / "photos"), "--export", "clean"]
    said = run_cli(command, capsys)
    assert said.code == 0
    assert note in said.err
    assert len(said.out.splitlines()) == len(clean)  # one has gone, and there is a header
    for row in clean[: len(clean) // 2 + 1]:
        (tmp_path / "photos" / row["id"]).unlink(missing_ok=True)
    said = run_cli(command, capsys)
    assert said.code == 2
    assert "which is not in" in said.err
    assert "give --data or --clean PATH" in said.err


def test_a_class_whose_pictures_have_all_gone_stays_one(make_page, trained: Path, tmp_path: Path) -> None:
    """Clean samples that lie elsewhere have it still."""
    shutil.copytree(trained / "photos", tmp_path / "photos")
    whole = make_page()
    number = {name: k for k, name in enumerate(whole.source.classes)}
    kept = [row for row in whole.rows("split = 'clean'") if not row["id"].startswith("birne/")]
    assert any(row["clean_label"] == number["birne"] for row in kept)
    shutil.rmtree(tmp_path / "photos" / "birne")
    page = make_page(tmp_path / "run", data=str(tmp_path / "photos"))
    assert page.source.classes == whole.source.classes
    assert {row["id"]: row["clean_label"] for row in page.rows("split = 'clean'")} == {
        row["id"]: row["clean_label"] for row in kept
    }


def rows_of_texts(folder: Path, rows: list[str]) -> Path:
    return write_csv(folder / "t.csv", ("text", "label"), [(row, "ab"[k % 2]) for k, row in enumerate(rows)])


def arrays(folder: Path, rows: list[str]) -> Path:
    x = np.array([[sum(map(ord, row)), len(row)] for row in rows], dtype=float)
    np.savez(folder / "t.npz", x_train=x, y_train=np.arange(len(rows)) % 2)
    return folder / "t.npz"


@pytest.mark.parametrize("write", [rows_of_texts, arrays])
def test_verdicts_on_rows_without_names_are_not_for_other_rows(make_page, tmp_path: Path, write) -> None:
    rows = [f"a text of words {k}" for k in range(20)]
    page = make_page(write(tmp_path, rows))
    page.post(
        "/verdict", n=page.rows()[3]["n"], seen=0, page="clean", action="choose", **{"class": page.source.classes[0]}
    )
    page = make_page(write(tmp_path, [*rows, "one more at the end"]))  # the others are what they were
    before = list(page.store.connection().iterdump())
    for others in (["one more in front", *rows, "and more", "and more"], [rows[2], rows[1], rows[0], *rows[3:]], rows):
        with pytest.raises(InputError, match="were given on other rows: give --db FILE for a new one"):
            make_page(write(tmp_path, others))
        assert list(page.store.connection().iterdump()) == before
    assert make_page(write(tmp_path, rows), db=tmp_path / "new.sqlite").current_verdicts() == {}
    assert len(make_page(write(tmp_path, [*rows, "one more at the end"])).current_verdicts()) == 1


def test_rows_that_have_names_may_change_places(make_page, tmp_path: Path) -> None:
    rows = [(f"row {k}", f"a text of words {k}", "ab"[k % 2]) for k in range(20)]
    page = make_page(write_csv(tmp_path / "t.csv", ("id", "text", "label"), rows))
    row = page.rows("id = 'row 3'")[0]
    page.post("/verdict", n=row["n"], seen=0, page="clean", action="choose", **{"class": "a"})
    page = make_page(write_csv(tmp_path / "t.csv", ("id", "text", "label"), [("first", "a new text", "b"), *rows]))
    assert page.row(row["n"])["position"] == 4
    assert page.get("/export/clean.csv").text == "id,label,from\nrow 3,a,person\n"
    write_csv(tmp_path / "t.csv", ("text", "label"), [cells[1:] for cells in rows])
    with pytest.raises(InputError, match="were given on other rows"):
        make_page(tmp_path / "t.csv")


def test_verdicts_lie_beside_the_data_wherever_it_is_called_from(trained: Path, tmp_path: Path, monkeypatch) -> None:
    shutil.copytree(trained / "photos", tmp_path / "photos")
    beside = tmp_path / "photos.review.sqlite"
    for folder, name in ((".", "photos"), ("photos", "."), ("photos/rare", ".."), (".", "photos/rare/..")):
        monkeypatch.chdir(tmp_path / folder)
        assert sources.of(name, ReadOptions()).database == beside


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_a_file_that_was_moved_is_named_again(kind: str, make_page, tmp_path: Path, capsys) -> None:
    data, moved = tmp_path / f"mine.{kind}", tmp_path / f"moved.{kind}"
    if kind == "csv":
        write_csv(data, TABLE_COLUMNS, table_rows(80))
    else:
        write_npz(data)
    more = "--clean-column checked" if kind == "csv" else "--clean 12"
    arguments = f"train {data} {more} {QUICK} --method cross-entropy --out {tmp_path}/run"
    assert run_cli(arguments.split(), capsys).code == 0
    before = len(make_page(tmp_path / "run").rows())
    data.rename(moved)
    command = ["review", str(tmp_path / "run"), "--export", "clean"]
    said = run_cli(command, capsys)
    assert (said.code, said.out) == (2, "")
    assert f"{data} is not where it was when {tmp_path}/run was trained: give --data PATH" in said.err
    assert "there is no such file" in run_cli([*command, "--data", f"{tmp_path}/nowhere.{kind}"], capsys).err
    assert len(make_page(tmp_path / "run", data=str(moved)).rows()) == before
