"""The command line. A wrong argument gets one clear line on standard error and exit code 2."""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from typing import TYPE_CHECKING

from metalabelnet.cli.output_files import never_fail_to_print
from metalabelnet.cli.parser import make_parser
from metalabelnet.errors import InputError
from metalabelnet.train import Diverged, Stopped

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; give its exit code: 0 done, 1 the run failed, 2 wrong input, 130 stopped."""
    never_fail_to_print()
    args = make_parser().parse_args(arguments)
    warnings.showwarning = _show_warning
    try:
        args.command(args)
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UnicodeEncodeError as error:
        if error.encoding == "utf-8":
            raise
        lost = error.object[error.start : error.end][:20]
        return _say(f"{lost!r} cannot be written in {error.encoding}: name a file with -o, or use a UTF-8 terminal", 2)
    except InputError as error:
        return _say(str(error), 2)
    except OSError as error:  # a full disk, a folder that cannot be written
        place = f"{error.filename}: " if error.filename else ""
        return _say(f"{place}{error.strerror or error}", 2)
    except Diverged as error:
        return _say(str(error), 1)
    except Stopped as stopped:
        lost = str(stopped) or "nothing lost"
        return _say(f"stopped, {lost}; go on with: {_again(arguments, args)}", 130)
    except KeyboardInterrupt:  # a second Ctrl-C, or a command that has nothing to save
        go_on = f"; go on from the last checkpoint with: {_again(arguments, args)}" if "out" in args else ""
        return _say(f"stopped at once{go_on}", 130)
    return 0


def _again(arguments: Sequence[str] | None, args: argparse.Namespace) -> str:
    """The command that goes on, ready for the shell."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    resume = ["--resume"] if "resume" in args and "--resume" not in words else []
    return shlex.join(["metalabelnet", *words, *resume])


def _say(sentence: str, code: int) -> int:
    print(f"metalabelnet: {sentence}", file=sys.stderr)
    return code


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if not issubclass(category, DeprecationWarning):
        print(f"metalabelnet: {message}", file=sys.stderr)
