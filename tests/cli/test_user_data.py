"""User data from files to predictions: image folders, tables, texts."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cli_runner import run_cli
from metalabelnet.data.encoders import images
from metalabelnet.data.files import table_file
from metalabelnet.inference.predict import PredictOptions, Predictor
from metalabelnet.train import RunFolder
from tiny_data import table_samples, write_npz
from user_data import (
    FRUIT,
    LEARNED,
    QUICK,
    QUICK_TRAINING,
    TABLE_COLUMNS,
    read_csv,
    table_rows,
    text_rows,
    write_csv,
    write_photos,
)

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(arguments: str, capsys: Capture, *more: str) -> str:
    """Train, which must succeed; return standard error."""
    output = run_cli(["train", *QUICK.split(), *arguments.split(), *more, "--out", "run"], capsys)
    assert output.code == 0, output.err
    return output.err


def predict(source: str, capsys: Capture, *more: str) -> list[dict[str, str]]:
    output = run_cli(["predict", "run", source, "-o", "out.csv", *more], capsys)
    assert output.code == 0, output.err
    return read_csv(Path("out.csv"))


def assert_equal_to_label_table(predicted: list[dict[str, str]]) -> int:
    """Check that predictions for training samples equal the label table; return their number."""
    table = {row["id"]: row for row in read_csv(Path("run/labels.csv"))}
    known = [row for row in predicted if row["id"] in table]
    for row in known:
        assert row["label"] == table[row["id"]]["label"]
        for name in (name for name in row if name.startswith("p_")):
            assert abs(float(row[name]) - float(table[row["id"]][name])) < 2e-5
    return len(known)


def input_error(arguments: list[str], capsys: Capture) -> str:
    output = run_cli(arguments, capsys)
    assert (output.code, output.out) == (2, "")
    assert "Traceback" not in output.err
    return output.err.splitlines()[-1]


# Each kind of input, end to end


def test_image_folder(capsys: Capture, work_dir: Path) -> None:
    true_label = write_photos(work_dir / "meine photos")
    write_csv(work_dir / "checked.csv", ["file", "label"], [*true_label[10:40], true_label[90]])
    output = train(f"--clean checked.csv {LEARNED}", capsys, "meine photos")
    assert "images are resized to 8×8, color (--image-size to change)" in output
    assert "31 clean samples, 31 of them removed from the training rows" in output
    assert "metalabelnet on meine photos: 62 training samples of 4 classes (5 unlabeled)" in output
    assert "small-cnn on cpu; about " in output
    assert "'rare' has 2 labels" in output
    table = read_csv(work_dir / "run" / "labels.csv")
    assert len(table) == 62
    assert {row["given"] for row in table} == {*FRUIT, "rare", ""}
    assert not {row["id"] for row in table} & {name for name, _ in true_label[10:40]}
    assert {name for name in table[0] if name.startswith("p_")} == {f"p_{name}" for name in (*FRUIT, "rare")}
    summary = RunFolder(work_dir / "run").summary()
    assert summary["test_accuracy"] is None
    assert summary["samples"] == {"train": 62, "clean": 25, "validation": 6, "test": 0}

    predicted = predict("meine photos", capsys)
    assert len(predicted) == 93
    assert assert_equal_to_label_table(predicted) == 62
    (one,) = predict("meine photos/birne/bild ü 10.png", capsys)
    assert (one["id"], one["label"]) == ("bild ü 10.png", next(r["label"] for r in predicted if "ü 10.png" in r["id"]))
    write_csv(work_dir / "list.csv", ["picture"], [[f"meine photos/{name}"] for name, _ in true_label[:3]])
    listed = predict("list.csv", capsys)
    assert [row["id"] for row in listed] == [f"meine photos/{name}" for name, _ in true_label[:3]]
    output = run_cli(["predict", "run", "list.csv"], capsys)
    assert output.out == (work_dir / "out.csv").read_text()


def test_clean_folder_and_test_folder(capsys: Capture, work_dir: Path) -> None:
    write_photos(work_dir / "photos")
    for name, part in (("clean", range(10, 40)), ("test", range(40, 60))):
        for k in part:
            (file,) = (work_dir / "photos").rglob(f"bild ü {k}.png")
            (work_dir / name / FRUIT[k % 3]).mkdir(parents=True, exist_ok=True)
            shutil.move(file, work_dir / name / FRUIT[k % 3])
    shutil.rmtree(work_dir / "photos" / "rare")
    output = train("photos --clean clean --test test --epochs 12", capsys)
    assert "30 clean samples\n" in output
    assert "20 test samples" in output
    assert RunFolder(work_dir / "run").summary()["test_accuracy"] > 60


def test_table_of_image_paths(capsys: Capture, work_dir: Path) -> None:
    true_label = write_photos(work_dir / "pics")
    rows = [[f"pics/{name}", name.split("/")[0].replace("_unlabeled", ""), ""] for name, _ in true_label[:90]]
    for k in range(10, 40):
        rows[k][1:] = [true_label[k][1], "1"]
    write_csv(work_dir / "list.tsv", ["path", "class", "ok"], rows, "\t")
    output = train("list.tsv --clean-column ok", capsys)
    assert "list.tsv: image in 'path', label in 'class'" in output
    assert "30 clean samples, 30 of them removed from the training rows" in output
    assert assert_equal_to_label_table(predict("list.tsv", capsys)) == 60


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_table_of_features(kind: str, capsys: Capture, work_dir: Path) -> None:
    rows = table_rows(120)
    if kind == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        cells = {name: [row[k] or None for row in rows] for k, name in enumerate(TABLE_COLUMNS)}
        cells["width"] = [float(value) if value else None for value in cells["width"]]  # type: ignore[misc]
        parquet.write_table(arrow.table(cells), work_dir / "table.parquet")
    else:
        write_csv(work_dir / f"table.{kind}", TABLE_COLUMNS, rows, "\t" if kind == "tsv" else ",")
    output = train(f"table.{kind} --clean-column checked --epochs 8", capsys)
    assert "3 features, label in 'label', id in 'id'" in output
    assert "(6 unlabeled)" in output
    assert "mlp on cpu" in output
    assert RunFolder(work_dir / "run").summary()["clean_accuracy"] > 60
    assert assert_equal_to_label_table(predict(f"table.{kind}", capsys)) == 82
    about = json.loads((work_dir / "run" / "encoder.json").read_text())
    width, noise, color = about["columns"]
    assert width["missing_indicator"]
    assert not noise["missing_indicator"]
    assert color["values"] == ["blue", "red"]
    trained = [row for row in rows if not row[5]]
    values = [float(row[1]) for row in trained if row[1]]
    assert width["mean"] == pytest.approx(np.mean(values))
    assert width["deviation"] == pytest.approx(np.std(values))


def test_predict_missing_values_and_new_categories(capsys: Capture, work_dir: Path) -> None:
    write_csv(work_dir / "table.csv", TABLE_COLUMNS, table_rows(60))
    train("table.csv --clean-column checked", capsys)
    write_csv(
        work_dir / "new.csv", ["color", "noise", "width"], [["green", "0", "14"], ["", "", ""], ["red", "1", "x"]]
    )
    assert "sample 2 has 'x' in the numeric column 'width'" in input_error(["predict", "run", "new.csv"], capsys)
    nowhere = input_error(["predict", "run", "new.csv", "-o", "no/where.csv"], capsys)
    assert "no/where.csv cannot be written: the folder no does not exist" in nowhere
    rows = predict("new.csv", capsys, "--on-error", "skip")
    assert [row["id"] for row in rows] == ["0", "1"]
    write_csv(work_dir / "less.csv", ["color", "nose", "width"], [["green", "0", "14"]])
    assert "unknown column 'noise': did you mean 'nose'?" in input_error(["predict", "run", "less.csv"], capsys)


def test_predict_streams_table(capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(work_dir / "table.csv", TABLE_COLUMNS, table_rows(60))
    train("table.csv --clean-column checked", capsys)
    write_csv(work_dir / "new.csv", ["width", "noise", "color"], [["10", "0", "red"], ["14", "0", "blue"]])
    known = list(table_file.iterate_rows(work_dir / "new.csv", ["width", "noise", "color"]))
    monkeypatch.setattr(table_file, "iterate_rows", lambda _path, _columns: itertools.cycle(known))
    predicted = Predictor(work_dir / "run").predict([Path("new.csv")], PredictOptions())
    assert [row[0] for row in itertools.islice(predicted, 5000)] == [str(k) for k in range(5000)]


def test_texts(capsys: Capture, work_dir: Path) -> None:
    write_csv(work_dir / "news.csv", ["text", "topic", "ok"], text_rows(120))
    output = train("news.csv --label topic --clean-column ok --epochs 15 --batch-size 16", capsys)
    assert "news.csv: text in 'text', label in 'topic'" in output
    assert "text-mlp on cpu" in output
    assert RunFolder(work_dir / "run").summary()["clean_accuracy"] > 70
    assert assert_equal_to_label_table(predict("news.csv", capsys)) == 80
    write_csv(work_dir / "new.csv", ["text"], [["the goal of the team"], [""], ["money, money: the STOCK market"]])
    assert [row["label"] for row in predict("new.csv", capsys)][::2] == ["sport", "business"]


def test_texts_are_fitted_by_default(capsys: Capture, work_dir: Path) -> None:
    write_csv(work_dir / "news.csv", ["text", "topic", "ok"], text_rows(120))
    output = run_cli(
        ["train", "news.csv", "--label", "topic", "--clean-column", "ok", "--device", "cpu", "--out", "run"], capsys
    )
    assert output.code == 0, output.err
    assert "metalabelnet-plus on news.csv" in output.err
    assert "linear on cpu" in output.err
    assert "cross-validated on 40 clean samples" in output.out
    assert "epoch" not in output.out
    write_csv(work_dir / "new.csv", ["text"], [["the goal of the team"], ["money, money: the STOCK market"]])
    assert [row["label"] for row in predict("new.csv", capsys)] == ["sport", "business"]
    report = run_cli(["report", "run", "-o", "report.html"], capsys)
    assert report.code == 0, report.err


def test_texts_with_sentence_transformer(capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is replaced by a stub; only the calls are tested."""
    package = work_dir / "stand_in" / "sentence_transformers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import numpy\n"
        "class SentenceTransformer:\n"
        "    tokenizer, max_seq_length, prompts, default_prompt_name = None, 9, {}, None\n"
        "    def __init__(self, name):\n"
        "        if name != 'letters': raise OSError(f'no model {name}')\n"
        "    def get_sentence_embedding_dimension(self): return 26\n"
        "    def state_dict(self): return {}\n"
        "    def __iter__(self): return iter(())\n"
        "    def encode(self, texts, convert_to_numpy, show_progress_bar):\n"
        "        return numpy.array([[t.count(chr(97 + k)) for k in range(26)] for t in texts], numpy.float32)\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("METALABELNET_DATA", str(work_dir / "data"))
    write_csv(work_dir / "news.csv", ["text", "topic", "ok"], text_rows(60))
    train("news.csv --label topic --clean-column ok --encoder letters", capsys)
    assert assert_equal_to_label_table(predict("news.csv", capsys)) == 40
    wrong = ["train", "news.csv", "--label", "topic", "--clean-column", "ok", "--encoder", "leters", "--out", "other"]
    assert "sentence-transformers:leters cannot be loaded (no model leters)" in input_error(wrong, capsys)


