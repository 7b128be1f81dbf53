"""Checkpoints: the state of a run in one file, with a digest, and the checkpoint before it.

A file is a header, the SHA-256 of the rest, and the rest, which `torch.save` wrote. The digest detects damage, which
`torch.load` does not; it is no protection against people who want to change the file. The state that is read must
therefore be checked before it is used (`TrainingLoop.restore`).
"""

from __future__ import annotations

import hashlib
import io
import warnings
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.atomic_write import write_atomically
from metalabelnet.errors import InputError
from metalabelnet.input_files.regular_files import open_regular_file

if TYPE_CHECKING:
    from pathlib import Path

HEADER = b"metalabelnet checkpoint 1\n"
DIGEST_BYTES = 32


class DamagedCheckpointError(InputError):
    """The file is not a checkpoint, or its content is not what was written."""


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint is damaged, and the one before it is used."""


def previous(path: Path) -> Path:
    """Return the path of the checkpoint before the one at `path`."""
    return path.with_name("previous.pt")


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint: nested dicts and lists of tensors, numbers and strings. The one before it is kept."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, HEADER + hashlib.sha256(content).digest(), content, keep_as=previous(path))


def load(path: Path, device: torch.device) -> dict[str, Any]:
    """Read one checkpoint. No code in it is executed.

    Raises
    ------
    DamagedCheckpointError
        If the file is damaged.
    InputError
        If it is a link, or not a regular file.
    """
    if path.is_symlink():
        raise InputError(f"{path} is a symbolic link: replace it by what it points to")
    with open_regular_file(path) as file:
        content = memoryview(file.read())
    start = len(HEADER) + DIGEST_BYTES
    if content[: len(HEADER)] != HEADER:
        raise _damaged(path, "it has no header of one")
    if hashlib.sha256(content[start:]).digest() != content[len(HEADER) : start]:
        raise _damaged(path, "its digest is wrong")
    try:
        state = torch.load(io.BytesIO(content[start:]), map_location=device, weights_only=True)
    except Exception as error:
        reason = " ".join(str(error).partition("\n")[0].split())[:80]
        raise _damaged(path, reason or type(error).__name__) from error
    if not isinstance(state, dict):
        raise _damaged(path, f"it has a {type(state).__name__}, not a dict")
    return state


def load_latest(path: Path, device: torch.device) -> tuple[dict[str, Any], Path] | None:
    """Read the checkpoint at `path` or, if it is damaged or missing, the one before it.

    Returns
    -------
    tuple of dict and Path, or None
        The state and its file; None if there is no checkpoint.
    """
    damage: DamagedCheckpointError | None = None
    for file in (path, previous(path)):
        try:
            state = load(file, device)
        except FileNotFoundError:
            continue
        except DamagedCheckpointError as error:
            damage = damage or error
            continue
        if damage is not None:
            warnings.warn(
                f"{path} is damaged and will be replaced: resuming from the checkpoint before it, with the same result",
                DamagedCheckpointWarning,
                stacklevel=2,
            )
        return state, file
    if damage is not None:
        raise damage
    return None


def _damaged(path: Path, reason: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"{path} is not a metalabelnet checkpoint ({reason}): remove {path.parent} to train from the start"
    )
