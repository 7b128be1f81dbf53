"""A recording as fused kernels, by PyTorch's compiler.

Compiling takes a minute for a whole iteration of phase 2, so that nothing is compiled twice: runs of one process
that record the same share it, and other processes find it on disk, in the compiler's own folder.
"""

from __future__ import annotations

import copy
import importlib
import threading
import warnings
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from metalabelnet.engine import hopper, materialize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Step = Callable[..., Tensor]


@contextmanager
def importing_beside(*, on: bool) -> Iterator[None]:
    """Import PyTorch's compiler, which takes seconds, beside what is done meanwhile."""
    beside = threading.Thread(target=_import_compiler, daemon=True)
    if on:
        beside.start()
    try:
        yield
    finally:
        if on:
            beside.join()


def _import_compiler() -> None:
    with suppress(Exception):  # whatever it is, it comes up again where the compiler is used
        importlib.import_module("torch._inductor.compile_fx")


_compiled: dict[Any, Step] = {}


def compiled(graph: fx.GraphModule, examples: Sequence[Tensor]) -> Step:
    """The graph compiled for tensors of the form of these, or what was made of the same graph before."""
    key = (graph.code, *((t.shape, t.stride(), t.dtype, t.device) for t in examples))
    if key not in _compiled:
        _compiled[key] = compile_graph(graph, examples)
    return _compiled[key]


def compile_graph(graph: fx.GraphModule, examples: Sequence[Tensor]) -> Step:
    """Compile for tensors of the form of these."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # what the compiler thinks of its own parts
        from torch._functorch.compile_utils import fx_graph_cse
        from torch._guards import TracingContext, tracing
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        materialize.teach_compiler()

        def without_repeats(inner: fx.GraphModule, inputs: Any, **options: Any) -> Any:
            # By now nothing in the graph works in place, so that equal expressions are equal values.
            merged = fx.GraphModule(inner, fx_graph_cse(inner.graph))
            merged.meta.update(inner.meta)
            return compile_fx_inner(merged, inputs, **options)

        # The rows of a batch were drawn from the rows there are: no kernel need check them. What is quick to compute
        # of numbers that a kernel reads anyway (a normalised activation) is computed again rather than stored. And
        # what a recording computes side by side stays there: to be joined is worth more than to be near its reader.
        options: dict[str, Any] = {"assert_indirect_indexing": False, "reorder_for_locality": False}
        options |= {"realize_reads_threshold": 12, "realize_opcount_threshold": 50}
        options |= {"inplace_buffers": False}  # kernels that write where they read took a third longer
        options |= {"post_grad_custom_pre_pass": _our_part()}
        shapes = FakeTensorMode(shape_env=ShapeEnv())  # without them the compiler neither keeps nor finds anything
        given = [shapes.from_tensor(tensor, static_shapes=True) for tensor in examples]
        with config.patch(options), tracing(TracingContext(shapes)):
            own = fx.GraphModule(graph, copy.deepcopy(graph.graph))  # the compiler works on what it is given
            step: Any = compile_fx(own, given, inner_compile=without_repeats)
    return step  # type: ignore[no-any-return]


def _our_part() -> Any:
    """Changes nothing; names our part in compiling, so that nothing kept on disk outlives a change of it."""
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class OurPart(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            pass

        def uuid(self) -> Any:
            forms_of_results = sorted(Path(hopper.__file__).parent.glob("*.py"))
            return get_hash_for_files((__file__, str(materialize.__file__), *map(str, forms_of_results)))

    return OurPart()