def test_predict_npz(capsys: Capture, work_dir: Path) -> None:
    write_npz(work_dir / "tiny.npz")
    output = train("tiny.npz --clean 18 --clean-given drop", capsys)
    assert "62 training samples of 3 classes, labels assumed correct; 18 clean samples" in output
    rows = predict("tiny.npz", capsys)
    assert len(rows) == 80
    assert assert_equal_to_label_table(rows) == 62
    assert "cannot be predicted with this run: give an .npz file" in input_error(["predict", "run", "run"], capsys)


def test_dash_is_standard_output(capsys: Capture, work_dir: Path) -> None:
    write_npz(work_dir / "tiny.npz")
    train("tiny.npz --clean 18", capsys)
    for command in (["predict", "run", "tiny.npz"], ["labels", "run"]):
        assert run_cli([*command, "-o", "-"], capsys).out == run_cli(command, capsys).out
    assert not (work_dir / "-").exists()


def test_noise_on_user_data_with_true_labels(capsys: Capture, work_dir: Path) -> None:
    rows = [[*row[:4], row[4] or "yes ✓"] for row in table_rows(120)]
    write_csv(work_dir / "table.csv", TABLE_COLUMNS[:5], rows)
    output = train("table.csv --true-label label --noise uniform:0.3 --clean 20", capsys)
    assert "% wrong labels" in output
    summary = RunFolder(work_dir / "run").summary()
    assert summary["samples"] == {"train": 70, "clean": 16, "validation": 4, "test": 30}
    assert summary["noise_rate"] == pytest.approx(0.3, abs=0.1)  # 27 of 90 rows, clean ones included


