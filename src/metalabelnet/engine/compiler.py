"""Compilation of a traced step to fused kernels by PyTorch's compiler, Inductor.

Compiling a whole iteration of phase 2 takes about a minute, so nothing is compiled twice: runs of one process with the
same graph share the result, and other processes find it in Inductor's cache on disk.
"""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from metalabelnet.engine import materialize, torch_private

if TYPE_CHECKING:
    from collections.abc import Sequence

CompiledStep = Callable[..., Tensor]
OPTIONS: dict[str, Any] = {
    "assert_indirect_indexing": False,  # batches index existing rows only: kernels need no bounds check
    "reorder_for_locality": False,  # keeps independent expressions adjacent, so that they are fused
    # Recompute cheap expressions of values that a kernel reads anyway (a normalized activation): do not store them.
    "realize_reads_threshold": 12,
    "realize_opcount_threshold": 50,
    "inplace_buffers": False,  # kernels that write where they read took a third longer
}

# PyTorch 2.13 fails to analyze how some kernels on CUDA read padded, flipped weights, with this error.
TILING_ERROR = "Expected a number but got"
WITHOUT_TILING_ANALYSIS = {"triton.coalesce_tiling_analysis": False}

_compiled: dict[Any, CompiledStep] = {}


def get_compiled(graph: fx.GraphModule, examples: Sequence[Tensor]) -> CompiledStep:
    """Return the graph compiled for tensors like these, from an earlier call if the graph is the same."""
    key = (graph.code, *((t.shape, t.stride(), t.dtype, t.device) for t in examples))
    if key not in _compiled:
        _compiled[key] = compile_graph(graph, examples)
    return _compiled[key]


def compile_graph(graph: fx.GraphModule, examples: Sequence[Tensor]) -> CompiledStep:
    """Compile a graph for tensors like these."""
    gc.freeze()  # collections while compiling need not visit older objects
    try:
        return _compile(graph, examples, OPTIONS)
    except Exception as error:
        if TILING_ERROR not in str(error):
            raise
        return _compile(graph, examples, OPTIONS | WITHOUT_TILING_ANALYSIS)
    finally:
        gc.unfreeze()


def _compile(graph: fx.GraphModule, examples: Sequence[Tensor], options: dict[str, Any]) -> CompiledStep:
    """Compile a graph with these options of Inductor."""
    load = torch_private.load
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # Inductor's deprecation warnings about itself
        compile_fx, compile_fx_inner = load("compile_fx"), load("compile_fx_inner")
        fx_graph_cse, tracing, tracing_context = load("fx_graph_cse"), load("tracing"), load("TracingContext")
        materialize.register_inductor_lowering()

        def merge_and_compile(inner: fx.GraphModule, inputs: Any, **settings: Any) -> Any:
            # The graph is functional at this point: equal expressions have equal values and can be merged.
            merged = fx.GraphModule(inner, fx_graph_cse(inner.graph))
            merged.meta.update(inner.meta)
            return compile_fx_inner(merged, inputs, **settings)

        options = options | {"post_grad_custom_pre_pass": _version_marker()}
        fake_mode = load("FakeTensorMode")(shape_env=load("ShapeEnv")())  # Inductor's cache needs a shape environment
        inputs = [fake_mode.from_tensor(tensor, static_shapes=True) for tensor in examples]
        with load("inductor_config").patch(options), tracing(tracing_context(fake_mode)):
            own_copy = fx.GraphModule(graph, copy.deepcopy(graph.graph))  # the compiler changes the graph it is given
            step: Any = compile_fx(own_copy, inputs, inner_compile=merge_and_compile)
    return step  # type: ignore[no-any-return]


def source_files() -> list[str]:
    """Return the files of the engine that a compiled step depends on."""
    return sorted(map(str, Path(__file__).parent.rglob("*.py")))


def _version_marker() -> Any:
    """Return a graph pass that does nothing, but puts the engine's version into the key of Inductor's disk cache."""
    get_hash_for_files = torch_private.load("get_hash_for_files")

    class VersionMarker(torch_private.load("CustomGraphPass")):  # type: ignore[misc]
        def __call__(self, graph: fx.Graph) -> None:
            pass

        def uuid(self) -> Any:
            return get_hash_for_files(tuple(source_files()))

    return VersionMarker()
