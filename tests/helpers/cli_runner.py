"""Ways to run the command line in tests: in this process, in a forked process, or in a new process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metalabelnet.cli import main

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TINY = "--noise uniform:0.4 --clean 18 --unlabeled 14 --epochs 5 --warmup 2 --batch-size 12 --lr 0.05 --device cpu"


@dataclass
class CliResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def run_cli(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> CliResult:
    """Run a command in this process."""
    capsys.readouterr()
    try:
        code = main(list(arguments))
    except SystemExit as end:  # raised by argparse
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return CliResult(code, captured.out, captured.err)


class Forked:
    """A command that runs in a forked process."""

    def __init__(self, forker: "Forker", arguments: Sequence[str], folder: Path, **more: Any) -> None:
        self.forker, self.err, self.out = forker, folder / "err.txt", folder / "out.txt"
        request = {"arguments": list(arguments), "out": str(self.out), "err": str(self.err), **more}
        forker.write(json.dumps(request))
        self.pid = int(forker.read())

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        os.killpg(self.pid, number)

    def wait(self) -> int:
        return int(self.forker.read())


class Forker:
    """A process that has imported the package and forks for every command; see fork_server.py."""

    def __init__(self, data: Path) -> None:
        program = [sys.executable, str(Path(__file__).with_name("fork_server.py")), str(data)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, env=ENVIRONMENT)
        assert self.read() == "ready"

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def start(self, arguments: Sequence[str], folder: Path, **more: Any) -> Forked:
        """Start a command; `more` goes to fork_server.py."""
        return Forked(self, arguments, folder, **more)

    def close(self) -> None:
        self.process.communicate()


class Spawned:
    """A command that runs in a new process: the interface of `Forked`, but it starts seconds later."""

    def __init__(self, arguments: Sequence[str], folder: Path, **environment: str) -> None:
        self.err, self.out = folder / "err.txt", folder / "out.txt"
        program, env = [sys.executable, "-m", "metalabelnet", *arguments], {**ENVIRONMENT, **environment}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(program, stdout=out, stderr=err, env=env, start_new_session=True)
        self.pid = self.process.pid

    def send(self, number: signal.Signals) -> None:
        os.killpg(self.pid, number)

    def wait(self) -> int:
        return self.process.wait(120)


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> None:
    """Wait until the condition holds; fail after some seconds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"condition still false after {seconds} s"
        time.sleep(0.002)


def count_finished_epochs(folder: Path) -> int:
    """Return the number of epochs in the run folder's metrics."""
    file = folder / "metrics.jsonl"
    return len(file.read_bytes().splitlines()) if file.exists() else 0
