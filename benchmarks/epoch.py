"""Time of one epoch of a method, from the plan of its batches to its hook at the end of the epoch.

    python benchmarks/epoch.py --method dividemix --net preact-resnet18
    python benchmarks/epoch.py --method dividemix --settings clean_weight=0 --execution eager --rows 5000

Random images of 32×32 pixels with ten classes, in bfloat16, without evaluations. The first step of a compiled epoch,
which traces and compiles, is not a part of the epoch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from step import make_engine, wait_for_start

from metalabelnet.engine import tf32_and_cudnn_benchmark
from metalabelnet.train.versions import commit, versions


def measure_epoch(args: argparse.Namespace, device: str) -> dict[str, Any]:
    """Return the seconds of the steps and of the hooks of the second epoch, and of the first step."""
    settings = {name: float(value) for name, _, value in (text.partition("=") for text in args.settings)}
    changes = {"method": args.method, "settings": settings, "dtype": "bf16"}
    engine, batches = make_engine(args, device, compiled=args.execution == "compiled", epochs=3, **changes)
    plans = batches.plan_epoch(0, labeled_only=False)
    start = time.perf_counter()
    engine.step(next(plans))
    synchronize(device)
    first_step = time.perf_counter() - start
    engine.method.end_epoch(0)
    synchronize(device)
    wait_for_start(args)
    start = time.perf_counter()
    engine.method.begin_epoch(1)
    steps = 0
    for plan in batches.plan_epoch(1, labeled_only=False):
        engine.step(plan)
        steps += 1
    synchronize(device)
    after_steps = time.perf_counter()
    engine.method.end_epoch(1)
    synchronize(device)
    end = time.perf_counter()
    times = {"epoch_s": end - start, "steps_s": after_steps - start, "end_of_epoch_s": end - after_steps}
    return times | {"steps": steps, "first_step_s": first_step, "executed": engine.executed()}


def synchronize(device: str) -> None:
    """Wait for the GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure the epoch, print its time, and write it if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="dividemix")
    parser.add_argument("--settings", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the method")
    parser.add_argument("--net", default="preact-resnet18")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--execution", default="compiled", choices=("compiled", "eager"))
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(size=32, kernels="auto")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tf32_and_cudnn_benchmark():
        times = measure_epoch(args, device)
    print(
        f"{args.method}, {args.net}: {times['epoch_s']:.2f} s, of these {times['end_of_epoch_s']:.2f} s after the steps"
    )
    if args.json:
        names = ("method", "settings", "net", "batch", "rows", "execution")
        about = {"date": datetime.now(UTC).date().isoformat(), **{name: getattr(args, name) for name in names}}
        about |= {"versions": versions(), "commit": commit()}
        args.json.write_text(json.dumps({**about, **times}, indent=1) + "\n")


if __name__ == "__main__":
    main()
