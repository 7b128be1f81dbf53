"""The label table: content of labels.csv, many classes, and labels for new data."""

import csv
import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from metalabelnet.core.top_classes import MAX_DENSE_CLASSES, TopClasses, top_probabilities
from metalabelnet.data.rows import make_rows
from metalabelnet.errors import InputError
from metalabelnet.inference.relabel import relabel
from metalabelnet.labels import label_table
from metalabelnet.labels.label_table import LabelTable, format_decimals
from metalabelnet.labels.metrics import predict_logits
from metalabelnet.train import RunFolder, train
from metalabelnet.train.prepare import prepare
from tiny_data import CLASSES, table_samples, tiny_run, write_npz

FIRST_COLUMNS = ["index", "id", "given", "label", "confidence", "suspect", "suspicion", "true"]


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose labels come from the selected epoch alone, as for new data."""
    place = tmp_path_factory.mktemp("labels")
    train(tiny_run(write_npz(place / "tiny.npz"), snapshots=0), folder=place / "run")
    return place / "run"


def test_table_without_snapshots_is_the_calibrated_classifier(tmp_path: Path) -> None:
    run = tiny_run(write_npz(tmp_path / "tiny.npz"), snapshots=0)
    result = train(run, folder=tmp_path / "run")
    rows = prepare(run).train
    table = read_csv((tmp_path / "run" / "labels.csv").read_text(encoding="utf-8"))
    assert list(table[0]) == [*FIRST_COLUMNS, *(f"p_{name}" for name in CLASSES), *(f"soft_{name}" for name in CLASSES)]
    assert [int(row["index"]) for row in table] == rows.index.tolist()
    assert [row["id"] for row in table] == list(rows.ids)
    names = [*CLASSES, ""]
    assert [row["given"] for row in table] == [names[i] for i in rows.given.tolist()]
    assert [row["true"] for row in table] == [names[i] for i in rows.true.tolist()]
    assert sum(row["given"] == "" for row in table) == 14

    t = RunFolder(tmp_path / "run").temperature()
    p = (predict_logits(result.method, rows.x) / t).softmax(1)
    assert [row["label"] for row in table] == [CLASSES[i] for i in p.argmax(1).tolist()]
    shown = torch.tensor([[float(row[f"p_{name}"]) for name in CLASSES] for row in table])
    torch.testing.assert_close(shown, p, rtol=0, atol=1e-6)
    confidence = torch.tensor([float(row["confidence"]) for row in table])
    torch.testing.assert_close(confidence, p.max(1).values, rtol=0, atol=1e-6)
    soft = torch.tensor([[float(row[f"soft_{name}"]) for name in CLASSES] for row in table])
    torch.testing.assert_close(soft, result.method.soft_labels(), rtol=0, atol=1e-6)
    for row in table:
        if row["given"]:
            assert float(row["suspicion"]) == pytest.approx(1 - float(row[f"p_{row['given']}"]), abs=2e-6)
        else:
            assert row["suspicion"] == ""
    suspects = [float(row["suspicion"]) for row in table if row["suspect"] == "1"]
    others = [float(row["suspicion"]) for row in table if row["suspect"] == "0" and row["given"]]
    assert len(suspects) == round(sum(suspects) + sum(others)) > 0
    assert min(suspects) >= max(others)


def test_method_without_soft_labels_has_no_soft_columns(tmp_path: Path) -> None:
    result = train(tiny_run(write_npz(tmp_path / "tiny.npz"), "cross-entropy", epochs=1))
    assert result.labels.columns() == [*FIRST_COLUMNS, *(f"p_{name}" for name in CLASSES)]
    assert result.labels.arrays() == {}


def random_table(classes: int, *, soft: bool = True) -> tuple[LabelTable, Tensor]:
    """Return a table of four rows and its probabilities."""
    g = torch.Generator().manual_seed(0)
    p = torch.randn(4, classes, generator=g).mul(3).softmax(1)
    names = tuple(f"class {i}" for i in range(classes))
    rows = make_rows(torch.zeros(4, 2), torch.tensor([0, 1, -1, 3]), classes=names, what="many")
    return LabelTable(rows=rows, probabilities=p, soft_labels=p.flip(1) if soft else None), p


def test_format_decimals_equals_python_format() -> None:
    """Ties round to even in both."""
    g = torch.Generator().manual_seed(0)
    ties = (torch.arange(1, 2001, 2) / 2**7).fmod(1)  # exact values, some of which are half a millionth
    some = [torch.tensor([0.0, 1.0]), ties, torch.rand(4000, generator=g), torch.rand(2000, generator=g) ** 20]
    p = torch.cat(some).view(-1, 2).double().numpy()
    expected = ["".join(f",{value:.6f}" for value in row) for row in p.tolist()]
    assert format_decimals(p) == expected
    assert any(f"{value * 1e6:.1f}".endswith(".5") for value in p.ravel())
    assert format_decimals(np.array([[0.5, np.nan], [-0.1, 12.0]])) == [",0.500000,nan", ",-0.100000,12.000000"]
    assert format_decimals(np.empty((0, 3))) == []


def test_csv_does_not_depend_on_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = random_table(5)
    whole, rows = table.to_csv(), [[str(cell) for cell in row] for row in table]
    assert [list(line.values()) for line in read_csv(whole)] == rows
    monkeypatch.setattr("metalabelnet.labels.label_table.ROWS_PER_CHUNK", 3)
    assert table.to_csv() == whole


def test_csv_quotes_commas_quotes_and_newlines() -> None:
    table, p = random_table(4)
    ids = ('a,"b"', "two\nlines", "", "plain")
    named = dataclasses.replace(table, rows=dataclasses.replace(table.rows, ids=ids))
    lines = read_csv(named.to_csv())
    assert [line["id"] for line in lines] == list(ids)
    assert [line["p_class 2"] for line in lines] == [f"{value:.6f}" for value in p[:, 2].tolist()]


@pytest.mark.parametrize("count", [50, 51, 100])
def test_beyond_fifty_classes_csv_has_the_five_most_likely(count: int) -> None:
    table, p = random_table(count)
    lines = read_csv(table.to_csv())
    if count == 50:
        assert len(lines[0]) == len(FIRST_COLUMNS) + 100
        assert table.arrays() == {}
        return
    assert list(lines[0])[len(FIRST_COLUMNS) :] == [f"{kind}_{k}" for k in range(1, 6) for kind in ("class", "p")]
    for i, line in enumerate(lines):
        best = sorted(range(count), key=lambda c: -float(p[i, c]))[:5]
        assert [line[f"class_{k}"] for k in range(1, 6)] == [f"class {c}" for c in best]
        assert [float(line[f"p_{k}"]) for k in range(1, 6)] == pytest.approx([float(p[i, c]) for c in best], abs=1e-6)
        assert (line["label"], line["confidence"]) == (line["class_1"], line["p_1"])
        assert line["true"] == ""
    arrays = table.arrays()
    assert set(arrays) == {"labels.npy", "soft_labels.npy"}
    np.testing.assert_array_equal(arrays["labels.npy"], p.numpy())
    np.testing.assert_array_equal(arrays["soft_labels.npy"], p.flip(1).numpy())
    assert set(random_table(count, soft=False)[0].arrays()) == {"labels.npy"}


def test_run_with_many_classes_writes_all_probabilities(tmp_path: Path) -> None:
    x, y = table_samples(240, seed=0, classes=60)
    file = write_npz(tmp_path / "many.npz", x_train=x, y_train=y, x_test=None, y_test=None, classes=None)
    run = tiny_run(file, clean=120, noise="none", epochs=2, warmup=1, unlabeled=0)
    result = train(run, folder=tmp_path / "run")
    p = np.load(tmp_path / "run" / "labels.npy")
    lines = read_csv((tmp_path / "run" / "labels.csv").read_text())
    assert p.shape == (len(lines), 60) == tuple(result.labels.probabilities.shape)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    assert [int(line["label"]) for line in lines] == p.argmax(1).tolist()
    assert (tmp_path / "run" / "soft_labels.npy").exists()


def test_arrays_of_a_sparse_table_are_sorted_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest probability first, the lower class first among equals, as the naive sort of whole rows."""
    classes = 200
    assert classes > MAX_DENSE_CLASSES
    p = torch.softmax(torch.randn(23, classes, generator=torch.Generator().manual_seed(0)).mul(3).round(), 1)
    given = torch.arange(23)
    rows = make_rows(torch.zeros(23, 1), given, classes=tuple(map(str, range(classes))), what="rows")
    table = top_probabilities(p, given)
    monkeypatch.setattr(label_table, "ROWS_PER_CHUNK", 5)
    arrays = LabelTable(rows=rows, probabilities=table, suspicion=torch.zeros(23), soft_labels=None).arrays()
    assert {*arrays} == {"labels.npy", "labels_classes.npy"}
    assert isinstance(table, TopClasses)
    for i in range(23):
        pairs = sorted(zip((-table.values[i]).tolist(), table.classes[i].tolist(), strict=True))
        assert arrays["labels_classes.npy"][i].tolist() == [c for _, c in pairs]
        assert arrays["labels.npy"][i].tolist() == [-value for value, _ in pairs]


