"""Messy user data: number formats, ambiguous columns, symlinks, files that are not images, duplicate ids."""

import datetime
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cli_runner import run_cli
from metalabelnet.train import RunFolder
from user_data import QUICK, QUICK_TRAINING, read_csv, text_rows, write_csv, write_photos

Capture = pytest.CaptureFixture[str]
WANTED = ("label", "ok")


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(count: int = 90) -> list[tuple[float, str, bool, int]]:
    """Return rows of an informative number, the given label (a fifth wrong), the clean mark, and the class."""
    random = np.random.default_rng(0)
    made = []
    for k in range(count):
        kind, checked = k % 2, k % 6 < 2
        label = ("no", "yes")[kind if checked or k % 5 else 1 - kind]
        made.append((float(random.normal(10 + 4 * kind, 1)), label, checked, kind))
    return made


def train(file: str, capsys: Capture, *more: str) -> str:
    """Train, which must succeed; return standard error."""
    output = run_cli(["train", file, *QUICK.split(), "--out", "run", *more], capsys)
    assert output.code == 0, output.err
    return output.err


def input_error(arguments: Sequence[str], capsys: Capture) -> str:
    output = run_cli(list(arguments), capsys)
    assert (output.code, output.out) == (2, "")
    assert "Traceback" not in output.err
    return output.err.splitlines()[-1]  # earlier lines are notes about the data


def table(name: str, cells: Sequence[Sequence[object]], columns: Sequence[str], separator: str = ",") -> str:
    """Write a table of these cells, followed by label and clean mark."""
    behind = [[label, int(checked)] for _, label, checked, _ in rows()]
    write_csv(Path(name), [*columns, *WANTED], [[*a, *b] for a, b in zip(cells, behind, strict=True)], separator)
    return name


@pytest.mark.parametrize(
    ("form", "separator", "write"),
    [
        ("1,234.5", ",", lambda v: f"{1000 * v:,.2f}"),
        ("1.234,5", ";", lambda v: f"{v:.2f}".replace(".", ",")),
    ],
)
def test_numbers_with_commas(form: str, separator: str, write: object, capsys: Capture) -> None:
    file = table("t.csv", [[write(v)] for v, *_ in rows()], ["price"], separator)  # type: ignore[operator]
    output = train(file, capsys, "--clean-column", "ok", "--epochs", "8")
    assert "t.csv: 1 feature, label in 'label'\n" in output
    assert f"numbers are written like {form} in price" in output
    assert RunFolder(Path("run")).summary()["clean_accuracy"] == 100
    assert run_cli(["predict", "run", file, "-o", "out.csv"], capsys).code == 0
    right = [row["label"] == ("no", "yes")[k % 2] for k, row in enumerate(read_csv(Path("out.csv")))]
    assert sum(right) > 80


def test_invalid_number_stops_or_is_skipped(capsys: Capture) -> None:
    cells = [["12.x" if k == 60 else f"{v:.3f}"] for k, (v, *_) in enumerate(rows())]
    file = table("t.csv", cells, ["v"])
    output = input_error(["train", file, "--clean-column", "ok", "--out", "run"], capsys)
    assert "sample 60 has '12.x' in the numeric column 'v'; repair it, or skip such samples" in output
    output = train(file, capsys, "--clean-column", "ok", "--on-error", "skip")
    assert "1 of 90 samples left out: sample 60 has '12.x' in the numeric column 'v'" in output
    assert (
        "29 clean samples, 29 of them removed from the training rows" in output
    )  # the invalid row is one of 30 clean rows


def test_skipped_clean_sample_is_not_counted(capsys: Capture, work_dir: Path) -> None:
    true_label = write_photos(work_dir / "photos")
    (work_dir / "photos" / "rare" / "broken.png").write_bytes(b"no image")
    write_csv(
        work_dir / "checked.csv", ["id", "label"], [*true_label[10:40], true_label[90], ("rare/broken.png", "rare")]
    )
    output = train("photos", capsys, "--clean", "checked.csv", "--on-error", "skip")
    assert "1 of 94 samples left out: rare/broken.png is not an image" in output
    assert "31 clean samples, 31 of them removed from the training rows" in output


