"""Output of a command: standard output, and files that are written completely or not at all."""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, cast

from metalabelnet.atomic_write import open_atomically
from metalabelnet.cli.console import Console
from metalabelnet.cli.printable import escape_control_characters
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def replace_unprintable() -> None:
    """Print a question mark for characters that the encoding of standard output lacks, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def stdout_for_data() -> TextIO:
    """Return standard output for data, where an unprintable character is an error: replacing it changes the data."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "replace":
        sys.stdout.reconfigure(errors="strict")
    return cast("TextIO", _TerminalOutput()) if sys.stdout.isatty() else sys.stdout


class _TerminalOutput(io.TextIOBase):
    """Standard output that is a terminal: control characters in the data would control it, so they are escaped."""

    def write(self, text: str) -> int:
        """Write some text."""
        return sys.stdout.write(escape_control_characters(text, keep_lines=True))

    def flush(self) -> None:
        """Write what is buffered."""
        sys.stdout.flush()


def write_lines(lines: Sequence[str], path: Path | None, rows: int) -> None:
    """Write lines of data to a file, and print how many rows they are; without a path, to standard output."""
    if path is None:
        out = stdout_for_data()
        out.writelines(lines)
        out.flush()
        return
    with write_atomically(path) as file:
        file.writelines(lines)
    Console().print(f"{rows} rows written to {path}")


def check_output_path(path: Path) -> None:
    """Raise an error if `path` cannot be a file, before anything is computed for it."""
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file to write")


@contextmanager
def write_atomically(path: Path) -> Iterator[TextIO]:
    """Open a text file that replaces `path` on success. If the block raises, an existing file stays as it was.

    A pipe, a device or a symbolic link is written to directly, because replacing it would change what it is.
    """
    check_output_path(path)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    with open_atomically(path) as file:
        yield file
