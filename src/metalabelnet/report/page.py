"""The whole page: its head, several runs beside each other, and a section for each."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import metalabelnet
from metalabelnet.errors import InputError
from metalabelnet.report import samples, source
from metalabelnet.report.comparison import compare
from metalabelnet.report.markup import Html, cut, join, named, tag
from metalabelnet.report.section import section

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MOST_BYTES = 4_500_000  # a page that can be sent by mail and opened on a phone
# No script, no style and no picture from anywhere else: the browser itself sees to it.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def make_report(folders: Sequence[Path], tell: Callable[[str], None] | None = None) -> str:
    """One page about these runs. `tell` hears what could not be shown.

    Each run has its section while the page stays small; beyond, first the samples are left out, then whole sections.
    """
    once = list({folder.resolve(): folder for folder in folders}.values())
    if not once:
        raise InputError("a report needs one run folder at least")
    runs = [source.read(folder) for folder in once]
    head = compare(runs) if len(runs) > 1 else Html()
    room = MOST_BYTES - size(head)
    sections: dict[str, Html] = {}
    left_out = []
    for number, run in enumerate(runs, 1):
        found, note = samples.find(run, run.suspects)
        anchor = f"run-{number}"
        made = section(run, found, note, anchor=anchor)
        if size(made) > room:
            note = "The samples are left out to keep the page small; a report of this run alone has them."
            made = section(run, {}, note, anchor=anchor)
        if size(made) > room:
            left_out.append(run.name)
            continue
        if note and tell is not None:
            tell(f"{run.path}: {note}")
        sections[anchor] = made
        room -= size(made)
    return page(runs, head, sections, left_out)


def page(
    runs: Sequence[source.FinishedRun], comparison: Html, sections: dict[str, Html], left_out: Sequence[str]
) -> str:
    """All parts in one document."""
    data = list(dict.fromkeys(str(run.settings["data"]) for run in runs))
    methods = list(dict.fromkeys(str(run.settings["method"]) for run in runs))
    title = f"{cut(', '.join(methods), 60)} on {cut(', '.join(data), 60)}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(resources.files("metalabelnet.report").joinpath("style.css").read_text(encoding="utf-8"))),
    )
    parts = [tag("header", tag("h1", tag("bdi", title)), tag("p", _said(len(runs)), class_="note"))]
    if len(runs) > 1:
        links = (
            tag("li", tag("a", named(run.name, 60), href=f"#run-{k}"))
            for k, run in enumerate(runs, 1)
            if f"run-{k}" in sections
        )
        inside = [tag("h2", "Side by side"), comparison, tag("nav", tag("ul", *links), aria_label="runs")]
        if left_out:
            some = ", ".join(cut(name, 60) for name in left_out[:20])
            inside.append(tag("p", f"Without a part of their own, to keep the page small: {some}.", class_="missing"))
        parts.append(tag("section", *inside))
    body = tag("body", tag("main", *parts, *sections.values()))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _said(runs: int) -> Html:
    what = "one run" if runs == 1 else f"{runs} runs"
    return join(f"A report of {what}, by metalabelnet {metalabelnet.__version__}. It is whole: it loads nothing.")


def size(text: str) -> int:
    """In bytes."""
    return len(text.encode())
