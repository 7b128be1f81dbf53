"""What a run folder holds for others: predictions with one's own network, ONNX files, and model files that are none."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from files import QUICK, TABLE, photos, read_csv, table_rows, write_csv
from metalabelnet.inference.predict import Predictor
from metalabelnet.methods import METHODS
from shell import call
from tiny import write_npz

Capture = pytest.CaptureFixture[str]
OWN_NET = """
from torch import nn
def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 8), nn.ReLU(), nn.Linear(8, classes))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def done(arguments: str, capsys: Capture) -> str:
    said = call(arguments.split(), capsys)
    assert said.code == 0, said.err
    return said.err + said.out


def refused(arguments: str, capsys: Capture) -> str:
    said = call(arguments.split(), capsys)
    assert (said.code, said.out) == (2, "")
    assert said.err.count("\n") == 1
    return said.err


def table_run(here: Path, capsys: Capture, more: str = "") -> None:
    write_csv(here / "table.csv", TABLE, table_rows(60))
    done(f"train table.csv --clean-column checked {QUICK} --out run {more}", capsys)


# One's own network


def test_ones_own_network_runs_only_when_it_is_named_again(here: Path, capsys: Capture) -> None:
    (here / "my_own_net.py").write_text(OWN_NET)
    table_run(here, capsys, "--net my_own_net.py:make")
    said = refused("predict run table.csv", capsys)
    assert "was trained with your own network: allow its code to run with --net my_own_net.py:make" in said
    assert "allow its code to run" in refused("predict run table.csv --net other:make", capsys)
    done("predict run table.csv --net my_own_net.py:make -o out.csv", capsys)
    table = {row["id"]: row["label"] for row in read_csv(here / "run/labels.csv")}
    assert all(table.get(row["id"], row["label"]) == row["label"] for row in read_csv(here / "out.csv"))


@pytest.mark.usefixtures("torchvision")
def test_a_network_of_timm_from_a_folder_of_images(here: Path, capsys: Capture) -> None:
    true_label = photos(here / "photos", count=30, unlabeled=2)
    write_csv(here / "checked.csv", ["id", "label"], [*true_label[6:15], *true_label[30:32]])
    said = done(
        f"train photos --clean checked.csv --net timm:test_resnet --image-size 32 {QUICK} --epochs 2 --out run", capsys
    )
    assert "images become 32×32, color\n" in said
    assert "timm:test_resnet on cpu" in said
    done("predict run photos -o out.csv", capsys)
    table = {row["id"]: row for row in read_csv(here / "run/labels.csv")}
    for row in read_csv(here / "out.csv"):
        if row["id"] in table:
            assert abs(float(row["confidence"]) - float(table[row["id"]]["confidence"])) < 2e-5


# ONNX


