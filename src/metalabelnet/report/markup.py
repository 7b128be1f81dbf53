"""HTML that cannot be broken by what stands in it: plain text is escaped, and only `Html` passes as it is."""

from __future__ import annotations

import html
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Attribute = str | int | float | bool | None


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


VOID = ("meta", "img", "br")  # elements of HTML that have no end


def clean(text: str) -> str:
    """What may stand in a page: no control characters, no halves of characters, as broken file names have them."""
    whole = text.encode("utf-8", "replace").decode()
    return "".join(c if unicodedata.category(c) != "Cc" or c in "\n\t" else "�" for c in whole)


def escaped(part: str) -> Html:
    """Markup for this text; what is markup already stays."""
    return part if isinstance(part, Html) else Html(html.escape(clean(part)))


def join(*parts: str) -> Html:
    """One after the other."""
    return Html("".join(map(escaped, parts)))


def tag(name: str, /, *content: str, **attributes: Attribute) -> Html:
    """An element. An attribute that is None or False is left out; `class_` is class, and `aria_label` aria-label."""
    said = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        said.append(f" {key}" if value is True else f' {key}="{escaped(str(value))}"')
    start = f"<{name}{''.join(said)}>"
    return Html(start) if name in VOID else Html(f"{start}{join(*content)}</{name}>")


def cut(text: str, most: int = 40) -> str:
    """A text of at most so many characters, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def named(text: str, most: int = 40) -> Html:
    """A name that may be long, or written from right to left; the whole of it is shown when pointed at."""
    short = cut(text, most)
    return tag("bdi", short if short else "–", title=cut(text, 300) if short != text and text else None)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str | None = None, class_: str | None = None
) -> Html:
    """A table in a box that can be moved sideways where the screen is narrow. The first cell of a row is its name."""
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in columns))) if columns else Html()
    body = (tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows)
    title = tag("caption", tag("span", caption)) if caption else Html()
    return tag("div", tag("table", title, head, tag("tbody", *body), class_=class_), class_="wide")
