"""Names and types of a run's settings: values from Python are converted to the types of `RunOptions`, or rejected."""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, get_args, get_origin, get_type_hints

import torch

from metalabelnet.errors import InputError, shorten_value, unknown_name_error
from metalabelnet.run_options import RunOptions

_EXPECTED = {  # what an error tells the user to give
    str: "a string",
    int: "an integer",
    float: "a number",
    tuple: "integers, such as (10, 20)",
    Mapping: "a mapping of names to values, such as {'beta': 0.001}",
}
_EXPECTED_BY_NAME = {
    "clean": "a number of samples, or 'all'",
    "net": "the name of a network; a module goes to train(run, net=module)",
}


def convert_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a run with their types: numpy numbers become Python's, paths strings, and lists tuples.

    Raises InputError for a name that no setting has, and for a value of another type.
    """
    kinds = _option_types()
    for name in options:
        if name not in kinds:
            raise unknown_name_error("setting of a run", name, kinds)
    return {name: _convert(name, value, kinds[name]) for name, value in options.items()}


@functools.cache
def _option_types() -> dict[str, tuple[Any, ...]]:
    """Return the types that each setting may have, without their parameters; NoneType where it may be left out."""
    hints = get_type_hints(RunOptions)
    kinds = {name: get_args(hint) if isinstance(hint, types.UnionType) else (hint,) for name, hint in hints.items()}
    return {name: tuple(get_origin(kind) or kind for kind in members) for name, members in kinds.items()}


def _convert(name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        converted = _as_kind(value, kind)
        if converted is not None:
            return converted
    members = [_EXPECTED[kind] for kind in kinds if kind is not type(None)]
    expected = _EXPECTED_BY_NAME.get(name, " or ".join(members))
    expected += ", or None" if type(None) in kinds else ""
    raise InputError(f"{name}={shorten_value(value)}: give {expected}")


def _as_kind(value: Any, kind: Any) -> Any:
    """Return the value as that type; None if it is of another."""
    if kind is str and isinstance(value, str | os.PathLike | torch.device):
        text = str(value) if isinstance(value, torch.device) else os.fspath(value)
        return text if isinstance(text, str) else None
    if kind in (int, float) and not isinstance(value, bool):
        if isinstance(value, Integral):
            return int(value)
        return float(value) if kind is float and isinstance(value, Real) else None
    if kind is tuple and isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        items = [_as_kind(item, int) for item in value]
        return None if None in items else tuple(items)
    return value if kind is Mapping and isinstance(value, Mapping) else None
