"""Memory of a label table on each rank, time of a lookup and of gathering it for a checkpoint. Gloo, on this machine.

    python benchmarks/label_table_memory.py --samples 200000 --classes 100 --ranks 1 2 4 --json out.jsonl

A line of JSON for each number of ranks. Memory is what the process has in RAM more than before the table was made:
held after it, and the peak of rank 0 and of the other ranks while a checkpoint is gathered, which rank 0 holds whole.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import torch
from torch import distributed

from metalabelnet.core.ranks import World, several_ranks
from metalabelnet.core.soft_label_table import SoftLabelTable
from metalabelnet.train.rank_agreement import gather_tables

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, LOOKUPS, MB = 128, 200, 1e6


def memory(key: str) -> float:
    """Return this process's memory in MB: VmRSS now, VmHWM at most since `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1]) / MB


def reset_peak() -> None:
    """Let VmHWM start from the current memory."""
    Path("/proc/self/clear_refs").write_text("5")


def median_ms(function: Callable[[], Any], repeats: int) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def measure(rank: int, size: int, folder: str, samples: int, classes: int) -> None:
    """Make the table of one rank, and write what was measured to a file."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    given = torch.arange(samples) % classes
    index = torch.randperm(samples, generator=torch.Generator().manual_seed(0))[:BATCH]
    with several_ranks(World(rank=rank, size=size) if size > 1 else None):
        SoftLabelTable(given[:BATCH], classes, 10.0, torch.float32)[torch.arange(BATCH)]  # loads what it needs
        before = memory("VmRSS")
        table = SoftLabelTable(given, classes, 10.0, torch.float32)
        result = {"held_mb": memory("VmRSS") - before}
        result["lookup_ms"] = median_ms(lambda: table[index], LOOKUPS)
        reset_peak()
        result["gather_ms"] = median_ms(lambda: gather_tables(table.state_dict()), 5)
        result["gather_peak_mb"] = memory("VmHWM") - before
    Path(folder, f"{rank}.json").write_text(json.dumps(result))
    distributed.destroy_process_group()


def main() -> None:
    """Start the ranks of each measurement and print its line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--json", type=Path, help="file to append the results to")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for size in args.ranks:
        with tempfile.TemporaryDirectory() as folder:
            values = folder, args.samples, args.classes
            processes = [context.Process(target=measure, args=(rank, size, *values)) for rank in range(size)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(size)]
        line = {"samples": args.samples, "classes": args.classes, "ranks": size, "batch": BATCH}
        line |= {key: [round(rank[key], 2) for rank in ranks] for key in ranks[0]}
        text = json.dumps(line | {"date": datetime.now(UTC).date().isoformat()})
        print(text, flush=True)
        if args.json is not None:
            with args.json.open("a") as file:
                file.write(text + "\n")


if __name__ == "__main__":
    main()
