"""Time and memory of a run by the number of classes: 20,000 rows of 20 numbers, three epochs on one CPU core.

    python benchmarks/many_classes.py --classes 10 1000 --json out.jsonl

Each number of classes has its own process. The time is CPU time, from reading the data to the finished run folder.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

ROWS, COLUMNS, CLEAN = 20_000, 20, 2000


def measure(classes: int) -> dict[str, float]:
    """Train a run on classes that are normal distributions around random centers."""
    import torch

    sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
    from metalabelnet.train import make_run, train

    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    y = np.concatenate([np.repeat(np.arange(classes), 4), random.integers(0, classes, ROWS - 4 * classes)])
    x = 2 * random.normal(size=(classes, COLUMNS))[y] + random.normal(size=(ROWS, COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.npz"
        np.savez(file, x_train=x.astype(np.float32), y_train=y)
        fields = {"noise": "uniform:0.2", "clean": CLEAN, "epochs": 3, "warmup": 1, "device": "cpu"}
        run = make_run(str(file), recipe="paper", method="metalabelnet", **fields)
        start = time.process_time()
        train(run, folder=Path(folder) / "run")
        seconds = time.process_time() - start
    return {"cpu_seconds": seconds, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> None:
    """Measure each number of classes in its own process and print a line of JSON for it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 1000])
    parser.add_argument("--json", type=Path, help="file to append the results to")
    args = parser.parse_args()
    if len(args.classes) == 1 and args.json is None:
        date = datetime.now(UTC).date().isoformat()
        print(json.dumps({"classes": args.classes[0], **measure(args.classes[0]), "date": date}))
        return
    for classes in args.classes:
        command = [sys.executable, __file__, "--classes", str(classes)]
        line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(line, end="", flush=True)
        if args.json is not None:
            with args.json.open("a") as file:
                file.write(line)


if __name__ == "__main__":
    main()
