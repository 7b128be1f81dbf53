"""Files that are either whole or not there."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def write_atomically(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write beside the file, sync, rename: after a crash there is the old file or the new one, never half.

    When the disk is full nothing of the new file stays, and the old one is as it was. Syncing is waiting for the disk:
    without it a crash of the process costs nothing still, but one of the machine may take the file with it.
    """
    beside = path.with_name(f".{path.name}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        error.filename = str(path)  # a full disk is met without a name
        raise
    if sync:
        _sync_folder(path.parent)


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint: nested dicts and lists of tensors, numbers and text."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, buffer.getvalue())


def load(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint. Nothing in it is executed."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is not a checkpoint of this program ({reason}): remove it to start anew") from error
    return state


def _sync_folder(folder: Path) -> None:
    """Make the rename itself last (POSIX; elsewhere a folder cannot be opened)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
