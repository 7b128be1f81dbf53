"""Names of a package that are imported on first use, because their modules take seconds to import or are optional."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose public names are imported from `modules` on first use.

    Examples
    --------
    >>> from metalabelnet.lazy_import import lazy_names
    >>> get, names = lazy_names("metalabelnet", {"InputError": "metalabelnet.errors"})
    >>> get("InputError").__name__, "InputError" in names()
    ('InputError', True)
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, names
