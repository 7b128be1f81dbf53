"""Predict and export: user networks, ONNX files, invalid model files."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from cli_runner import run_cli
from metalabelnet.inference.predict import Predictor
from metalabelnet.methods import METHODS
from tiny_data import write_npz
from user_data import QUICK, TABLE_COLUMNS, read_csv, table_rows, write_csv, write_photos

Capture = pytest.CaptureFixture[str]
OWN_NET = """
from torch import nn
def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 8), nn.ReLU(), nn.Linear(8, classes))
"""


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_ok(arguments: str, capsys: Capture) -> str:
    output = run_cli(arguments.split(), capsys)
    assert output.code == 0, output.err
    return output.err + output.out


def input_error(arguments: str, capsys: Capture) -> str:
    output = run_cli(arguments.split(), capsys)
    assert (output.code, output.out) == (2, "")
    assert output.err.count("\n") == 1
    return output.err


def table_run(work_dir: Path, capsys: Capture, more: str = "") -> None:
    write_csv(work_dir / "table.csv", TABLE_COLUMNS, table_rows(60))
    run_ok(f"train table.csv --clean-column checked {QUICK} --out run {more}", capsys)


# One's own network


def test_user_network_must_be_named_again(work_dir: Path, capsys: Capture) -> None:
    (work_dir / "my_own_net.py").write_text(OWN_NET)
    table_run(work_dir, capsys, "--net my_own_net.py:make")
    output = input_error("predict run table.csv", capsys)
    assert "was trained with your own network: allow its code to run with --net my_own_net.py:make" in output
    assert "allow its code to run" in input_error("predict run table.csv --net other:make", capsys)
    run_ok("predict run table.csv --net my_own_net.py:make -o out.csv", capsys)
    table = {row["id"]: row["label"] for row in read_csv(work_dir / "run/labels.csv")}
    assert all(table.get(row["id"], row["label"]) == row["label"] for row in read_csv(work_dir / "out.csv"))


@pytest.mark.usefixtures("torchvision")
def test_timm_network_on_image_folder(work_dir: Path, capsys: Capture) -> None:
    true_label = write_photos(work_dir / "photos", count=30, unlabeled=2)
    write_csv(work_dir / "checked.csv", ["id", "label"], [*true_label[6:15], *true_label[30:32]])
    data = "photos --clean checked.csv --clean-given drop --image-size 32"
    output = run_ok(f"train {data} --net timm:test_resnet {QUICK} --epochs 2 --out run", capsys)
    assert "images are resized to 32×32, color\n" in output
    assert "timm:test_resnet on cpu" in output
    run_ok("predict run photos -o out.csv", capsys)
    table = {row["id"]: row for row in read_csv(work_dir / "run/labels.csv")}
    for row in read_csv(work_dir / "out.csv"):
        if row["id"] in table:
            assert abs(float(row["confidence"]) - float(table[row["id"]]["confidence"])) < 2e-5


# ONNX


def export_and_compare(
    work_dir: Path, x: np.ndarray, capsys: Capture, more: str = ""
) -> tuple[dict[str, str], np.ndarray]:
    """Export the run; return the metadata of the file and the output of onnxruntime for x."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    output = run_ok(f"export run --onnx model.onnx{more}", capsys)
    assert "model.onnx written; probabilities differ from PyTorch by at most " in output
    session = runtime.InferenceSession(work_dir / "model.onnx", providers=["CPUExecutionProvider"])
    return session.get_modelmeta().custom_metadata_map, session.run(None, {"samples": x})[0]


def test_export_table_to_onnx(work_dir: Path, capsys: Capture) -> None:
    table_run(work_dir, capsys)
    predictor = Predictor(work_dir / "run")
    assert predictor.encoder is not None
    cells = [["12.5", "0", "red"], ["", "-1", ""], ["9", "2", "blue"]]
    x = torch.stack(list(predictor.encoder.encode(cells)))  # type: ignore[arg-type]
    about, p = export_and_compare(work_dir, x.numpy(), capsys)
    assert np.abs(p - predictor.probabilities(x).numpy()).max() < 1e-5
    assert json.loads(about["classes"]) == ["no, never", "yes ✓"]
    assert json.loads(about["encoder"]) == json.loads((work_dir / "run/encoder.json").read_text())
    assert "(value − mean) / deviation" in about["preprocessing"]


