"""Where samples come from: benchmarks by name, tables, many classes."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from files import TABLE, photos, table_rows, write_csv
from PIL import Image
from shell import call

from metalabelnet.data import Reading, load
from metalabelnet.errors import InputError
from metalabelnet.review import source as sources


def test_a_run_on_a_benchmark_knows_what_was_put_aside(make_page, tmp_path: Path, capsys) -> None:
    arguments = "train digits --method cross-entropy --epochs 1 --noise uniform:0.4 --meta 100 --device cpu --looks 0"
    assert call([*arguments.split(), "--out", str(tmp_path / "run")], capsys).code == 0
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
    assert all(row["checked"] == data.true[row["position"]] for row in parts["clean"])
    row = parts["train"][0]
    shown = Image.open(io.BytesIO(page.get(f"/sample/{row['n']}/small").content))
    assert (np.asarray(shown) == data.x[row["position"], 0].numpy()).all()


def test_a_run_on_a_table_shows_the_cells_of_its_rows(make_page, tmp_path: Path, capsys) -> None:
    rows = table_rows(80)
    write_csv(tmp_path / "mine.csv", TABLE, rows)
    arguments = f"train {tmp_path}/mine.csv --trusted checked --method cross-entropy --epochs 1 --device cpu --looks 0"
    assert call([*arguments.split(), "--out", str(tmp_path / "run")], capsys).code == 0
    page = make_page(tmp_path / "run")
    by_id = {row[0]: row for row in rows}
    for row in page.rows("split = 'train'"):
        cells = dict(page.source.contents.cells(row["position"]))
        assert cells["width"] == by_id[row["id"]][1]
        assert [*page.source.classes, ""][row["given"]] == by_id[row["id"]][4]
    assert len(page.rows("split = 'clean'")) == sum(row[5] == "yes" for row in rows)
    assert "--trusted checked" in page.get("/take").text


def test_samples_that_were_left_out_do_not_shift_the_others(make_page, tmp_path: Path, capsys) -> None:
    truth = photos(tmp_path / "photos", count=60, unlabeled=0)
    broken = tmp_path / "photos" / truth[0][0]
    broken.write_bytes(b"no picture")
    write_csv(tmp_path / "checked.csv", ("id", "label"), [*truth[1:16], *truth[-3:-1]])
    arguments = (
        f"train {tmp_path}/photos --meta {tmp_path}/checked.csv --on-error skip --method cross-entropy --epochs 1"
    )
    said = call([*arguments.split(), "--device", "cpu", "--looks", "0", "--out", str(tmp_path / "run")], capsys)
    assert said.code == 0, said.err
    page = make_page(tmp_path / "run")
    assert [row["id"] for row in page.rows("split = 'left out'")] == [truth[0][0]]
    for row in page.rows("split = 'train'"):
        assert page.source.contents.items[row["position"]] == tmp_path / "photos" / row["id"]
        assert page.source.classes[row["given"]] == Path(row["id"]).parts[0]


def test_of_many_classes_the_five_most_likely_are_known() -> None:
    columns = ["index", "id", *(f"{kind}_{k}" for k in range(1, 6) for kind in ("class", "p"))]
    number = {f"kind {k}": k for k in range(60)}
    likely = sources._likely(columns, number)
    row = ["0", "x", "kind 7", "0.5", "kind 59", "0.2", "kind 0", "0.1", "kind 1", "0.05", "kind 2", "0.05"]
    assert likely(row) == [(7, 0.5), (59, 0.2), (0, 0.1), (1, 0.05), (2, 0.05)]


def test_the_same_id_twice_is_two_samples(tmp_path: Path) -> None:
    rows = [("same" if k < 2 else str(k), f"a text of words {k}", "ab"[k % 2]) for k in range(30)]
    source = sources.of(str(write_csv(tmp_path / "t.csv", ("id", "text", "label"), rows)), Reading())
    assert len({sample.n for sample in source.samples()}) == 30


def test_a_table_that_is_none_is_refused(make_page, trained: Path, tmp_path: Path) -> None:
    make_page()
    (tmp_path / "run" / "labels.csv").write_text("something else\n1\n")
    with pytest.raises(InputError, match="is not a label table of this version"):
        make_page(tmp_path / "run")
