"""Train classifiers on labels nobody trusts, with a small set somebody does."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metalabelnet.estimator import MetaLabelNetClassifier
    from metalabelnet.pytorch import fit
    from metalabelnet.train.in_memory import NoCleanSet

__all__ = ["MetaLabelNetClassifier", "NoCleanSet", "__version__", "fit"]
__version__ = "0.1.0"

_WHERE = {
    "MetaLabelNetClassifier": "metalabelnet.estimator",
    "NoCleanSet": "metalabelnet.train.in_memory",
    "fit": "metalabelnet.pytorch",
}


def __getattr__(name: str) -> Any:
    """What takes long to import, or needs an extra, comes when it is asked for."""
    if name not in _WHERE:
        raise AttributeError(f"module 'metalabelnet' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
