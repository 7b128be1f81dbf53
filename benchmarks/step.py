"""Time and memory of one training step: the same work eagerly and compiled, on one device.

    python benchmarks/step.py                 8-layer CNN, batch 128, on CUDA if available
    python benchmarks/step.py --kernels cudnn --only bf16
    python benchmarks/step.py --batch 64 --only eager --json out.json
    python benchmarks/step.py --only double-backward "phase 2, exact"   the closed form and compiling, apart
    python benchmarks/step.py --net torchvision:resnet50 --batch 32 --size 224 --runs 1
    python benchmarks/step.py --net preact-resnet18 --runs 1 --processes --profile kernels

On CUDA, compiled steps are compiled first, which takes about a minute per row; with `--processes` all rows are compiled
at the same time, each in its own process, and then timed one after another. Times are medians of several repeats
with the device synchronized after each. Memory on CUDA is the peak of allocated memory while stepping or, for compiled
steps, the memory that stays reserved. On a CPU every row has its own process, and memory is the peak resident memory
without what the imports take. `double-backward` is the iteration as the paper's authors implemented it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from timing import free_gpu_memory, milliseconds, peak_memory_mib

from metalabelnet.data.batches import Batches
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import make_rows
from metalabelnet.engine import Engine, tf32_and_cudnn_benchmark
from metalabelnet.run_options import KERNELS
from metalabelnet.train.build_method import build_method
from metalabelnet.train.settings import Run
from metalabelnet.train.versions import commit, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MEMORY_OF_IMPORTS = peak_memory_mib()
MAX_AUGMENTED_SIZE = 64  # larger images are not cropped
DOUBLE_BACKWARD = "phase 2, double-backward, eager"
ROW_OPTIONS = ("net", "batch", "size", "seconds", "runs", "kernels")  # what a row's process needs to know


def make_problem(count: int, device: str, size: int) -> Problem:
    """Return random images: the cost of a step does not depend on their content."""
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 3, size, size), generator=g).to(torch.uint8)
    y = torch.arange(count) % 10
    rows = make_rows(x, y, true=y, classes=tuple("0123456789"), what="random images").to(device)
    return Problem(train=rows, clean=rows, validation=rows, test=rows, noise_rate=0.0, holds_out=False)


def make_engine(
    args: argparse.Namespace, device: str, *, compiled: bool, seed: int = 0, concurrent_runs: int = 1, **changes: Any
) -> Any:
    """Return an engine whose method is in the phase that is timed, and its batches."""
    net = args.net.removeprefix("torchvision:")
    torchvision_net = None
    if net != args.net:
        import torchvision

        torch.manual_seed(seed)
        torchvision_net = torchvision.models.get_model(net, num_classes=10)
    changes |= {"net": "auto" if torchvision_net else net, "batch_size": args.batch, "device": device, "seed": seed}
    run = Run(**{"warmup": 0, "epochs": 1, **changes})
    data = make_problem(getattr(args, "rows", args.batch), device, args.size)
    method = build_method(run, data, torchvision_net)
    batches = Batches(
        train=data.train,
        clean=data.clean,
        size=run.batch_size,
        augment="flip-crop" if args.size <= MAX_AUGMENTED_SIZE else "none",
        augment_clean=method.learns_from_clean,
        dtype=run.torch_dtype,
        seed=seed,
        strong_augment_from=method.strong_augment_from,
        mixup=method.mixup,
        second_view=method.second_view,
    )
    method.begin_epoch(0)
    bf16 = run.dtype == "bf16"
    kernels = args.kernels if compiled and bf16 else "auto"
    options = {"traced": compiled, "bf16": bf16, "kernels": kernels, "concurrent_runs": concurrent_runs}
    return Engine(method, batches.make_batch, **options), batches


def measure_row(name: str, args: argparse.Namespace, device: str, **changes: Any) -> dict[str, Any]:
    """Time the steps of one run, or of several concurrent runs on their own streams."""
    compiled, runs = changes.pop("compiled", False), changes.pop("runs", 1)
    cuda = device == "cuda"
    if cuda:
        free_gpu_memory()
        before = {kind: gpu_memory_mib(compiled=kind) for kind in (False, True)}
    start = time.perf_counter()
    concurrent = []
    for seed in range(runs):
        stream = torch.cuda.Stream() if cuda else None
        with torch.cuda.stream(stream):
            engine, batches = make_engine(args, device, compiled=compiled, seed=seed, concurrent_runs=runs, **changes)
            inputs = next(batches.plan_epoch(0, labeled_only=False))
            engine.step(inputs)
        concurrent.append((engine, inputs, stream))
    first_step = time.perf_counter() - start
    if cuda:
        torch.cuda.synchronize()
        free_gpu_memory()
    wait_for_start(args)

    def step() -> None:
        for engine, inputs, stream in concurrent:
            with torch.cuda.stream(stream):
                engine.step(inputs)

    ms = milliseconds(step, cuda=cuda, seconds=args.seconds) / runs
    if args.profile and cuda:
        write_kernel_table(step, args.profile / f"{name.replace(', ', '-').replace(' ', '-')}.txt")
    executed = [engine.executed() for engine, _, _ in concurrent]
    compiled = all(entry["execution"] == "compiled" for entry in executed)
    # Replaying a CUDA graph allocates nothing: its memory was reserved when it was captured.
    memory = gpu_memory_mib(compiled=compiled) - before[compiled] if cuda else peak_memory_mib() - MEMORY_OF_IMPORTS
    return {"row": name, "ms": ms, "MiB": memory, "first_step_s": first_step, "executed": executed[0]}


def wait_for_start(args: argparse.Namespace) -> None:
    """With `--wait`, say that everything is compiled, and wait for a line on the standard input before timing."""
    if args.wait:
        print("ready", flush=True)
        sys.stdin.readline()


def gpu_memory_mib(*, compiled: bool) -> float:
    """Return the GPU memory that steps need."""
    return (torch.cuda.memory_reserved() if compiled else torch.cuda.max_memory_allocated()) / 2**20


def write_kernel_table(step: Callable[[], None], path: Path) -> None:
    """Write the GPU kernels of a step, with the times of ten steps, longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
    path.parent.mkdir(parents=True, exist_ok=True)
    averages = profile.key_averages()
    path.write_text(averages.table(sort_by="self_cuda_time_total", row_limit=-1, max_name_column_width=100))