def test_text_column_beside_features_is_ambiguous(capsys: Capture) -> None:
    """Names of people look like texts, but a row is a person."""
    cells = [[f"Braund, Mr. Owen {k}", f"{v:.3f}", "mf"[kind]] for k, (v, _, _, kind) in enumerate(rows())]
    file = table("people.csv", cells, ["name", "age", "sex"])
    output = input_error(["train", file, "--clean-column", "ok", "--out", "run"], capsys)
    assert (
        "people.csv: cannot tell whether a sample is the text in 'name' or a row of the other columns; use --text name"
        in output
    )
    assert "or --features age,sex" in output
    assert "2 features" in train(file, capsys, "--clean-column", "ok", "--features", "age,sex")


def test_long_texts_are_detected_and_other_columns_reported(capsys: Capture) -> None:
    output = []
    for k, (text, label, ok) in enumerate(text_rows(90)):
        output.append([text, f"{k / 7:.3f}", ("web", "print")[k % 2], label, ok])
    write_csv(Path("news.csv"), ["text", "length", "source", "label", "ok"], output)
    assert "news.csv: text in 'text', label in 'label'; left out: length, source" in train(
        "news.csv", capsys, "--clean-column", "ok"
    )


def test_few_distinct_texts_are_a_category(capsys: Capture) -> None:
    cells = [[f"{v:.3f}", ("not at all happy", "happy on the whole")[kind]] for v, _, _, kind in rows()]
    file = table("survey.csv", cells, ["v", "answer"])
    assert "survey.csv: 2 features" in train(file, capsys, "--clean-column", "ok")


def test_date_column_is_left_out_and_reported(capsys: Capture) -> None:
    first = datetime.date(2020, 1, 1)
    cells = [[(first + datetime.timedelta(days=k)).isoformat(), f"{v:.3f}"] for k, (v, *_) in enumerate(rows())]
    file = table("t.csv", cells, ["when", "v"])
    assert "t.csv: 1 feature, label in 'label'; left out: when" in train(file, capsys, "--clean-column", "ok")


def test_table_with_only_unique_texts(capsys: Capture) -> None:
    file = table("t.csv", [[f"n{k}"] for k in range(90)], ["name"])
    output = input_error(["train", file, "--clean-column", "ok", "--out", "run"], capsys)
    assert "t.csv: no column is left for a sample (name: a different text in most rows)" in output


def test_integer_classes_written_as_floats(capsys: Capture) -> None:
    """Pandas writes integers beside missing values as 1.0, and -1 (unlabeled) as -1.0."""
    labels = [f"{float(label == 'yes')}" for _, label, _, _ in rows()]
    labels[3], labels[4], labels[9] = "-1.0", "", "-1.0"
    made = [[f"{v:.3f}", y, int(ok)] for (v, _, ok, _), y in zip(rows(), labels, strict=True)]
    write_csv(Path("t.csv"), ["v", "label", "ok"], made)
    assert "60 training samples of 2 classes (3 unlabeled)" in train("t.csv", capsys, "--clean-column", "ok")
    assert RunFolder(Path("run")).metadata()["classes"] == ["0", "1"]
    write_csv(Path("checked.csv"), ["index", "label"], [[k, k % 2] for k in range(30)])
    assert run_cli(["train", "t.csv", "--clean", "checked.csv", *QUICK.split(), "--out", "other"], capsys).code == 0


def test_fractional_classes_are_kept_in_every_file(capsys: Capture) -> None:
    names = ("0.0", "0.5", "1.0")
    made = [[f"{v + 3 * (k % 3):.3f}", names[k % 3]] for k, (v, *_) in enumerate(rows())]
    write_csv(Path("t.csv"), ["v", "label"], made)
    write_csv(Path("test.csv"), ["v", "label"], [row for row in made if row[1] != "0.5"])
    write_csv(Path("checked.csv"), ["index", "label"], [[k, names[k % 3]] for k in range(30)])
    command = ["train", "t.csv", "--clean", "checked.csv", "--test", "test.csv", *QUICK.split(), "--out"]
    assert run_cli([*command, "run"], capsys).code == 0
    write_csv(Path("checked.csv"), ["index", "label"], [[k, names[k % 3]] for k in range(30) if k % 3 != 1])
    assert "class '0.5' is missing from the clean rows" in run_cli([*command, "other"], capsys).err


