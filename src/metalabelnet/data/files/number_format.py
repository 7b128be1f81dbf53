"""Numbers as people write them: 1234.5, and also 1,234.5 or 1.234,5, if a whole column does so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PLAIN, POINT, COMMA = "1234.5", "1,234.5", "1.234,5"
NEARLY_ALL = 0.9  # of the cells of a column of numbers in which a few are mistyped

_SPACED = r"[1-9]\d{0,2}(?:[ '\u2019\u00a0\u202f]\d{3})+"
# With a decimal comma a single group after a point, 1.234, is left unread: it may as well be a decimal fraction.
_READ = {
    POINT: re.compile(rf"[+-]?(?:\d+|[1-9]\d{{0,2}}(?:,\d{{3}})+|{_SPACED})(?:\.\d+)?"),
    COMMA: re.compile(
        rf"[+-]?(?:\d+|[1-9]\d{{0,2}}(?:\.\d{{3}})+(?=,)|[1-9]\d{{0,2}}(?:\.\d{{3}}){{2,}}|{_SPACED})(?:,\d+)?"
    ),
}


def number(cell: str, form: str = PLAIN) -> float | None:
    """What a cell says in a column of this form; None where it is no number there."""
    if form != COMMA or "." not in cell:
        try:
            return float(cell)
        except ValueError:
            pass
    if cell.strip().lower() in ("true", "false"):
        return float(cell.strip().lower() == "true")
    if form == PLAIN or not _READ[form].fullmatch(cell):
        return None
    digits = re.sub(r"[^\d.+-]" if form == POINT else r"[^\d,+-]", "", cell)
    return float(digits.replace(",", "."))


def form_of(cells: Sequence[str], *, strict: bool = True) -> str | None:
    """The form in which all cells are numbers, or, unless strict, nearly all; None where there is none.

    Where 1,234 stands for itself alone it is taken for more than a thousand; one 0,123 or 12,5 in the column says that
    the comma is the decimal one.
    """
    for form in (PLAIN, POINT, COMMA):
        readable = sum(number(cell, form) is not None for cell in cells)
        if readable == len(cells) or (not strict and readable >= NEARLY_ALL * len(cells)):
            return form
    return None
