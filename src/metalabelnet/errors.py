"""Exceptions of the package: wrong input; a run that was interrupted, diverged or lost a rank; missing packages."""

from __future__ import annotations

import difflib
import importlib
import itertools
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


MAX_LIST_CHARACTERS = 200  # of the names to choose from
MAX_CUT_LIST_CHARACTERS = 130  # of a longer list, the closest names first
CLOSEST_NAMES_IN_MESSAGE = 12
MAX_REASON_LENGTH = 200  # characters of the message of another package
MAX_VALUE_CHARACTERS = 60  # of a parameter's value


class InputError(ValueError):
    """The input cannot be used. The message is one sentence for the user: the value, what is allowed, what to do."""


class RunStopped(Exception):  # noqa: N818 (an interruption, not an error)
    """The run was interrupted and has saved its progress. The message names what could not be saved."""


class DivergenceError(ArithmeticError):
    """Training diverged: a loss or a weight is NaN or infinite."""


class RankLostError(Exception):
    """Another rank of the run has ended, or cannot be reached. The message is that of the communication."""


def unknown_name_error(what: str, name: str, allowed: Iterable[str]) -> InputError:
    """Return the error for a name that does not exist, with the closest match and the names to choose from.

    Examples
    --------
    >>> from metalabelnet.errors import unknown_name_error
    >>> print(unknown_name_error("network", "cnn9", ["mlp", "cnn8"]))
    unknown network 'cnn9': did you mean 'cnn8'? choose from cnn8, mlp
    """
    names = sorted(allowed)
    if not names:
        return InputError(f"unknown {what} {name!r}: there is none")
    same_ignoring_case = [candidate for candidate in names if candidate.casefold() == name.casefold()]
    closest = same_ignoring_case or difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {closest[0]!r}? " if closest else ""
    if len(", ".join(names)) <= MAX_LIST_CHARACTERS:
        return InputError(f"unknown {what} {name!r}: {hint}choose from {', '.join(names)}")
    close = difflib.get_close_matches(name, names, n=CLOSEST_NAMES_IN_MESSAGE, cutoff=0.3)
    ordered = [*close, *(candidate for candidate in names if candidate not in close)]
    ends = itertools.accumulate(len(candidate) + 2 for candidate in ordered)
    listed = ordered[: max(1, sum(end <= MAX_CUT_LIST_CHARACTERS for end in ends))]
    return InputError(f"unknown {what} {name!r}: {hint}choose from {', '.join(listed)}, … ({len(names)} in all)")


def missing_package_error(package: str, extra: str, purpose: str) -> InputError:
    """Return the error for a package that is not installed, with the extra that installs it.

    Examples
    --------
    >>> from metalabelnet.errors import missing_package_error
    >>> print(missing_package_error("matplotlib", "plot", "the figure"))
    the figure needs matplotlib: pip install 'metalabelnet[plot]'
    """
    return InputError(f"{purpose} needs {package}: pip install 'metalabelnet[{extra}]'")


def as_path(name: str, value: Path | str) -> Path:
    """Return the value of a parameter as a path; raise InputError if it is none."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{name}={shorten_value(value)}: give a path")
    return Path(value)


def shorten_value(value: object) -> str:
    """Return the wrong value of a parameter for a message: on one line, cut if it is long."""
    return textwrap.shorten(repr(value), MAX_VALUE_CHARACTERS, placeholder=" …")


def shorten_reason(error: BaseException) -> str:
    """Return the message of an error of another package on one line, cut between words."""
    return textwrap.shorten(str(error), MAX_REASON_LENGTH, placeholder=" …") or type(error).__name__


def import_package(package: str, extra: str, purpose: str) -> Any:
    """Return the imported package of an extra, or raise InputError that names what to install."""
    try:
        return importlib.import_module(package)
    except (ImportError, RuntimeError, OSError) as error:
        first: BaseException = error
        while first.__cause__ is not None:  # transformers hides the error of torchvision behind its own
            first = first.__cause__
        if isinstance(first, ModuleNotFoundError):
            raise missing_package_error(package.replace("_", "-"), extra, purpose) from error
        advice = f"install it again: pip install --force-reinstall 'metalabelnet[{extra}]'"
        if not isinstance(first, ImportError):  # a compiled extension was built for another version of torch
            advice = "install the version of torchvision that belongs to the installed version of torch"
        raise InputError(
            f"{purpose} needs {package.replace('_', '-')}, which cannot be imported ({shorten_reason(first)}): {advice}"
        ) from error
