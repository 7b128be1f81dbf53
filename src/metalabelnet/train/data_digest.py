"""A short text that stands for the data of a run: the same again for the same data, on whatever device."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import torch

from metalabelnet.data.disk_tensor import DiskTensor

if TYPE_CHECKING:
    from metalabelnet.data import Rows
    from metalabelnet.data.disk_tensor import Samples
    from metalabelnet.data.problem import Problem
    from metalabelnet.train.settings import Run

MOST = 16 << 20  # bytes of a part's samples that are read


def digest(run: Run, problem: Problem) -> str:
    """Of all parts the names, labels and samples.

    Numbers fitted to the data, such as the mean of a column, may differ in their last digits on another machine, and
    so what was made with them: there the cells count that were read. Labels that a probe has spoilt may differ too.
    """
    probed = run.noise.startswith("feature") and not run.noise_probs
    found = hashlib.blake2b(digest_size=16)
    found.update(json.dumps([problem.train.classes, problem.cells]).encode())
    for rows in (problem.train, problem.clean, problem.validation, problem.test):
        found.update(_labels(rows, given=rows is problem.train and not probed))
        if not problem.cells and len(rows):
            found.update(_some(rows.x).flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _labels(rows: Rows, *, given: bool) -> bytes:
    """Names, shape and labels of rows."""
    names = json.dumps([rows.ids, list(rows.x.shape), str(rows.x.dtype)]).encode()
    labels = [rows.index, rows.true, *([rows.given] if given else [])]
    return names + torch.stack(labels).cpu().numpy().tobytes()


def _some(x: Samples) -> torch.Tensor:
    """All samples, or of many some that are spread over them: the same in memory, on a card and on disk."""
    size = x[:1].nbytes
    step = max(1, -(-len(x) * size // MOST))
    if isinstance(x, DiskTensor):
        return x.read(torch.arange(0, len(x), step))
    return x[::step].cpu()
