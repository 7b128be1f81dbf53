"""Files that a command writes where it was told to: whole, or not at all."""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def never_fail_to_print() -> None:
    """Let a character that standard output does not know become a question mark (standard error has such a way)."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def for_data() -> TextIO:
    """Standard output for data, where a question mark would be another value: there it is an error again."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "replace":
        sys.stdout.reconfigure(errors="strict")
    return sys.stdout


def check_folder(path: Path) -> None:
    """Refuse a file in a folder that is not there, before anything is computed for it."""
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}")
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file to write")


@contextmanager
def whole(path: Path) -> Iterator[TextIO]:
    """A text file to write, which takes its place at the end: what stood there before stays if anything goes wrong.

    A pipe, a device or a link keeps its place and is written to, because a file in its place would be something else.
    """
    check_folder(path)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    beside = path.with_name(f".{path.name}.tmp")
    try:
        with beside.open("w", encoding="utf-8", newline="") as file:
            yield file
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
