"""Cells that a spreadsheet program would evaluate as formulas: an apostrophe before them makes them text.

Reference: https://owasp.org/www-community/attacks/CSV_Injection
"""

from __future__ import annotations

import re

# The beginning of a formula, also behind apostrophes: escaping those too makes it reversible.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def escape_formula(cell: str) -> str:
    """Return the cell, after an apostrophe if it begins like a formula and is not a number.

    Examples
    --------
    >>> from metalabelnet.data.files.spreadsheet import escape_formula
    >>> [escape_formula(cell) for cell in ("=1+1", "-1", "cat")]
    ["'=1+1", '-1', 'cat']
    """
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell


def unescape_formula(cell: str) -> str:
    """Return the cell that `escape_formula` has escaped; other cells are returned as they are."""
    return cell[1:] if cell[:1] == "'" and escape_formula(cell[1:]) == cell else cell
