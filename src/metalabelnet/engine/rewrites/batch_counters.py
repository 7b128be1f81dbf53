"""Rewrite: BatchNorm's `num_batches_tracked` counters, one tensor for each layer, are incremented by one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import fx

aten = torch.ops.aten


def merge_batch_counters(graph: fx.Graph) -> None:
    """Replace increments of inputs that nothing else in the graph reads by one fused addition at the end."""
    counters_by_increment: dict[int, list[fx.Node]] = {}
    for node in [node for node in graph.nodes if node.op == "placeholder"]:
        increments = _find_increments(node)
        if increments:
            counters_by_increment.setdefault(len(increments), []).append(node)
            for increment in reversed(increments):
                graph.erase_node(increment)
    end = next(node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(end):
        for total, counters in counters_by_increment.items():
            graph.call_function(aten._foreach_add_.Scalar, (counters, total))


def _find_increments(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that add one to this input, in order; none if anything else reads it."""
    increments: list[fx.Node] = []
    while node.users:
        user, *others = node.users
        if others or not _adds_one(user, node):
            return []
        increments.append(user)
        node = user
    return increments


def _adds_one(user: Any, node: fx.Node) -> bool:
    return user.target is aten.add_.Tensor and user.args == (node, 1) and not user.kwargs
