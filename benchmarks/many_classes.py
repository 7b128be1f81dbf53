"""Time and memory of a run by the number of rows and of classes: rows of 20 numbers, on one CPU core.

    python benchmarks/many_classes.py --classes 10 1000 --json out.jsonl
    python benchmarks/many_classes.py --classes 1000 --rows 200000 --clean 20000 --epochs 1 --json rows.jsonl

Each run has its own process. The time is CPU time, from reading the data to the finished
run folder, and within it that of the steps; the rest is predictions, label table and summary.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from metalabelnet.train.result import Progress

ROWS, COLUMNS, CLEAN = 20_000, 20, 2000


def measure(rows: int, classes: int, clean: int, epochs: int, batch: int) -> dict[str, float]:
    """Train a run on classes that are normal distributions around random centers."""
    import torch

    sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
    from metalabelnet.train import make_run, train

    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    y = np.concatenate([np.repeat(np.arange(classes), 4), random.integers(0, classes, rows - 4 * classes)])
    x = 2 * random.standard_normal((classes, COLUMNS), np.float32)[y]
    for start in range(0, rows, ROWS):  # in parts: this must not be what needs most memory
        x[start : start + ROWS] += random.standard_normal(x[start : start + ROWS].shape, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.npz"
        np.savez(file, x_train=x, y_train=y)
        del x, y
        fields = {"noise": "uniform:0.2", "clean": clean, "batch_size": batch, "device": "cpu"}
        fields |= {"epochs": epochs, "warmup": min(1, epochs - 1)}
        run = make_run(str(file), recipe="paper", method="metalabelnet", **fields)
        start = time.process_time()
        clock = StepClock()
        train(run, folder=Path(folder) / "run", on_progress=clock)
        seconds = time.process_time() - start
        bytes_written = sum(file.stat().st_size for file in (Path(folder) / "run").rglob("*") if file.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "cpu_seconds": seconds,
        "cpu_seconds_of_steps": clock.seconds,
        "peak_mib": peak,
        "run_folder_mib": bytes_written / 2**20,
    }


class StepClock:
    """CPU time of the steps of a run: from the begin of each epoch to its last step."""

    def __init__(self) -> None:
        self.seconds, self._last, self._epoch = 0.0, 0.0, -1

    def __call__(self, progress: Progress) -> None:
        now = time.process_time()
        if progress.epoch == self._epoch and progress.metrics is None:
            self.seconds += now - self._last
        self._epoch, self._last = progress.epoch, now


def main() -> None:
    """Measure each number of classes in its own process and print a line of JSON for it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 1000])
    parser.add_argument("--rows", type=int, nargs="+", default=[ROWS])
    parser.add_argument("--clean", type=int, default=CLEAN)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", type=Path, help="file to append the results to")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_process:
        facts = {"rows": args.rows[0], "classes": args.classes[0]}
        facts |= {name: getattr(args, name) for name in ("clean", "epochs", "batch")}
        date = datetime.now(UTC).date().isoformat()
        print(json.dumps(facts | measure(**facts) | {"date": date}))
        return
    for rows, classes in itertools.product(args.rows, args.classes):
        command = [sys.executable, __file__, "--in-process", "--rows", str(rows), "--classes", str(classes)]
        command += [word for name in ("clean", "epochs", "batch") for word in (f"--{name}", str(getattr(args, name)))]
        line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(line, end="", flush=True)
        if args.json is not None:
            with args.json.open("a") as file:
                file.write(line)


if __name__ == "__main__":
    main()
