"""Class probabilities of the noise probe in files, so that runs with the same data train it once.

The files are in `noise-probes` of the data folder ($METALABELNET_DATA, else ~/.cache/metalabelnet). The name of a file
is the digest of everything that the probabilities depend on: samples, true labels, network, augmentation, seed, device
and PyTorch's version. Files can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from metalabelnet.atomic_write import write_atomically
from metalabelnet.engine.cuda import device_name
from metalabelnet.train import noise_probe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from metalabelnet.data.rows import Rows

FOLDER = "noise-probes"
MAX_FILE_BYTES = 64 << 20
ROWS_PER_UPDATE = 4096  # of the digest


def load_or_train(
    folder: Path, rows: Rows, train: Callable[[], Tensor], *, device: torch.device, **settings: str | int
) -> Tensor:
    """Return log-probabilities of the rows, (N, classes), from the file of an earlier run or by training.

    Parameters
    ----------
    folder : Path
        The data folder. If it cannot be written, nothing is stored.
    rows : Rows
        Samples and true labels. Samples on disk are not digested, and their probabilities not stored.
    train : callable
        Trains the network and returns the log-probabilities.
    device : torch.device
        Device of the training.
    **settings
        What else the training depends on.
    """
    shape = len(rows), len(rows.classes)
    if not isinstance(rows.x, Tensor) or shape[0] * shape[1] * 8 > MAX_FILE_BYTES:
        return train()
    path = folder / FOLDER / f"{_digest(rows, rows.x, device, settings)}.npy"
    with contextlib.suppress(OSError, ValueError, EOFError):  # no file, or one that was damaged
        stored = np.load(path, allow_pickle=False)
        if stored.shape == shape and stored.dtype == np.float64:
            return torch.from_numpy(stored)
    log_p = train()
    content = io.BytesIO()
    np.save(content, log_p.numpy())
    with contextlib.suppress(OSError):  # a full disk, or a folder that is read-only
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue(), sync=False)
    return log_p


def _digest(rows: Rows, x: Tensor, device: torch.device, settings: dict[str, str | int]) -> str:
    """Return the digest of what the probabilities depend on."""
    recipe = noise_probe.EPOCHS, noise_probe.BATCH_SIZE, noise_probe.MAX_LR
    where = [torch.__version__, device_name(device), torch.get_num_threads() if device.type == "cpu" else 0]
    what = [settings, recipe, where, list(x.shape), str(x.dtype), len(rows.classes)]
    digest = hashlib.blake2b(json.dumps(what).encode(), digest_size=16)
    digest.update(rows.true.cpu().numpy().tobytes())
    for start in range(0, len(x), ROWS_PER_UPDATE):
        digest.update(x[start : start + ROWS_PER_UPDATE].cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