def test_na_as_label_gives_hint(capsys: Capture) -> None:
    made = [[f"{v:.3f}", "NA" if k in (5, 10) else y, int(ok)] for k, (v, y, ok, _) in enumerate(rows())]
    write_csv(Path("t.csv"), ["v", "label", "ok"], made)
    output = input_error(["train", "t.csv", "--clean-column", "ok", "--out", "run"], capsys)
    assert "t.csv: the label of 2 rows is 'NA'; leave the cell empty for unlabeled rows" in output


def test_quoted_commas_are_not_separators(capsys: Capture) -> None:
    file = table("t.csv", [[f"{v:.3f}"] for v, *_ in rows()], ["a, b, c, and d, in mm"], ";")
    text = Path(file).read_text().splitlines()
    Path(file).write_text("\n".join(['"a, b, c, and d, in mm";label;ok', *text[1:]]))
    assert "1 feature, label in 'label'" in train(file, capsys, "--clean-column", "ok")


def test_trailing_separator_is_not_an_id(capsys: Capture) -> None:
    made = [[f"{v:.3f}", y, int(ok), ""] for v, y, ok, _ in rows()]
    write_csv(Path("t.csv"), ["v", "label", "ok", ""], made)
    assert "t.csv: 1 feature, label in 'label'; left out: ''" in train("t.csv", capsys, "--clean-column", "ok")
    assert read_csv(Path("run/labels.csv"))[0]["id"] == "2"


def test_duplicate_ids(capsys: Capture) -> None:
    made = [[f"c{k // 2}", f"{v:.3f}", y, int(ok)] for k, (v, y, ok, _) in enumerate(rows())]
    write_csv(Path("t.csv"), ["id", "v", "label", "ok"], made)
    assert "45 of 90 samples have the same id as another one" in train("t.csv", capsys, "--clean-column", "ok")
    for columns, given in ((["id", "label"], [["c1", "yes"]]), (["id", "v", "label"], [["c1", "3", "yes"]])):
        write_csv(Path("checked.csv"), columns, given)
        output = input_error(["train", "t.csv", "--clean", "checked.csv", "--out", "other"], capsys)
        assert "t.csv: two samples have the id 'c0', so the ids in checked.csv are ambiguous" in output


# Folders


def test_symlinks_are_followed_and_other_files_counted(capsys: Capture, work_dir: Path) -> None:
    true_label = write_photos(work_dir / "elsewhere")
    (work_dir / "photos").mkdir()
    for folder in (work_dir / "elsewhere").iterdir():
        (work_dir / "photos" / folder.name).symlink_to(folder, target_is_directory=True)
    (work_dir / "elsewhere" / "birne" / "back").symlink_to(work_dir / "elsewhere" / "birne", target_is_directory=True)
    (work_dir / "elsewhere" / "birne" / "phone.HEIC").write_bytes(b"")
    (work_dir / "elsewhere" / "rare" / "notes").write_bytes(b"")
    (work_dir / "elsewhere" / "rare" / ".hidden").write_bytes(b"")
    write_csv(work_dir / "checked.csv", ["id", "label"], [*true_label[10:40], true_label[90]])
    output = train("photos", capsys, "--clean", "checked.csv")
    assert "2 files in photos are not images (1 .heic, 1 without a suffix): left out" in output
    assert "62 training samples of 4 classes (5 unlabeled)" in output


def test_train_and_val_folders_are_not_classes(capsys: Capture, work_dir: Path) -> None:
    write_photos(work_dir / "data" / "train")
    write_photos(work_dir / "data" / "val")
    output = input_error(["train", "data", "--clean", "checked.csv", "--out", "run"], capsys)
    assert "data: train, val look like parts of a data set, not like classes; give the training part as data" in output
    write_photos(work_dir / "kinds" / "test" / "deep")  # one class may have such a name
    write_photos(work_dir / "kinds" / "bird" / "deep")
    assert "checked.csv: no such file" in input_error(["train", "kinds", "--clean", "checked.csv"], capsys)


def test_missing_image_path_is_shown_in_full(capsys: Capture, work_dir: Path) -> None:
    write_photos(work_dir / "photos")
    (work_dir / "lists").mkdir()
    made = [[f"photos/rare/{k % 3}.png", "ab"[k % 2], int(k < 8)] for k in range(40)]
    write_csv(work_dir / "lists" / "list.csv", ["path", "label", "ok"], made)
    output = input_error(["train", "lists/list.csv", "--clean-column", "ok", "--out", "run"], capsys)
    assert "photos/rare/2.png does not exist (no file lists/photos/rare/2.png)" in output


