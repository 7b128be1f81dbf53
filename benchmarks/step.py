"""How long one step takes: the same work by each engine, in one run, on one device.

    python benchmarks/step.py                 8-layer CNN, batch 128, CUDA if there is a card
    python benchmarks/step.py --batch 64 --only eager --json out.json
    python benchmarks/step.py --net torchvision:resnet50 --batch 32 --size 224 --runs 1

On CUDA the recorded engine is compiled first, which takes about a minute for each row. Times are medians of several
repeats with the device synchronised around each. Memory on CUDA is the most that was allocated while stepping or, where
steps are recorded, what stays reserved for them; on a CPU every row has a process of its own, and it is the most that
was resident, above what the import takes.
`double-backward` is the iteration as the paper's authors wrote it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from timing import milliseconds, resident, tidy

from metalabelnet.data.batches import Batches
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import make_rows
from metalabelnet.engine import Engine, tf32_and_cudnn_benchmark
from metalabelnet.train.build_method import build_method
from metalabelnet.train.run_folder import commit, versions
from metalabelnet.train.settings import Run

IMPORTED = resident()  # MiB
PLUS = {"method": "metalabelnet-plus"}


def problem(batch: int, device: str, size: int) -> Problem:
    """Random images: a step costs the same whatever is on them."""
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (batch, 3, size, size), generator=g).to(torch.uint8)
    y = torch.arange(batch) % 10
    rows = make_rows(x, y, true=y, classes=tuple("0123456789"), what="random images").to(device)
    return Problem(train=rows, clean=rows, validation=rows, test=rows, noise_rate=0.0, holds_out=False)


def make_engine(
    args: argparse.Namespace, device: str, *, recorded: bool, seed: int = 0, concurrent_runs: int = 1, **changes: Any
) -> Any:
    """A method in the phase that is timed, with what runs its steps and what a step is given."""
    net = args.net.removeprefix("torchvision:")
    own = None
    if net != args.net:
        import torchvision

        torch.manual_seed(seed)
        own = torchvision.models.get_model(net, num_classes=10)
    run = Run(
        net="auto" if own else net, warmup=0, epochs=1, batch_size=args.batch, device=device, seed=seed, **changes
    )
    data = problem(args.batch, device, args.size)
    method = build_method(run, data, own)
    augment = "flip-crop" if args.size <= 64 else "none"
    batches = Batches(
        train=data.train,
        clean=data.clean,
        size=run.batch_size,
        augment=augment,
        augment_clean=method.learns_from_clean,
        dtype=run.torch_dtype,
        seed=seed,
        strong_augment_from=method.strong_augment_from,
    )
    method.begin_epoch(0)
    engine = Engine(method, batches.make_batch, recorded=recorded, bf16=run.dtype == "bf16", concurrent_runs=concurrent_runs)
    return engine, next(batches.plan_epoch(0, labeled_only=False))


def row(name: str, args: argparse.Namespace, device: str, **changes: Any) -> dict[str, Any]:
    """Time the steps of one run, or of several that take turns on streams of their own."""
    recorded, runs = changes.pop("recorded", False), changes.pop("runs", 1)
    cuda = device == "cuda"
    if cuda:
        tidy()
        before = {kind: taken(recorded=kind) for kind in (False, True)}
    built = time.perf_counter()
    turns = []
    for seed in range(runs):
        stream = torch.cuda.Stream() if cuda else None
        with torch.cuda.stream(stream):
            engine, picks = make_engine(args, device, recorded=recorded, seed=seed, concurrent_runs=runs, **changes)
            engine.step(picks)
        turns.append((engine, picks, stream))
    built = time.perf_counter() - built
    if cuda:
        torch.cuda.synchronize()
        tidy()

    def step() -> None:
        for engine, picks, stream in turns:
            with torch.cuda.stream(stream):
                engine.step(picks)

    each = milliseconds(step, cuda=cuda, seconds=args.seconds) / runs
    recorded = all(engine.recorded for engine, _, _ in turns)
    # A replayed graph allocates nothing: the memory it works in was set aside when it was captured.
    memory = taken(recorded=recorded) - before[recorded] if cuda else resident() - IMPORTED
    return {"row": name, "ms": each, "MiB": memory, "first_step_s": built, "recorded": recorded}


def taken(*, recorded: bool) -> float:
    """MiB of the card's memory."""
    return (torch.cuda.memory_reserved() if recorded else torch.cuda.max_memory_allocated()) / 2**20


