"""What was compiled once is found again, by other processes too."""

import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from metalabelnet.engine import compiler
from metalabelnet.engine.materialize import kept


def test_runs_that_share_a_recording_share_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph is the key: the compiler must leave it as it was."""
    monkeypatch.setattr(compiler, "_compiled", {})
    x = torch.rand(7)
    graph = make_fx(lambda x: (2 * x).sum())(x)
    first = compiler.compiled(graph, [x])
    assert compiler.compiled(graph, [x]) is first
    assert isinstance(first(x), Tensor)


def test_another_process_finds_what_was_compiled_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    def step(x: Tensor, y: Tensor) -> Tensor:
        return kept(x * y).sum() + (x * y).sum()

    x, y = torch.rand(7, dtype=torch.float64), torch.rand(7, dtype=torch.float64)
    graph = make_fx(step)(x, y)

    def found() -> int:
        """How often the compiler found what it was asked for, after asking once more."""
        counters.clear()
        torch.testing.assert_close(compiler.compile_graph(graph, [x, y])(x, y), step(x, y), rtol=1e-12, atol=1e-12)
        return counters["inductor"]["fxgraph_cache_hit"]

    with fresh_cache(dir=str(tmp_path)):
        assert found() == 0
        assert found() == 1
        changed = tmp_path / "kept.py"
        changed.write_text("# another version of our part\n")
        monkeypatch.setattr(compiler.kept, "__file__", str(changed))
        assert found() == 0  # what an older version made is not taken


def test_the_compiler_is_there_when_what_was_done_meanwhile_is_done() -> None:
    """Whatever came of that."""
    with pytest.raises(KeyError), compiler.importing_beside(on=True):
        raise KeyError
    assert "torch._inductor.compile_fx" in sys.modules
    before = threading.active_count()
    with compiler.importing_beside(on=False):
        assert threading.active_count() == before


def test_a_compiler_that_cannot_be_imported_is_not_told_of_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What uses it says so: a thread would print a traceback across what is done meanwhile."""

    def fails(name: str) -> None:
        raise ImportError(name)

    told: list[object] = []
    monkeypatch.setattr(compiler.importlib, "import_module", fails)
    monkeypatch.setattr(threading, "excepthook", told.append)
    with compiler.importing_beside(on=True):
        pass
    assert not told
