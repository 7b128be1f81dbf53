"""What is raised: wrong input, in one sentence with value, range and the way out; and that a run was stopped."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


MOST = 40  # names in a sentence; of more the nearest are named


class InputError(ValueError):
    """The input cannot be used. The message is meant for the person who gave it."""


class Stopped(Exception):  # noqa: N818
    """The run was asked to stop, and has saved where it is. What could not be saved is in the message."""


def unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    """Name what was not found, the nearest known name, and all there is, or of very many a dozen."""
    names = sorted(known)
    spelt_alike = [known for known in names if known.casefold() == name.casefold()]
    nearest = spelt_alike or difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    there = names
    if len(names) > MOST:
        there = difflib.get_close_matches(name, names, n=12, cutoff=0.3) or names[:12]
        there = [*there, f"… ({len(names)} in all)"]
    return InputError(f"unknown {what} {name!r}: {hint}there is {', '.join(there)}")


def missing_package(package: str, extra: str, purpose: str) -> InputError:
    """Name the package that is not installed, and the extra that brings it."""
    return InputError(f"{purpose} needs {package}: pip install 'metalabelnet[{extra}]'")
