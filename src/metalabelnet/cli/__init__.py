"""The command line. Wrong input prints one line on standard error and exits with code 2."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import warnings
from typing import TYPE_CHECKING

from metalabelnet.cli.output_files import replace_unprintable
from metalabelnet.cli.parser import make_parser
from metalabelnet.cli.printable import escape_control_characters, shorten
from metalabelnet.cli.standard_streams import discard_unwritten_output, open_standard_streams, print_status
from metalabelnet.errors import DivergenceError, InputError, RankLostError, RunStopped
from metalabelnet.launch.torchrun import rank_and_size, report_once, silence

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")  # in errors of CUDA and of the CPU


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 success, 1 diverged or lost a rank, 2 wrong input, 130 interrupted.

    Of several ranks, rank 0 prints, and the first one that ends with an error prints it.
    """
    if not open_standard_streams():
        return _print_error("standard output is closed: redirect it to a file, or to /dev/null", 2)
    if rank_and_size()[0] > 0:
        silence()
    replace_unprintable()
    warnings.showwarning = _show_warning
    code = _run_command(arguments)
    discard_unwritten_output()
    return code


def _run_command(arguments: Sequence[str] | None) -> int:
    """Run a command, print its error in one line, and return its exit code."""
    args = argparse.Namespace()
    try:
        args = make_parser().parse_args(arguments)
        _check_ranks(args)
        args.command(args)
        sys.stdout.flush()  # here rather than at exit, where an error can no longer be reported
    except BrokenPipeError:  # the reader of standard output has closed it, as `| head` does
        return 0
    except RunStopped as stopped:
        state = str(stopped) or "progress saved"
        return _print_error(f"stopped; {state}; resume with: {_resume_command(arguments, args)}", 130)
    except KeyboardInterrupt:  # a second Ctrl-C, or a command without progress to save
        resume = f"; resume from the last checkpoint with: {_resume_command(arguments, args)}" if "out" in args else ""
        return _print_error(f"stopped immediately{resume}", 130)
    except RankLostError as error:
        reason = f"another rank of the run has ended or cannot be reached ({error})"
        return _print_error(f"{reason}; resume from the last checkpoint with: {_resume_command(arguments, args)}", 1)
    except DivergenceError as error:
        return _print_error(str(error), 1)
    except Exception as error:
        message = _describe_error(error, getattr(args, "net", None))
        if not message:
            if not report_once():
                return 1
            raise
        return _print_error(message, 2)
    return 0


def _check_ranks(args: argparse.Namespace) -> None:
    """Raise InputError if torchrun has started a command other than `train`."""
    if rank_and_size()[1] > 1 and "checkpoint_seconds" not in args:
        raise InputError("torchrun starts several processes of one run: use it with train, and this command without it")


def _describe_error(error: Exception, net: str | None) -> str:
    """Return one line about wrong input, a system error or an error in the user's network; nothing for other errors."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, UnicodeEncodeError):
        text = error.object[error.start : error.end][:20]
        if error.encoding == "utf-8":
            return f"{text!r} in a name is not valid Unicode and cannot be written: rename the file or the class"
        return f"{text!r} cannot be written in {error.encoding}: name a file with -o, or use a UTF-8 terminal"
    if isinstance(error, OSError):  # a full disk, a folder without write permission
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}"
    from metalabelnet.nets.external import user_code_error

    in_user_code = None if net is None else user_code_error(net, error)
    if in_user_code is not None:
        return str(in_user_code)
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or any(phrase in text for phrase in OUT_OF_MEMORY):
        return f"not enough memory ({text[:150] or 'out of memory'}): use a smaller network, batch size or data set"
    return ""


def _resume_command(arguments: Sequence[str] | None, args: argparse.Namespace) -> str:
    """Return the shell command that resumes this one."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    resume = ["--resume"] if "resume" in args and "--resume" not in words else []
    local_ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    torchrun = ["torchrun", "--nproc-per-node", local_ranks, "-m"] if rank_and_size()[1] > 1 else []
    return shlex.join([*torchrun, "metalabelnet", *words, *resume])


def _print_error(message: str, code: int) -> int:
    if not report_once():
        return code
    line = escape_control_characters(f"metalabelnet: {message}")
    print_status(shorten(line) if code == 2 else line)  # others end with a command to copy
    return code


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if not issubclass(category, DeprecationWarning):
        print_status(f"metalabelnet: {message}")
