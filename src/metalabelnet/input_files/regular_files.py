"""Opens regular files only. A pipe or a device among the data would block a read, or never end."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

_SPECIAL_FILES = (
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "named pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


class TooManyOpenFilesError(InputError):
    """The process or the system has no file handle left. The file itself may be sound."""


def open_regular_file(path: Path, *, subject: str | None = None) -> BinaryIO:
    """Open a regular file, or a link to one, for reading.

    Parameters
    ----------
    path : Path
        The file.
    subject : str or None
        How the message about a special file starts. Default: the path, and the message ends with advice.

    Returns
    -------
    BinaryIO
        The open file.

    Raises
    ------
    InputError
        If the path is not a regular file, or there are too many open files.
    OSError
        If there is no such file, or it may not be read.
    """
    advice = "; give a regular file" if subject is None else ""
    subject = str(path) if subject is None else subject
    _check_mode(path.stat().st_mode, subject, advice)  # before opening: to open a device can have effects
    try:
        file = path.open("rb") if os.name != "posix" else open(path, "rb", opener=_open_nonblocking)  # noqa: SIM115
    except OSError as error:
        check_file_handles(error, path)
        raise
    try:
        _check_mode(os.fstat(file.fileno()).st_mode, subject, advice)  # the path may have changed since
    except InputError:
        file.close()
        raise
    return file


def check_file_handles(error: Exception, path: Path) -> None:
    """Raise `TooManyOpenFilesError` if this is why an error occurred while the file was read."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        raise TooManyOpenFilesError(
            f"{path} cannot be opened: too many open files; close other programs, or raise the limit with `ulimit -n`"
        ) from error


def check_regular_file(path: Path) -> None:
    """Raise an error, as `open_regular_file`, for a path that a library opens itself."""
    open_regular_file(path).close()


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # without it, to open a pipe waits for a writer


def _check_mode(mode: int, subject: str, advice: str) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _SPECIAL_FILES if is_kind(mode)), "special file")
        raise InputError(f"{subject} is a {kind}, not a regular file{advice}".lstrip())