# Labels for new data


def test_relabel_gives_training_rows_the_same_labels(folder: Path, tmp_path: Path) -> None:
    """Unlabeled and unseen rows get labels, too."""
    y = table_samples(80, seed=0)[1]
    new = write_npz(tmp_path / "new.npz", y_train=np.where(np.arange(80) < 9, -1, y), x_test=None, y_test=None)
    table = read_csv(relabel(folder, str(new)).to_csv())
    assert len(table) == 80
    assert [row["given"] for row in table] == ["" if i < 9 else CLASSES[c] for i, c in enumerate(y)]
    known = {int(row["index"]): row for row in read_csv((folder / "labels.csv").read_text(encoding="utf-8"))}
    for i, row in known.items():
        assert table[i]["label"] == row["label"]
        assert float(table[i]["confidence"]) == pytest.approx(float(row["confidence"]), abs=2e-6)
    unseen = write_npz(
        tmp_path / "unseen.npz", x_train=table_samples(9, seed=4)[0], y_train=table_samples(9, seed=4)[1]
    )
    assert np.mean([row["label"] == row["given"] for row in read_csv(relabel(folder, str(unseen)).to_csv())]) > 0.5


def test_relabel_needs_no_labels(folder: Path, tmp_path: Path) -> None:
    x, _ = table_samples(20, seed=9)
    new = write_npz(tmp_path / "new.npz", x_train=x, y_train=None, x_test=None, y_test=None, classes=None)
    table = read_csv(relabel(folder, str(new)).to_csv())
    assert len(table) == 20
    assert {(row["given"], row["true"], row["suspect"]) for row in table} == {("", "", "0")}
    assert {row["label"] for row in table} <= set(CLASSES)


