"""A person's own data, from files to predictions, by the command line."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from files import FRUIT, QUICK, TABLE, photos, read_csv, table_rows, text_rows, write_csv
from metalabelnet.data.encoders import images
from metalabelnet.data.files import table_file
from metalabelnet.inference.predict import Predictor, Reader
from metalabelnet.train import RunFolder
from shell import call
from tiny import samples, write_npz

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(arguments: str, capsys: Capture, *more: str) -> str:
    """Train what must work; give what was said."""
    said = call(["train", *QUICK.split(), *arguments.split(), *more, "--out", "run"], capsys)
    assert said.code == 0, said.err
    return said.err


def predict(source: str, capsys: Capture, *more: str) -> list[dict[str, str]]:
    said = call(["predict", "run", source, "-o", "out.csv", *more], capsys)
    assert said.code == 0, said.err
    return read_csv(Path("out.csv"))


def same_as_the_table(predicted: list[dict[str, str]]) -> int:
    """What is predicted for a training sample is what the label table of the run says of it; gives their number."""
    table = {row["id"]: row for row in read_csv(Path("run/labels.csv"))}
    known = [row for row in predicted if row["id"] in table]
    for row in known:
        assert row["label"] == table[row["id"]]["label"]
        for name in (name for name in row if name.startswith("p_")):
            assert abs(float(row[name]) - float(table[row["id"]][name])) < 2e-5
    return len(known)


def refused(arguments: list[str], capsys: Capture) -> str:
    said = call(arguments, capsys)
    assert (said.code, said.out) == (2, "")
    assert "Traceback" not in said.err
    return said.err.splitlines()[-1]


# Each kind of input, end to end


def test_a_folder_of_images(capsys: Capture, here: Path) -> None:
    true_label = photos(here / "meine photos")
    write_csv(here / "checked.csv", ["file", "label"], [*true_label[10:40], true_label[90]])
    said = train("--clean checked.csv", capsys, "meine photos")
    assert "images become 8×8, color (--image-size to change)" in said
    assert "31 clean samples, 31 of them taken out of training" in said
    assert "metalabelnet on meine photos/: 62 samples of 4 classes (5 unlabeled)" in said
    assert "small-cnn on cpu; about " in said
    assert "'rare' has 2 labels" in said
    table = read_csv(here / "run" / "labels.csv")
    assert len(table) == 62
    assert {row["given"] for row in table} == {*FRUIT, "rare", ""}
    assert not {row["id"] for row in table} & {name for name, _ in true_label[10:40]}
    assert {name for name in table[0] if name.startswith("p_")} == {f"p_{name}" for name in (*FRUIT, "rare")}
    summary = RunFolder(here / "run").summary()
    assert summary["test_accuracy"] is None
    assert summary["samples"] == {"train": 62, "clean": 25, "validation": 6, "test": 0}

    predicted = predict("meine photos", capsys)
    assert len(predicted) == 93
    assert same_as_the_table(predicted) == 62
    (one,) = predict("meine photos/birne/bild ü 10.png", capsys)
    assert (one["id"], one["label"]) == ("bild ü 10.png", next(r["label"] for r in predicted if "ü 10.png" in r["id"]))
    write_csv(here / "list.csv", ["picture"], [[f"meine photos/{name}"] for name, _ in true_label[:3]])
    listed = predict("list.csv", capsys)
    assert [row["id"] for row in listed] == [f"meine photos/{name}" for name, _ in true_label[:3]]
    said = call(["predict", "run", "list.csv"], capsys)
    assert said.out == (here / "out.csv").read_text()


def test_a_clean_and_a_test_folder(capsys: Capture, here: Path) -> None:
    photos(here / "photos")
    for name, part in (("clean", range(10, 40)), ("test", range(40, 60))):
        for k in part:
            (file,) = (here / "photos").rglob(f"bild ü {k}.png")
            (here / name / FRUIT[k % 3]).mkdir(parents=True, exist_ok=True)
            shutil.move(file, here / name / FRUIT[k % 3])
    shutil.rmtree(here / "photos" / "rare")
    said = train("photos --clean clean --test test --epochs 12", capsys)
    assert "30 clean samples\n" in said
    assert "20 to test" in said
    assert RunFolder(here / "run").summary()["test_accuracy"] > 60


def test_a_table_of_paths(capsys: Capture, here: Path) -> None:
    true_label = photos(here / "pics")
    rows = [[f"pics/{name}", name.split("/")[0].replace("_unlabeled", ""), ""] for name, _ in true_label[:90]]
    for k in range(10, 40):
        rows[k][1:] = [true_label[k][1], "1"]
    write_csv(here / "list.tsv", ["path", "class", "ok"], rows, "\t")
    said = train("list.tsv --clean-column ok", capsys)
    assert "list.tsv: image in 'path', label in 'class'" in said
    assert "30 clean samples, 30 of them taken out of training" in said
    assert same_as_the_table(predict("list.tsv", capsys)) == 60


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_a_table_of_features(kind: str, capsys: Capture, here: Path) -> None:
    rows = table_rows(120)
    if kind == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        cells = {name: [row[k] or None for row in rows] for k, name in enumerate(TABLE)}
        cells["width"] = [float(value) if value else None for value in cells["width"]]  # type: ignore[misc]
        parquet.write_table(arrow.table(cells), here / "table.parquet")
    else:
        write_csv(here / f"table.{kind}", TABLE, rows, "\t" if kind == "tsv" else ",")
    said = train(f"table.{kind} --clean-column checked --epochs 8", capsys)
    assert "3 features, label in 'label', id in 'id'" in said
    assert "(6 unlabeled)" in said
    assert "mlp on cpu" in said
    assert RunFolder(here / "run").summary()["clean_accuracy"] > 60
    assert same_as_the_table(predict(f"table.{kind}", capsys)) == 82
    about = json.loads((here / "run" / "inputs.json").read_text())
    width, noise, color = about["columns"]
    assert width["gaps"]
    assert not noise["gaps"]
    assert color["values"] == ["blue", "red"]
    trained = [row for row in rows if not row[5]]
    values = [float(row[1]) for row in trained if row[1]]
    assert width["mean"] == pytest.approx(np.mean(values))
    assert width["deviation"] == pytest.approx(np.std(values))


def test_a_table_with_gaps_and_new_categories_is_predicted(capsys: Capture, here: Path) -> None:
    write_csv(here / "table.csv", TABLE, table_rows(60))
    train("table.csv --clean-column checked", capsys)
    write_csv(here / "new.csv", ["color", "noise", "width"], [["green", "0", "14"], ["", "", ""], ["red", "1", "x"]])
    assert "sample 2 has 'x' in the column 'width' of numbers" in refused(["predict", "run", "new.csv"], capsys)
    nowhere = refused(["predict", "run", "new.csv", "-o", "no/where.csv"], capsys)
    assert "no/where.csv cannot be written: there is no folder no" in nowhere
    rows = predict("new.csv", capsys, "--on-error", "skip")
    assert [row["id"] for row in rows] == ["0", "1"]
    write_csv(here / "less.csv", ["color", "nose", "width"], [["green", "0", "14"]])
    assert "unknown column 'noise': did you mean 'nose'?" in refused(["predict", "run", "less.csv"], capsys)


def test_a_table_without_end_is_predicted_as_it_comes(
    capsys: Capture, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(here / "table.csv", TABLE, table_rows(60))
    train("table.csv --clean-column checked", capsys)
    write_csv(here / "new.csv", ["width", "noise", "color"], [["10", "0", "red"], ["14", "0", "blue"]])
    known = list(table_file.rows(here / "new.csv", ["width", "noise", "color"]))
    monkeypatch.setattr(table_file, "rows", lambda _path, _columns: itertools.cycle(known))
    predicted = Predictor(here / "run").rows([Path("new.csv")], Reader())
    assert [row[0] for row in itertools.islice(predicted, 5000)] == [str(k) for k in range(5000)]


def test_texts(capsys: Capture, here: Path) -> None:
    write_csv(here / "news.csv", ["text", "topic", "ok"], text_rows(120))
    said = train("news.csv --label topic --clean-column ok --epochs 15", capsys)
    assert "news.csv: text in 'text', label in 'topic'" in said
    assert "text-mlp on cpu" in said
    assert RunFolder(here / "run").summary()["clean_accuracy"] > 70
    assert same_as_the_table(predict("news.csv", capsys)) == 80
    write_csv(here / "new.csv", ["text"], [["the goal of the team"], [""], ["money, money: the STOCK market"]])
    assert [row["label"] for row in predict("new.csv", capsys)][::2] == ["sport", "business"]


def test_texts_by_an_encoder(capsys: Capture, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the package: only how it is called is tested here."""
    package = here / "stand_in" / "sentence_transformers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import numpy\n"
        "class SentenceTransformer:\n"
        "    def __init__(self, name):\n"
        "        if name != 'letters': raise OSError(f'no model {name}')\n"
        "    def get_sentence_embedding_dimension(self): return 26\n"
        "    def encode(self, texts, convert_to_numpy, show_progress_bar):\n"
        "        return numpy.array([[t.count(chr(97 + k)) for k in range(26)] for t in texts], numpy.float32)\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    write_csv(here / "news.csv", ["text", "topic", "ok"], text_rows(60))
    train("news.csv --label topic --clean-column ok --encoder letters", capsys)
    assert same_as_the_table(predict("news.csv", capsys)) == 40
    wrong = ["train", "news.csv", "--label", "topic", "--clean-column", "ok", "--encoder", "leters", "--out", "other"]
    assert "the encoder 'leters' cannot be loaded: no model leters" in refused(wrong, capsys)


