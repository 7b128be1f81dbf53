"""What a browser sends, read strictly: anything that is not what the page's own forms send is `InputError`."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from metalabelnet.errors import InputError
from metalabelnet.review.filters import SHOWS, VERDICTS, Filter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request

    Fields = Mapping[str, str]

SPLITS = ("train", "clean", "test", "left out")
VIEWS = ("grid", "one")
MOST_PER_CLASS = 100_000
MOST_BYTES = 1 << 16


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form, as browsers encode them by default."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise InputError(f"a form of this page has {MOST_BYTES} bytes at most")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=40))
    except ValueError as error:
        raise InputError("this is no form of this page") from error


def choice(fields: Fields, name: str, choices: Sequence[str]) -> str:
    """One of some words; the first where nothing is said."""
    value = fields.get(name) or choices[0]
    if value not in choices:
        raise InputError(f"{name} is one of {', '.join(choices)}, not {value[:40]!r}")
    return value


def whole(fields: Fields, name: str, default: int, least: int = 0, most: int = 2**63 - 1) -> int:
    """A whole number."""
    text = fields.get(name, "") or str(default)
    if not (text.isascii() and text.isdigit() and least <= int(text[:20]) <= most):
        raise InputError(f"{name} is a whole number from {least} to {most}, not {text[:40]!r}")
    return int(text)


def share(fields: Fields, name: str, default: float) -> float:
    """A number from 0 to 1, written in per cent."""
    text = fields.get(name, "") or str(100 * default)
    try:
        value = float(text[:40]) / 100
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise InputError(f"{name} is a number of per cent from 0 to 100, not {text[:40]!r}")
    return value


def find_class(name: str, classes: Sequence[str]) -> int:
    """The class a person means: its name, or a beginning that only one has, in whatever case."""
    if name in classes:
        return classes.index(name)
    small = name.strip().casefold()
    for fits in (str.__eq__, str.startswith):
        found = [k for k, known in enumerate(classes) if small and fits(known.casefold(), small)]
        if len(found) == 1:
            return found[0]
    wrong = f"{len(found)} classes begin with" if found else "no class begins with"
    raise InputError(f"{wrong} {name[:40]!r}: type more of its name")


def read_filter(fields: Fields, classes: Sequence[str]) -> Filter:
    """The list that is asked for."""
    known = {name: find_class(fields[name], classes) for name in ("given", "label") if fields.get(name)}
    return Filter(
        show=choice(fields, "show", SHOWS),
        verdict=choice(fields, "verdict", VERDICTS),
        split=choice(fields, "split", SPLITS),
        least=share(fields, "least", 0.0),
        most=share(fields, "most", 1.0),
        given=known.get("given"),
        label=known.get("label"),
    )


def read_after(fields: Fields) -> tuple[float, int] | None:
    """Where the page before ended."""
    text = fields.get("after", "")
    suspicion, _, n = text.partition(",")
    try:
        return (float(suspicion), whole({"after": n or "nothing"}, "after", 0)) if text else None
    except ValueError:
        raise InputError(f"after is where a page ended, not {text[:40]!r}") from None


def address(fields: Fields, **changes: object) -> str:
    """The address of the list with some of its fields changed; None leaves one out."""
    kept = {k: v for k, v in fields.items() if k in _KEPT and v} | changes
    query = urlencode({name: str(value) for name, value in kept.items() if value is not None})
    return f"/?{query}" if query else "/"


_KEPT = ("view", *(field.name for field in dataclasses.fields(Filter)))
