"""Checkpoints, and atomic writes: after a crash a file has its old or its new content."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def write_atomically(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write to a temporary file in the same folder, sync, and rename it.

    If the disk is full, the temporary file is removed and the old file stays. Without `sync` the call does not wait
    for the disk: the file survives a crash of the process, but perhaps not of the machine.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        error.filename = str(path)  # the error of a full disk names no file
        raise
    if sync:
        _sync_folder(path.parent)


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint: nested dicts and lists of tensors, numbers and strings."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, buffer.getvalue())


def load(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint. No code in it is executed."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{path} is not a metalabelnet checkpoint ({reason}): remove it to train from the start"
        ) from error
    return state


def _sync_folder(folder: Path) -> None:
    """Make the rename durable (POSIX only: elsewhere a folder cannot be opened)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
