"""Curves and results in TensorBoard, MLflow and Weights & Biases, read back with the packages themselves."""

import importlib.util
import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cli_runner import run_cli
from metalabelnet.errors import InputError
from metalabelnet.report.trackers import LogTarget, RunLog, parse_log_target
from metalabelnet.train import RunFolder
from report_runs import write_run
from tiny_data import write_npz

Capture = pytest.CaptureFixture[str]
TINY = "--noise uniform:0.4 --clean 18 --epochs 2 --warmup 1 --batch-size 16 --device cpu --method cross-entropy"


def installed(name: str) -> None:
    """Skip the test if the package is not installed."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def expected_results(folder: Path) -> dict[str, float]:
    summary = RunFolder(folder).summary()
    return {key: value for key, value in summary.items() if type(value) in (int, float)}


def finished_log(kind: str, folder: Path, run: Path) -> list[str]:
    """Log a run in two parts, as during training; return the warnings."""
    warnings: list[str] = []
    log = RunLog([parse_log_target(f"{kind}:{folder}")], RunFolder(run), warnings.append)
    lines = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(lines.partition("\n")[0] + "\n")
    summary = (run / "summary.json").rename(run / "later.json")
    log.update()
    (run / "metrics.jsonl").write_text(lines)
    summary.rename(run / "summary.json")
    log.finish()
    log.finish()  # a second call does nothing
    return warnings


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path: Path) -> None:
    installed("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = write_run(tmp_path / "run", ("a", "b"))
    assert finished_log("tensorboard", tmp_path / "logs", run) == []
    events = EventAccumulator(str(tmp_path / "logs" / "run")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("clean_accuracy")] == [(0, 50.0), (1, 51.0), (2, 52.0)]
    for name, value in expected_results(run).items():
        assert events.Scalars(f"result/{name}")[0].value == pytest.approx(value)
    assert "_hparams_/session_start_info" in events.PluginTagToContent("hparams")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path: Path) -> None:
    installed("mlflow")
    from mlflow import MlflowClient

    run = write_run(tmp_path / "run", ("a", "b"))
    assert finished_log("mlflow", tmp_path / "logs", run) == []
    client = MlflowClient(f"sqlite:///{tmp_path / 'logs' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("metalabelnet")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["method"] == "cross-entropy"
    history = client.get_metric_history(found.info.run_id, "test_accuracy")
    assert sorted((m.step, m.value) for m in history) == [(0, 40.0), (1, 41.0), (2, 42.0)]
    results = {name.removeprefix("result."): v for name, v in found.data.metrics.items() if name.startswith("result.")}
    assert results == expected_results(run)


def wandb_records(folder: Path) -> list[Any]:
    """Return the records of an offline run: after a header of 7 bytes, a log of LevelDB of blocks of 32 KiB.

    A record has a checksum of 4 bytes, its length in 2 bytes, and in one byte whether it is whole (1) or the first (2),
    a middle (3) or the last (4) part of a longer one.
    """
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, position, records, part = file.read_bytes(), 7, [], b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # the rest of a block is too short for a record
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        part = (b"" if kind in (1, 2) else part) + data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            records.append(wandb_internal_pb2.Record.FromString(part))
    return records


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb(tmp_path: Path) -> None:
    installed("wandb")
    run = write_run(tmp_path / "run", ("a", "b"))
    assert finished_log("wandb", tmp_path / "logs", run) == []
    records: list[Any] = []
    deadline = time.monotonic() + 60
    while not (records and records[-1].WhichOneof("record_type") == "exit"):  # written after `finish` has returned
        assert time.monotonic() < deadline
        records = wandb_records(tmp_path / "logs")
    history = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert [(line["_step"], line["clean_accuracy"]) for line in history] == [(0, 50.0), (1, 51.0), (2, 52.0)]
    written = str(records)
    for name in expected_results(run):
        assert f"result/{name}" in written


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_train_and_compare_log_their_runs(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "small.npz")
    assert run_cli(["train", "small.npz", *TINY.split(), "--out", "t", "--log", "tensorboard:logs"], capsys).code == 0
    arguments = ["compare", "small.npz", *TINY.split()[:-2], "--methods", "cross-entropy", "--seeds", "1", "--out", "c"]
    assert run_cli([*arguments, "--jobs", "1", "--log", "tensorboard:logs"], capsys).code == 0
    for folder, name in ((Path("t"), "t"), (Path("c/cross-entropy-seed0"), "cross-entropy-seed0")):
        events = EventAccumulator(f"logs/{name}").Reload()
        losses = [line["loss"] for line in RunFolder(folder).metrics()]
        assert [e.value for e in events.Scalars("loss")] == pytest.approx(losses)
        accuracy = RunFolder(folder).summary()["test_accuracy"]
        assert events.Scalars("result/test_accuracy")[0].value == pytest.approx(accuracy)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlflow", "tensorboard", "wandb"])
def test_nothing_is_sent_over_the_network(kind: str, tmp_path: Path) -> None:
    """In a process of its own: in tests and CI, the packages do not report their use. A proxy sees every connection."""
    installed(kind)
    run = write_run(tmp_path / "run", ("a", "b"))
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        environment = dict.fromkeys([*names, *map(str.lower, names)], address) | {"HOME": str(tmp_path / "home")}
        environment |= {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", LOG_A_RUN, f"{kind}:{tmp_path / 'logs'}", str(run)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=200)
        proxy.settimeout(0)
        with pytest.raises(BlockingIOError):
            proxy.accept()
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert not list((tmp_path / "home").rglob("telemetry.json"))


LOG_A_RUN = """
import sys
import time
from pathlib import Path
from metalabelnet.report.trackers import RunLog, parse_log_target
from metalabelnet.train import RunFolder

warnings = []
log = RunLog([parse_log_target(sys.argv[1])], RunFolder(Path(sys.argv[2])), warnings.append)
log.update()
time.sleep(1)  # reports are sent by threads
log.finish()
print(warnings)
"""


class BrokenTracker:
    def __init__(self, *_: object) -> None:
        raise OSError("disk full\nat line 3")


def test_a_tracker_that_fails_does_not_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from metalabelnet.report import trackers

    monkeypatch.setitem(trackers.TRACKERS, "wandb", trackers.TrackerKind(BrokenTracker, ("wandb",)))
    run, warnings = write_run(tmp_path / "run", ("a", "b")), []
    log = RunLog([LogTarget("wandb", tmp_path / "logs")], RunFolder(run), warnings.append)
    log.update()
    log.finish()
    assert warnings == [f"{run}: logging to wandb stopped (disk full at line 3)"]


def test_wrong_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for text, sentence in (
        ("tensorbord:logs", "did you mean 'tensorboard'"),
        ("tensorboard", "name a folder, as in --log tensorboard:logs"),
        ("mlflow:", "name a folder, as in --log mlflow:logs"),
        (f"wandb:{tmp_path / 'file'}", "is a file; name a folder"),
    ):
        with pytest.raises(InputError, match=sentence):
            parse_log_target(text)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--log mlflow needs mlflow: pip install 'metalabelnet\[mlflow\]'"):
        parse_log_target("mlflow:logs")
