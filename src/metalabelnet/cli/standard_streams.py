"""Standard output and standard error that are closed, or whose reader or disk does not accept more."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from metalabelnet.cli.printable import escape_control_characters


def open_standard_streams() -> bool:
    """Open the null device for standard streams that are closed; return whether standard output was open.

    Otherwise a file that is opened later takes the number of a closed stream, and messages are written into it.
    """
    was_open = sys.stdout is not None
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # has the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (open until exit)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    return was_open


def discard_unwritten_output() -> None:
    """Discard what standard output does not accept, so that Python does not try to write it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        _connect_to_null_device(sys.stdout.fileno())


def print_status(text: str) -> None:
    """Print a line on standard error. If nobody can read it any more, it is lost: a run does not stop for it."""
    try:
        print(escape_control_characters(text), file=sys.stderr, flush=True)
    except OSError:
        _connect_to_null_device(sys.stderr.fileno())


def _connect_to_null_device(number: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)