def test_an_npz_is_predicted_too(capsys: Capture, here: Path) -> None:
    write_npz(here / "tiny.npz")
    said = train("tiny.npz --clean 18", capsys)
    assert "62 samples of 3 classes, whose labels are taken to be right, 14 clean" in said
    rows = predict("tiny.npz", capsys)
    assert len(rows) == 80
    assert same_as_the_table(rows) == 62
    assert "this run is asked about an .npz file" in refused(["predict", "run", "run"], capsys)


def test_a_stroke_stands_for_standard_output(capsys: Capture, here: Path) -> None:
    write_npz(here / "tiny.npz")
    train("tiny.npz --clean 18", capsys)
    for command in (["predict", "run", "tiny.npz"], ["labels", "run"]):
        assert call([*command, "-o", "-"], capsys).out == call(command, capsys).out
    assert not (here / "-").exists()


def test_noise_can_be_added_where_the_truth_is_known(capsys: Capture, here: Path) -> None:
    rows = [[*row[:4], row[4] or "yes ✓"] for row in table_rows(120)]
    write_csv(here / "table.csv", TABLE[:5], rows)
    said = train("table.csv --true-label label --noise uniform:0.3 --clean 20", capsys)
    assert "of the labels wrong" in said
    summary = RunFolder(here / "run").summary()
    assert summary["samples"] == {"train": 70, "clean": 16, "validation": 4, "test": 30}
    assert summary["noise_rate"] == pytest.approx(0.3, abs=0.02)


