"""Time of concurrent runs of the paper's CIFAR-10 recipe on one device.

    python benchmarks/concurrent_runs.py --data-dir DATA              eight runs, uniform noise, 4 + 8 epochs
    python benchmarks/concurrent_runs.py --data-dir DATA --runs 1
    python benchmarks/concurrent_runs.py --data-dir DATA --whole --noise feature:0.6 --noise-probs FILE

Some epochs of each phase are timed. Each ends with an evaluation, and every fourth with a snapshot of the training
samples, as in the whole recipe. The time of the recipe is extrapolated to 44 + 76 epochs; the first epoch of each
phase, which includes compiling, counts once. One more epoch is trained and not counted, because runs finish one after
the other in the last one.

With --whole the runs are trained to the end, with all files written. Results are written after every epoch.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from metalabelnet.launch.concurrent_runs import train_concurrently
from metalabelnet.launch.process_pool import Job
from metalabelnet.train import settings
from metalabelnet.train.versions import commit, versions

if TYPE_CHECKING:
    from metalabelnet.train.result import Progress
    from metalabelnet.train.settings import Run

WARMUP_EPOCHS, PHASE2_EPOCHS = 44, 76  # of the recipe
SNAPSHOT_INTERVAL = 4  # epochs
NOISE_RATES = (0.2, 0.4, 0.6, 0.8)


def make_run(args: argparse.Namespace, number: int) -> Run:
    """Return one of the runs, which differ in noise and seed."""
    epochs = args.warmup + args.phase2 + (0 if args.whole else 1)
    snapshots = {} if args.whole else {"snapshots": -(-epochs // SNAPSHOT_INTERVAL)}
    return settings.make_run(
        args.data,
        recipe="paper",
        data_dir=args.data_dir,
        split="paper",
        protocol="paper",
        noise=args.noise or f"uniform:{NOISE_RATES[number % len(NOISE_RATES)]}",
        noise_probs=args.noise_probs,
        seed=number,
        epochs=epochs,
        warmup=args.warmup,
        device=args.device,
        dtype=args.dtype,
        kernels=args.kernels,
        **snapshots,
    )


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=4, help="warm-up epochs to time, at least two")
    parser.add_argument("--phase2", type=int, default=8, help="epochs of phase 2 to time, at least two")
    parser.add_argument("--whole", action="store_true", help="train all 44 + 76 epochs and write all files")
    parser.add_argument("--noise", help="noise of all runs; default: uniform noise of several rates")
    parser.add_argument("--noise-probs", help="the authors' file for feature-dependent noise")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    if args.whole:
        args.warmup, args.phase2 = WARMUP_EPOCHS, PHASE2_EPOCHS
    if min(args.warmup, args.phase2) < 2:
        parser.error("each phase needs at least two epochs: the first includes compiling")
    return args


def extrapolate(args: argparse.Namespace, ended: list[float]) -> float:
    """Print the time of each phase, and return the seconds of the whole recipe."""
    first, warmup = ended[0], (ended[args.warmup - 1] - ended[0]) / (args.warmup - 1)
    switch = ended[args.warmup] - ended[args.warmup - 1]
    phase2 = (ended[-2] - ended[args.warmup]) / (args.phase2 - 1)
    total: float = first + (WARMUP_EPOCHS - 1) * warmup + switch + (PHASE2_EPOCHS - 1) * phase2
    print(f"{args.runs} runs: first epoch {first:.1f} s, then {warmup:.2f} s per warm-up epoch")
    print(f"phase 2: first epoch {switch:.1f} s, then {phase2:.2f} s per epoch; whole recipe: {total:.0f} s")
    return total


def main() -> None:
    """Train the runs and report the time."""
    args = parse_arguments()
    start = time.monotonic()
    ended: list[float] = [0.0] * (args.warmup + args.phase2 + (0 if args.whole else 1))  # seconds, by epoch
    accuracies: dict[int, float] = {}

    def report(number: int, progress: Progress | None) -> None:
        if progress is None or progress.metrics is None:
            return
        ended[progress.epoch - 1] = time.monotonic() - start
        accuracies[number] = progress.metrics["test_accuracy"]
        if number == args.runs - 1:
            print(f"{ended[progress.epoch - 1]:7.1f} s: epoch {progress.epoch} of {len(ended)}", flush=True)
            write()

    def write(**more: float) -> None:
        each = [round(b - a, 2) for a, b in zip([0.0, *ended], ended, strict=False) if b]
        result = {"runs": args.runs, "noise": args.noise, "seconds_of_each_epoch": each, **more}
        result |= {"test_accuracy_of_each": [accuracies[number] for number in sorted(accuracies)]}
        result |= {"kernels": args.kernels, "versions": versions(), "commit": commit()}
        if args.json:
            args.json.write_text(json.dumps(result) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        jobs = [Job(run=make_run(args, number), folder=Path(folder) / str(number)) for number in range(args.runs)]
        outcomes = train_concurrently(jobs, concurrent=args.runs, on_progress=report)
        seconds = time.monotonic() - start
    if not args.whole:
        return write(recipe=round(extrapolate(args, ended), 1))
    for number, outcome in enumerate(outcomes):
        assert outcome.summary is not None, outcome.failure
        accuracies[number] = outcome.summary["test_accuracy"]
    print(f"{args.runs} runs of the whole recipe: {seconds:.1f} s")
    return write(seconds=round(seconds, 1))


if __name__ == "__main__":
    main()