# Predictions


def test_predict_several_inputs(capsys: Capture, work_dir: Path) -> None:
    true_label = write_photos(work_dir / "photos")
    write_csv(work_dir / "checked.csv", ["id", "label"], [*true_label[10:40], true_label[90]])
    train("photos", capsys, "--clean", "checked.csv")
    write_csv(work_dir / "list.csv", ["path"], [["photos/rare/2.png"]])
    pixels = np.zeros((2, 8, 8, 3), np.uint8)
    np.savez(work_dir / "new.npz", x_train=pixels)
    inputs = ["photos/rare/0.png", "photos/birne", "new.npz", "photos/rare/1.png", "list.csv"]
    output = run_cli(["predict", "run", *inputs, "-o", "out.csv"], capsys)
    assert output.code == 0, output.err
    names = [row["id"] for row in read_csv(work_dir / "out.csv")]
    many = [f"photos/{name}" for name, _ in sorted(true_label) if name.startswith("birne/")]
    assert names == [
        "photos/rare/0.png",
        *many,
        "new.npz/0",
        "new.npz/1",
        "photos/rare/1.png",
        "list.csv/photos/rare/2.png",
    ]
    whole = run_cli(["predict", "run", "photos"], capsys)
    known = {f"photos/{line.split(',')[0]}": line.split(",")[1] for line in whole.out.splitlines()[1:]}
    for row in read_csv(work_dir / "out.csv"):
        assert row["label"] == known.get(row["id"].removeprefix("list.csv/"), row["label"])
    Path("out.csv").unlink()
    missing = ["predict", "run", "photos/rare/0.png", "nowhere.png", "-o", "out.csv"]
    assert "nowhere.png does not exist" in input_error(missing, capsys)
    assert not Path("out.csv").exists()
    file = table("t.csv", [[f"{v:.3f}"] for v, *_ in rows()], ["v"])
    assert "t.csv: no column of image paths detected: choose one with --image from v, label, ok" in input_error(
        ["predict", "run", file], capsys
    )


def test_predict_column_of_other_kind(capsys: Capture) -> None:
    file = table("t.csv", [[f"{v:.3f}", "x"] for v, *_ in rows()], ["v", "w"])
    train(file, capsys, "--clean-column", "ok")
    output = input_error(["predict", "run", file, "--text", "w"], capsys)
    assert "--text w: this run was trained on tables, not on texts; leave it out" in output


@pytest.mark.parametrize("kind", ["table", "text"])
def test_npz_is_not_accepted_for_table_run(kind: str, capsys: Capture, work_dir: Path) -> None:
    """The array has as many columns as the encoded samples, but other values."""
    if kind == "table":
        file = table("t.csv", [[f"{v:.3f}", f"{-v:.3f}"] for v, *_ in rows()], ["v", "w"])
    else:
        file = str(write_csv(Path("t.csv"), ["text", "label", "ok"], text_rows(60)))
    train(file, capsys, "--clean-column", "ok")
    width = RunFolder(work_dir / "run").metadata()["shape"][0]
    np.savez(work_dir / "new.npz", x_train=np.full((3, width), 12.0), y_train=np.zeros(3, int))
    sentence = f"new.npz: this run was trained on {'a table' if kind == 'table' else 'texts'}, wh"
    for arguments in (["predict", "run", "new.npz"], ["predict", "run", file, "new.npz"]):
        output = input_error([*arguments, "-o", "out.csv"], capsys)
        assert sentence in output
        assert output.endswith("give a table (.csv, .tsv, .parquet)")
        assert not Path("out.csv").exists()
    output = input_error(["labels", "run", "--data", "new.npz"], capsys)
    assert sentence in output
    assert output.endswith("use metalabelnet predict run TABLE")


