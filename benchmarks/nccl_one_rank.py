"""A world of one rank with NCCL on a GPU: all collectives of a run are called, and the result is that without ranks.

    python benchmarks/nccl_one_rank.py

With one GPU, nothing can be shared between ranks. This shows that NCCL accepts the tensors and types that are
passed to it (float64, float32, bytes), and that they return unchanged.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import distributed

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from metalabelnet.core.ranks import World, several_ranks
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import Rows
from metalabelnet.train import train
from metalabelnet.train.settings import make_run
from metalabelnet.train.versions import commit, versions

if TYPE_CHECKING:
    from torch import Tensor

ROWS, CLASSES, SHAPE = 256, 5, (3, 12, 12)
METHODS = ("metalabelnet", "elr")  # with a label table, too
TOLERANCE = 1e-12


def make_rows(device: str) -> Rows:
    """Return random images."""
    random = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (ROWS, *SHAPE), dtype=torch.uint8, generator=random)
    y = torch.randint(0, CLASSES, (ROWS,), generator=random)
    names, ids = tuple(map(str, range(CLASSES))), tuple(map(str, range(ROWS)))
    return Rows(x=x, given=y, true=y, index=torch.arange(ROWS), classes=names, ids=ids).to(device)


def final_weights(method: str, device: str) -> dict[str, Tensor]:
    """Return the weights after two epochs of eager steps in float64."""
    rows = make_rows(device)
    fields = {"net": "small-cnn", "batch_size": 32, "epochs": 2, "warmup": 1, "dtype": "float64", "device": device}
    run = make_run("cifar10", recipe="paper", method=method, execution="eager", augment="flip-crop", **fields)
    problem = Problem(train=rows, clean=rows, validation=rows, test=rows, noise_rate=0.0)
    return train(run, problem=problem).method.model_state_dict()


def main() -> None:
    """Print the largest relative difference of the weights for each method."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="file to append the result to")
    args = parser.parse_args()
    start, differences = time.monotonic(), {}
    alone = {method: final_weights(method, args.device) for method in METHODS}
    backend = "cpu:gloo,cuda:nccl" if args.device.startswith("cuda") else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        store = distributed.FileStore(f"{folder}/store", 1)
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
        with several_ranks(World(rank=0, size=1)):
            for method in METHODS:
                weights = final_weights(method, args.device)
                differences[method] = max(
                    float((value - weights[name]).abs().max() / value.abs().max().clamp_min(1))
                    for name, value in alone[method].items()
                )
        distributed.destroy_process_group()
    line = {"date": datetime.now(UTC).date().isoformat(), "commit": commit(), "backend": backend, "ranks": 1}
    line |= {"versions": versions(torch.device(args.device)), "differences": differences}
    line |= {"seconds": round(time.monotonic() - start, 1)}
    print(json.dumps(line), flush=True)
    if args.json is not None:
        with args.json.open("a") as file:
            file.write(json.dumps(line) + "\n")
    if not all(value < TOLERANCE for value in differences.values()):
        raise SystemExit("the weights differ")


if __name__ == "__main__":
    main()
