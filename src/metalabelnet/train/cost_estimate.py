"""How long a run will take and how much memory, before it starts: a few plain steps are timed, and multiplied."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from metalabelnet import nets
from metalabelnet.data.batches import to_input
from metalabelnet.data.rows import UNLABELED
from metalabelnet.train.prepare import net_name

if TYPE_CHECKING:
    from metalabelnet.data.problem import Problem
    from metalabelnet.train.settings import Run

# What a run costs in runs of cross-entropy, by the seconds of the comparison on digits in the README; MLNT, there with
# two sets of synthetic labels, has ten by default. What is not named trains one network plainly.
COST = {
    "metalabelnet": 2.9,
    "metalabelnet-plus": 4.0,
    "mslg": 2.5,
    "meta-weight-net": 3.2,
    "mlnt": 20.0,
    "co-teaching": 2.5,
    "joint-optimization": 2.4,
    "forward": 2.1,
}
# These hold several passes at a time.
LOOKS_AHEAD = ("metalabelnet", "metalabelnet-plus", "mslg", "meta-weight-net", "mlnt")
TIMED = 2  # steps
# Where steps are recorded: what one takes of the time of an eager one, and compiling. On an H200 the 8-layer CNN takes
# 0.08 of it in bfloat16 and 0.17 in single precision; ResNet-50, which waits less for the host, 0.21 in bfloat16.
RECORDED_BF16, RECORDED, COMPILING = 0.13, 0.25, 60.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Rough, and meant to tell minutes from hours, and what fits from what does not."""

    seconds: float
    bytes: int

    def __str__(self) -> str:
        for size, name in ((3600, "h"), (60, "min"), (0, "s")):
            if self.seconds >= size:
                took = f"{math.ceil(self.seconds / max(1, size))} {name}"
                break
        return f"about {took} and {_rounded(self.bytes)}"


def estimate(run: Run, problem: Problem) -> Estimate:
    """Time plain steps of the run's network on its first rows, and count what they keep."""
    train, device = problem.train, problem.train.x.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        net = nets.build(net_name(run, problem.shape, problem.inputs), problem.shape, len(train.classes), seed=0).to(
            device, run.torch_dtype
        )
        x = to_input(train.x[: run.batch_size], run.torch_dtype)
        y = train.given[: run.batch_size].clamp_min(0)
        kept = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal kept
            kept += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        began = _now(device)
        for _ in range(TIMED):
            cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        seconds = (_now(device) - began) / TIMED
    compiling, share = 0.0, 1.0
    if run.records(device):
        compiling, share = COMPILING, RECORDED_BF16 if run.dtype == "bf16" else RECORDED
    labeled = int((train.given != UNLABELED).sum())
    steps = run.epochs * max(1, labeled // run.batch_size)
    weights = sum(tensor.nbytes for tensor in net.state_dict().values())
    passes = 3 if run.method in LOOKS_AHEAD else 1
    samples = train.x.nbytes if isinstance(train.x, Tensor) else 0
    return Estimate(
        seconds=compiling + share * seconds * steps * COST.get(run.method, 1.0),
        bytes=samples + passes * kept + (3 + 2 * passes) * weights,
    )


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _rounded(size: int) -> str:
    """A size in one or two digits: more would be a promise."""
    gib, mib = size / 2**30, size / 2**20
    return f"{gib:.1f} GiB" if gib >= 1 else f"{max(1, round(mib, 1 - len(str(int(mib))) + 1)):.0f} MiB"