def test_number_too_large_is_an_invalid_cell(capsys: Capture) -> None:
    cells = [[f"{v:.3f}"] for v, *_ in rows()]
    train(table("t.csv", cells, ["v"]), capsys, "--clean-column", "ok")
    write_csv(Path("new.csv"), ["v"], [["11.5"], ["1e300"], ["1e17"], ["-1e39"]])
    output = input_error(["predict", "run", "new.csv", "-o", "out.csv"], capsys)
    assert "sample 1 has '1e300' in the column 'v', too far from its mean 1" in output
    assert "skip such samples with --on-error skip" in output
    assert run_cli(["predict", "run", "new.csv", "-o", "out.csv", "--on-error", "skip"], capsys).code == 0
    predicted = read_csv(Path("out.csv"))
    assert [row["id"] for row in predicted] == ["0", "2"]
    assert all(0 <= float(row["confidence"]) <= 1 for row in predicted)
    output = input_error(
        ["train", table("t.csv", [*cells[:-1], ["1e300"]], ["v"]), "--clean-column", "ok", "--out", "x"], capsys
    )
    assert "column 'v' has numbers up to 1e+300, too large to standardize" in output


# Test and clean sets that will not do


def test_test_set_of_other_kind(capsys: Capture, work_dir: Path) -> None:
    """The classes have the same names, so that only the kind differs."""
    true_label = write_photos(work_dir / "photos")
    write_csv(work_dir / "checked.csv", ["id", "label"], [*true_label[10:40], true_label[90]])
    fruit = sorted({name for _, name in true_label})
    same = [[k, fruit[k % 4], int(k % 8 < 4)] for k in range(40)]
    write_csv(work_dir / "table.csv", ["v", "label", "ok"], same)
    news = [[row[0], *rest[1:]] for row, rest in zip(text_rows(40), same, strict=True)]
    write_csv(work_dir / "news.csv", ["text", "label", "ok"], news)
    np.savez(work_dir / "test.npz", x_train=np.zeros((2, 1)))
    for data, test, says in (
        (
            "table.csv --clean-column ok",
            "photos",
            "--test photos: contains images, but the training data contains rows of features",
        ),
        (
            "news.csv --clean-column ok",
            "photos",
            "--test photos: contains images, but the training data contains texts",
        ),
        (
            "photos --clean checked.csv",
            "table.csv",
            "table.csv: contains rows of features, but the training data contains images",
        ),
        (
            "photos --clean checked.csv",
            "news.csv",
            "--test news.csv: contains texts, but the training data contains images",
        ),
        ("table.csv --clean-column ok", "news.csv", "news.csv: unknown column 'v'"),
        ("table.csv --clean-column ok", "test.npz", "test.npz: a test set is a folder of images, or a table (.csv"),
        ("table.csv --clean-column ok", "nowhere", "nowhere: no such file"),
    ):
        assert says in input_error(["train", *data.split(), "--test", test, "--out", "run"], capsys)


def test_missing_clean_file(capsys: Capture, work_dir: Path) -> None:
    write_photos(work_dir / "photos")
    output = input_error(["train", "photos", "--clean", "cheked/"], capsys)
    assert "metalabelnet: --clean cheked/: no such file or folder; correct the path" in output
    (work_dir / "list.txt").write_text("1\n")
    assert "list.txt is not supported: a clean set is a number, a folder" in input_error(
        ["train", "photos", "--clean", "list.txt"], capsys
    )


def test_one_training_row_is_too_few(capsys: Capture, work_dir: Path) -> None:
    made = [[k, "ab"[k % 2], int(k < 4)] for k in range(6)]
    write_csv(work_dir / "few.csv", ["v", "label", "ok"], made[:5])
    output = input_error(["train", "few.csv", "--clean-column", "ok", "--out", "run"], capsys)
    assert output.endswith("1 training sample has a label: training needs at least 2; label more")
    write_csv(work_dir / "few.csv", ["v", "label", "ok"], made)
    train("few.csv", capsys, "--clean-column", "ok")


# What is said


def test_compare_prints_description(capsys: Capture) -> None:
    file = table("t.csv", [[f"{v:.3f}", f"n{k}"] for k, (v, *_) in enumerate(rows())], ["v", "name"])
    several = ["--methods", "cross-entropy,clean-only", "--seeds", "1", "--jobs", "1", "--out", "out"]
    output = run_cli(["compare", file, "--clean-column", "ok", *QUICK_TRAINING.split(), *several], capsys)
    assert output.code == 0, output.err
    assert "t.csv: 1 feature, label in 'label'; left out: name\n" in output.err
    assert "60 training samples of 2 classes; 30 clean samples (6 for validation); mlp on cpu; about " in output.err
    again = run_cli(["compare", file, "--clean-column", "ok", *QUICK_TRAINING.split(), *several, "--resume"], capsys)
    assert "1 feature" not in again.err  # no run is left


