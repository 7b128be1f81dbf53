"""Tracing: run a step once and list every tensor operation it causes as an fx graph."""

from __future__ import annotations

import dataclasses
import gc
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from metalabelnet.engine import torch_private
from metalabelnet.engine.rewrites.batch_counters import merge_batch_counters
from metalabelnet.engine.rewrites.equal_nodes import merge_equal_nodes
from metalabelnet.engine.rewrites.operators import OperatorRewrites
from metalabelnet.engine.step_inputs import with_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metalabelnet.engine.kernels import ConvKernels


class CannotTrace(Exception):  # noqa: N818
    """The step does something that a traced graph cannot repeat."""


@dataclasses.dataclass(frozen=True)
class TracedStep:
    """A step as a graph whose first arguments are the method's tensors and whose last are the step's inputs."""

    graph: fx.GraphModule
    tensors: list[Tensor]


def trace_step(
    step: Callable[[Any], Tensor],
    inputs: Any,
    tensors: Sequence[Tensor],
    kernels: ConvKernels,
    concurrent_runs: int = 1,
) -> TracedStep:
    """Run a step and return its trace.

    Parameters
    ----------
    step : callable
        From a dataclass of inputs to the loss.
    inputs : dataclass
        The inputs of the step.
    tensors : sequence of Tensor
        The tensors the graph reads in place of those in `inputs`, in their order.
    kernels : ConvKernels
        Custom kernels that may replace convolutions.
    concurrent_runs : int
        How many runs share the device.

    Raises
    ------
    CannotTrace
        If the step draws random numbers.
    """

    def on_tensors(*values: Tensor) -> Tensor:
        return step(with_tensors(inputs, iter(values)))

    gc.freeze()  # the collection below need not visit older objects
    try:
        module = _make_graph(on_tensors, tensors, kernels)
        gc.collect()  # tracing leaves reference cycles that hold every activation of the step
    finally:
        gc.unfreeze()
    module.graph.eliminate_dead_code()
    for node in module.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise CannotTrace(f"it draws random numbers ({node.target})")
    lifted = _lift_tensors(module)
    kernels.finalize(module.graph, concurrent_runs)
    merge_equal_nodes(module.graph, [*lifted, *tensors])
    return TracedStep(fx.GraphModule(torch.nn.Module(), module.graph), lifted)


def _make_graph(step: Callable[..., Tensor], inputs: Sequence[Tensor], kernels: ConvKernels) -> fx.GraphModule:
    """Trace a step on these inputs, with operators replaced by our rewrites."""
    table = OperatorRewrites(rewrite_convolutions=inputs[0].is_cuda, kernels=kernels).table
    make_fx, tracing = torch_private.load("make_fx"), torch_private.load("tracing")
    with tracing(torch_private.load("TracingContext")(_without_metadata())):
        module: fx.GraphModule = make_fx(step, decomposition_table=table, tracing_mode="real")(*inputs)
    for node in module.graph.nodes:
        node.meta.clear()
    return module


def _without_metadata() -> Any:
    """Return what takes the place of the fake tensor mode in which make_fx describes the result of each node.

    Nobody reads these descriptions, and a fake tensor for each node takes a quarter of the time of tracing.
    """
    no_description = torch.empty(0, device="meta")

    class WithoutMetadata(torch_private.load("TorchDispatchMode")):  # type: ignore[misc]
        shape_env = None

        def __torch_dispatch__(self, *_: Any, **__: Any) -> Tensor:
            return no_description

    return WithoutMetadata()


def _lift_tensors(module: fx.GraphModule) -> list[Tensor]:
    """Turn the tensors that a graph holds as attributes into its first arguments, so that other runs can share it.

    Returns these tensors.
    """
    lifted: dict[int, tuple[fx.Node, Tensor]] = {}
    first = next(iter(module.graph.nodes))
    for node in list(module.graph.nodes):
        if node.op == "get_attr":
            tensor = getattr(module, node.target)
            if id(tensor) not in lifted:
                with module.graph.inserting_before(first):
                    lifted[id(tensor)] = module.graph.placeholder(f"state_{len(lifted)}"), tensor
            node.replace_all_uses_with(lifted[id(tensor)][0])
            module.graph.erase_node(node)
    merge_batch_counters(module.graph)
    return [tensor for _, tensor in lifted.values()]
