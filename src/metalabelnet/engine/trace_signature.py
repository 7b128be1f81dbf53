"""The signature of a step: everything its trace can depend on, without the values of tensors.

Tracing a step takes seconds, and runs that differ only in their seed or noise have the same trace. A step can read the
method and what makes its batches. Both are walked, attribute by attribute, down to

    numbers, strings, types   as they are
    tensors                   shape, strides, type, device; the tensor itself is listed
    functions                 their code, and what they close over

Two runs with the same signature list their tensors in the same order, so that one trace serves both. An object of an
unknown kind has no signature, and its step is traced on its own. `IGNORED_ATTRIBUTES` are not read by any traced step:
network factories, seeds (a trace holds no random numbers), sample ids, and what batches are planned from.
"""

from __future__ import annotations

import enum
import functools
import types
from typing import Any

import torch
from torch import Tensor

IGNORED_ATTRIBUTES = {"make_net", "seed", "ids", "_labeled"}
ATOMIC_TYPES: tuple[type, ...] = (type(None), bool, int, float, complex, str, bytes, enum.Enum, type)
ATOMIC_TYPES += (torch.dtype, torch.device, torch.memory_format, torch.layout)
ATOMIC_TYPES += (types.BuiltinFunctionType, types.ModuleType, types.CodeType)


class NoSignature(Exception):  # noqa: N818
    """An object is of a kind that has no signature."""


class TraceSignature:
    """The signature of some objects (`key`), and the tensors in them, each once (`tensors`)."""

    def __init__(self, *objects: Any) -> None:
        self.tensors: list[Tensor] = []
        self._visited: dict[int, tuple[int, Any]] = {}  # holds the object, so that no other gets its id
        self.key = tuple(self._describe(item) for item in objects)

    def _describe(self, item: Any) -> Any:
        if isinstance(item, ATOMIC_TYPES):
            return type(item), item
        if id(item) in self._visited:
            return "visited", self._visited[id(item)][0]
        self._visited[id(item)] = len(self._visited), item
        if isinstance(item, Tensor):
            self.tensors.append(item)
            layout = tuple(item.shape), item.stride(), item.dtype, item.device, item.requires_grad
            return type(item), *layout, self._describe_content(item)
        return type(item), self._describe_content(item)

    def _describe_content(self, item: Any) -> Any:
        if isinstance(item, Tensor):
            return self._describe_attributes(getattr(item, "__dict__", {}))
        if isinstance(item, types.FunctionType):
            cells = tuple(self._describe(cell.cell_contents) for cell in item.__closure__ or ())
            return item.__code__, cells, self._describe(item.__defaults__), self._describe(item.__kwdefaults__)
        if isinstance(item, types.MethodType):
            return self._describe(item.__func__), self._describe(item.__self__)
        if isinstance(item, functools.partial):
            return self._describe(item.func), self._describe(item.args), self._describe(item.keywords)
        if isinstance(item, (list, tuple)):
            return tuple(self._describe(part) for part in item)
        if isinstance(item, (set, frozenset)):
            return frozenset(self._describe(part) for part in item)
        if isinstance(item, dict):
            return tuple((self._describe(key), self._describe(value)) for key, value in item.items())
        if hasattr(item, "__dict__"):
            return self._describe_attributes(vars(item))
        raise NoSignature(f"an object of type {type(item).__name__} has no signature")

    def _describe_attributes(self, attributes: dict[str, Any]) -> Any:
        read = [(name, value) for name, value in attributes.items() if name not in IGNORED_ATTRIBUTES]
        # A module's hooks are stored under a counter that is global to the process: only their order matters.
        hooks = [name for name, value in read if "_hooks" in name and isinstance(value, dict)]
        return tuple((name, self._describe([*value.values()] if name in hooks else value)) for name, value in read)