# Duplicates, and clean sets that will not do


def test_duplicates_across_train_and_meta_are_reported(capsys: Capture, here: Path) -> None:
    true_label = photos(here / "photos")
    shutil.rmtree(here / "photos" / "rare")
    shutil.copy(here / "photos" / true_label[10][0], here / "photos" / "birne" / "again.png")
    shutil.copy(here / "photos" / true_label[11][0], here / "photos" / "_unlabeled" / "and again.png")
    write_csv(here / "checked.csv", ["id", "label"], true_label[10:40])
    said = train("photos --clean checked.csv", capsys)
    assert "2 training samples are identical to clean ones and are taken out" in said
    assert "_unlabeled/and again.png, birne/again.png" in said
    assert not {"birne/again.png", "_unlabeled/and again.png"} & {r["id"] for r in read_csv(here / "run/labels.csv")}


def test_copies_in_the_test_part_are_reported(capsys: Capture, here: Path) -> None:
    true_label = photos(here / "photos")
    shutil.rmtree(here / "photos" / "rare")
    for k in (10, 50, 51, 60):
        file = here / "test" / true_label[k][1] / f"{k}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(here / "photos" / true_label[k][0], file)
    file.write_bytes((here / "photos" / true_label[61][0]).read_bytes())
    new = here / "test" / true_label[0][1] / "new.png"
    Image.new("RGB", (12, 12), (250, 10, 10)).save(new)
    write_csv(here / "checked.csv", ["id", "label"], true_label[10:40])
    said = train("photos --clean checked.csv --test test", capsys)
    assert "4 of 5 test samples are identical to training or clean ones and stay: " in said
    assert "/10.png" in said
    assert "new.png" not in said
    assert "; they flatter the test accuracy" in said
    assert RunFolder(here / "run").summary()["samples"]["test"] == 5