def measure_in_subprocesses(names: Iterable[str], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure rows in processes of their own: all make their first step at the same time and are then timed in turn."""
    options = [text for option in ROW_OPTIONS for text in (f"--{option}", str(getattr(args, option)))]
    options += ["--profile", str(args.profile)] if args.profile else []
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, __file__, *options, "--wait", "--row"]
    children = [subprocess.Popen([*command, name], **pipes) for name in names]
    for child in children:
        while child.stdout.readline() not in ("ready\n", ""):
            pass
    wait_for_start(args)
    for child in children:
        out, _ = child.communicate("\n")
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, child.args)
        yield json.loads(out.splitlines()[-1])


def measure_rivals(args: argparse.Namespace, device: str) -> list[dict[str, Any]]:
    """Measure phase 2 of the 8-layer CNN with other packages, in float32."""
    import rivals

    results = []
    with tf32_and_cudnn_benchmark():
        for r in rivals.measure_rows(batch=args.batch, size=args.size, device=device, seconds=args.seconds):
            name = f"phase 2, {r['row']} {r['version']}".strip()
            text = r["note"] or f"{r['ms']:9.3f} ms {r['MiB']:8.0f} MiB"
            print(f"{name:38s} {text}", flush=True)
            if not r["note"]:
                results.append({"row": name, "ms": r["ms"], "MiB": r["MiB"]})
    return results


def list_rows(device: str, runs: int) -> dict[str, dict[str, Any]]:
    """Return the settings of each row."""
    plain, phase2, plus = ({"method": m} for m in ("cross-entropy", "metalabelnet", "metalabelnet-plus"))
    dividemix = {"method": "dividemix"}
    double_backward = {**phase2, "settings": {"differentiation": "double-backward"}}
    compiled, bf16 = {"compiled": True}, {"compiled": True, "dtype": "bf16"}
    rows: dict[str, dict[str, Any]] = {
        "plain step, eager": plain,
        "phase 2, exact, eager": phase2,
        "phase 2 of plus, eager": plus,
        "phase 2, finite-difference, eager": {**phase2, "settings": {"differentiation": "finite-difference"}},
        DOUBLE_BACKWARD: double_backward,
        "DivideMix, eager": dividemix,
        "plain step, compiled": plain | compiled,
        "phase 2, double-backward, compiled": double_backward | compiled,
        "phase 2, exact, compiled": phase2 | compiled,
    }
    if device == "cuda":
        rows |= {
            "plain step, compiled, bf16": plain | bf16,
            "phase 2, double-backward, compiled, bf16": double_backward | bf16,
            "phase 2, exact, compiled, bf16": phase2 | bf16,
            "phase 2 of plus, compiled, bf16": plus | bf16,
            "DivideMix, compiled, bf16": dividemix | bf16,
        }
    if device == "cuda" and runs > 1:
        rows |= {
            f"plain step, {runs} concurrent, bf16, each": plain | bf16 | {"runs": runs},
            f"phase 2, {runs} concurrent, bf16, each": phase2 | bf16 | {"runs": runs},
        }
    return rows


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="cnn8", help="a network of this package, or torchvision:NAME")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each row is timed")
    parser.add_argument("--runs", type=int, default=8, help="number of concurrent runs in the concurrent rows")
    parser.add_argument("--kernels", default="auto", choices=KERNELS, help="convolution kernels of compiled bf16 rows")
    parser.add_argument("--only", metavar="TEXT", nargs="+", help="rows whose name contains one of these")
    parser.add_argument("--rivals", action="store_true", help="measure TorchOpt, higher and betty, too")
    parser.add_argument("--processes", action="store_true", help="compile all rows at once, each in its own process")
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="write a table of GPU kernels for each row")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure all rows, print them, and write them if asked."""
    args = parse_arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = list_rows(device, args.runs)
    if args.row:
        with tf32_and_cudnn_benchmark():
            print(json.dumps(measure_row(args.row, args, device, **rows[args.row])))
        return
    names = [name for name in rows if not args.only or any(text in name for text in args.only)]
    if device == "cpu":
        measured = (r for name in names for r in measure_in_subprocesses([name], args))
    elif args.processes:
        measured = measure_in_subprocesses(names, args)
    else:
        measured = (measure_row(name, args, device, **rows[name]) for name in names)
    results = []
    with tf32_and_cudnn_benchmark():
        for r in measured:
            results.append(r)
            print(
                f"{r['row']:38s} {r['ms']:9.3f} ms {r['MiB']:8.0f} MiB   first step {r['first_step_s']:.1f} s",
                flush=True,
            )
    if args.rivals:
        results += measure_rivals(args, device)
    reference = next((r for r in results if r["row"] == DOUBLE_BACKWARD), None)
    for r in results:
        if reference and r["row"].startswith("phase 2"):
            r["speed"], r["memory"] = reference["ms"] / r["ms"], r["MiB"] / reference["MiB"]
            print(f"{r['row']:38s} {r['speed']:6.2f}x the speed of double backward, {r['memory']:.2f}x its memory")
    if args.json:
        settings = {name: getattr(args, name) for name in ("net", "batch", "size", "kernels")}
        date, threads = datetime.now(UTC).date().isoformat(), torch.get_num_threads()
        about = {"date": date, **settings, "versions": versions(), "threads": threads, "commit": commit()}
        args.json.write_text(json.dumps({**about, "rows": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