def test_label_studio_tasks_have_text(capsys: Capture) -> None:
    write_csv(Path("news.csv"), ["text", "label", "ok"], text_rows(60))
    train("news.csv", capsys, "--clean-column", "ok")
    tasks = ["labels", "run", "--top", "3", "--format", "label-studio"]
    found = json.loads(run_cli(tasks, capsys).out)
    written = {str(k): row[0] for k, row in enumerate(text_rows(60))}
    assert [task["data"]["text"] for task in found] == [written[task["data"]["id"]] for task in found]
    Path("news.csv").rename("moved.csv")
    output = run_cli(tasks, capsys)
    assert [task["data"]["text"] for task in json.loads(output.out)] == [task["data"]["id"] for task in found]
    assert "tasks contain sample ids only. The samples cannot be shown: news.csv does not exist" in output.err


OWN = """
def one(shape): pass
def fails(shape, classes): raise RuntimeError("no\\nluck")
"""


def test_error_in_user_code(capsys: Capture, work_dir: Path) -> None:
    file = table("t.csv", [[f"{v:.3f}"] for v, *_ in rows()], ["v"])
    (work_dir / "nets.py").write_text(OWN)
    (work_dir / "wrong.py").write_text("def x(:\n")
    for net, says in {
        "nets.py:one": r"the network nets.py:one cannot be built: TypeError (one() takes 1 positional",
        "nets.py:fails": f"RuntimeError at {work_dir}/nets.py:3 (no luck); its function is called with the shape",
        "wrong.py:x": f"SyntaxError at {work_dir}/wrong.py:1",
    }.items():
        assert says in input_error(["train", file, "--clean-column", "ok", "--net", net, "--out", "run"], capsys)


def test_named_column_is_not_detected_as_something_else(capsys: Capture) -> None:
    cells = [[f"{v:.3f}", f"{-v:.3f}", k % 7, y, int(ok)] for k, (v, y, ok, _) in enumerate(rows())]
    write_csv(Path("t.csv"), ["x", "y", "index", "kind", "ok"], cells)
    output = train("t.csv", capsys, "--features", "x,y,index", "--label", "kind", "--clean-column", "ok")
    assert "t.csv: 3 features, label in 'kind'\n" in output
    assert "2 classes" in output
    assert run_cli(["predict", "run", "t.csv", "-o", "out.csv"], capsys).code == 0
    assert [row["id"] for row in read_csv(Path("out.csv"))[:9]] == list("012345678")


def test_error_follows_detected_columns(capsys: Capture, work_dir: Path) -> None:
    """A column `class` is detected as label although it is not; notes are printed only for detected columns."""
    table = [[f"{value}", f"seat {k}", label, checked] for k, (value, label, checked, _) in enumerate(rows())]
    write_csv(work_dir / "t.csv", ["size", "class", "outcome", "ok"], table)
    output = input_error(["train", "t.csv", "--clean-column", "ok", "--out", "run"], capsys)
    assert "are too many for classes; name the column of labels with --label" in output
    assert output.endswith("(columns as detected: 2 features, label in 'class')")
    named = ["--label", "class", "--features", "size"]
    assert "guessed" not in input_error(["train", "t.csv", "--clean-column", "ok", *named, "--out", "run"], capsys)


def test_rows_with_same_id_keep_their_cells_when_one_is_skipped(capsys: Capture) -> None:
    made = [
        [f"c{k // 2}", "12.x" if k == 2 else f"{v:.3f}", y if ok or k % 7 else "", int(ok)]
        for k, (v, y, ok, _) in enumerate(rows())
    ]
    write_csv(Path("t.csv"), ["id", "v", "label", "ok"], made)
    train("t.csv", capsys, "--clean-column", "ok", "--on-error", "skip")
    found = read_csv(Path("run/labels.csv"))
    assert len(found) == 59
    assert all(made[int(row["index"])][0] == row["id"] for row in found)
    assert all(made[int(row["index"])][2] == row["given"] for row in found)
    tasks = json.loads(run_cli(["labels", "run", "--format", "label-studio"], capsys).out)
    assert [task["data"]["text"] for task in tasks] == [f"v: {made[int(row['index'])][1]}" for row in found]
    assert run_cli(["review", "run", "--export", "labels", "-o", "out.csv"], capsys).code == 0
    assert [row["given"] for row in read_csv(Path("out.csv"))] == [label for _, _, label, _ in made]


