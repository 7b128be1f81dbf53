"""Sources of the review page: benchmarks, tables, arrays, moved and changed data."""

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
from metalabelnet.review.run_label_table import class_probability_reader
from tiny_data import CLASSES, write_npz
from user_data import QUICK, TABLE_COLUMNS, table_rows, write_csv, write_photos


def test_benchmark_run_has_splits(make_page, tmp_path: Path, capsys) -> None:
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


def test_table_run_shows_cells(make_page, tmp_path: Path, capsys) -> None:
    rows = table_rows(80)
    write_csv(tmp_path / "mine.csv", TABLE_COLUMNS, rows)
    arguments = (
        f"train {tmp_path}/mine.csv --clean-column checked --method cross-entropy --epochs 1 --device cpu --snapshots 0"
    )
    assert run_cli([*arguments.split(), "--out", str(tmp_path / "run")], capsys).code == 0
    page = make_page(tmp_path / "run")
    by_id = {row[0]: row for row in rows}
    for row in page.rows("split = 'train'"):
        cells = dict(page.source.display.cells(row["position"]))
        assert cells["width"] == by_id[row["id"]][1]
        assert [*page.source.classes, ""][row["given"]] == by_id[row["id"]][4]
    assert len(page.rows("split = 'clean'")) == sum(row[5] == "yes" for row in rows)
    assert "--clean-column checked" in page.get("/export").text


def test_skipped_samples_do_not_shift_positions(make_page, tmp_path: Path, capsys) -> None:
    true_label = write_photos(tmp_path / "photos", count=60, unlabeled=0)
    broken = tmp_path / "photos" / true_label[0][0]
    broken.write_bytes(b"no picture")
    write_csv(tmp_path / "checked.csv", ("id", "label"), [*true_label[1:16], *true_label[-3:-1]])
    arguments = (
        f"train {tmp_path}/photos --clean {tmp_path}/checked.csv --on-error skip --method cross-entropy --epochs 1"
    )
    result = run_cli(
        [*arguments.split(), "--device", "cpu", "--snapshots", "0", "--out", str(tmp_path / "run")], capsys
    )
    assert result.code == 0, result.err
    page = make_page(tmp_path / "run")
    assert [row["id"] for row in page.rows("split = 'left out'")] == [true_label[0][0]]
    for row in page.rows("split = 'train'"):
        assert page.source.display.items[row["position"]] == tmp_path / "photos" / row["id"]
        assert page.source.classes[row["given"]] == Path(row["id"]).parts[0]


def test_top_classes_of_many_classes() -> None:
    columns = ["index", "id", *(f"{kind}_{k}" for k in range(1, 6) for kind in ("class", "p"))]
    number = {f"kind {k}": k for k in range(60)}
    read_probabilities = class_probability_reader(columns, number)
    row = ["0", "x", "kind 7", "0.5", "kind 59", "0.2", "kind 0", "0.1", "kind 1", "0.05", "kind 2", "0.05"]
    assert read_probabilities(row) == [(7, 0.5), (59, 0.2), (0, 0.1), (1, 0.05), (2, 0.05)]


def test_duplicate_ids_are_separate_samples(tmp_path: Path) -> None:
    rows = [("same" if k < 2 else str(k), f"a text of words {k}", "ab"[k % 2]) for k in range(30)]
    source = sources.open_source(str(write_csv(tmp_path / "t.csv", ("id", "text", "label"), rows)), ReadOptions())
    assert len({sample.n for sample in source.samples()}) == 30
    assert "1 samples have a duplicate id" in source.notes[0]


def test_other_file_is_not_a_label_table(make_page, trained: Path, tmp_path: Path) -> None:
    make_page()
    (tmp_path / "run" / "labels.csv").write_text("something else\n1\n")
    with pytest.raises(InputError, match="is not a label table of this version"):
        make_page(tmp_path / "run")


