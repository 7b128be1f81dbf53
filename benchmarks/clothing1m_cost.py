"""Print what the paper's runs on Clothing1M need on 1, 8 and 64 GPUs, computed from stored measurements.

    python benchmarks/clothing1m_cost.py

Measured on one H200: a step of ResNet-50 with 32 rows, compiled and eager, and its memory. Measured on the cores of
a host of one H200: images decoded per second of CPU time. Counted by `rank_traffic.py`: what a rank passes to the
collectives. Assumed: the network (`LINKS`, `LATENCY_SECONDS`). Nothing here was run on several GPUs.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metalabelnet.reproduction.photos import clothing1m

RESULTS = Path(__file__).parents[1] / "results"
EPOCHS = clothing1m("metalabelnet", "", 0)["epochs"]
IMAGES = 1_000_000  # with noisy labels
LINKS = {8: 450e9, 64: 50e9}  # bytes per second and GPU: NVLink inside one machine; 400 Gb/s between machines
LATENCY_SECONDS = 50e-6  # of a collective
COLUMNS = (
    *("GPUs", "runs at a time", "batch", "steps of a run", "step", "a run takes", "memory per GPU"),
    *("cores that decode", "received per GPU and step: sums + rows, messages"),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """How many GPUs train how many runs at a time, and the rows of a batch."""

    gpus: int
    runs: int
    batch: int

    @property
    def ranks(self) -> int:
        return self.gpus // self.runs


CASES = (
    Case(gpus=1, runs=1, batch=32),
    Case(gpus=8, runs=8, batch=32),
    Case(gpus=8, runs=1, batch=32),
    Case(gpus=8, runs=1, batch=256),
    Case(gpus=64, runs=64, batch=32),
    Case(gpus=64, runs=1, batch=2048),
)


def read_lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / path).read_text().splitlines()]


def measured_steps() -> tuple[dict[str, Any], dict[str, Any]]:
    """Milliseconds and MiB of a step with 32 rows: compiled, and eager by double backward."""
    rows = json.loads((RESULTS / "speed" / "2026-11-17-h200-resnet50.json").read_text())["rows"]
    by_name = {row["row"]: row for row in rows}
    return by_name["phase 2, exact, recorded, bf16"], by_name["phase 2, double-backward, eager"]


def decoded_per_second() -> float:
    """Images that one core decodes per second, during training steps with as many clean rows as training rows."""
    (line,) = [line for line in read_lines("streaming/h200.jsonl") if "from the pack" in line]
    steps = line["from the pack"]
    images = 2 * int(line["settings"]["batch"])
    return images / (steps["ms"] / 1000) / float(steps["cores busy, workers"])


def traffic(case: Case) -> tuple[float, float, int]:
    """Bytes of sums and of rows that a rank receives per step, and the number of messages.

    What a rank sends depends on its own rows alone. A ring all-reduce of n bytes receives 2 n (N − 1) / N, an
    all-gather of n bytes per rank n (N − 1).
    """
    if case.ranks == 1:
        return 0.0, 0.0, 0
    counts = {line["batch"] // line["ranks"]: line for line in read_lines("streaming/rank_traffic.jsonl")}
    count = counts[case.batch // case.ranks]
    own = sum(count[f"{kind}: bytes"] for kind in ("samples", "BatchNorm", "logits and features"))
    messages = sum(value for name, value in count.items() if name.endswith("messages")) + 3  # samples, whether to stop
    return count["gradients: bytes"] * 2 * (case.ranks - 1) / case.ranks, own * (case.ranks - 1), messages


def cells(case: Case) -> list[str]:
    """The cells of one row of the table."""
    compiled, eager = measured_steps()
    sums, gathered, messages = traffic(case)
    seconds, memory, at_most, at_least = compiled["ms"] / 1000, compiled["MiB"], "", ""
    if case.ranks > 1:
        seconds = eager["ms"] / 1000 + (sums + gathered) / LINKS[case.gpus] + messages * LATENCY_SECONDS
        memory, at_most, at_least = eager["MiB"], "≤ ", "≥ "
    steps = EPOCHS * math.ceil(IMAGES / case.batch)
    return [
        str(case.gpus),
        f"{case.runs}, of {case.ranks} GPU{'s' if case.ranks > 1 else ''}",
        str(case.batch),
        f"{steps:,}",
        f"{at_most}{1000 * seconds:.0f} ms",
        f"{at_most}{steps * seconds / 3600:.1f} h",
        f"{at_most}{memory / 1024:.1f} GiB",
        f"{at_least}{math.ceil(case.runs * 2 * case.batch / seconds / decoded_per_second()):,}",
        "–" if case.ranks == 1 else f"{sums / 1e6:,.0f} + {gathered / 1e6:,.0f} MB, {messages}",
    ]


def table() -> str:
    """The table as Markdown."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *map(cells, CASES)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(table())
