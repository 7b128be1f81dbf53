"""Measure the seconds per epoch of methods of `metalabelnet reproduce field`, with one process for each method.

    python benchmarks/field_epoch_seconds.py --data-dir DATA --results results

`reproduce field` measures one method after the other, and most of that time goes to compiling their steps. Here all
methods compile at once, and only the measured epochs have the GPU to themselves: a process that has compiled a phase
takes a lock, trains the epochs of the phase, and releases it. The times go to the file that `reproduce field` reads.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from metalabelnet.reproduction import field
from metalabelnet.reproduction.epoch_seconds import MEASURED_WARMUP, measure, read_epoch_seconds, store_epoch_seconds
from metalabelnet.reproduction.resources import Resources
from metalabelnet.reproduction.selection import Selection, run_specs

if TYPE_CHECKING:
    from metalabelnet.train.result import Progress

CELL = "symmetric:0.5"


class FileLock:
    """A lock between processes, which one of them holds at a time."""

    def __init__(self, file: Path) -> None:
        self.descriptor = os.open(file, os.O_CREAT | os.O_RDWR)
        self.held = False

    def acquire(self) -> None:
        """Wait until no other process holds the lock."""
        if not self.held:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            self.held = True

    def release(self) -> None:
        """Let another process take the lock."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self.held = False


def main() -> None:
    """Measure the methods that have no stored time."""
    args = parse_arguments()
    if args.one is not None:
        measure_one(args, args.one)
        return
    args.results.mkdir(parents=True, exist_ok=True)
    methods = [m for m in args.methods.split(",") if m not in read_epoch_seconds(args.results)]
    processes = [subprocess.Popen([sys.executable, *sys.argv, "--one", method]) for method in methods]
    codes = [process.wait() for process in processes]
    failed = [method for method, code in zip(methods, codes, strict=True) if code]
    if failed:
        raise SystemExit("not measured: " + ", ".join(failed))


def measure_one(args: argparse.Namespace, method: str) -> None:
    """Measure a method and store its time."""
    selection = Selection(methods=(method,), cells=(args.cell,), points=("1",), seeds=1, epoch_seconds={method: 1.0})
    (spec,) = run_specs("field", selection)
    run = Resources(data_dir=args.data_dir, device=args.device).run(spec)
    lock = FileLock(args.results / "device.lock")
    start = time.monotonic()

    def hold_lock_while_measured(progress: Progress) -> None:
        first_epoch_of_phase = progress.epoch in (0, MEASURED_WARMUP)
        if first_epoch_of_phase and progress.step == 1:  # its steps are compiled now
            print(
                f"{method}: phase at epoch {progress.epoch} compiled after {time.monotonic() - start:.0f} s", flush=True
            )
            lock.acquire()
        elif progress.metrics is not None and progress.epoch + 1 == MEASURED_WARMUP:
            lock.release()

    seconds = measure(run, on_progress=hold_lock_while_measured)
    lock.acquire()
    store_epoch_seconds(args.results, method, run, seconds)
    lock.release()
    print(f"{method}: {seconds:.3g} s per epoch; {time.monotonic() - start:.0f} s in all", flush=True)


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets")
    parser.add_argument("--methods", default=",".join(field.METHODS), help="default: all of the experiment")
    parser.add_argument("--cell", default=CELL, help=f"noise of the measured runs (default: {CELL})")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the stored times")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