def alone(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The row by a process of its own, so that its memory can be told from that of the others."""
    told = [
        "--net",
        args.net,
        "--batch",
        str(args.batch),
        "--size",
        str(args.size),
        "--seconds",
        str(args.seconds),
        "--row",
        name,
    ]
    out = subprocess.run([sys.executable, __file__, *told], check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def rival_rows(args: argparse.Namespace, device: str) -> list[dict[str, Any]]:
    """Phase 2 of the 8-layer CNN by other packages, in single precision."""
    import rivals

    results = []
    with tf32_and_cudnn_benchmark():
        for r in rivals.rows(batch=args.batch, size=args.size, device=device, seconds=args.seconds):
            name = f"phase 2, {r['row']} {r['version']}".strip()
            said = r["note"] or f"{r['ms']:9.3f} ms {r['MiB']:8.0f} MiB"
            print(f"{name:38s} {said}", flush=True)
            if not r["note"]:
                results.append({"row": name, "ms": r["ms"], "MiB": r["MiB"]})
    return results


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="cnn8", help="a network of ours, or torchvision:NAME")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each row is timed")
    parser.add_argument("--runs", type=int, default=8, help="how many runs take turns in the rows that say together")
    parser.add_argument("--only", metavar="TEXT", nargs="+", help="rows whose name has one of these in it")
    parser.add_argument("--rivals", action="store_true", help="the same step by TorchOpt, higher and betty too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows: list[tuple[str, dict[str, Any]]] = [
        ("plain step, eager", {"method": "cross-entropy"}),
        ("phase 2, exact, eager", {"method": "metalabelnet"}),
        ("phase 2 of plus, exact, eager", PLUS),
        ("phase 2, finite-difference, eager", {"method": "metalabelnet", "settings": {"engine": "finite-difference"}}),
        ("phase 2, double-backward, eager", {"method": "metalabelnet", "settings": {"engine": "double-backward"}}),
        ("plain step, recorded", {"method": "cross-entropy", "recorded": True}),
        ("plain step, recorded, bf16", {"method": "cross-entropy", "recorded": True, "dtype": "bf16"}),
        ("phase 2, exact, recorded", {"method": "metalabelnet", "recorded": True}),
        ("phase 2, exact, recorded, bf16", {"method": "metalabelnet", "recorded": True, "dtype": "bf16"}),
    ]
    rows += [("phase 2 of plus, exact, recorded, bf16", {**dict(rows)["phase 2, exact, recorded, bf16"], **PLUS})]
    concurrent = {"recorded": True, "dtype": "bf16", "runs": args.runs}
    rows += [
        (f"plain step, {args.runs} together, bf16, each", {"method": "cross-entropy", **concurrent}),
        (f"phase 2, {args.runs} together, bf16, each", {"method": "metalabelnet", **concurrent}),
    ]
    if device == "cpu":
        rows = [(name, changes) for name, changes in rows if "bf16" not in name]
    if args.runs < 2:
        rows = [(name, changes) for name, changes in rows if "concurrent" not in name]
    if args.row:
        print(json.dumps(row(args.row, args, device, **dict(rows)[args.row])))
        return
    results = []
    with tf32_and_cudnn_benchmark():
        for name, changes in rows:
            if args.only and not any(text in name for text in args.only):
                continue
            results.append(alone(name, args) if device == "cpu" else row(name, args, device, **changes))
            r = results[-1]
            print(
                f"{r['row']:38s} {r['ms']:9.3f} ms {r['MiB']:8.0f} MiB   first step {r['first_step_s']:.1f} s",
                flush=True,
            )
    if args.rivals:
        results += rival_rows(args, device)
    slow = next((r for r in results if r["row"] == "phase 2, double-backward, eager"), None)
    for r in results:
        if slow and r["row"].startswith("phase 2"):
            r["speed"], r["memory"] = slow["ms"] / r["ms"], r["MiB"] / slow["MiB"]
            print(
                f"{r['row']:38s} {r['speed']:6.2f} times the speed of double backward, {r['memory']:.2f} of its memory"
            )
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "net": args.net,
        "batch": args.batch,
        "size": args.size,
        "versions": versions(),
    }
    if args.json:
        threads = torch.get_num_threads()
        args.json.write_text(
            json.dumps({**about, "threads": threads, "commit": commit(), "rows": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