def test_relabel_rejects_another_shape(folder: Path, tmp_path: Path) -> None:
    new = write_npz(tmp_path / "wide.npz", x_train=np.zeros((5, 7)), y_train=np.zeros(5, int), x_test=None, y_test=None)
    with pytest.raises(InputError, match=r"samples of shape \(7,\) do not fit .*: it needs \(4,\)"):
        relabel(folder, str(new))


@pytest.mark.parametrize("names", [("x", "y", "z"), CLASSES[::-1], CLASSES[:2]])
def test_relabel_rejects_other_classes(names: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    """Also the same names in another order, because label 0 is another class then."""
    y = np.zeros(5, int)
    new = write_npz(
        tmp_path / "n.npz", x_train=np.zeros((5, 4)), y_train=y, x_test=None, y_test=None, classes=np.array(names)
    )
    with pytest.raises(InputError, match=r"has the classes .*, but .* has a, "):
        relabel(folder, str(new))


def test_relabel_rejects_labels_out_of_range(folder: Path, tmp_path: Path) -> None:
    new = write_npz(tmp_path / "n.npz", y_train=np.full(80, 3), x_test=None, y_test=None, classes=None)
    with pytest.raises(InputError, match="row 0 has label 3; labels are 0 to 2"):
        relabel(folder, str(new))


def test_relabel_rejects_unfinished_run(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes((folder / "run.json").read_bytes())
    new = write_npz(tmp_path / "new.npz")
    with pytest.raises(InputError, match=r"no model\.safetensors: the run is not finished"):
        relabel(tmp_path, str(new))
    with pytest.raises(InputError, match="is not a run folder"):
        relabel(tmp_path / "nowhere", str(new))
