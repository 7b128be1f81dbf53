"""Folders of Hugging Face `datasets` and Parquet files with images in cells."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_runner import run_cli
from metalabelnet.data.encoders.images import decode
from metalabelnet.data.files import table_file
from metalabelnet.data.files.list_data import ReadOptions, list_train
from metalabelnet.data.files.reader import read
from metalabelnet.errors import InputError
from metalabelnet.train.settings import find_data_format
from user_data import read_csv

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

from saved_dataset import KINDS, image_bytes, image_table, write_saved_dataset  # noqa: E402


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METALABELNET_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path: Path, form: str) -> Path:
    if form == "folder":
        return write_saved_dataset(path / "saved", image_table())
    parquet.write_table(image_table(as_struct=form == "struct"), path / "images.parquet")
    return path / "images.parquet"


@pytest.mark.parametrize("form", ["folder", "struct", "bytes"])
def test_images_and_class_names(form: str, tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path, form)
    assert find_data_format(str(path)) == "table"
    data = read(path, ReadOptions(clean_column="checked"))
    assert data.classes == KINDS
    assert data.train.given.tolist() == [*(k % 3 for k in range(9, 23)), -1]
    assert data.clean is not None
    assert data.clean.true.tolist() == [k % 3 for k in range(9)]
    assert data.train.ids == tuple(map(str, range(9, 24)))  # row numbers, not paths of the cache
    (tmp_path / "one.jpg").write_bytes(image_bytes(10 % 3, 10, "JPEG"))
    assert (data.train.x[1] == decode(tmp_path / "one.jpg", tuple(data.train.x.shape[1:]))).all()
    files = sorted(cache.rglob("*.*"))
    assert len(files) == 24
    changed = [file.stat().st_mtime_ns for file in files]
    read(path, ReadOptions(clean_column="checked"))
    assert [file.stat().st_mtime_ns for file in sorted(cache.rglob("*.*"))] == changed  # written once


def test_images_beside_a_column_of_paths(tmp_path: Path) -> None:
    """Image folders as `datasets` loads them have the names of the files in another column."""
    table = image_table()
    table = table.append_column("file_name", arrow.array([f"{k}.png" for k in range(table.num_rows)]))
    path = write_saved_dataset(tmp_path / "saved", table)
    notes: list[str] = []
    _, columns = list_train(path, ReadOptions(clean_column="checked"), notes)
    assert (columns.kind, columns.samples, columns.left_out) == ("image", ("image",), ("file_name",))


def test_relative_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METALABELNET_DATA", "cache")
    rows, _ = list_train(write(tmp_path, "folder"), ReadOptions(), [])
    assert rows.ids == list(map(str, range(24)))


def test_texts_and_numbers(tmp_path: Path) -> None:
    table = arrow.table({"text": ["a b", None, "c"], "x": [1.5, float("nan"), 2.0], "code": [b"\x00", b"\x01", None]})
    path = write_saved_dataset(tmp_path / "saved", table, files=1)
    assert table_file.column_names(path) == ["text", "x", "code"]
    rows = list(table_file.iterate_rows(path, ["x", "text", "code"]))
    assert rows == [["1.5", "a b", "b'\\x00'"], ["", "", "b'\\x01'"], ["2.0", "c", ""]]


def test_image_without_bytes_is_a_path(tmp_path: Path) -> None:
    kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    cells = arrow.array([{"bytes": None, "path": "a.png"}, None, {"bytes": b"no image", "path": None}], kind)
    parquet.write_table(arrow.table({"image": cells}), tmp_path / "t.parquet")
    first, second, third = (cells[0] for cells in table_file.iterate_rows(tmp_path / "t.parquet", ["image"]))
    assert (first, second) == ("a.png", "")
    assert Path(third).read_bytes() == b"no image"


def test_content_that_is_no_image_is_an_error_of_its_row(tmp_path: Path) -> None:
    table = image_table()
    cells = table.column("image").to_pylist()
    cells[12] = {"bytes": b"%!PS-Adobe", "path": "12.eps"}
    parquet.write_table(table.set_column(0, "image", [cells]), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"^12 is "):
        read(tmp_path / "t.parquet", ReadOptions(clean_column="checked"))
    data = read(tmp_path / "t.parquet", ReadOptions(clean_column="checked", on_error="skip"))
    assert "12" not in data.train.ids


def test_folder_of_splits_names_them(tmp_path: Path) -> None:
    (tmp_path / "dict").mkdir()
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(InputError, match=r"contains the splits train, test; give one of them, such as .*train"):
        read(tmp_path / "dict", ReadOptions())


@pytest.mark.parametrize(
    "state",
    [
        "[]",
        "{",
        "{}",
        json.dumps({"_data_files": [{"filename": "../secret.arrow"}]}),
        json.dumps({"_data_files": [{"filename": "missing.arrow"}]}),
        json.dumps({"_data_files": [3]}),
        json.dumps({"_data_files": [{"filename": None}]}),
    ],
)
def test_damaged_state(state: str, tmp_path: Path) -> None:
    path = write(tmp_path, "folder")
    (path / "state.json").write_text(state)
    with pytest.raises(InputError, match="save_to_disk") as caught:
        table_file.column_names(path)
    assert "\n" not in str(caught.value)


def test_damaged_arrow_file(tmp_path: Path) -> None:
    path = write(tmp_path, "folder")
    file = path / "data-00001-of-00002.arrow"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="it is damaged"):
        list(table_file.iterate_rows(path, ["label"]))
    file.write_bytes(b"no stream")
    with pytest.raises(InputError, match="save_to_disk"):
        list(table_file.iterate_rows(path, ["label"]))


@pytest.mark.parametrize("metadata", [None, "{", "[]", '{"info": {"features": {"label": {"_type": "ClassLabel"}}}}'])
def test_class_numbers_without_names(metadata: str | None, tmp_path: Path) -> None:
    table = image_table().replace_schema_metadata(None if metadata is None else {"huggingface": metadata})
    path = write_saved_dataset(tmp_path / "saved", table)
    assert [cells[0] for cells in table_file.iterate_rows(path, ["label"])][:4] == ["0", "1", "2", "0"]


@pytest.mark.slow
def test_train_predict_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_saved_dataset(Path("saved"), image_table(60))
    write_saved_dataset(Path("test"), image_table(59).drop_columns(["checked"]).slice(0, 58))
    options = "--clean-column checked --test test --method cross-entropy --epochs 3 --batch-size 16 --device cpu"
    assert run_cli(["train", "saved", *options.split(), "--out", "run"], capsys).code == 0
    assert run_cli(["predict", "run", "saved", "-o", "p.csv"], capsys).code == 0
    assert [row["id"] for row in read_csv(Path("p.csv"))] == list(map(str, range(60)))
    assert run_cli(["report", "run", "-o", "report.html"], capsys).code == 0
    assert Path("report.html").read_text(encoding="utf-8").count("data:image/") > 5
    labels = read_csv(Path("run/labels.csv"))
    assert (labels[0]["id"], labels[0]["given"]) == ("9", "left")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_datasets_writes(tmp_path: Path) -> None:
    datasets: Any = pytest.importorskip("datasets")
    from PIL import Image

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(KINDS))})
    pixels = np.random.default_rng(0).integers(0, 255, (30, 9, 9, 3), dtype=np.uint8)
    content = {"image": [Image.fromarray(x) for x in pixels], "label": [k % 3 for k in range(30)]}
    whole = datasets.Dataset.from_dict(content, features=features)
    whole.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    whole.select(range(5, 25)).save_to_disk(str(tmp_path / "part"))
    whole.to_parquet(str(tmp_path / "whole.parquet"))
    for name, rows in (("saved", range(30)), ("part", range(5, 25)), ("whole.parquet", range(30))):
        found = list(table_file.iterate_rows(tmp_path / name, ["image", "label"]))
        assert [label for _, label in found] == [KINDS[k % 3] for k in rows]
        assert all((np.asarray(Image.open(path)) == pixels[k]).all() for k, (path, _) in zip(rows, found, strict=True))
