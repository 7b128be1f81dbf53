"""Rewrite: every expression is in the graph once.

The pass that carries tangents repeats parts of the pass of step 1, and every layer prepares its weights and BatchNorm's
values per channel in each pass. The compiler would merge equal expressions, but only after it has visited every node
several times. A node is merged with an earlier one that applies the same operator to the same arguments, unless a
tensor that shares its memory, or that of its arguments, is written to anywhere in the graph.

Nodes that return their argument under another name (`alias`, and `detach`, which only autograd can tell apart) are
replaced by that argument.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

aten = torch.ops.aten
SAME_TENSOR = {aten.alias.default, aten.detach.default}
UNANNOTATED_VIEWS = {aten._unsafe_view.default}  # noqa: SLF001 (its only name)


def merge_equal_nodes(graph: fx.Graph, arguments: Sequence[Tensor]) -> None:
    """Remove nodes that compute what another node computes, in a graph with these arguments."""
    _remove_aliases(graph)
    memory = _find_memory(graph, arguments)
    written = {place for node in graph.nodes for argument in _written_arguments(node) for place in memory[argument]}
    first: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if not _is_pure(node) or any(memory[each] & written for each in (node, *node.all_input_nodes)):
            continue
        key = node.target, _describe(node.args), _describe(node.kwargs)
        if first.setdefault(key, node) is not node:
            node.replace_all_uses_with(first[key])
            graph.erase_node(node)


def _remove_aliases(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.target in SAME_TENSOR and not any(map(_changes_view, (*node.users, *node.args[0].users))):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _changes_view(node: fx.Node) -> bool:
    """Tell whether an operator changes the shape or strides of its argument, but not those of other names of it."""
    return torch.Tag.inplace_view in getattr(node.target, "tags", ())


def _is_pure(node: fx.Node) -> bool:
    schema, tags = getattr(node.target, "_schema", None), getattr(node.target, "tags", ())
    is_operator = schema is not None and not schema.is_mutable and torch.Tag.nondeterministic_seeded not in tags
    return node.op == "call_function" and (is_operator or node.target is operator.getitem)


def _find_memory(graph: fx.Graph, arguments: Sequence[Tensor]) -> dict[fx.Node, frozenset[Any]]:
    """Return where each node's value may be stored: the nodes that allocated it, or the storages of arguments."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    addresses = [argument.untyped_storage().data_ptr() for argument in arguments]
    memory: dict[fx.Node, frozenset[Any]] = {
        node: frozenset([address]) for node, address in zip(placeholders, addresses, strict=True)
    }
    for node in graph.nodes:
        if node.op != "placeholder":
            shared = [memory[argument] for argument in _shared_arguments(node)]
            memory[node] = frozenset().union(*shared) if shared else frozenset([node])
    return memory


def _shared_arguments(node: fx.Node) -> Iterable[fx.Node]:
    """Return the arguments whose memory the result may share."""
    schema = getattr(node.target, "_schema", None)
    if node.target in UNANNOTATED_VIEWS or schema is None:
        return node.all_input_nodes
    if not any(result.alias_info for result in schema.returns):
        return ()
    return _arguments(node, lambda info: info is not None)


def _written_arguments(node: fx.Node) -> Iterable[fx.Node]:
    """Return the arguments that an operator writes to."""
    return _arguments(node, lambda info: info is not None and info.is_write)


def _arguments(node: fx.Node, matches: Callable[[Any], bool]) -> Iterator[fx.Node]:
    """Yield the nodes among the arguments whose annotation in the operator's schema matches."""
    schema = getattr(node.target, "_schema", None)
    for index, argument in enumerate(() if schema is None else schema.arguments):
        if matches(argument.alias_info):
            value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            yield from (
                each for each in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(each, fx.Node)
            )


def _describe(item: Any) -> Any:
    """Return a key of an argument: 1, 1.0 and True are different."""
    if isinstance(item, (list, tuple)):
        return type(item), tuple(map(_describe, item))
    if isinstance(item, dict):
        return tuple((name, _describe(value)) for name, value in item.items())
    if isinstance(item, slice):
        return slice, *map(_describe, (item.start, item.stop, item.step))
    return item if isinstance(item, fx.Node) else (type(item), repr(item))