def exported(here: Path, x: np.ndarray, capsys: Capture, more: str = "") -> tuple[dict[str, str], np.ndarray]:
    """Export the run; give the file's metadata and what onnxruntime makes of x."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    said = done(f"export run --onnx model.onnx{more}", capsys)
    assert "model.onnx written; probabilities differ from torch by " in said
    session = runtime.InferenceSession(here / "model.onnx", providers=["CPUExecutionProvider"])
    return session.get_modelmeta().custom_metadata_map, session.run(None, {"samples": x})[0]


def test_a_table_goes_to_onnx(here: Path, capsys: Capture) -> None:
    table_run(here, capsys)
    predictor = Predictor(here / "run")
    assert predictor.inputs is not None
    cells = [["12.5", "0", "red"], ["", "-1", ""], ["9", "2", "blue"]]
    x = torch.stack(list(predictor.inputs.encode(cells)))  # type: ignore[arg-type]
    about, p = exported(here, x.numpy(), capsys)
    assert np.abs(p - predictor.probabilities(x).numpy()).max() < 1e-5
    assert json.loads(about["classes"]) == ["no, never", "yes ✓"]
    assert json.loads(about["inputs"]) == json.loads((here / "run/inputs.json").read_text())
    assert "(value − mean) / deviation" in about["preprocessing"]


def test_images_in_float64_go_to_onnx_in_float32_and_a_link_stays_one(here: Path, capsys: Capture) -> None:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 3
    write_npz(here / "images.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    done(f"train images.npz --clean 12 --method cross-entropy --dtype float64 {QUICK} --out run", capsys)
    (here / "real.onnx").write_text("old")
    (here / "model.onnx").symlink_to("real.onnx")
    _, p = exported(here, x[:5, None], capsys)
    assert (here / "model.onnx").is_symlink()
    assert p.dtype == np.float32
    assert np.abs(p - Predictor(here / "run").probabilities(torch.from_numpy(x[:5, None])).numpy()).max() < 1e-4


def test_where_no_file_can_be_written_nothing_is_exported(here: Path, capsys: Capture) -> None:
    assert ". is a folder: name a file to write" in refused("export run --onnx .", capsys)
    assert "there is no folder no/such" in refused("export run --onnx no/such/model.onnx", capsys)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_to_onnx(method: str, here: Path, capsys: Capture) -> None:
    true_label = photos(here / "photos", count=40)
    write_csv(here / "checked.csv", ["id", "label"], [*true_label[6:24], *true_label[40:42]])
    done(f"train photos --clean checked.csv --method {method} {QUICK} --epochs 6 --out run", capsys)
    x = np.random.default_rng(0).integers(0, 256, (9, 3, 8, 8)).astype(np.uint8)
    _, p = exported(here, x, capsys)
    assert np.abs(p - Predictor(here / "run").probabilities(torch.from_numpy(x)).numpy()).max() < 1e-4


@pytest.mark.parametrize("method", METHODS)
def test_every_method_predicts_what_its_label_table_says(method: str, here: Path, capsys: Capture) -> None:
    write_npz(here / "tiny.npz")
    done(f"train tiny.npz --clean 18 --method {method} {QUICK} --epochs 6 --out run", capsys)
    done("predict run tiny.npz -o out.csv", capsys)
    table = {row["id"]: row for row in read_csv(here / "run/labels.csv")}
    rows = [row for row in read_csv(here / "out.csv") if row["id"] in table]
    assert len(rows) == 62
    for row in rows:
        assert abs(float(row["confidence"]) - float(table[row["id"]]["confidence"])) < 2e-5


# Files that are not what they seem


class Bomb:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (f"open({str(self.trace)!r}, 'w').close()",)


def test_a_model_file_that_is_not_one(here: Path, capsys: Capture) -> None:
    table_run(here, capsys)
    file, trace = here / "run/model.safetensors", here / "trace"
    good = file.read_bytes()
    torch.save({"net.0.weight": Bomb(trace)}, here / "evil.pt")
    for content in (
        b"",
        b"dear Ada",
        pickle.dumps(Bomb(trace)),
        (here / "evil.pt").read_bytes(),
        good[: len(good) // 2],
    ):
        file.write_bytes(content)
        said = refused("predict run table.csv", capsys)
        assert "run/model.safetensors is not a model of this program" in said
        assert not trace.exists()
    file.write_bytes(good)
    done("predict run table.csv -o out.csv", capsys)


def test_weights_to_start_from_that_are_a_pickle(here: Path, capsys: Capture, torchvision: object) -> None:
    true_label = photos(here / "photos", count=12, unlabeled=0)
    write_csv(here / "checked.csv", ["id", "label"], [*true_label[:6], *true_label[12:14]])
    torch.save({"fc.weight": Bomb(here / "trace")}, here / "evil.pt")
    net = ["--net", "torchvision:resnet18", "--image-size", "32", "--pretrained", "evil.pt"]
    said = call(["train", "photos", "--clean", "checked.csv", *net], capsys)
    assert said.code == 2
    refusal = "evil.pt: is not a file of weights (it holds something else than tensors, and nothing in it is run)"
    assert said.err.splitlines()[-1].endswith(refusal)
    assert not (here / "trace").exists()
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", "unknown kind of input '[]'"),
        ('{"kind": "tabel"}', "unknown kind of input"),
        ('{"kind": "table", "columns": [{"name": "a", "mean": 0, "deviation": 0, "gaps": false}]}', "is damaged"),
        ('{"kind": "table"}', "is damaged, or was written by another version"),
        ('{"kind": "text", "column": "a", "terms": ["x"], "idf": [], "width": 1}', "is damaged"),
        ('{"kind": "image", "shape": [3, 8, 8], "column": null}', "gives samples of shape (3, 8, 8), the model takes"),
        ("{", "cannot be read"),
    ],
)
def test_inputs_that_are_damaged(content: str, says: str, here: Path, capsys: Capture) -> None:
    table_run(here, capsys)
    (here / "run/inputs.json").write_text(content)
    assert says in refused("predict run table.csv", capsys)


def test_what_cannot_be_asked(here: Path, capsys: Capture) -> None:
    table_run(here, capsys)
    assert "nowhere.csv does not exist" in refused("predict run nowhere.csv", capsys)
    assert "table.csv is not a run" in refused("predict table.csv run", capsys)
    assert "this run is asked about a table" in refused("predict run run", capsys)
    (here / "a.png").write_bytes(b"")
    assert "this run is asked about a table" in refused("predict run a.png", capsys)
    assert not (here / ".out.csv.tmp").exists()
