"""A lock on a run folder, against other processes that train in it; and no symbolic links, which lead out of it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class RunBusyError(InputError):
    """Another process is training in the run folder."""


def check_no_link(path: Path) -> None:
    """Raise InputError if the path is a symbolic link."""
    if path.is_symlink():
        raise InputError(
            f"{path} is a symbolic link, and a run folder must not have any: replace it by what it points to"
        )


@contextmanager
def lock_file(file: Path, folder: Path) -> Iterator[None]:
    """Hold a lock on a file, which is created if needed and never changed."""
    try:
        import fcntl
    except ImportError:  # not POSIX: no lock
        yield
        return
    check_no_link(file)
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunBusyError(
                f"{folder}: another process is training in this folder: wait until it ends, or stop it"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)
