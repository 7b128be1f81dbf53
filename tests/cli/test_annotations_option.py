"""`--annotations FILE`: labels by several annotators, in tables, texts, image folders and .npz files."""

import json
import os
import pickle
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cli_runner import run_cli
from metalabelnet.data.datasets import load
from metalabelnet.data.files.list_data import ReadOptions
from metalabelnet.data.read_cache import ReadCache
from metalabelnet.train.data_digest import compute_data_digest
from metalabelnet.train.prepare import prepare
from metalabelnet.train.settings import make_run
from tiny_data import table_samples, write_npz
from user_data import read_csv, write_csv, write_photos

Capture = pytest.CaptureFixture[str]
CLASSES = ("left", "right", "up")


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def annotate(true: np.ndarray, seed: int = 0) -> list[list[str]]:
    """Return annotations by four people, good and bad, who saw two thirds of the samples each, and one who abstains."""
    random = np.random.default_rng(seed)
    rows = []
    for k, y in enumerate(true):
        for name, accuracy in (("ann", 0.95), ("ben", 0.8), ("cal", 0.55), ("dan", 0.35)):
            if random.random() < 0.67:
                rows.append([f"s{k}", name, CLASSES[y if random.random() < accuracy else random.integers(3)]])
        if k % 10 == 0:
            rows.append([f"s{k}", "eve", ""])
    return rows


def write_data(count: int = 120, clean: int = 24) -> np.ndarray:
    """Write data.csv (without labels), clean.csv, test.csv and annotations.csv; return the true classes."""
    x, y = table_samples(count, seed=0)
    write_csv(Path("data.csv"), ["id", *"abcd"], [[f"s{k}", *x[k].tolist()] for k in range(count)])
    write_csv(Path("clean.csv"), ["id", "label"], [[f"s{k}", CLASSES[y[k]]] for k in range(clean)])
    x_test, y_test = table_samples(60, seed=1)
    write_csv(Path("test.csv"), [*"abcd", "label"], [[*x_test[k].tolist(), CLASSES[y_test[k]]] for k in range(60)])
    write_csv(Path("annotations.csv"), ["id", "annotator", "label"], annotate(y))
    return y


def error(arguments: str, capsys: Capture) -> str:
    output = run_cli(arguments.split(), capsys)
    assert (output.code, output.out) == (2, ""), output.err
    (line,) = output.err.splitlines()[-1:]
    assert "Traceback" not in output.err
    return line


def test_one_annotation(capsys: Capture) -> None:
    write_data()
    labels = [[f"s{k}", k % 3, k % 5, CLASSES[k % 3]] for k in range(60)]
    write_csv(Path("data.csv"), ["id", "a", "b", "label"], labels)
    write_csv(Path("annotations.csv"), ["id", "annotator", "label"], [["s50", "ann", "up"]])
    command = "train data.csv --clean clean.csv --annotations annotations.csv --out run --device cpu"
    output = run_cli(command.split(), capsys)
    assert output.code == 0, output.err
    assert "annotations.csv: 1 annotation of 1 sample by 1 annotator\n" in output.err
    assert re.search(r"annotators +1, 1 label; ", output.out)


def test_train_on_annotations_alone(capsys: Capture) -> None:
    y = write_data()
    command = "train data.csv --clean clean.csv --test test.csv --annotations annotations.csv --out run --device cpu"
    output = run_cli(command.split(), capsys)
    assert output.code == 0, output.err
    assert "by 5 annotators; the majority vote is the given label of " in output.err
    assert re.search(r"annotators +5, \d+ labels; least often right: dan: ", output.out)
    summary = json.loads(Path("run/summary.json").read_text())
    accuracy = {one["annotator"]: one for one in summary["annotators"]}
    assert accuracy["ann"]["accuracy"] > accuracy["ben"]["accuracy"] > accuracy["dan"]["accuracy"]
    assert accuracy["dan"]["high"] < accuracy["ann"]["low"]
    assert (accuracy["eve"]["labels"], accuracy["eve"]["abstained"], accuracy["eve"]["accuracy"]) == (0, 12, None)
    labels = {row["id"]: row for row in read_csv(Path("run/labels.csv"))}
    right = {
        name: sum(row[name] == CLASSES[y[int(row["id"][1:])]] for row in labels.values()) for name in ("given", "label")
    }
    assert right["label"] > right["given"]
    report = run_cli(["report", "run", "-o", "report.html"], capsys)
    assert report.code == 0
    page = Path("report.html").read_text()
    assert "5 annotators gave" in page
    assert page.count("<bdi>ann</bdi>") == 1