# Duplicates, and clean sets that will not do


def test_duplicates_of_clean_samples_are_reported(capsys: Capture, work_dir: Path) -> None:
    true_label = write_photos(work_dir / "photos")
    shutil.rmtree(work_dir / "photos" / "rare")
    shutil.copy(work_dir / "photos" / true_label[10][0], work_dir / "photos" / "birne" / "again.png")
    shutil.copy(work_dir / "photos" / true_label[11][0], work_dir / "photos" / "_unlabeled" / "and again.png")
    write_csv(work_dir / "checked.csv", ["id", "label"], true_label[10:40])
    output = train("photos --clean checked.csv", capsys)
    assert "2 training samples are identical to clean ones and are left out" in output
    assert "_unlabeled/and again.png, birne/again.png" in output
    assert not {"birne/again.png", "_unlabeled/and again.png"} & {
        r["id"] for r in read_csv(work_dir / "run/labels.csv")
    }


def test_duplicates_in_test_set_are_reported(capsys: Capture, work_dir: Path) -> None:
    true_label = write_photos(work_dir / "photos")
    shutil.rmtree(work_dir / "photos" / "rare")
    for k in (10, 50, 51, 60):
        file = work_dir / "test" / true_label[k][1] / f"{k}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(work_dir / "photos" / true_label[k][0], file)
    file.write_bytes((work_dir / "photos" / true_label[61][0]).read_bytes())
    new = work_dir / "test" / true_label[0][1] / "new.png"
    Image.new("RGB", (12, 12), (250, 10, 10)).save(new)
    write_csv(work_dir / "checked.csv", ["id", "label"], true_label[10:40])
    output = train("photos --clean checked.csv --test test", capsys)
    assert "4 of 5 test samples are identical to training or clean ones and stay: " in output
    assert "/10.png" in output
    assert "new.png" not in output
    assert "; they inflate the test accuracy" in output
    assert RunFolder(work_dir / "run").summary()["samples"]["test"] == 5


