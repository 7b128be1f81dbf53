"""Parsing JSON of strangers: nested as deep as they like, and with texts that are not valid Unicode."""

from __future__ import annotations

import json
from typing import Any


def parse_json(content: bytes) -> Any:
    r"""Return the value of a JSON text.

    Parameters
    ----------
    content : bytes
        The text, in UTF-8, UTF-16 or UTF-32.

    Returns
    -------
    Any
        The value. All texts in it are valid Unicode, or names of files with bytes that are not UTF-8.

    Raises
    ------
    ValueError
        If it is not JSON, is nested too deep, or escapes half of a character (a lone surrogate).

    Examples
    --------
    >>> from metalabelnet.input_files.json_text import parse_json
    >>> parse_json(b'["a"]')
    ['a']
    >>> parse_json(rb'["\ud800"]')
    Traceback (most recent call last):
    ValueError: a text is not valid Unicode
    """
    try:
        parsed = json.loads(content)
    except RecursionError:
        raise ValueError("too many nested lists") from None
    if b"\\" in content:  # only an escape makes a lone surrogate: the decoder of the bytes rejects others
        try:
            json.dumps(parsed, ensure_ascii=False).encode(errors="surrogateescape")
        except UnicodeEncodeError:
            raise ValueError("a text is not valid Unicode") from None
    return parsed
