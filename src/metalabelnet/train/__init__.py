"""Running a method: the loop, the run folder, checkpoints, evaluation, the label table."""

from __future__ import annotations

from metalabelnet.errors import Stopped
from metalabelnet.train.loop import Diverged, Progress, Result, train
from metalabelnet.train.run_folder import RunFolder
from metalabelnet.train.settings import Run, recipe

__all__ = ["Diverged", "Progress", "Result", "Run", "RunFolder", "Stopped", "recipe", "train"]
