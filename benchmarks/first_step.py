"""CPU time of the stages of a first step that run in Python on one thread: tracing, and AOTAutograd before Inductor.

    python benchmarks/first_step.py                                  phase 2 of metalabelnet, PreAct ResNet-18
    python benchmarks/first_step.py --method metalabelnet-plus --json out.json

The stages are the same on every device; the graph is that of a CPU in float32. Times are the CPU time of the process,
which other processes disturb less than the wall time. The compiler is stopped when Inductor gets the graph: nothing is
lowered to kernels.
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

from step import make_engine

from metalabelnet.engine import compiler, torch_private, tracing
from metalabelnet.train.versions import commit, versions


class StopBeforeInductor(BaseException):
    """Not an `Exception`, so that no fallback catches it."""


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the CPU seconds of each stage and the size of the graph between them."""
    torch_private.require(compiler=True)
    engine, batches = make_engine(args, "cpu", compiled=True, method=args.method)
    inputs = next(batches.plan_epoch(0, labeled_only=False))
    row: dict[str, Any] = {}
    trace_step, load, compile_graph = tracing.trace_step, torch_private.load, compiler.compile_graph

    def timed_trace(*arguments: Any) -> Any:
        start = time.process_time()
        traced = trace_step(*arguments)
        row.update(trace_s=time.process_time() - start, nodes=len(traced.graph.graph.nodes))
        return traced

    def timed_compile(*arguments: Any) -> Any:
        start = time.process_time()

        def stop(graph: torch.fx.GraphModule, *_: Any, **__: Any) -> None:
            row.update(aot_s=time.process_time() - start, nodes_for_inductor=len(graph.graph.nodes))
            raise StopBeforeInductor

        torch_private.load = lambda name: stop if name == "compile_fx_inner" else load(name)
        return compile_graph(*arguments)

    tracing.trace_step, compiler.compile_graph = timed_trace, timed_compile
    try:
        engine.step(inputs)
    except StopBeforeInductor:
        return row
    raise SystemExit(f"the step was not compiled: {engine.fallbacks}")


def main() -> None:
    """Measure one row, print it, and write it if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="preact-resnet18")
    parser.add_argument("--method", default="metalabelnet")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--json", type=Path, help="file for the result")
    args = parser.parse_args()
    torch.set_num_threads(1)
    row = measure(args)
    settings = {name: getattr(args, name) for name in ("net", "method", "batch", "size")}
    about = {"date": datetime.now(UTC).date().isoformat(), **settings, "versions": versions(), "commit": commit()}
    text = json.dumps({**about, **row}, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
