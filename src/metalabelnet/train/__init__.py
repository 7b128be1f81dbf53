"""Training: settings, the training loop, run folders and checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.lazy_import import lazy_names

if TYPE_CHECKING:
    from metalabelnet.errors import DivergenceError, RunStopped
    from metalabelnet.train.result import Progress, Result
    from metalabelnet.train.run_folder import RunFolder
    from metalabelnet.train.settings import Run, make_run
    from metalabelnet.train.train_run import train

__all__ = ["DivergenceError", "Progress", "Result", "Run", "RunFolder", "RunStopped", "make_run", "train"]

_MODULES = {
    **dict.fromkeys(("DivergenceError", "RunStopped"), "metalabelnet.errors"),
    **dict.fromkeys(("Progress", "Result"), "metalabelnet.train.result"),
    **dict.fromkeys(("Run", "make_run"), "metalabelnet.train.settings"),
    "RunFolder": "metalabelnet.train.run_folder",
    "train": "metalabelnet.train.train_run",
}
# Imported on first use: reading a run folder needs no PyTorch, which takes seconds to import.
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
