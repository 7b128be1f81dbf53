"""Text from files and names, made safe and short enough to print on a terminal.

A class or a file can be named with escape sequences, which would control the terminal, or with line breaks, which
would imitate messages of the program.
"""

from __future__ import annotations

import re

MAX_ERROR_CHARACTERS = 300
MAX_VALUE_CHARACTERS = 60  # longer words and quoted values are shortened first
# C0 and C1 control characters, line and paragraph separators, and those that change the direction of text.
_CONTROL_CHARACTERS = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_IN_LINE = re.compile(f"[{_CONTROL_CHARACTERS}]")
_IN_DATA = re.compile(f"(?![\n\t])[{_CONTROL_CHARACTERS}]")
_VALUE = re.compile(r"(?<!\w)'[^']*'(?!\w)|(?<!\w)\"[^\"]*\"(?!\w)|\S+")


def escape_control_characters(text: str, *, keep_lines: bool = False) -> str:
    r"""Return the text with control characters as escape sequences of Python.

    Parameters
    ----------
    text : str
        Text to print.
    keep_lines : bool
        Keep line breaks and tabs, for output of several lines.

    Examples
    --------
    >>> from metalabelnet.cli.printable import escape_control_characters
    >>> print(escape_control_characters("cat\x1b[2J\n"))
    cat\x1b[2J\n
    """
    pattern = _IN_DATA if keep_lines else _IN_LINE
    return pattern.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def shorten(message: str, max_characters: int = MAX_ERROR_CHARACTERS) -> str:
    """Return a message of at most `max_characters`: values lose their middle, then the message does.

    The end stays, because it has the remedy.
    """
    while (excess := len(message) - max_characters) > 0:
        longest = max(_VALUE.findall(message), key=len, default="")
        if len(longest) <= MAX_VALUE_CHARACTERS:
            return _cut_middle(message, max_characters)
        message = message.replace(longest, _cut_middle(longest, max(MAX_VALUE_CHARACTERS, len(longest) - excess)))
    return message


def _cut_middle(text: str, max_characters: int) -> str:
    start, end = max_characters // 2, (max_characters - 1) // 2
    return f"{text[:start]}…{text[len(text) - end :]}"
