"""`metalabelnet labels`: selection of suspects, and formats for other tools."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from cli_runner import TINY, run_cli
from metalabelnet.errors import InputError
from metalabelnet.labels import export_formats
from tiny_data import CLASSES, write_npz

Capture = pytest.CaptureFixture[str]
Row = dict[str, str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run of 48 labeled and 14 unlabeled samples."""
    from metalabelnet.cli import main

    place = tmp_path_factory.mktemp("formats")
    write_npz(place / "small.npz")
    assert main(["train", str(place / "small.npz"), *TINY.split(), "--out", str(place / "run")]) == 0
    return place / "run"


def table(text: str) -> list[Row]:
    return list(csv.DictReader(io.StringIO(text)))


def row(name: str, **changes: str) -> Row:
    first = {"index": "7", "id": name, "given": "cat", "label": "dog", "confidence": "0.75", "suspect": "1"}
    return {**first, "suspicion": "0.8", "true": "", **changes}


def test_suspects_are_sorted_by_suspicion(run: Path, capsys: Capture) -> None:
    everything = table((run / "labels.csv").read_text(encoding="utf-8"))
    expected = [r for r in everything if r["suspect"] == "1"]
    found = table(run_cli(["labels", str(run), "--suspects"], capsys).out)
    assert 0 < len(found) < 48
    assert sorted(r["index"] for r in found) == sorted(r["index"] for r in expected)
    order = [float(r["suspicion"]) for r in found]
    assert order == sorted(order, reverse=True)
    assert list(found[0]) == list(everything[0])
    few = table(run_cli(["labels", str(run), "--suspects", "--top", "3"], capsys).out)
    assert few == found[:3]
    some = table(run_cli(["labels", str(run), "--top", "47"], capsys).out)
    assert some[: len(few)] == few
    assert len(some) == 47
    assert all(r["given"] for r in some)
    assert (
        len(table(run_cli(["labels", str(run), "--top", "1000"], capsys).out)) == 48
    )  # unlabeled samples are not suspects


def test_number_of_written_rows_is_printed(run: Path, capsys: Capture, tmp_path: Path) -> None:
    out = str(tmp_path / "tasks.json")
    output = run_cli(["labels", str(run), "--top", "5", "--format", "label-studio", "-o", out], capsys)
    assert output.out == f"5 rows written to {out}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--top", "0"], "top 0 is too small: the minimum is 1"),
        (["--format", "fiftytwo"], "unknown format 'fiftytwo': did you mean 'fiftyone'?"),
    ],
)
def test_wrong_labels_arguments(arguments: list[str], sentence: str, run: Path, capsys: Capture) -> None:
    output = run_cli(["labels", str(run), *arguments], capsys)
    assert output.code == 2
    assert sentence in output.err
    assert output.err.count("\n") == 1


def test_table_without_suspicion_cannot_be_sorted() -> None:
    old = [{name: value for name, value in row("1").items() if name != "suspicion"}]
    assert export_formats.select_rows(old, suspects=False, top=None) == old
    with pytest.raises(InputError, match="no column suspicion"):
        export_formats.select_rows(old, suspects=True, top=None)


def test_cleanlab_reads_its_columns(run: Path, capsys: Capture) -> None:
    """cleanlab reads the table and trains without the suspects."""
    CleanLearning = pytest.importorskip("cleanlab.classification").CleanLearning
    import pandas as pd
    from sklearn.linear_model import LogisticRegression

    text = run_cli(["labels", str(run), "--format", "cleanlab"], capsys).out
    issues = pd.read_csv(io.StringIO(text), index_col="index")
    assert list(issues)[1:] == ["is_label_issue", "label_quality", "given_label", "predicted_label"]
    assert issues["is_label_issue"].dtype == bool
    known = {int(r["index"]): r for r in table((run / "labels.csv").read_text(encoding="utf-8")) if r["given"]}
    assert list(issues.index) == list(known)
    for index, line in issues.iterrows():
        assert CLASSES[line["given_label"]] == known[index]["given"]
        assert CLASSES[line["predicted_label"]] == known[index]["label"]
        assert line["label_quality"] == pytest.approx(1 - float(known[index]["suspicion"]))
    x = np.load(run.parent / "small.npz")["x_train"][issues.index]
    learner = CleanLearning(LogisticRegression())
    learner.fit(x, issues["given_label"].to_numpy(), label_issues=issues.reset_index(drop=True))
    assert learner.clf.n_features_in_ == 4
    assert learner.get_label_issues()["is_label_issue"].sum() == issues["is_label_issue"].sum()


def test_label_studio_tasks_have_predictions() -> None:
    """The format is described at https://labelstud.io/guide/predictions."""
    rows = [row("ä b/1.JPG"), row("nine", given="", suspicion="", suspect="0")]
    image, text = json.loads(export_formats.to_label_studio(rows, [], ["cat", "dog"]))
    about = {"index": 7, "given": "cat", "suspicion": 0.8, "suspect": True}
    assert image["data"] == {"image": "/data/local-files/?d=%C3%A4%20b/1.JPG", "id": "ä b/1.JPG", **about}
    assert text["data"] == {
        "text": "nine",
        "id": "nine",
        "index": 7,
        "given": None,
        "suspicion": None,
        "suspect": False,
    }
    (prediction,) = image["predictions"]
    assert prediction["score"] == 0.75
    (result,) = prediction["result"]
    assert (result["from_name"], result["to_name"], result["type"]) == ("label", "sample", "choices")
    assert result["value"] == {"choices": ["dog"]}


def test_label_studio_without_image_path() -> None:
    (task,) = json.loads(export_formats.to_label_studio([row("cats/1.png", file="")], [], ["cat", "dog"]))
    assert task["data"]["text"] == task["data"]["id"] == "cats/1.png"
    assert "image" not in task["data"]


def test_fiftyone_classification_by_path() -> None:
    """The importer of FiftyOneImageClassificationDataset expects paths without extension, or absolute paths."""
    rows = [row("cats/a.b.png"), row("/photos/2.jpg"), row("12")]
    content = json.loads(export_formats.to_fiftyone(rows, [], ["cat", "dog"]))
    assert content["classes"] == ["cat", "dog"]
    assert list(content["labels"]) == ["cats/a.b", "/photos/2.jpg", "12"]
    attributes = {"given": "cat", "suspicion": 0.8, "suspect": True}
    assert content["labels"]["12"] == {"label": "dog", "confidence": 0.75, "attributes": attributes}


@pytest.mark.parametrize("name", ["label-studio", "fiftyone"])
def test_json_formats_have_every_sample(name: str, run: Path, capsys: Capture) -> None:
    content = json.loads(run_cli(["labels", str(run), "--format", name], capsys).out)
    assert len(content if name == "label-studio" else content["labels"]) == 62
