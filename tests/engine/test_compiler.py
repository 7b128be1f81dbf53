"""Compiled graphs are reused within a process and from disk."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from metalabelnet.engine import compiler
from metalabelnet.engine.materialize import materialize


def test_same_graph_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph's code is the key: the compiler must not change the graph."""
    monkeypatch.setattr(compiler, "_compiled", {})
    x = torch.rand(7)
    graph = make_fx(lambda x: (2 * x).sum())(x)
    first = compiler.get_compiled(graph, [x])
    assert compiler.get_compiled(graph, [x]) is first
    assert isinstance(first(x), Tensor)


def test_graph_whose_tiling_cannot_be_analyzed_is_compiled_without_the_analysis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[bool] = []

    def fail(message: str) -> None:
        def fail_with_analysis(graph: object, _: object, options: dict[str, object]) -> object:
            attempts.append("triton.coalesce_tiling_analysis" in options)
            if not attempts[-1]:
                raise RuntimeError(message)
            return graph

        attempts.clear()
        monkeypatch.setattr(compiler, "_compile", fail_with_analysis)

    x = torch.rand(7)
    graph = make_fx(lambda x: (2 * x).sum())(x)
    fail("InductorError: TypeError: Expected a number but got Add:")
    assert compiler.compile_graph(graph, [x]) is graph
    assert attempts == [False, True]
    fail("no compiler")
    with pytest.raises(RuntimeError, match="no compiler"):
        compiler.compile_graph(graph, [x])
    assert attempts == [False]


def test_compiled_graph_is_found_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    def step(x: Tensor, y: Tensor) -> Tensor:
        return materialize(x * y).sum() + (x * y).sum()

    x, y = torch.rand(7, dtype=torch.float64), torch.rand(7, dtype=torch.float64)
    graph = make_fx(step)(x, y)

    def count_cache_hits() -> int:
        """Compile once more and return Inductor's cache hits."""
        counters.clear()
        torch.testing.assert_close(compiler.compile_graph(graph, [x, y])(x, y), step(x, y), rtol=1e-12, atol=1e-12)
        return counters["inductor"]["fxgraph_cache_hit"]

    with fresh_cache(dir=str(tmp_path)):
        assert count_cache_hits() == 0
        assert count_cache_hits() == 1
        changed = tmp_path / "materialize.py"
        changed.write_text("# another version of the engine\n")
        monkeypatch.setattr(compiler, "source_files", lambda: [str(changed)])
        assert count_cache_hits() == 0  # the result of another version is not used


def test_cache_key_covers_all_files_of_the_engine() -> None:
    names = {Path(file).name for file in compiler.source_files()}
    assert {"compiler.py", "materialize.py", "operators.py", "kernels.py"} <= names
