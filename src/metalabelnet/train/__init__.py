"""Training: settings, the training loop, run folders and checkpoints."""

from __future__ import annotations

from metalabelnet.errors import DivergenceError, RunStopped
from metalabelnet.train.loop import Progress, Result, train
from metalabelnet.train.run_folder import RunFolder
from metalabelnet.train.settings import Run, make_run

__all__ = ["DivergenceError", "Progress", "Result", "Run", "RunFolder", "RunStopped", "make_run", "train"]