def test_alike_rows_of_a_table_may_be_no_copies(capsys: Capture, here: Path) -> None:
    rows = [[str(k), "ab"[k % 2]] for k in range(40)]
    write_csv(here / "table.csv", ["n", "label", "ok"], [[*row, k < 8] for k, row in enumerate(rows)])
    write_csv(here / "test.csv", ["n", "label"], [["5", "b"], ["77", "a"], ["78", "b"]])
    said = train("table.csv --clean-column ok --test test.csv", capsys)
    assert "1 of 3 test samples are identical to training or clean ones and stay: 0; where these are copies, " in said


def test_copies_in_the_test_part_of_an_npz_file(capsys: Capture, here: Path) -> None:
    (x, _), (x_test, y_test) = samples(80, seed=0), samples(30, seed=1)
    x_test[7], x_test[9] = x[3], x[4]
    write_npz(here / "mine.npz", x_test=x_test, y_test=y_test)
    said = train("mine.npz --clean 18", capsys)
    assert "2 of 30 test samples are identical to training or clean ones and stay: 7, 9; where these" in said
    shutil.rmtree("run")
    write_npz(here / "mine.npz")
    assert "identical" not in train("mine.npz --clean 18", capsys)


def test_compare_reads_once(capsys: Capture, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_label = photos(here / "photos")
    write_csv(here / "checked.csv", ["id", "label"], [*true_label[10:40], true_label[90]])
    decoded: list[Path] = []
    really = images.decode

    def watched(path: Path, shape: tuple[int, ...]) -> torch.Tensor:
        decoded.append(path)
        return really(path, shape)

    monkeypatch.setattr(images, "decode", watched)
    methods = "--methods cross-entropy,gce --seeds 2 --jobs 1 --clean checked.csv --out both"
    said = call(["compare", "photos", *QUICK.split(), *methods.split()], capsys)
    assert said.code == 0, said.err
    assert len(decoded) == len({*decoded}) == 93
    assert said.err.count("reading photos: ") == 1


def test_nothing_but_copies_of_clean_texts_is_refused(capsys: Capture, here: Path) -> None:
    rows = [[("a goal of the team", "the price of money")[k % 2], "sb"[k % 2], k < 8] for k in range(40)]
    write_csv(here / "news.csv", ["text", "label", "ok"], rows)
    said = refused(["train", "news.csv", "--clean-column", "ok", "--out", "run"], capsys)
    assert "every training sample is identical to a clean one, which leaves none to train on" in said


def test_alike_rows_of_a_table_stay(capsys: Capture, here: Path) -> None:
    rows = [["1", "red", "a"], ["2", "blue", "b"]] * 20
    write_csv(here / "table.csv", ["n", "color", "label", "ok"], [[*row, k < 8] for k, row in enumerate(rows)])
    said = train("table.csv --clean-column ok", capsys)
    assert "32 training samples are identical to clean ones and stay" in said
    assert len(read_csv(here / "run/labels.csv")) == 32


def wrong_clean_set(here: Path, rows: list[list[str]], capsys: Capture) -> str:
    write_csv(here / "checked.csv", ["id", "label"], rows)
    return refused(["train", "photos", "--clean", "checked.csv", "--out", "run"], capsys)


def test_a_clean_set_that_will_not_do(capsys: Capture, here: Path) -> None:
    true_label = [list(pair) for pair in photos(here / "photos")]
    said = wrong_clean_set(here, true_label[10:40], capsys)
    assert "class 'rare' is missing from the clean rows: a clean set needs a row of every class" in said
    said = wrong_clean_set(here, [*true_label[10:40], ["rare/1.pgn", "rare"]], capsys)
    assert "there is no sample 'rare/1.pgn' in photos; did you mean 'rare/1.png'?" in said
    said = wrong_clean_set(here, [*true_label[10:40], ["rare/1.png", "rar"]], capsys)
    assert "unknown class 'rar': did you mean 'rare'?" in said
    said = wrong_clean_set(here, [*true_label[10:40], ["rare/1.png", ""]], capsys)
    assert "rare/1.png has no label" in said
    said = wrong_clean_set(here, [true_label[10], [true_label[10][0], "rare"]], capsys)
    assert "is there twice, as" in said
    said = refused(["train", "photos", "--out", "run"], capsys)
    assert "there is no clean set; name a file of checked labels with --clean FILE; the page of metalabelnet" in said
    assert not (here / "run").exists()


# Columns


def test_a_wrong_column_is_refused_with_the_nearest_name(capsys: Capture, here: Path) -> None:
    for arguments, says in {
        "--label labl": "table.csv: unknown column 'labl': did you mean 'label'?",
        "--clean-column cheked": "unknown column 'cheked': did you mean 'checked'?",
        "--clean-column checked --features width,colour": "unknown column 'colour': did you mean 'color'?",
        "--clean-column color": "row 0 has 'red' in the column 'color'; give 1 or 0",
        "--clean-column checked --image width --text color": "give one of --image, --text, --features",
        "--clean-column checked --label noise": "30 different labels in 30 rows are no classes",
        "--clean-column checked --features id": "column 'id' has 205 different texts in 205 rows, too many for a category",
        "--clean-column checked --features ,": "--features ',' names no column; give some, separated by commas",
        "--clean-column checked --features width,color --label color": "the column 'color' is that of --label and no part",
        "--clean-column checked --features width,label": "which column is the label? name one of id, width, noise, color",
        "--clean-column checked --features width,checked": "the column 'checked' is that of --clean-column and no part",
        "--clean-column checked --text color --label color": "the column 'color' is that of --label and no part",
        "--clean-column checked --memory-limit -1": "memory-limit -1.0 is not a number of GiB",
        "--clean-column checked --image-size 2": "image-size 2 is not from 4 to 1024",
        "--clean-column checked --on-error stpo": "unknown way to treat errors 'stpo': did you mean 'stop'?",
        "--clean-column checked --pretrained": "pretrained weights are for networks of timm or torchvision",
        "--clean-column checked --net cnn8": "the network cnn8 does not take samples of shape",
    }.items():
        write_csv(here / "table.csv", TABLE, table_rows(300 if "--features id" in arguments else 30))
        assert says in refused(["train", "table.csv", *arguments.split(), "--out", "run"], capsys)
    assert "--label is for a folder of images or a table" in refused(["train", "digits", "--label", "y"], capsys)
    write_csv(here / "none.csv", ["a", "b"], [["1", "2"]])
    assert "which column is the label? name one of a, b" in refused(["train", "none.csv"], capsys)
    (here / "head.csv").write_text("a,label\n")
    assert "head.csv: has no rows below its first line" in refused(["train", "head.csv"], capsys)
    (here / "ragged.csv").write_text("a,label\n1,x\n1,2,3\n")
    said = refused(["train", "ragged.csv", "--true-label", "label"], capsys)
    assert "row 3 has 3 cells, but the first line names 2" in said


def test_a_column_of_names_is_left_out_and_said(capsys: Capture, here: Path) -> None:
    rows = [[*row[:3], f"name{k}", *row[4:]] for k, row in enumerate(table_rows(300))]
    write_csv(here / "table.csv", ["id", "width", "noise", "name", "label", "checked"], rows)
    said = train("table.csv --clean-column checked --epochs 2", capsys)
    assert "2 features, label in 'label', id in 'id'; left out: name" in said


# Several methods


def test_methods_are_compared_on_the_clean_rows_where_nothing_else_is_right(capsys: Capture, here: Path) -> None:
    write_csv(here / "table.csv", TABLE, table_rows(60))
    several = "--methods cross-entropy,metalabelnet --seeds 1 --jobs 1 --out out"
    said = call(["compare", "table.csv", "--clean-column", "checked", *QUICK.split(), *several.split()], capsys)
    assert said.code == 0, said.err
    title, columns, _, *rows = said.out.splitlines()
    assert title == "table.csv, noise none, all clean samples: per cent, mean over 1 seed"
    assert columns.split() == ["method", "clean", "accuracy", "seconds"]
    assert [row.split()[0] for row in rows[:2]] == ["cross-entropy", "metalabelnet"]
    assert "goes to another command: metalabelnet predict" in refused(
        ["labels", "out/metalabelnet-seed0", "--data", "table.csv"], capsys
    )


# Going on


def test_own_data_can_be_resumed(capsys: Capture, here: Path) -> None:
    write_csv(here / "table.csv", TABLE, table_rows(60))
    train("table.csv --clean-column checked", capsys)
    again = ["train", "table.csv", "--clean-column", "checked", *QUICK.split(), "--out", "run", "--resume"]
    assert call(again, capsys).code == 0
    other = refused([*again, "--label", "color"], capsys)
    assert "was started with label = None, not 'color'" in other


def test_a_run_folder_from_before_there_was_own_data(capsys: Capture, here: Path) -> None:
    write_npz(here / "tiny.npz")
    train("tiny.npz --clean 18", capsys)
    about = json.loads((here / "run/run.json").read_text())
    for name in ("on_error", "memory_limit", "label", "pretrained"):
        del about["run"][name]
    (here / "run/run.json").write_text(json.dumps(about))
    again = ["train", "tiny.npz", "--clean", "18", *QUICK.split(), "--out", "run", "--resume"]
    assert call(again, capsys).code == 0


def test_only_a_trusted_row_may_stand_in_a_clean_set_without_a_label(capsys: Capture, here: Path) -> None:
    rows = table_rows(80)
    write_csv(here / "table.csv", TABLE, rows)
    marked, other = (next(row for row in rows if row[4] and bool(row[5]) is one) for one in (True, False))
    asked = ["train", "table.csv", "--clean-column", "checked", "--clean", "clean.csv", "--out", "run"]
    write_csv(here / "clean.csv", ["id", "label"], [[marked[0], ""], [other[0], ""]])
    assert f"{other[0]} has no label, but a clean sample needs one; only a row that --clean-column" in refused(
        asked, capsys
    )
    write_csv(here / "clean.csv", ["id", "label"], [[marked[0], ""], [marked[0], marked[4]]])
    assert f"{marked[0]} is there twice, as '' and as {marked[4]!r}" in refused(asked, capsys)
    write_csv(here / "clean.csv", ["id", "label"], [[marked[0], ""]])
    said = train("table.csv --clean-column checked --clean clean.csv", capsys)
    assert f"{sum(row[5] == 'yes' for row in rows) - 1} clean samples" in said
    assert marked[0] not in {row["id"] for row in read_csv(here / "run/labels.csv")}


# Where runs are put


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_run_is_not_put_among_the_pictures(
    command: str, capsys: Capture, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_label = photos(here / "photos")
    write_csv(here / "checked.csv", ["id", "label"], [*true_label[10:40], true_label[90]])
    monkeypatch.chdir(here / "photos")
    more = f"--clean {here}/checked.csv --epochs 1 --device cpu --snapshots 0".split()
    more += [] if command == "train" else ["--methods", "fine-tune", "--seeds", "1", "--jobs", "1"]
    said = refused([command, ".", *more], capsys)
    assert f"runs/{'compare-' if command == 'compare' else ''}photos-" in said  # the folder's own name
    assert "lies within ./, whose folders are classes: choose one outside with --out" in said
    assert not (here / "photos" / "runs").exists()
    monkeypatch.chdir(here / "photos" / "rare")
    assert "lies within ../, whose folders are classes" in refused([command, "..", *more], capsys)
    assert call([command, "..", *more, "--out", "../../run"], capsys).code == 0


@pytest.mark.parametrize("command", ["train", "compare"])
def test_of_an_empty_folder_it_is_said_that_nothing_is_there(
    command: str, capsys: Capture, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "empty").mkdir()
    monkeypatch.chdir(here / "empty")
    assert ".: has no images" in refused([command, "."], capsys)
    assert not list((here / "empty").iterdir())


def test_a_run_is_not_put_into_the_folder_of_the_clean_set_or_the_test_set(capsys: Capture, here: Path) -> None:
    true_label = photos(here / "photos")
    write_csv(here / "checked.csv", ["id", "label"], [*true_label[10:40], true_label[90]])
    shutil.copytree(here / "photos", here / "others")
    for more in ("--clean others", "--clean checked.csv --test others"):
        said = refused(["train", "photos", *more.split(), "--out", "others/run"], capsys)
        assert "others/run lies within others, whose folders are classes" in said