def test_other_methods_use_the_majority_vote(capsys: Capture) -> None:
    write_data()
    command = "train data.csv --clean clean.csv --annotations annotations.csv --method logistic-given --out run"
    output = run_cli([*command.split(), "--device", "cpu"], capsys)
    assert output.code == 0, output.err
    assert len(json.loads(Path("run/summary.json").read_text())["annotators"]) == 5
    votes: dict[str, Counter[str]] = {}
    for row in read_csv(Path("annotations.csv")):
        votes.setdefault(row["id"], Counter()).update([row["label"]] if row["label"] else [])
    for row in read_csv(Path("run/labels.csv")):
        count = votes.get(row["id"], Counter())
        assert count[row["given"]] == max(count.values()) if row["given"] else not count


def test_runs_share_the_annotations_that_were_read() -> None:
    """`compare` reads data once and hands it to its runs, also in other processes."""
    write_data()
    cache = ReadCache(2)
    options = ReadOptions(clean_file="clean.csv", annotations="annotations.csv")
    first = cache.load("data.csv", None, read_options=options)
    Path("annotations.csv").unlink()
    again = pickle.loads(pickle.dumps(cache.for_subprocess())).load("data.csv", None, read_options=options)
    assert first.train.annotations.names == again.train.annotations.names
    np.testing.assert_array_equal(first.train.annotations.label, again.train.annotations.label)


def test_given_label_of_the_data_stays() -> None:
    y = write_data(count=30, clean=6)
    rows = read_csv(Path("data.csv"))
    given = ["" if k % 2 else CLASSES[(y[k] + 1) % 3] for k in range(30)]
    write_csv(Path("data.csv"), [*rows[0], "label"], [[*row.values(), given[k]] for k, row in enumerate(rows)])
    # Three people agree on the true class of every sample.
    everyone = [[f"s{k}", name, CLASSES[y[k]]] for k in range(30) for name in "abc"]
    write_csv(Path("annotations.csv"), ["id", "annotator", "label"], everyone)
    data = load("data.csv", read_options=ReadOptions(clean_file="clean.csv", annotations="annotations.csv"))
    for rows_of_part in (data.train, data.clean):
        for name, label in zip(rows_of_part.ids, rows_of_part.given.tolist(), strict=True):
            k = int(name[1:])
            assert label == (y[k] if k % 2 else (y[k] + 1) % 3)
        assert len(rows_of_part.annotations) == 3 * len(rows_of_part)


def test_rows_marked_as_clean_have_the_majority_vote_as_given_label() -> None:
    y = write_data(count=30, clean=6)
    rows = read_csv(Path("data.csv"))
    marked = [[*row.values(), CLASSES[y[k]] if k < 6 else "", int(k < 6)] for k, row in enumerate(rows)]
    write_csv(Path("data.csv"), [*rows[0], "label", "checked"], marked)
    wrong = [[f"s{k}", name, CLASSES[(y[k] + 1) % 3]] for k in range(30) for name in "ab"]
    write_csv(Path("annotations.csv"), ["id", "annotator", "label"], wrong)
    data = load("data.csv", read_options=ReadOptions(clean_column="checked", annotations="annotations.csv"))
    assert data.clean.true.tolist() == y[:6].tolist()
    assert data.clean.given.tolist() == ((y[:6] + 1) % 3).tolist()


def test_image_folder_and_npz(capsys: Capture) -> None:
    true = write_photos(Path("photos"), count=30)
    names = sorted({label for _, label in true})
    write_csv(Path("clean.csv"), ["id", "label"], true[5:])
    write_csv(Path("a.csv"), ["id", "annotator", "label"], [[name, who, label] for name, label in true for who in "ab"])
    data = load("photos", read_options=ReadOptions(clean_file="clean.csv", annotations="a.csv"))
    assert data.train.given.tolist() == [names.index(label) for _, label in true[:5]]  # they were unlabeled
    y = np.arange(80) % 3
    write_npz(Path("small.npz"), classes=np.array(CLASSES), y_train=np.where(y == 0, -1, y))
    entries = [[k, who, CLASSES[k % 3]] for k in range(80) for who in "ab"]
    write_csv(Path("a.csv"), ["id", "worker", "label"], entries)
    write_csv(Path("clean.csv"), ["id", "label"], [[k, CLASSES[k % 3]] for k in range(20)])
    command = "train small.npz --method metalabelnet-plus --annotations a.csv --clean clean.csv --out run --device cpu"
    output = run_cli(command.split(), capsys)
    assert output.code == 0, output.err
    assert "the majority vote is the given label of 27 samples without one" in output.err
    summary = json.loads(Path("run/summary.json").read_text())
    assert [one["labels"] for one in summary["annotators"]] == [80, 80]
    assert summary["unlabeled"] == 0


