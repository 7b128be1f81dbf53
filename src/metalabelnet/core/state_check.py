"""Checks of a state that is read from a checkpoint, before it is used: names, types, shapes, ranges."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metalabelnet.core.sharded_table import ShardedTable
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

_EXTRA_STATE = "_extra_state"  # PyTorch's key for what a module of the user stores besides tensors: of any type


def check_keys(state: Any, names: Iterable[str], what: str) -> None:
    """Raise InputError unless the state is a dict with exactly these keys."""
    if not isinstance(state, dict):
        raise InputError(f"{what} is a {type(state).__name__}, not a dict")
    expected = set(names)
    for name in expected - state.keys():
        raise InputError(f"{what} has no {name!r}")
    for name in state.keys() - expected:
        raise InputError(f"{what} has {str(name)[:60]!r}, which is unknown")


def check_tensor(value: Any, shape: tuple[int, ...], dtype: torch.dtype | None, what: str) -> None:
    """Raise InputError unless the value is a dense tensor of this shape and type; None: any floating-point type."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_quantized:
        raise InputError(f"{what} is a {type(value).__name__}, not a dense tensor")
    if tuple(value.shape) != shape:
        raise InputError(f"{what} has the shape {tuple(value.shape)}, not {shape}")
    if not (value.is_floating_point() if dtype is None else value.dtype == dtype):
        raise InputError(f"{what} is of type {value.dtype}, not {dtype or 'floating point'}")


def check_int(value: Any, low: int, high: int, what: str) -> None:
    """Raise InputError unless the value is an integer from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        raise InputError(f"{what} is {str(value)[:40]}, not an integer from {low} to {high}")


def check_float(value: Any, what: str, *, low: float = -math.inf) -> None:
    """Raise InputError unless the value is a float of at least `low`. NaN is rejected."""
    if type(value) is not float or not value >= low:
        raise InputError(f"{what} is {str(value)[:40]}, not a number" + ("" if low == -math.inf else f" from {low:g}"))


def check_same_form(state: Any, expected: Any, what: str) -> None:
    """Raise InputError unless a nested state has the keys, types and shapes of another."""
    if isinstance(expected, dict):
        check_keys(state, expected, what)
        for name, value in expected.items():
            if not name.endswith(_EXTRA_STATE):
                check_same_form(state[name], value, f"{what}.{name}")
    elif isinstance(expected, Tensor | ShardedTable):
        check_tensor(state, tuple(expected.shape), expected.dtype, what)
    elif type(state) is not type(expected):
        raise InputError(f"{what} is a {type(state).__name__}, not a {type(expected).__name__}")
