"""A digest of the data of a run, to detect changed data on resume. It is the same on every device."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np
import torch

from metalabelnet.data.streamed_tensor import StreamedTensor

if TYPE_CHECKING:
    from metalabelnet.data import Rows
    from metalabelnet.data.disk_tensor import Samples
    from metalabelnet.data.problem import Problem
    from metalabelnet.train.settings import Run

MAX_DIGESTED_BYTES = 16 << 20  # of the samples of each part; beyond, samples are taken at regular intervals


def compute_data_digest(run: Run, problem: Problem) -> str:
    """Return the digest of ids, labels and samples of all parts.

    Values that are fitted to the data, such as the mean of a column, may differ in the last digits between machines.
    Where samples are encoded with such values, the digest uses the source cells instead. It leaves out labels made by
    the noise probe, for the same reason.
    """
    uses_probe = run.noise.startswith("feature") and not run.noise_probs
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([problem.train.classes, problem.cells_digest]).encode())
    for part in ("train", "clean", "validation", "test"):
        rows: Rows = getattr(problem, part)
        digest.update(_ids_and_labels(rows, with_given=part == "train" and not uses_probe))
        if not problem.cells_digest and len(rows):
            digest.update(_subsample(rows.x).flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _ids_and_labels(rows: Rows, *, with_given: bool) -> bytes:
    """Return ids, shape and labels of rows as bytes."""
    header = json.dumps([rows.ids, list(rows.x.shape), str(rows.x.dtype)]).encode()
    labels = [rows.index, rows.true, *([rows.given] if with_given else [])]
    return header + torch.stack(labels).cpu().numpy().tobytes() + _annotations(rows)


def _annotations(rows: Rows) -> bytes:
    if rows.annotations is None:
        return b""
    a = rows.annotations
    return json.dumps(a.names).encode() + np.stack([a.sample, a.annotator, a.label]).astype(np.int64).tobytes()


def _subsample(x: Samples) -> torch.Tensor:
    """Return at most about `MAX_DIGESTED_BYTES` of samples at regular intervals, on the CPU."""
    sample_bytes = x[:1].nbytes
    step = max(1, -(-len(x) * sample_bytes // MAX_DIGESTED_BYTES))
    if isinstance(x, StreamedTensor):
        return x.read(torch.arange(0, len(x), step))
    return x[::step].cpu()
