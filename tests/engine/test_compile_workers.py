"""Runs that read samples from disk end PyTorch's compile processes at the end of an epoch in which they compiled.

On a GPU, Inductor starts these processes to compile Triton kernels. Without Triton it compiles C++ in its own process,
so that a test starts them in the same way.
"""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import fx

from metalabelnet.data.disk_tensor import DiskTensor
from metalabelnet.data.problem import Problem
from metalabelnet.engine import compiler, torch_private
from metalabelnet.train import train
from small_runs import small_problem, small_run


@pytest.fixture
def on_disk(tmp_path: Path) -> Problem:
    """A problem whose samples are read from disk."""
    problem = small_problem()

    def move(part: str) -> Any:
        rows = getattr(problem, part)
        stored = DiskTensor.empty(len(rows), tuple(rows.x.shape[1:]), rows.x.dtype, tmp_path)
        stored[0] = rows.x
        return replace(rows, x=stored)

    return replace(problem, train=move("train"), clean=move("clean"))


@pytest.fixture
def compiled_graphs(monkeypatch: pytest.MonkeyPatch) -> list[fx.GraphModule]:
    """A list that gets each graph in place of the compiler, whose import takes seconds; the graph itself is run."""
    graphs: list[fx.GraphModule] = []

    def get_compiled(graph: fx.GraphModule, examples: Any) -> fx.GraphModule:
        graphs.append(graph)
        return graph

    monkeypatch.setattr(compiler, "get_compiled", get_compiled)
    monkeypatch.setattr(torch_private, "COMPILE", {})
    return graphs


def test_workers_end_with_each_epoch_that_compiled(
    on_disk: Problem, compiled_graphs: list[fx.GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each phase is compiled in its first epoch. With samples in memory the workers stay."""
    run, events = small_run("fine-tune", execution="compiled", epochs=4, warmup=2), []
    monkeypatch.setattr(torch_private, "stop_compile_workers", lambda: events.append("stop"))
    result = train(run, problem=on_disk, on_progress=lambda p: events.append(p.epoch) if p.metrics else None)
    assert len(compiled_graphs) == 2
    assert events == ["stop", 1, 2, "stop", 3, 4]
    events.clear()
    in_memory = train(run, problem=small_problem())
    assert events == []
    assert [line["loss"] for line in result.history] == pytest.approx([line["loss"] for line in in_memory.history])


@pytest.mark.parametrize("place", [("torch._no_such_module", "f"), ("torch", "no_such_name")])
def test_without_the_private_function_the_run_goes_on(
    place: tuple[str, str], on_disk: Problem, compiled_graphs: list[fx.GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any warning fails the test."""
    monkeypatch.setitem(torch_private.API, "shutdown_compile_workers", place)
    result = train(small_run("cross-entropy", execution="compiled", epochs=1, warmup=0), problem=on_disk)
    assert len(compiled_graphs) == 1
    assert len(result.history) == 1


def child_processes() -> list[str]:
    """The compile workers that this process has started."""
    out = subprocess.run(
        ["ps", "-ww", "--ppid", str(os.getpid()), "-o", "args="], check=True, capture_output=True, text=True
    )
    return [line for line in out.stdout.splitlines() if "compile_worker" in line]


@pytest.mark.slow
def test_no_worker_is_left_and_a_later_compile_works(
    on_disk: Problem, compiled_graphs: list[fx.GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    graphs, seen = compiled_graphs, []
    get_graph = compiler.get_compiled

    def compile_with_workers(graph: fx.GraphModule, examples: Any) -> Any:
        AsyncCompile.warm_pool()
        AsyncCompile.wait_pool_ready()
        assert AsyncCompile.process_pool().submit(os.getpid).result() not in (None, os.getpid())
        assert len(child_processes()) == 1
        return get_graph(graph, examples)

    monkeypatch.setattr(compiler, "get_compiled", compile_with_workers)
    run = small_run("metalabelnet", execution="compiled", epochs=3, warmup=1)
    with config.patch(compile_threads=2):
        train(run, problem=on_disk, on_progress=lambda p: seen.append(child_processes()) if p.metrics else None)
    assert len(graphs) == 2
    assert seen == [[], [], []]