def test_export_float64_images_keeps_symlink(work_dir: Path, capsys: Capture) -> None:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 3
    write_npz(work_dir / "images.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    run_ok(f"train images.npz --clean 12 --method cross-entropy --dtype float64 {QUICK} --out run", capsys)
    (work_dir / "real.onnx").write_text("old")
    (work_dir / "model.onnx").symlink_to("real.onnx")
    _, p = export_and_compare(work_dir, x[:5, None], capsys)
    assert (work_dir / "model.onnx").is_symlink()
    assert p.dtype == np.float32
    assert np.abs(p - Predictor(work_dir / "run").probabilities(torch.from_numpy(x[:5, None])).numpy()).max() < 1e-4


def test_export_to_missing_folder(work_dir: Path, capsys: Capture) -> None:
    assert ". is a folder: name a file to write" in input_error("export run --onnx .", capsys)
    assert "the folder no/such does not exist" in input_error("export run --onnx no/such/model.onnx", capsys)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_export_every_method(method: str, work_dir: Path, capsys: Capture) -> None:
    true_label = write_photos(work_dir / "photos", count=40)
    write_csv(work_dir / "checked.csv", ["id", "label"], [*true_label[6:24], *true_label[40:42]])
    run_ok(f"train photos --clean checked.csv --method {method} {QUICK} --epochs 6 --out run", capsys)
    x = np.random.default_rng(0).integers(0, 256, (9, 3, 8, 8)).astype(np.uint8)
    _, p = export_and_compare(work_dir, x, capsys)
    assert np.abs(p - Predictor(work_dir / "run").probabilities(torch.from_numpy(x)).numpy()).max() < 1e-4


# One method for each way to predict; the contract tests load the model of every method.
FAST = ("cross-entropy", "metalabelnet", "metalabelnet-plus", "co-teaching", "elr-plus", "forward", "logistic-both")


@pytest.mark.parametrize(
    "method", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_predictions_equal_label_table_for_every_method(method: str, work_dir: Path, capsys: Capture) -> None:
    write_npz(work_dir / "tiny.npz")
    run_ok(f"train tiny.npz --clean 18 --clean-given drop --method {method} {QUICK} --epochs 6 --out run", capsys)
    run_ok("predict run tiny.npz -o out.csv", capsys)
    table = {row["id"]: row for row in read_csv(work_dir / "run/labels.csv")}
    rows = [row for row in read_csv(work_dir / "out.csv") if row["id"] in table]
    assert len(rows) == 62
    for row in rows:
        assert abs(float(row["confidence"]) - float(table[row["id"]]["confidence"])) < 2e-5


# Files that are not what they seem


class Bomb:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (f"open({str(self.trace)!r}, 'w').close()",)


def test_invalid_model_file(work_dir: Path, capsys: Capture) -> None:
    table_run(work_dir, capsys)
    (work_dir / "run/digests.json").unlink()
    file, trace = work_dir / "run/model.safetensors", work_dir / "trace"
    good = file.read_bytes()
    torch.save({"net.0.weight": Bomb(trace)}, work_dir / "evil.pt")
    for content in (
        b"",
        b"dear Ada",
        pickle.dumps(Bomb(trace)),
        (work_dir / "evil.pt").read_bytes(),
        good[: len(good) // 2],
    ):
        file.write_bytes(content)
        output = input_error("predict run table.csv", capsys)
        assert "run/model.safetensors is not a metalabelnet model" in output
        assert not trace.exists()
    file.write_bytes(good)
    run_ok("predict run table.csv -o out.csv", capsys)


def test_pretrained_pickle_is_not_executed(work_dir: Path, capsys: Capture, torchvision: object) -> None:
    true_label = write_photos(work_dir / "photos", count=12, unlabeled=0)
    write_csv(work_dir / "checked.csv", ["id", "label"], [*true_label[:6], *true_label[12:14]])
    torch.save({"fc.weight": Bomb(work_dir / "trace")}, work_dir / "evil.pt")
    net = ["--net", "torchvision:resnet18", "--image-size", "32", "--pretrained", "evil.pt"]
    output = run_cli(["train", "photos", "--clean", "checked.csv", *net], capsys)
    assert output.code == 2
    refusal = "evil.pt: is not a file of weights (it contains objects other than tensors, which are not loaded)"
    assert output.err.splitlines()[-1].endswith(
        f"{refusal}; give a file of pretrained weights, or hub to download them"
    )
    assert not (work_dir / "trace").exists()
    assert not (work_dir / "runs").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", "run/encoder.json is not a file of a metalabelnet run"),
        ('{"kind": "tabel"}', "unknown kind of encoder"),
        (
            '{"kind": "table", "columns": [{"name": "a", "mean": 0, "deviation": 0, "missing_indicator": false}]}',
            "is damaged",
        ),
        ('{"kind": "table"}', "is damaged, or was written by another version"),
        ('{"kind": "text", "column": "a", "terms": ["x"], "idf": [], "width": 1}', "is damaged"),
        (
            '{"kind": "image", "shape": [3, 8, 8], "column": null}',
            "has samples of shape (3, 8, 8), but the model needs",
        ),
        ("{", "cannot be read"),
    ],
)
def test_damaged_encoder_config(content: str, says: str, work_dir: Path, capsys: Capture) -> None:
    table_run(work_dir, capsys)
    (work_dir / "run/encoder.json").write_text(content)
    (work_dir / "run/digests.json").unlink()
    assert says in input_error("predict run table.csv", capsys)


def test_wrong_predict_arguments(work_dir: Path, capsys: Capture) -> None:
    table_run(work_dir, capsys)
    assert "nowhere.csv does not exist" in input_error("predict run nowhere.csv", capsys)
    assert "table.csv is not a run" in input_error("predict table.csv run", capsys)
    assert "cannot be predicted with this run: give a table" in input_error("predict run run", capsys)
    (work_dir / "a.png").write_bytes(b"")
    assert "cannot be predicted with this run: give a table" in input_error("predict run a.png", capsys)
    assert not (work_dir / ".out.csv.tmp").exists()
