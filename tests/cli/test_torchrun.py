"""`torchrun -m metalabelnet train`: interrupted runs, other numbers of ranks, and one line about an error."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from metalabelnet.cli import main
from metalabelnet.core.ranks import World
from metalabelnet.launch.torchrun import rank_and_size
from metalabelnet.train import checkpoint
from rank_processes import Interruption, run_command

pytestmark = pytest.mark.dist

TRAIN = ["train", "digits", "--method", "metalabelnet", "--noise", "uniform:0.4", "--clean", "60", "--limit", "300"]
TRAIN += ["--net", "mlp", "--dtype", "float64", "--epochs", "3", "--warmup", "1", "--batch-size", "32"]
TRAIN += ["--device", "cpu", "--checkpoint-seconds", "0"]


def lines(texts: list[str]) -> list[str]:
    """Return the lines of all ranks except for those about data and progress."""
    expected = re.compile(r"[\w-]+ on digits: |[\w-]+: epoch |2 ranks ")
    return [line for text in texts for line in text.splitlines() if not expected.match(line)]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_are_all_rows_in_order(size: int) -> None:
    for rows in (0, 1, 6, 7, 32):
        spans = [World(rank=rank, size=size).span(rows) for rank in range(size)]
        assert [row for start, end in spans for row in range(start, end)] == list(range(rows))
        assert max(end - start for start, end in spans) - min(end - start for start, end in spans) <= 1


def test_without_torchrun_there_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """WORLD_SIZE alone may come from another program."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert rank_and_size() == (0, 1)


@pytest.mark.slow
def test_another_command_is_refused_with_one_line(tmp_path: Path) -> None:
    codes, texts = run_command(["methods"], 2, tmp_path / "ranks")
    assert codes == [2, 2]
    (line,) = lines(texts)
    assert "use it with train" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "2"], "a batch of 2 rows cannot be shared by 3 ranks: start at most 2, or choose a larger"),
        (["--method", "logistic-both", "--net", "linear"], "is fitted by one process: start it without torchrun"),
        (["--epochs", "0"], "epochs"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    codes, texts = run_command([*TRAIN, *arguments, "--out", str(tmp_path / "run")], 3, tmp_path / "ranks")
    assert set(codes) <= {1, 2}  # 1: a rank that waited for the one with the error
    assert 2 in codes
    (line,) = lines(texts)
    assert message in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_used_folder_is_one_line(tmp_path: Path) -> None:
    """Rank 0 alone knows of the error."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").touch()
    codes, texts = run_command([*TRAIN, "--out", str(tmp_path / "run")], 2, tmp_path / "ranks")
    assert codes[0] == 2
    (line,) = lines(texts)
    assert "is not empty" in line


@pytest.mark.slow
@pytest.mark.parametrize("method", ["metalabelnet", "joint-optimization", "sop"])
def test_run_resumes_with_other_numbers_of_ranks(method: str, tmp_path: Path) -> None:
    """1 → 2 → 1 ranks: SIGTERM to a single process, SIGKILL to either of two ranks, SIGTERM to one of two."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train = [*TRAIN, "--method", method]
    assert main([*train, "--out", str(whole)]) == 0
    command = [*train, "--out", str(parts), "--resume"]
    codes, texts = run_command(command, 1, tmp_path / "1", Interruption(0, 5, signal.SIGTERM))
    assert codes == [130]
    for rank in (1, 0):
        codes, texts = run_command(command, 2, tmp_path / f"killed {rank}", Interruption(rank, 3, signal.SIGKILL))
        assert codes[rank] == -signal.SIGKILL
        assert codes[1 - rank] == 1
        (line,) = lines(texts)
        assert "another rank of the run has ended" in line
        assert "resume from the last checkpoint with: torchrun --nproc-per-node 2 -m metalabelnet train digits" in line
    codes, texts = run_command(command, 2, tmp_path / "stopped", Interruption(1, 4, signal.SIGTERM))
    assert codes == [130, 130]
    (line,) = lines(texts)
    assert "stopped; progress saved; resume with: torchrun" in line
    codes, _ = run_command(command, 1, tmp_path / "2")
    assert codes == [0]
    expected, got = load_file(whole / "model.safetensors"), load_file(parts / "model.safetensors")
    assert expected.keys() == got.keys()
    assert max(float((got[name] - value).abs().max()) for name, value in expected.items()) < 1e-12
    first, second = ((path / "labels.csv").read_text().splitlines() for path in (whole, parts))
    assert [line.split(",")[:4] for line in first] == [line.split(",")[:4] for line in second]


@pytest.mark.slow
def test_a_checkpoint_with_another_table_is_one_line(tmp_path: Path) -> None:
    """Rank 0 reads it and refuses it; the others receive nothing."""
    command = [*TRAIN, "--method", "sop", "--out", str(tmp_path / "run"), "--resume"]
    assert run_command(command, 2, tmp_path / "stopped", Interruption(1, 4, signal.SIGTERM))[0] == [130, 130]
    file = tmp_path / "run" / "checkpoint" / "state.pt"
    state = checkpoint.load(file, torch.device("cpu"))
    assert state["method"]["noise"]["v"].shape == (300, 10)
    state["method"]["noise"]["v"] = state["method"]["noise"]["v"][:150].clone()
    checkpoint.save(file, state)
    codes, texts = run_command(command, 2, tmp_path / "resumed")
    assert codes[0] == 2
    (line,) = lines(texts)
    assert "is no checkpoint of this run (method.noise.v has the shape (150, 10), not (300, 10))" in line


@pytest.mark.slow
def test_torchrun(tmp_path: Path) -> None:
    """The whole command, from the command line; the finished run is recognized by all ranks."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "metalabelnet"]
    command = [*torchrun, *TRAIN, "--epochs", "2", "--out", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "2 ranks share the rows of each batch; steps run eagerly" in first.stderr
    assert first.stdout.count("test accuracy") == 1
    assert '"ranks": 2' in (tmp_path / "run" / "run.json").read_text()
    assert all(torch.isfinite(t).all() for t in load_file(tmp_path / "run" / "model.safetensors").values())
    again = subprocess.run([*command, "--resume"], env=environment, capture_output=True, text=True, check=True)
    assert "is already finished" in again.stderr
    assert again.stdout == first.stdout