def test_removed_image_keeps_other_verdicts(make_page, trained: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(trained / "photos", tmp_path / "photos")
    page = make_page()
    first, *others = page.rows("split = 'train' AND given >= 0")[:4]
    for row in (first, *others):
        page.post("/verdict", n=row["n"], seen=0, action="keep")
    (tmp_path / "photos" / first["id"]).unlink()
    command = ["review", str(tmp_path / "run"), "--data", str(tmp_path / "photos"), "--export", "clean"]
    result = run_cli(command, capsys)
    assert result.code == 0, result.err
    by_person = [line.split(",")[0] for line in result.out.splitlines() if line.endswith(",person")]
    assert sorted(by_person) == sorted(row["id"] for row in others)
    assert "1 samples of the run are no longer in" in result.err
    assert f"such as {first['id']!r}: left out" in result.err
    for row in page.rows("split = 'train'")[:60]:
        (tmp_path / "photos" / row["id"]).unlink(missing_ok=True)
    result = run_cli(command, capsys)
    assert result.code == 2
    assert "pass --data PATH" in result.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table[: len(table) * 2 // 3].rpartition(",")[0], "is an incomplete label table"),
        (lambda table: table + "1,x", "is an incomplete label table"),
        (lambda table: table.replace("0.", "zero", 1), "is an incomplete label table"),
        (lambda table: table.replace("birne,", "pear,").replace("cherry pie,", "pie,"), "has the class"),
    ],
)
def test_damaged_label_table_is_an_error(make_page, tmp_path: Path, change, message: str) -> None:
    make_page()
    file = tmp_path / "run" / "labels.csv"
    file.write_text(change(file.read_text()))
    with pytest.raises(InputError, match=message):
        make_page(tmp_path / "run")
    file.unlink()
    with pytest.raises(InputError, match=r"labels.csv is missing: copy the run folder again"):
        make_page(tmp_path / "run")


def test_renamed_class_of_arrays(make_page, tmp_path: Path, capsys) -> None:
    write_npz(tmp_path / "mine.npz", classes=np.array(CLASSES))
    arguments = f"train {tmp_path}/mine.npz --clean 12 {QUICK} --method cross-entropy --out {tmp_path}/run"
    assert run_cli(arguments.split(), capsys).code == 0
    before_rename = make_page(tmp_path / "run")
    write_npz(tmp_path / "mine.npz", classes=np.array(["renamed", *CLASSES[1:]]))
    page = make_page(tmp_path / "run")
    (note,) = page.source.notes
    assert f"that is not in {tmp_path}/mine.npz, such as {CLASSES[0]!r}" in note
    lost = int(note.split()[0])
    assert len(page.rows("split = 'train'")) == len(before_rename.source.ids) - 12 - lost - len(
        page.rows("split = 'test'")
    )
    assert 0 < lost == len(page.rows("split = 'left out'"))


def test_new_class_in_clean_set_is_left_out(make_page, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "photos", tmp_path / "photos")
    make_page()
    (tmp_path / "photos" / "new").mkdir()
    picture = Image.new("RGB", (12, 12), "red")
    picture.save(tmp_path / "photos" / "new" / "0.png")
    checked = (trained / "checked.csv").read_text()
    (tmp_path / "checked.csv").write_text(f"{checked}new/0.png,new\n")
    run_json = tmp_path / "run" / "run.json"
    run_json.write_text(run_json.read_text().replace(str(trained), str(tmp_path)))
    page = make_page(tmp_path / "run")
    assert page.source.notes == ("1 clean samples have a class that the run does not have, such as 'new': left out",)
    assert len(page.rows("split = 'clean'")) == 26


def test_moved_clean_set(make_page, trained: Path, tmp_path: Path) -> None:
    before = make_page().rows("split = 'clean'")
    run_json = tmp_path / "run" / "run.json"
    run_json.write_text(run_json.read_text().replace(str(trained / "checked.csv"), str(tmp_path / "gone.csv")))
    with pytest.raises(
        InputError, match=r"gone.csv, the clean set of .*, does not exist: pass its new path with --clean PATH"
    ):
        make_page(tmp_path / "run")
    page = make_page(tmp_path / "run", clean=str(trained / "checked.csv"))
    assert len(page.rows("split = 'clean'")) == len(before)
    assert page.source.review_arguments[1:] == ("--clean", str(trained / "checked.csv"))
    with pytest.raises(InputError, match="--clean gives the new path of the clean set of a run"):
        make_page(trained / "photos", clean="checked.csv")


