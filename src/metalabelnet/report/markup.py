"""Builds HTML. Plain text is escaped; only `Html` is inserted as it is."""

from __future__ import annotations

import html
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Attribute = str | int | float | bool | None


class Html(str):
    """Text that is HTML and needs no escaping."""

    __slots__ = ()


VOID_ELEMENTS = ("meta", "img", "br")  # elements without an end tag


def replace_invalid_characters(text: str) -> str:
    """Replace control characters and lone surrogates (from file names that are not UTF-8)."""
    valid = text.encode("utf-8", "replace").decode()
    return "".join(c if unicodedata.category(c) != "Cc" or c in "\n\t" else "�" for c in valid)


def escape(part: str) -> Html:
    """The text as HTML; `Html` is returned unchanged."""
    return part if isinstance(part, Html) else Html(html.escape(replace_invalid_characters(part)))


def join(*parts: str) -> Html:
    """The parts concatenated as HTML."""
    return Html("".join(map(escape, parts)))


def tag(name: str, /, *content: str, **attributes: Attribute) -> Html:
    """An HTML element.

    Attributes that are None or False are left out. `class_` becomes class and `aria_label` becomes aria-label.
    """
    texts = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        texts.append(f" {key}" if value is True else f' {key}="{escape(str(value))}"')
    start = f"<{name}{''.join(texts)}>"
    return Html(start) if name in VOID_ELEMENTS else Html(f"{start}{join(*content)}</{name}>")


def truncate(text: str, max_characters: int = 40) -> str:
    """The text on one line, with at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= max_characters else f"{line[: max_characters - 1]}…"


def name_tag(text: str, max_characters: int = 40) -> Html:
    """An element for a name that may be long or right-to-left; the tooltip has up to 300 characters of it."""
    short = truncate(text, max_characters)
    return tag("bdi", short if short else "–", title=truncate(text, 300) if short != text and text else None)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str | None = None, class_: str | None = None
) -> Html:
    """A table in a box that scrolls horizontally. The first cell of a row is its header."""
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in columns))) if columns else Html()
    body = (tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows)
    title = tag("caption", tag("span", caption)) if caption else Html()
    return tag("div", tag("table", title, head, tag("tbody", *body), class_=class_), class_="wide")
