"""Atomic writes: after a crash a file has its old or its new content.

New content goes to a temporary file in the same folder, which then replaces the old file. The folder may come from a
stranger, so the temporary file is created exclusively under a random name: a link or file that was put there before is
never opened.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MAX_NAME_CHARACTERS = 40  # of the file's name in that of its temporary file: a file name has at most 255 bytes
_TEMPORARY_NAME = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.tmp")


def write_atomically(path: Path, *parts: bytes | memoryview, sync: bool = True, keep_as: Path | None = None) -> None:
    """Write a file completely or not at all.

    Parameters
    ----------
    path : Path
        The file. If an error occurs, its old content stays.
    *parts : bytes or memoryview
        The content.
    sync : bool, default True
        Wait until the content is on disk. Without it the file survives a crash of the process, but perhaps not of the
        machine.
    keep_as : Path, optional
        New path of the old file, in the same folder. It is moved when the new content is complete.
    """
    write_chunks_atomically(path, parts, sync=sync, keep_as=keep_as)


def write_chunks_atomically(
    path: Path, chunks: Iterable[bytes | memoryview], *, sync: bool = True, keep_as: Path | None = None
) -> None:
    """Write a file completely or not at all, like `write_atomically`, from chunks that are made one at a time."""
    temporary = None
    try:
        handle, temporary = _create_temporary(path)
        try:
            for chunk in chunks:
                _write_all(handle, memoryview(chunk).cast("B"))
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)
        if keep_as is not None and path.exists():
            path.replace(keep_as)
        temporary.replace(path)
    except BaseException as error:
        _discard(temporary, path, error)
        raise
    if sync:
        _sync_folder(path.parent)


@contextmanager
def open_atomically(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file that replaces `path` on success. If the block raises, an existing file stays as it was."""
    temporary = None
    try:
        handle, temporary = _create_temporary(path)
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            yield file
        temporary.replace(path)
    except BaseException as error:
        _discard(temporary, path, error)
        raise


def remove_temporary_files(folder: Path, names: frozenset[str]) -> None:
    """Remove what killed processes left of writing the files of these names. Links are removed, not followed."""
    for entry in folder.iterdir():
        if is_temporary_file(entry, names):
            entry.unlink(missing_ok=True)


def is_temporary_file(path: Path, names: frozenset[str]) -> bool:
    """Return whether the path has the name of a temporary file for one of the files of these names."""
    match = _TEMPORARY_NAME.fullmatch(path.name)
    return match is not None and match["name"] in names


def _create_temporary(path: Path) -> tuple[int, Path]:
    """Create a file of a random name beside `path`; return its handle and path."""
    temporary = path.with_name(f".{path.name[:MAX_NAME_CHARACTERS]}.{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.open(temporary, flags, 0o666), temporary


def _write_all(handle: int, content: memoryview) -> None:
    while content:
        content = content[os.write(handle, content) :]


def _discard(temporary: Path | None, path: Path, error: BaseException) -> None:
    """Remove the temporary file, and name the file in the error: that of a full disk names none."""
    if temporary is not None:
        temporary.unlink(missing_ok=True)
    if isinstance(error, OSError) and error.filename in (None, str(temporary)):
        error.filename = str(path)


def _sync_folder(folder: Path) -> None:
    """Make the rename durable (POSIX only: elsewhere a folder cannot be opened)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
