"""BatchNorm counts its batches, each layer in a tensor of its own: in a recording all count in one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import fx

aten = torch.ops.aten


def count_together(graph: fx.Graph) -> None:
    """Add up what is counted in inputs that nothing in the graph reads, and count it at the end."""
    counted: dict[int, list[fx.Node]] = {}
    for node in [node for node in graph.nodes if node.op == "placeholder"]:
        steps = _steps(node)
        if steps:
            counted.setdefault(len(steps), []).append(node)
            for step in reversed(steps):
                graph.erase_node(step)
    end = next(node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(end):
        for count, nodes in counted.items():
            graph.call_function(aten._foreach_add_.Scalar, (nodes, count))


def _steps(node: fx.Node) -> list[fx.Node]:
    """The nodes that add one to this input, the first first; none if anything else reads it."""
    steps: list[fx.Node] = []
    while node.users:
        step, *others = node.users
        if others or not _adds_one(step, node):
            return []
        steps.append(step)
        node = step
    return steps


def _adds_one(step: Any, node: fx.Node) -> bool:
    return step.target is aten.add_.Tensor and step.args == (node, 1) and not step.kwargs