def test_removed_clean_images_are_left_out(make_page, trained: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(trained / "photos", tmp_path / "photos")
    before = make_page()
    clean = before.rows("split = 'clean'")
    (tmp_path / "photos" / clean[0]["id"]).unlink()
    page = make_page(tmp_path / "run", data=str(tmp_path / "photos"))
    note = f"1 clean samples of the run are no longer in {tmp_path}/photos, such as {clean[0]['id']!r}: left out"
    assert page.source.notes == (note,)
    assert [row["id"] for row in page.rows("split = 'clean'")] == [row["id"] for row in clean[1:]]
    assert len(page.rows("split = 'train'")) == len(before.rows("split = 'train'"))
    command = ["review", str(tmp_path / "run"), "--data", str(tmp_path / "photos"), "--export", "clean"]
    result = run_cli(command, capsys)
    assert result.code == 0
    assert note in result.err
    assert len(result.out.splitlines()) == len(clean)  # one is missing, and there is a header
    for row in clean[: len(clean) // 2 + 1]:
        (tmp_path / "photos" / row["id"]).unlink(missing_ok=True)
    result = run_cli(command, capsys)
    assert result.code == 2
    assert "which is not in" in result.err
    assert "pass --data PATH or --clean PATH" in result.err


def test_class_without_images_is_kept(make_page, trained: Path, tmp_path: Path) -> None:
    """Clean samples in other folders still have the class."""
    shutil.copytree(trained / "photos", tmp_path / "photos")
    before_rename = make_page()
    number = {name: k for k, name in enumerate(before_rename.source.classes)}
    kept = [row for row in before_rename.rows("split = 'clean'") if not row["id"].startswith("birne/")]
    assert any(row["clean_label"] == number["birne"] for row in kept)
    shutil.rmtree(tmp_path / "photos" / "birne")
    page = make_page(tmp_path / "run", data=str(tmp_path / "photos"))
    assert page.source.classes == before_rename.source.classes
    assert {row["id"]: row["clean_label"] for row in page.rows("split = 'clean'")} == {
        row["id"]: row["clean_label"] for row in kept
    }


def write_texts(folder: Path, rows: list[str]) -> Path:
    return write_csv(folder / "t.csv", ("text", "label"), [(row, "ab"[k % 2]) for k, row in enumerate(rows)])


def write_arrays(folder: Path, rows: list[str]) -> Path:
    x = np.array([[sum(map(ord, row)), len(row)] for row in rows], dtype=float)
    np.savez(folder / "t.npz", x_train=x, y_train=np.arange(len(rows)) % 2)
    return folder / "t.npz"


@pytest.mark.parametrize("write", [write_texts, write_arrays])
def test_verdicts_on_rows_without_ids_need_the_same_rows(make_page, tmp_path: Path, write) -> None:
    rows = [f"a text of words {k}" for k in range(20)]
    page = make_page(write(tmp_path, rows))
    page.post(
        "/verdict", n=page.rows()[3]["n"], seen=0, page="clean", action="choose", **{"class": page.source.classes[0]}
    )
    page = make_page(write(tmp_path, [*rows, "one more at the end"]))  # appended rows are fine
    before = list(page.store.connection().iterdump())
    for others in (["one more in front", *rows, "and more", "and more"], [rows[2], rows[1], rows[0], *rows[3:]], rows):
        with pytest.raises(InputError, match="are for other rows: use a new file with --db FILE"):
            make_page(write(tmp_path, others))
        assert list(page.store.connection().iterdump()) == before
    assert make_page(write(tmp_path, rows), db=tmp_path / "new.sqlite").current_verdicts() == {}
    assert len(make_page(write(tmp_path, [*rows, "one more at the end"])).current_verdicts()) == 1


def test_rows_with_ids_may_be_reordered(make_page, tmp_path: Path) -> None:
    rows = [(f"row {k}", f"a text of words {k}", "ab"[k % 2]) for k in range(20)]
    page = make_page(write_csv(tmp_path / "t.csv", ("id", "text", "label"), rows))
    row = page.rows("id = 'row 3'")[0]
    page.post("/verdict", n=row["n"], seen=0, page="clean", action="choose", **{"class": "a"})
    page = make_page(write_csv(tmp_path / "t.csv", ("id", "text", "label"), [("first", "a new text", "b"), *rows]))
    assert page.row(row["n"])["position"] == 4
    assert page.get("/export/clean.csv").text == "id,label,from\nrow 3,a,person\n"
    write_csv(tmp_path / "t.csv", ("text", "label"), [cells[1:] for cells in rows])
    with pytest.raises(InputError, match="are for other rows"):
        make_page(tmp_path / "t.csv")


def test_database_path_is_next_to_the_data(trained: Path, tmp_path: Path, monkeypatch) -> None:
    shutil.copytree(trained / "photos", tmp_path / "photos")
    beside = tmp_path / "photos.review.sqlite"
    for folder, name in ((".", "photos"), ("photos", "."), ("photos/rare", ".."), (".", "photos/rare/..")):
        monkeypatch.chdir(tmp_path / folder)
        assert sources.open_source(name, ReadOptions()).database == beside


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_moved_data_file(kind: str, make_page, tmp_path: Path, capsys) -> None:
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
    result = run_cli(command, capsys)
    assert (result.code, result.out) == (2, "")
    assert f"{data}, the data of {tmp_path}/run, does not exist: pass its new path with --data PATH" in result.err
    assert "no such file" in run_cli([*command, "--data", f"{tmp_path}/nowhere.{kind}"], capsys).err
    assert len(make_page(tmp_path / "run", data=str(moved)).rows()) == before