def test_clean_given_drop_leaves_out_annotations_of_clean_rows() -> None:
    write_data()
    options = {"clean_file": "clean.csv", "annotations": "annotations.csv", "device": "cpu"}
    kept, dropped = (prepare(make_run("data.csv", clean_given=value, **options)) for value in ("keep", "drop"))
    assert len(kept.clean.annotations) > 0
    assert len(dropped.clean.annotations) == len(dropped.validation.annotations) == 0
    assert (dropped.clean.given == -1).all()
    assert len(dropped.train.annotations) == len(kept.train.annotations) > 0


def test_digest_depends_on_the_annotations() -> None:
    write_data()
    run = make_run("data.csv", clean_file="clean.csv", annotations="annotations.csv", device="cpu")
    before = compute_data_digest(run, prepare(run))
    rows = read_csv(Path("annotations.csv"))
    changed = [list(row.values()) for row in rows if (row["id"], row["annotator"]) != (rows[-1]["id"], "dan")]
    changed = changed if len(changed) < len(rows) else changed[:-1]
    write_csv(Path("annotations.csv"), list(rows[0]), changed)
    assert compute_data_digest(run, prepare(run)) != before


FILES = {
    "unknown id": ("id,annotator,label\ns1,a,left\ns50,a,up", "a.csv: there is no sample 's50' in data.csv; did you"),
    "unknown label": ("id,annotator,label\ns1,a,left\ns2,a,lift", "a.csv, annotation labels: unknown class 'lift'"),
    "duplicate": ("id,annotator,label\ns1,a,up\ns1,a,up", "a.csv: annotator 'a' has two annotations of 's1'; remove"),
    "no annotator column": ("id,label\ns1,up", "a.csv: no column of annotators among id, label; name the columns id,"),
    "no id column": ("annotator,label\na,up", "a.csv: no column of ids among annotator, label; name the columns id,"),
    "no label column": ("id,annotator\ns1,a", "a.csv: no column of labels among id, annotator; name the columns id,"),
    "empty annotator": ("id,annotator,label\ns1,,up", "a.csv: an annotation of 's1' names no annotator; fill the cell"),
    "no labels": ("id,annotator,label\ns1,a,\ns2,a,", "a.csv: no annotation has a label; an empty label means that"),
    "no rows": ("id,annotator,label\n", "a.csv: there are no rows below the first line"),
    "empty file": ("", "a.csv: the file is empty; its first line must name the columns"),
}


@pytest.mark.parametrize("case", FILES)
def test_wrong_files(case: str, capsys: Capture) -> None:
    y = write_data(count=30, clean=6)
    rows = read_csv(Path("data.csv"))
    write_csv(Path("data.csv"), [*rows[0], "label"], [[*row.values(), CLASSES[y[k]]] for k, row in enumerate(rows)])
    content, message = FILES[case]
    Path("a.csv").write_text(content)
    assert message in error("train data.csv --clean clean.csv --annotations a.csv --out run", capsys)
    assert not Path("run").exists()


def test_missing_and_special_files(capsys: Capture) -> None:
    write_data(count=30, clean=6)
    command = "train data.csv --clean clean.csv --out run --annotations"
    assert "none.csv: no such file" in error(f"{command} none.csv", capsys)
    assert "a.txt does not exist: annotations are a table (.csv, .tsv, .parquet)" in error(f"{command} a.txt", capsys)
    os.mkfifo("pipe.csv")
    assert "pipe.csv is a named pipe" in error(f"{command} pipe.csv", capsys)
    Path("folder.csv").mkdir()
    assert "folder.csv is a folder" in error(f"{command} folder.csv", capsys)


def test_two_samples_with_the_same_id(capsys: Capture) -> None:
    write_data(count=30, clean=6)
    rows = read_csv(Path("data.csv"))
    write_csv(Path("data.csv"), list(rows[0]), [["s1", *list(row.values())[1:]] for row in rows])
    message = error("train data.csv --clean clean.csv --annotations annotations.csv --out run", capsys)
    assert "two samples have the id 's1'" in message


def test_without_labels_and_annotations_a_label_column_is_needed(capsys: Capture) -> None:
    write_data(count=30, clean=6)
    assert "cannot tell which column is the label" in error("train data.csv --clean clean.csv --out run", capsys)