def test_rows_with_same_image_when_another_is_broken(capsys: Capture, work_dir: Path) -> None:
    """Each image has two rows; one image is broken, so that row numbers and positions differ."""
    true_label = write_photos(work_dir / "pics")[5:85]
    (work_dir / "pics" / true_label[3][0]).write_bytes(b"no picture")
    made = [[f"pics/{name}", label, int(k % 4 == 0)] for k, (name, label) in enumerate(true_label)]
    made += [[path, label, 0] for path, label, _ in made]
    write_csv(work_dir / "t.csv", ["path", "label", "ok"], made)
    train("t.csv", capsys, "--clean-column", "ok", "--on-error", "skip")
    assert all(made[int(row["index"])][0] == row["id"] for row in read_csv(Path("run/labels.csv")))
    assert run_cli(["review", "run", "--export", "labels", "-o", "out.csv"], capsys).code == 0


def test_file_name_not_utf8(capsys: Capture, work_dir: Path) -> None:
    true_label = write_photos(work_dir / "photos")
    write_csv(work_dir / "checked.csv", ["id", "label"], [*true_label[10:40], true_label[90]])
    odd = os.fsencode(work_dir / "photos" / "rare") + b"/caf\xe9.png"
    try:
        Path(os.fsdecode(odd)).write_bytes((work_dir / "photos" / "rare" / "0.png").read_bytes())
    except (OSError, UnicodeError):
        pytest.skip("the file system takes no such name")
    output = input_error(["train", "photos", "--clean", "checked.csv", *QUICK.split(), "--out", "run"], capsys)
    assert (
        r"photos: the file name 'rare/caf\udce9.png' is not UTF-8 and cannot be written to a table; rename the file"
        in output
    )
    assert not Path("run").exists()


def test_label_studio_root_must_exist(capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_label = write_photos(work_dir / "photos")
    write_csv(work_dir / "checked.csv", ["id", "label"], [*true_label[10:40], true_label[90]])
    train("photos", capsys, "--clean", "checked.csv")
    tasks = ["labels", str(work_dir / "run"), "--top", "3", "--format", "label-studio"]
    assert f"DOCUMENT_ROOT={work_dir}, and add {work_dir / 'photos'} as local storage" in run_cli(tasks, capsys).err
    (work_dir / "elsewhere").mkdir()
    monkeypatch.chdir(work_dir / "elsewhere")
    output = run_cli(tasks, capsys)
    assert "ROOT" not in output.err
    assert "tasks contain sample ids only. The image folder photos does not exist" in output.err
    assert len(json.loads(output.out)) == 3
    assert (
        run_cli([*tasks[:-1], "fiftyone"], capsys).err == ""
    )  # FiftyOne identifies images by their path in that folder


def test_clean_row_numbers_count_all_table_rows(capsys: Capture, work_dir: Path) -> None:
    """Row numbers include clean rows and skipped rows."""
    cells = [[f"{k % 2 * 4 + k / 60:.2f}" if k != 33 else "12.x", "ab"[k % 2], int(k % 6 < 2)] for k in range(60)]
    write_csv(work_dir / "table.csv", ["v", "label", "ok"], cells)
    asked = "train table.csv --features v --clean-column ok --true-label label --on-error skip"
    for count, fits in ((60, True), (40, False), (61, False)):
        np.savetxt(work_dir / "labels.txt", np.arange(count) % 2, fmt="%d")
        np.save(work_dir / "probs.npy", np.full((count, 2), 0.5))
        for noise in (["file:labels.txt"], ["feature:0.2", "--noise-probs", "probs.npy"]):
            out = f"{noise[0][:4]}-{count}"
            output = run_cli([*asked.split(), *QUICK.split(), "--noise", *noise, "--out", out], capsys)
            assert output.code == (0 if fits else 2), output.err
