"""How long runs of the paper's CIFAR-10 recipe take side by side on one device: some epochs of each phase, timed.

    python benchmarks/together.py --data-dir DATA                   eight runs, uniform noise, four and eight epochs
    python benchmarks/together.py --data-dir DATA --runs 1

Epochs end with an evaluation, and in every fourth the run looks at its training samples, as in the whole recipe. What
the recipe would take is 44 and 76 times the mean epochs; the first of each phase, with its compiling, counts apart. One
more epoch is trained and not counted: in the last the runs end, one after another.
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

from metalabelnet.train.folder import commit, versions
from metalabelnet.train.settings import Run, recipe
from metalabelnet.train.several import Job
from metalabelnet.train.together import train_together

if TYPE_CHECKING:
    from metalabelnet.train.loop import Progress

WARMUP, PHASE2 = 44, 76  # epochs of the recipe
EVERY = 4  # epochs from one look to the next
RATES = (0.2, 0.4, 0.6, 0.8)


def run(args: argparse.Namespace, number: int) -> Run:
    """One of the runs: they differ by noise and seed alone."""
    epochs = args.warmup + args.phase2 + 1
    return recipe(
        args.data,
        data_dir=args.data_dir,
        split="paper",
        protocol="paper",
        noise=f"uniform:{RATES[number % len(RATES)]}",
        seed=number,
        epochs=epochs,
        warmup=args.warmup,
        looks=-(-epochs // EVERY),
        device=args.device,
        dtype=args.dtype,
    )


def main() -> None:
    """Run them, and say how long an epoch of all took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=4, help="epochs, two at least")
    parser.add_argument("--phase2", type=int, default=8, help="likewise")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if min(args.warmup, args.phase2) < 2:
        parser.error("each phase needs two epochs at least: the first has the compiling in it")
    began = time.monotonic()
    ended: list[float] = [0.0] * (args.warmup + args.phase2 + 1)  # when all runs had ended each epoch

    def tell(_: int, progress: Progress | None) -> None:
        if progress is not None and progress.metrics is not None:
            ended[progress.epoch - 1] = time.monotonic() - began

    with tempfile.TemporaryDirectory() as folder:
        jobs = [Job(run=run(args, number), folder=Path(folder) / str(number)) for number in range(args.runs)]
        train_together(jobs, together=args.runs, on_progress=tell)
    first, warm = ended[0], (ended[args.warmup - 1] - ended[0]) / (args.warmup - 1)
    switch, learn = ended[args.warmup] - ended[args.warmup - 1], (ended[-2] - ended[args.warmup]) / (args.phase2 - 1)
    whole = first + (WARMUP - 1) * warm + switch + (PHASE2 - 1) * learn
    print(f"{args.runs} runs: first epoch {first:.1f} s, then {warm:.2f} s an epoch of warm-up")
    print(f"phase 2: first epoch {switch:.1f} s, then {learn:.2f} s an epoch; the recipe would take {whole:.0f} s")
    if args.json:
        each = [round(b - a, 2) for a, b in zip([0.0, *ended[:-1]], ended, strict=True)]
        about = {"runs": args.runs, "seconds_of_each_epoch": each}
        about |= {"recipe": round(whole, 1), "versions": versions(), "commit": commit()}
        args.json.write_text(json.dumps(about) + "\n")


if __name__ == "__main__":
    main()
