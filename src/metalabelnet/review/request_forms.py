"""Parses forms and query strings; anything the page itself does not send raises `InputError`."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from metalabelnet.errors import InputError
from metalabelnet.review.filters import SHOWS, VERDICTS, SampleFilter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request

    Fields = Mapping[str, str]

SPLITS = ("train", "clean", "test", "left out")
VIEWS = ("grid", "one")
MAX_SAMPLES_PER_CLASS = 100_000
MAX_FORM_BYTES = 1 << 16
MAX_INTEGER = 2**63 - 1  # of SQLite
MAX_DIGITS = len(str(MAX_INTEGER))


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a URL-encoded form."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            raise InputError(f"the form is too large: at most {MAX_FORM_BYTES} bytes")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=40))
    except ValueError as error:
        raise InputError("the form is not URL-encoded") from error


def parse_choice(fields: Fields, name: str, choices: Sequence[str]) -> str:
    """One of the choices; the first if the field is missing or empty."""
    value = fields.get(name) or choices[0]
    if value not in choices:
        raise InputError(f"unknown {name} {value[:40]!r}: choose from {', '.join(choices)}")
    return value


def parse_int(fields: Fields, name: str, default: int, minimum: int = 0, maximum: int = MAX_INTEGER) -> int:
    """An integer within the bounds."""
    text = fields.get(name, "") or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS and minimum <= int(text) <= maximum):
        raise InputError(f"{name} {text[:40]!r} is not an integer from {minimum} to {maximum}")
    return int(text)


def parse_percent(fields: Fields, name: str, default: float) -> float:
    """A number from 0 to 1, given in percent."""
    text = fields.get(name, "") or str(100 * default)
    try:
        value = float(text[:40]) / 100
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise InputError(f"{name} {text[:40]!r} is not a percentage from 0 to 100")
    return value


def find_class(name: str, classes: Sequence[str]) -> int:
    """The number of a class from its name or an unambiguous prefix, ignoring case."""
    if name in classes:
        return classes.index(name)
    prefix = name.strip().casefold()
    for matches in (str.__eq__, str.startswith):
        found = [k for k, known in enumerate(classes) if prefix and matches(known.casefold(), prefix)]
        if len(found) == 1:
            return found[0]
    problem = f"{len(found)} classes start with" if found else "no class starts with"
    raise InputError(f"{problem} {name[:40]!r}: type more of its name")


def read_filter(fields: Fields, classes: Sequence[str]) -> SampleFilter:
    """The filter in the query string."""
    known = {name: find_class(fields[name], classes) for name in ("given", "label") if fields.get(name)}
    return SampleFilter(
        show=parse_choice(fields, "show", SHOWS),
        verdict=parse_choice(fields, "verdict", VERDICTS),
        split=parse_choice(fields, "split", SPLITS),
        min_confidence=parse_percent(fields, "min_confidence", 0.0),
        max_confidence=parse_percent(fields, "max_confidence", 1.0),
        given=known.get("given"),
        label=known.get("label"),
    )


def read_after(fields: Fields) -> tuple[float, int] | None:
    """The last sample of the previous page."""
    text = fields.get("after", "")
    suspicion, _, n = text.partition(",")
    try:
        return (float(suspicion), parse_int({"after": n or "nothing"}, "after", 0)) if text else None
    except ValueError:
        raise InputError(f"after {text[:40]!r} is not the end of a page") from None


def address(fields: Fields, **changes: object) -> str:
    """The address of the list with some fields changed; None removes a field."""
    parameters = {k: v for k, v in fields.items() if k in _LIST_FIELDS and v} | changes
    query = urlencode({name: str(value) for name, value in parameters.items() if value is not None})
    return f"/?{query}" if query else "/"


_LIST_FIELDS = ("view", *(field.name for field in dataclasses.fields(SampleFilter)))