def test_equal_rows_in_test_table_are_reported(capsys: Capture, work_dir: Path) -> None:
    rows = [[str(k), "ab"[k % 2]] for k in range(40)]
    write_csv(work_dir / "table.csv", ["n", "label", "ok"], [[*row, k < 8] for k, row in enumerate(rows)])
    write_csv(work_dir / "test.csv", ["n", "label"], [["5", "b"], ["77", "a"], ["78", "b"]])
    output = train("table.csv --clean-column ok --test test.csv", capsys)
    assert "1 of 3 test samples are identical to training or clean ones and stay: 0; if these are copies, " in output


def test_duplicates_in_npz_test_set(capsys: Capture, work_dir: Path) -> None:
    (x, _), (x_test, y_test) = table_samples(80, seed=0), table_samples(30, seed=1)
    x_test[7], x_test[9] = x[3], x[4]
    write_npz(work_dir / "mine.npz", x_test=x_test, y_test=y_test)
    output = train("mine.npz --clean 18", capsys)
    assert "2 of 30 test samples are identical to training or clean ones and stay: 7, 9; if these" in output
    shutil.rmtree("run")
    write_npz(work_dir / "mine.npz")
    assert "identical" not in train("mine.npz --clean 18", capsys)


def test_compare_reads_data_once(capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_label = write_photos(work_dir / "photos")
    write_csv(work_dir / "checked.csv", ["id", "label"], [*true_label[10:40], true_label[90]])
    decoded: list[Path] = []
    really = images.decode

    def watched(path: Path, shape: tuple[int, ...], resize: int | None) -> torch.Tensor:
        decoded.append(path)
        return really(path, shape, resize)

    monkeypatch.setattr(images, "decode", watched)
    methods = "--methods cross-entropy,gce --seeds 2 --jobs 1 --clean checked.csv --out both"
    output = run_cli(["compare", "photos", *QUICK_TRAINING.split(), *methods.split()], capsys)
    assert output.code == 0, output.err
    assert len(decoded) == len({*decoded}) == 93
    assert output.err.count("reading photos (training, clean): ") == 1
    assert "reading headers of photos (training): 62 of 62 samples" in output.err


def test_only_duplicates_of_clean_texts(capsys: Capture, work_dir: Path) -> None:
    rows = [[("a goal of the team", "the price of money")[k % 2], "sb"[k % 2], k < 8] for k in range(40)]
    write_csv(work_dir / "news.csv", ["text", "label", "ok"], rows)
    output = input_error(["train", "news.csv", "--clean-column", "ok", "--out", "run"], capsys)
    assert "every training sample is identical to a clean one, which leaves no training rows" in output


def test_equal_table_rows_stay(capsys: Capture, work_dir: Path) -> None:
    rows = [["1", "red", "a"], ["2", "blue", "b"]] * 20
    write_csv(work_dir / "table.csv", ["n", "color", "label", "ok"], [[*row, k < 8] for k, row in enumerate(rows)])
    output = train("table.csv --clean-column ok", capsys)
    assert "32 training samples are identical to clean ones and stay" in output
    assert len(read_csv(work_dir / "run/labels.csv")) == 32


def clean_set_error(work_dir: Path, rows: list[list[str]], capsys: Capture) -> str:
    write_csv(work_dir / "checked.csv", ["id", "label"], rows)
    return input_error(["train", "photos", "--clean", "checked.csv", "--out", "run"], capsys)


def test_invalid_clean_file(capsys: Capture, work_dir: Path) -> None:
    true_label = [list(pair) for pair in write_photos(work_dir / "photos")]
    output = clean_set_error(work_dir, true_label[10:40], capsys)
    assert "class 'rare' is missing from the clean rows: a clean set needs a row of every class" in output
    output = clean_set_error(work_dir, [*true_label[10:40], ["rare/1.pgn", "rare"]], capsys)
    assert "there is no sample 'rare/1.pgn' in photos; did you mean 'rare/1.png'?" in output
    output = clean_set_error(work_dir, [*true_label[10:40], ["rare/1.png", "rar"]], capsys)
    assert "unknown class 'rar': did you mean 'rare'?" in output
    output = clean_set_error(work_dir, [*true_label[10:40], ["rare/1.png", ""]], capsys)
    assert "rare/1.png has no label" in output
    output = clean_set_error(work_dir, [true_label[10], [true_label[10][0], "rare"]], capsys)
    assert "occurs twice, as" in output
    output = input_error(["train", "photos", "--out", "run"], capsys)
    assert "there is no clean set; give a file of clean labels with --clean FILE; `metalabelnet review" in output
    output = input_error(["train", "photos", "--clean", "5", "--out", "run"], capsys)
    assert "--clean 5: a number draws samples with known true labels, and a folder of images has none; give" in output
    write_csv(work_dir / "other.csv", ["file", "kind"], [["a", "apple"], ["b", "banana"]])
    output = input_error(["train", "photos", "--clean", "other.csv", "--out", "run"], capsys)
    assert "there is no sample 'a' in photos; its first id is '" in output
    assert output.endswith("(ids are read from 'file', labels from 'kind'; expected names: id, label)")
    assert not (work_dir / "run").exists()


def test_missing_clean_set_of_a_table(capsys: Capture, work_dir: Path) -> None:
    """The message is not shortened in its middle."""
    write_csv(
        work_dir / "texts.csv", ["text", "label", "ok", *"abcdefgh"], [[*row, *"12345678"] for row in text_rows(40)]
    )
    output = input_error(["train", "texts.csv", "--text", "text", "--out", "run"], capsys)
    assert output == (
        "metalabelnet: texts.csv: there is no clean set; give a file of clean labels with --clean FILE, or name the "
        "column that marks clean rows (--clean-column) or has the true labels that --clean N draws from "
        "(--true-label); `metalabelnet review texts.csv` helps to build one"
    )


# Columns


def test_wrong_column_suggests_closest_name(capsys: Capture, work_dir: Path) -> None:
    for arguments, says in {
        "--label labl": "table.csv: unknown column 'labl': did you mean 'label'?",
        "--clean-column cheked": "unknown column 'cheked': did you mean 'checked'?",
        "--clean-column checked --features width,colour": "unknown column 'colour': did you mean 'color'?",
        "--clean-column color": "row 0 has 'red' in the column 'color'; give 1 or 0",
        "--clean-column checked --image width --text color": "give one of --image, --text, --features",
        "--clean-column checked --label noise": "30 different labels in 30 rows are too many for classes",
        "--clean-column checked --features id": (
            "column 'id' has 205 different texts in 205 rows, too many for a category"
        ),
        "--clean-column checked --features ,": "--features ',' names no column; give names separated by commas",
        "--clean-column checked --features width,color --label color": (
            "the column 'color' is that of --label and cannot be part"
        ),
        "--clean-column checked --features width,label": (
            "cannot tell which column is the label; choose from id, width, noise, color"
        ),
        "--clean-column checked --features width,checked": (
            "the column 'checked' is that of --clean-column and cannot be part"
        ),
        "--clean-column checked --text color --label color": "the column 'color' is that of --label and cannot be part",
        "--clean-column checked --memory-limit -1": "memory-limit -1.0 is out of range: choose from 0 to 1e+09 GiB",
        "--clean-column checked --image-size 2": "image-size 2 is out of range: choose from 4 to 1024",
        "--clean-column checked --on-error stpo": "unknown value for on-error 'stpo': did you mean 'stop'?",
        "--clean-column checked --pretrained": "pretrained weights are for networks of timm or torchvision",
        "--clean-column checked --net cnn8": "the network cnn8 does not accept samples of shape",
    }.items():
        write_csv(work_dir / "table.csv", TABLE_COLUMNS, table_rows(300 if "--features id" in arguments else 30))
        assert says in input_error(["train", "table.csv", *arguments.split(), "--out", "run"], capsys)
    assert "--label is for a folder of images or a table" in input_error(["train", "digits", "--label", "y"], capsys)
    write_csv(work_dir / "none.csv", ["a", "b"], [["1", "2"]])
    assert "cannot tell which column is the label; choose from a, b" in input_error(["train", "none.csv"], capsys)
    (work_dir / "head.csv").write_text("a,label\n")
    assert "head.csv: there are no rows below the first line" in input_error(["train", "head.csv"], capsys)
    (work_dir / "ragged.csv").write_text("a,label\n1,x\n1,2,3\n")
    output = input_error(["train", "ragged.csv", "--true-label", "label"], capsys)
    assert "row 3 has 3 cells, but the first line names 2" in output


def test_column_of_names_is_left_out_and_reported(capsys: Capture, work_dir: Path) -> None:
    rows = [[*row[:3], f"name{k}", *row[4:]] for k, row in enumerate(table_rows(300))]
    write_csv(work_dir / "table.csv", ["id", "width", "noise", "name", "label", "checked"], rows)
    output = train("table.csv --clean-column checked --epochs 2", capsys)
    assert "2 features, label in 'label', id in 'id'; left out: name" in output


# Several methods


def test_compare_without_test_set_uses_clean_accuracy(capsys: Capture, work_dir: Path) -> None:
    write_csv(work_dir / "table.csv", TABLE_COLUMNS, table_rows(60))
    several = "--methods cross-entropy,metalabelnet --seeds 1 --jobs 1 --out out"
    words = ["compare", "table.csv", "--clean-column", "checked", *QUICK_TRAINING.split(), *several.split()]
    output = run_cli(words, capsys)
    assert output.code == 0, output.err
    title, columns, _, *rows = output.out.splitlines()
    assert title == "table.csv, no added noise, all clean samples; in %, 1 seed"
    assert columns.split() == ["method", "clean", "accuracy", "seconds"]
    assert [row.split()[0] for row in rows[:2]] == ["cross-entropy", "metalabelnet"]
    assert "is a folder or a table: use metalabelnet predict" in input_error(
        ["labels", "out/metalabelnet-seed0", "--data", "table.csv"], capsys
    )


# Going on


def test_resume_with_user_data(capsys: Capture, work_dir: Path) -> None:
    write_csv(work_dir / "table.csv", TABLE_COLUMNS, table_rows(60))
    train("table.csv --clean-column checked", capsys)
    again = ["train", "table.csv", "--clean-column", "checked", *QUICK.split(), "--out", "run", "--resume"]
    assert run_cli(again, capsys).code == 0
    other = input_error([*again, "--label", "color"], capsys)
    assert "was started with label = None, not 'color'" in other


def test_run_folder_without_user_data_settings(capsys: Capture, work_dir: Path) -> None:
    write_npz(work_dir / "tiny.npz")
    train("tiny.npz --clean 18", capsys)
    about = json.loads((work_dir / "run/run.json").read_text())
    for name in ("on_error", "memory_limit", "label", "pretrained"):
        del about["run"][name]
    (work_dir / "run/run.json").write_text(json.dumps(about))
    (work_dir / "run/digests.json").unlink()
    again = ["train", "tiny.npz", "--clean", "18", *QUICK.split(), "--out", "run", "--resume"]
    assert run_cli(again, capsys).code == 0


def test_clean_table_with_unlabeled_rows(capsys: Capture, work_dir: Path) -> None:
    rows = table_rows(80)
    write_csv(work_dir / "table.csv", TABLE_COLUMNS, rows)
    marked, other = (next(row for row in rows if row[4] and bool(row[5]) is one) for one in (True, False))
    asked = ["train", "table.csv", "--clean-column", "checked", "--clean", "clean.csv", "--out", "run"]
    write_csv(work_dir / "clean.csv", ["id", "label"], [[marked[0], ""], [other[0], ""]])
    assert f"{other[0]} has no label, but a clean sample needs one; only a row that --clean-column" in input_error(
        asked, capsys
    )
    write_csv(work_dir / "clean.csv", ["id", "label"], [[marked[0], ""], [marked[0], marked[4]]])
    assert f"{marked[0]} occurs twice, as '' and as {marked[4]!r}" in input_error(asked, capsys)
    write_csv(work_dir / "clean.csv", ["id", "label"], [[marked[0], ""]])
    output = train("table.csv --clean-column checked --clean clean.csv", capsys)
    assert f"{sum(row[5] == 'yes' for row in rows) - 1} clean samples" in output
    assert marked[0] not in {row["id"] for row in read_csv(work_dir / "run/labels.csv")}


# Where runs are put


@pytest.mark.parametrize("command", ["train", "compare"])
def test_run_folder_inside_data_folder(
    command: str, capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_label = write_photos(work_dir / "photos")
    write_csv(work_dir / "checked.csv", ["id", "label"], [*true_label[10:40], true_label[90]])
    monkeypatch.chdir(work_dir / "photos")
    more = f"--clean {work_dir}/checked.csv --epochs 1 --device cpu --snapshots 0".split()
    more += [] if command == "train" else ["--methods", "fine-tune", "--seeds", "1", "--jobs", "1"]
    output = input_error([command, ".", *more], capsys)
    assert (
        f"runs/{'compare-' if command == 'compare' else ''}photos-" in output
    )  # `.` is replaced by the name of the folder
    assert "is inside ., whose subfolders are classes: choose a folder outside with --out" in output
    assert not (work_dir / "photos" / "runs").exists()
    monkeypatch.chdir(work_dir / "photos" / "rare")
    assert "is inside .., whose subfolders are classes" in input_error([command, "..", *more], capsys)
    assert run_cli([command, "..", *more, "--out", "../../run"], capsys).code == 0


@pytest.mark.parametrize("command", ["train", "compare"])
def test_empty_folder(command: str, capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work_dir / "empty").mkdir()
    monkeypatch.chdir(work_dir / "empty")
    assert ".: no images" in input_error([command, "."], capsys)
    assert not list((work_dir / "empty").iterdir())


def test_a_run_folder_is_not_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "earlier"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    message = input_error(["compare", str(folder), "--clean", "clean.csv"], capsys)
    assert message == f"metalabelnet: {folder} is a run folder: give the data that it was trained on"


def test_run_folder_inside_clean_or_test_folder(capsys: Capture, work_dir: Path) -> None:
    true_label = write_photos(work_dir / "photos")
    write_csv(work_dir / "checked.csv", ["id", "label"], [*true_label[10:40], true_label[90]])
    shutil.copytree(work_dir / "photos", work_dir / "others")
    for more in ("--clean others", "--clean checked.csv --test others"):
        output = input_error(["train", "photos", *more.split(), "--out", "others/run"], capsys)
        assert "others/run is inside others, whose subfolders are classes" in output
