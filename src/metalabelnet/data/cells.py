"""Cells of a table: missing values, numbers, truth values, and texts that are no category.

Numbers may be written 1234.5, 1,234.5 or 1.234,5, if the whole column uses one format.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MISSING_VALUES = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
MIN_CATEGORY_VALUES = 20  # a column may have this many distinct texts as a category, however few rows there are
MIN_NUMERIC_SHARE = 0.9  # of the cells of a numeric column that has a few mistyped ones

PLAIN, POINT, COMMA = "1234.5", "1,234.5", "1.234,5"  # number formats
_SPACED = r"[1-9]\d{0,2}(?:[ '\u2019\u00a0\u202f]\d{3})+"
# With a decimal comma, a single group after a point (1.234) is rejected: it may as well be a decimal fraction.
_PATTERNS = {
    POINT: re.compile(rf"[+-]?(?:\d+|[1-9]\d{{0,2}}(?:,\d{{3}})+|{_SPACED})(?:\.\d+)?"),
    COMMA: re.compile(
        rf"[+-]?(?:\d+|[1-9]\d{{0,2}}(?:\.\d{{3}})+(?=,)|[1-9]\d{{0,2}}(?:\.\d{{3}}){{2,}}|{_SPACED})(?:,\d+)?"
    ),
}


def is_missing(cell: str) -> bool:
    """Whether a cell has no value."""
    return cell.strip().lower() in MISSING_VALUES


def is_identifier(cells: Sequence[str]) -> bool:
    """Whether a column holds names or texts that differ in most rows, which is no feature."""
    present = [cell for cell in cells if cell.strip().lower() not in MISSING_VALUES]  # not is_missing, but faster
    return has_too_many_values(present) and number_format(present, strict=False) is None


def parse_number(cell: str, form: str = PLAIN) -> float | None:
    """Return the number in a cell of a column with this number format, or None if it is not a number."""
    if form != COMMA or "." not in cell:
        try:
            return float(cell)
        except ValueError:
            pass
    if cell.strip().lower() in ("true", "false"):
        return float(cell.strip().lower() == "true")
    if form == PLAIN or not _PATTERNS[form].fullmatch(cell):
        return None
    digits = re.sub(r"[^\d.+-]" if form == POINT else r"[^\d,+-]", "", cell)
    return float(digits.replace(",", "."))


def number_format(cells: Sequence[str], *, strict: bool = True) -> str | None:
    """Return the format in which all cells (or, unless strict, nearly all) are numbers; None if there is none.

    In a column where only 1,234 occurs, the comma separates thousands; one 0,123 or 12,5 makes it the decimal comma.
    """
    for form in (PLAIN, POINT, COMMA):
        numeric = sum(parse_number(cell, form) is not None for cell in cells)
        if numeric == len(cells) or (not strict and numeric >= MIN_NUMERIC_SHARE * len(cells)):
            return form
    return None


def has_too_many_values(cells: Sequence[str]) -> bool:
    """Whether these cells have too many distinct texts for a category."""
    return len(set(cells)) > max(MIN_CATEGORY_VALUES, len(cells) / 2)


def parse_bool(cell: str, row: int, column: str, path: Path) -> bool:
    """Return the truth value of a cell; a missing value is false."""
    text = cell.lower()
    if text in ("1", "1.0", "true", "t", "yes", "y", "x"):
        return True
    if text in ("0", "0.0", "false", "f", "no", "n") or is_missing(text):
        return False
    raise InputError(f"{path}: row {row} has {cell!r} in the column {column!r}; give 1 or 0, true or false, yes or no")
