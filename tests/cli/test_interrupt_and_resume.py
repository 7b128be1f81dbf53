"""A run that is killed or stopped at any time resumes to the same result."""

import errno
import os
import random
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cli_runner import TINY, Forked, Forker, Spawned, count_finished_epochs, run_cli, wait_for
from metalabelnet.cli import main
from metalabelnet.cli.interrupt import ignore_closed_terminal
from metalabelnet.errors import RunStopped
from metalabelnet.train import RunFolder, checkpoint
from metalabelnet.train import prepare as prepare_module
from tiny_data import run_outputs, write_npz

KILLS, EPOCHS = 10, 30
Start = Callable[[list[str], Path], Any]


@pytest.fixture(scope="module")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    forker = Forker(write_npz(tmp_path_factory.mktemp("forker") / "tiny.npz"))
    yield forker
    forker.close()


def arguments(data: Path, out: Path, method: str = "metalabelnet", checkpoint_seconds: int = 1000) -> list[str]:
    settings = f"--method {method} {TINY} --epochs {EPOCHS} --warmup 15 --checkpoint-seconds {checkpoint_seconds}"
    return ["train", str(data), *settings.split(), "--out", str(out)]


def kill_ten_times(start: Start, method: str, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kill one run ten times: once during startup, then at random times in random epochs."""
    data = write_npz(tmp_path / "tiny.npz")
    assert run_cli(arguments(data, tmp_path / "alone", method), capsys).code == 0
    chance = random.Random(seed)
    moments = [0, *sorted(chance.sample(range(1, EPOCHS - 8), KILLS - 1))]
    folder = tmp_path / "run"
    seen = []
    for epoch in moments:
        process = start([*arguments(data, folder, method, checkpoint_seconds=0), "--resume"], tmp_path)
        wait_for(lambda epoch=epoch: count_finished_epochs(folder) >= epoch)
        time.sleep(chance.uniform(0, 0.03))
        process.send(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        seen.append(count_finished_epochs(folder))
        assert not RunFolder(folder).finished
    assert seen[-1] > seen[1]  # each resumes where the last one was killed
    assert start(["train", str(folder), "--resume"], tmp_path).wait() == 0  # with the settings of the run
    assert run_outputs(folder) == run_outputs(tmp_path / "alone")
    assert not (folder / "checkpoint").exists()


@pytest.mark.slow
def test_killed_ten_times_gives_same_result(forker: Forker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kill_ten_times(forker.start, "metalabelnet", 0, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", ["metalabelnet", "fine-tune"])
def test_killed_ten_times_in_new_processes(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kill_ten_times(Spawned, method, 1, tmp_path, capsys)


def resume_words(output: str) -> list[str]:
    """Return the arguments of the resume command that is printed."""
    (line,) = (line for line in output.splitlines() if line.startswith("metalabelnet: stopped"))
    assert output.splitlines()[-1] == line
    assert "Traceback" not in output
    words = shlex.split(line.partition("resume with: ")[2])
    assert words[0] == "metalabelnet"
    assert words[-1] == "--resume"
    return words[1:]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that is not stopped."""
    folder = tmp_path_factory.mktemp("alone")
    assert main(arguments(write_npz(folder / "my data.npz"), folder / "run")) == 0
    return folder / "run"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_and_resume_train(
    number: signal.Signals, forker: Forker, alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = alone.with_name("my data.npz")  # the resume command must quote the space
    process: Forked = forker.start(arguments(data, tmp_path / "a run"), tmp_path)
    wait_for(lambda: count_finished_epochs(tmp_path / "a run") >= 2)
    process.send(number)
    assert process.wait() == 130
    files = RunFolder(tmp_path / "a run")
    assert files.checkpoint.exists()
    assert not files.finished
    again = resume_words(process.err.read_text())
    assert run_cli(again, capsys).code == 0
    assert run_outputs(tmp_path / "a run") == run_outputs(alone)


def test_stop_during_noise_probe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = prepare_module.log_probabilities

    def interrupted(*args: Any, **how: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return probe(*args, **how)

    monkeypatch.setattr(prepare_module, "log_probabilities", interrupted)
    asked = [*arguments(write_npz(tmp_path / "tiny.npz"), tmp_path / "run"), "--noise", "feature:0.4"]
    output = run_cli(asked, capsys)
    assert output.code == 130
    assert "stopped; the network for feature-dependent noise is trained again on resume; resume with: " in output.err
    assert not (tmp_path / "run").exists()


def test_stop_before_first_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a GPU, compiling the first step takes minutes."""

    def interrupted(*args: Any, **how: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return prepare_module.prepare(*args, **how)

    asked = [*arguments(write_npz(tmp_path / "tiny.npz"), tmp_path / "run"), *["--epochs", "2", "--warmup", "1"]]
    with monkeypatch.context() as patch:
        patch.setattr("metalabelnet.cli.commands.train.prepare", interrupted)
        output = run_cli(asked, capsys)
    assert output.code == 130
    assert not (tmp_path / "run").exists()
    assert run_cli(resume_words(output.err), capsys).code == 0
    assert RunFolder(tmp_path / "run").finished


def test_second_ctrl_c_stops_immediately(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("metalabelnet.cli.commands.train.prepare", interrupted)
    data = write_npz(tmp_path / "tiny.npz")
    before = signal.getsignal(signal.SIGINT)  # ignored, where the tests run in the background
    output = run_cli(arguments(data, tmp_path / "run"), capsys)
    assert output.code == 130
    assert output.err.count("\n") == 1
    assert output.err.startswith(
        "metalabelnet: stopped immediately; resume from the last checkpoint with: metalabelnet train"
    )
    assert signal.getsignal(signal.SIGINT) is before


def compare(data: Path, out: Path, jobs: int) -> list[str]:
    settings = f"--methods cross-entropy,metalabelnet --seeds 1 {TINY} --epochs 60 --jobs {jobs} --out"
    return ["compare", str(data), *settings.split(), str(out)]


@pytest.mark.slow
def test_stop_compare_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two workers are stopped by SIGINT and by SIGTERM; the result equals that of one worker."""
    data, out = write_npz(tmp_path / "tiny.npz"), tmp_path / "out"
    again = compare(data, out, jobs=2)
    runs = [out / "cross-entropy-seed0", out / "metalabelnet-seed0"]
    for number in (signal.SIGINT, signal.SIGTERM):
        before = count_finished_epochs(runs[1])
        process = Spawned(again, tmp_path)
        wait_for(lambda before=before: count_finished_epochs(runs[0]) > 0 and count_finished_epochs(runs[1]) > before)
        seen = count_finished_epochs(runs[1])
        process.send(number)
        assert process.wait() == 130
        again = resume_words(process.err.read_text())
        assert not RunFolder(runs[1]).finished
        saved = checkpoint.load(RunFolder(runs[1]).checkpoint, torch.device("cpu"))
        assert saved["epoch"] >= seen  # progress is saved although no checkpoint was due
    again[again.index("--jobs") + 1] = "1"
    assert run_cli(again, capsys).code == 0
    assert run_cli(compare(data, tmp_path / "alone", jobs=1), capsys).code == 0
    for name in ("cross-entropy-seed0", "metalabelnet-seed0"):
        assert run_outputs(out / name) == run_outputs(tmp_path / "alone" / name)


@pytest.mark.slow
def test_ctrl_c_while_workers_start(tmp_path: Path) -> None:
    """Workers import PyTorch for seconds before they install signal handlers."""
    process = Spawned(compare(write_npz(tmp_path / "tiny.npz"), tmp_path / "out", jobs=2), tmp_path)
    wait_for(lambda: "at a time" in process.err.read_text())
    time.sleep(0.5)
    process.send(signal.SIGINT)
    assert process.wait() == 130
    resume_words(process.err.read_text())


@pytest.mark.slow
def test_workers_save_and_exit_when_parent_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise they would write to folders of a resumed run."""
    data, out = write_npz(tmp_path / "tiny.npz"), tmp_path / "out"
    process = Spawned(compare(data, out, jobs=2), tmp_path)
    run = out / "metalabelnet-seed0"
    wait_for(lambda: count_finished_epochs(run) > 0)
    process.process.kill()
    assert process.wait() == -signal.SIGKILL
    wait_for(lambda: not alive(process.pid), seconds=30)
    assert RunFolder(run).checkpoint.exists()
    assert not RunFolder(run).finished
    assert run_cli([*compare(data, out, jobs=1), "--resume"], capsys).code == 0


@pytest.mark.slow
def test_killed_worker_is_reported(tmp_path: Path) -> None:
    """The kernel kills a worker when memory runs out. The other worker saves its progress, and the command ends."""
    data, out = write_npz(tmp_path / "tiny.npz"), tmp_path / "out"
    process = Spawned(compare(data, out, jobs=2), tmp_path)
    wait_for(lambda: count_finished_epochs(out / "metalabelnet-seed0") > 0)
    workers = [pid for pid in group(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    assert process.wait() == 1
    output = process.err.read_text()
    assert "a worker process was killed, perhaps because memory ran out: resume with --resume" in output
    assert "Traceback" not in output


def group(session: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # the process has ended
            continue
        if int(of) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def alive(session: int) -> bool:
    return bool(group(session))


def test_writes_to_a_closed_terminal_do_not_hide_that_the_run_was_stopped() -> None:
    """A display that is closed writes several times, so that one failed write has another as its context."""
    closed = OSError(errno.EIO, "Input/output error")

    def stop_and_close_display() -> None:
        try:
            raise RunStopped
        finally:
            try:
                raise closed
            finally:
                raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(RunStopped), ignore_closed_terminal():
        stop_and_close_display()
    with ignore_closed_terminal():
        raise closed
    with pytest.raises(OSError, match="No space"), ignore_closed_terminal():
        raise OSError(errno.ENOSPC, "No space left on device")
