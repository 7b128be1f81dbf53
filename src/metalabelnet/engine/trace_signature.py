"""The form of a run: all that its recorded step can depend on, without the tensors' numbers.

Recording a step takes seconds, and runs that differ by their seed or noise alone record the same. What a step can read
is in the method and in what makes its batches. Both are gone through, attribute by attribute, down to

    numbers, names, types   as they are
    tensors                 shape, strides, type, device; the tensor itself is listed
    functions               their code, and what they close over

Two runs of one form have the same list of tensors, place by place, and one recording serves both. Whatever is of no
known kind makes a run a form of its own. Left out is what no recorded step reads: what makes networks, seeds (a
recording holds no random numbers), the samples' names and what plans are drawn from.
"""

from __future__ import annotations

import enum
import functools
import types
from typing import Any

import torch
from torch import Tensor

NOT_READ = {"make_net", "seed", "ids", "_labeled"}
AS_IT_IS: tuple[type, ...] = (type(None), bool, int, float, complex, str, bytes, enum.Enum, type)
AS_IT_IS += (torch.dtype, torch.device, torch.memory_format, torch.layout)
AS_IT_IS += (types.BuiltinFunctionType, types.ModuleType, types.CodeType)


class NoForm(Exception):  # noqa: N818
    """Something of a kind that is not known."""


class Form:
    """The form of some things, and the tensors found on the way, each once."""

    def __init__(self, *things: Any) -> None:
        self.tensors: list[Tensor] = []
        self._met: dict[int, tuple[int, Any]] = {}  # the thing is kept, so that no other comes to have its id
        self.form = tuple(self._of(thing) for thing in things)

    def _of(self, thing: Any) -> Any:
        if isinstance(thing, AS_IT_IS):
            return type(thing), thing
        if id(thing) in self._met:
            return "met", self._met[id(thing)][0]
        self._met[id(thing)] = len(self._met), thing
        if isinstance(thing, Tensor):
            self.tensors.append(thing)
            where = thing.dtype, thing.device, thing.requires_grad
            return type(thing), tuple(thing.shape), thing.stride(), *where, self._inside(thing)
        return type(thing), self._inside(thing)

    def _inside(self, thing: Any) -> Any:
        if isinstance(thing, Tensor):
            return self._attributes(getattr(thing, "__dict__", {}))
        if isinstance(thing, types.FunctionType):
            cells = tuple(self._of(cell.cell_contents) for cell in thing.__closure__ or ())
            return thing.__code__, cells, self._of(thing.__defaults__), self._of(thing.__kwdefaults__)
        if isinstance(thing, types.MethodType):
            return self._of(thing.__func__), self._of(thing.__self__)
        if isinstance(thing, functools.partial):
            return self._of(thing.func), self._of(thing.args), self._of(thing.keywords)
        if isinstance(thing, (list, tuple)):
            return tuple(self._of(item) for item in thing)
        if isinstance(thing, (set, frozenset)):
            return frozenset(self._of(item) for item in thing)
        if isinstance(thing, dict):
            return tuple((self._of(key), self._of(value)) for key, value in thing.items())
        if hasattr(thing, "__dict__"):
            return self._attributes(vars(thing))
        raise NoForm(f"{type(thing).__name__} is of no known form")

    def _attributes(self, attributes: dict[str, Any]) -> Any:
        found = [(name, value) for name, value in attributes.items() if name not in NOT_READ]
        # PyTorch keeps a module's hooks by numbers that count all hooks there ever were.
        numbered = [name for name, value in found if "_hooks" in name and isinstance(value, dict)]
        return tuple((name, self._of([*value.values()] if name in numbered else value)) for name, value in found)
