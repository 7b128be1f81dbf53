"""The command line. Wrong input prints one line on standard error and exits with code 2."""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from typing import TYPE_CHECKING

from metalabelnet.cli.output_files import replace_unprintable
from metalabelnet.cli.parser import make_parser
from metalabelnet.errors import DivergenceError, InputError, RunStopped

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 success, 1 training diverged, 2 wrong input, 130 interrupted."""
    replace_unprintable()
    args = make_parser().parse_args(arguments)
    warnings.showwarning = _show_warning
    try:
        args.command(args)
    except BrokenPipeError:  # the reader of standard output has closed it, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UnicodeEncodeError as error:
        if error.encoding == "utf-8":
            raise
        text = error.object[error.start : error.end][:20]
        message = f"{text!r} cannot be written in {error.encoding}: name a file with -o, or use a UTF-8 terminal"
        return _print_error(message, 2)
    except InputError as error:
        return _print_error(str(error), 2)
    except OSError as error:  # a full disk, a folder without write permission
        place = f"{error.filename}: " if error.filename else ""
        return _print_error(f"{place}{error.strerror or error}", 2)
    except DivergenceError as error:
        return _print_error(str(error), 1)
    except RunStopped as stopped:
        state = str(stopped) or "progress saved"
        return _print_error(f"stopped; {state}; resume with: {_resume_command(arguments, args)}", 130)
    except KeyboardInterrupt:  # a second Ctrl-C, or a command without progress to save
        resume = f"; resume from the last checkpoint with: {_resume_command(arguments, args)}" if "out" in args else ""
        return _print_error(f"stopped immediately{resume}", 130)
    return 0


def _resume_command(arguments: Sequence[str] | None, args: argparse.Namespace) -> str:
    """Return the shell command that resumes this one."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    resume = ["--resume"] if "resume" in args and "--resume" not in words else []
    return shlex.join(["metalabelnet", *words, *resume])


def _print_error(message: str, code: int) -> int:
    print(f"metalabelnet: {message}", file=sys.stderr)
    return code


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if not issubclass(category, DeprecationWarning):
        print(f"metalabelnet: {message}", file=sys.stderr)
