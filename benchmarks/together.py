"""How long runs of the paper's CIFAR-10 recipe take side by side on one device.

    python benchmarks/together.py --data-dir DATA                   eight runs, uniform noise, four and eight epochs
    python benchmarks/together.py --data-dir DATA --runs 1
    python benchmarks/together.py --data-dir DATA --whole --noise feature:0.6 --noise-probs FILE

Some epochs of each phase are timed. They end with an evaluation, and in every fourth the run looks at its training
samples, as in the whole recipe. What the recipe would take is 44 and 76 times the mean epochs; the first of each phase,
with its compiling, counts apart. One more epoch is trained and not counted: in the last the runs end, one by one.

With --whole they are trained to the end, all files written, and the clock stops then. A file is written after every
epoch, so that nothing is lost where something stops it.
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
from metalabelnet.train.run_folder import commit, versions
from metalabelnet.train.settings import Run, recipe

if TYPE_CHECKING:
    from metalabelnet.train.loop import Progress

WARMUP, PHASE2 = 44, 76  # epochs of the recipe
EVERY = 4  # epochs from one look to the next
RATES = (0.2, 0.4, 0.6, 0.8)


def run(args: argparse.Namespace, number: int) -> Run:
    """One of the runs: they differ by noise and seed alone."""
    epochs = args.warmup + args.phase2 + (0 if args.whole else 1)
    snapshots = {} if args.whole else {"snapshots": -(-epochs // EVERY)}
    return recipe(
        args.data,
        data_dir=args.data_dir,
        split="paper",
        protocol="paper",
        noise=args.noise or f"uniform:{RATES[number % len(RATES)]}",
        noise_probs=args.noise_probs,
        seed=number,
        epochs=epochs,
        warmup=args.warmup,
        device=args.device,
        dtype=args.dtype,
        **snapshots,
    )


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=4, help="epochs, two at least")
    parser.add_argument("--phase2", type=int, default=8, help="likewise")
    parser.add_argument("--whole", action="store_true", help="all 44 and 76 epochs, to the last file")
    parser.add_argument("--noise", help="of all runs, instead of uniform noise of several rates")
    parser.add_argument("--noise-probs", help="the authors' file, for feature-dependent noise")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.whole:
        args.warmup, args.phase2 = WARMUP, PHASE2
    if min(args.warmup, args.phase2) < 2:
        parser.error("each phase needs two epochs at least: the first has the compiling in it")
    return args


def expected(args: argparse.Namespace, ended: list[float]) -> float:
    """Seconds the recipe would take, by epochs of each phase; says them too."""
    first, warm = ended[0], (ended[args.warmup - 1] - ended[0]) / (args.warmup - 1)
    switch, learn = ended[args.warmup] - ended[args.warmup - 1], (ended[-2] - ended[args.warmup]) / (args.phase2 - 1)
    whole: float = first + (WARMUP - 1) * warm + switch + (PHASE2 - 1) * learn
    print(f"{args.runs} runs: first epoch {first:.1f} s, then {warm:.2f} s an epoch of warm-up")
    print(f"phase 2: first epoch {switch:.1f} s, then {learn:.2f} s an epoch; the recipe would take {whole:.0f} s")
    return whole


def main() -> None:
    """Run them, and say how long it took."""
    args = parsed()
    began = time.monotonic()
    ended: list[float] = [0.0] * (args.warmup + args.phase2 + (0 if args.whole else 1))  # by all runs, each epoch
    accuracies: dict[int, float] = {}

    def tell(number: int, progress: Progress | None) -> None:
        if progress is None or progress.metrics is None:
            return
        ended[progress.epoch - 1] = time.monotonic() - began
        accuracies[number] = progress.metrics["test_accuracy"]
        if number == args.runs - 1:
            print(f"{ended[progress.epoch - 1]:7.1f} s: epoch {progress.epoch} of {len(ended)}", flush=True)
            write()

    def write(**more: float) -> None:
        each = [round(b - a, 2) for a, b in zip([0.0, *ended], ended, strict=False) if b]
        about = {"runs": args.runs, "noise": args.noise, "seconds_of_each_epoch": each, **more}
        about |= {"test_accuracy_of_each": [accuracies[number] for number in sorted(accuracies)]}
        about |= {"versions": versions(), "commit": commit()}
        if args.json:
            args.json.write_text(json.dumps(about) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        jobs = [Job(run=run(args, number), folder=Path(folder) / str(number)) for number in range(args.runs)]
        outcomes = train_concurrently(jobs, concurrent=args.runs, on_progress=tell)
        seconds = time.monotonic() - began
    if not args.whole:
        return write(recipe=round(expected(args, ended), 1))
    for number, outcome in enumerate(outcomes):
        assert outcome.summary is not None, outcome.failure
        accuracies[number] = outcome.summary["test_accuracy"]
    print(f"{args.runs} runs of the whole recipe: {seconds:.1f} s")
    return write(seconds=round(seconds, 1))


if __name__ == "__main__":
    main()
