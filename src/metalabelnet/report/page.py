"""The HTML page of a report: a comparison of the runs and a section for each run."""

from __future__ import annotations

import os
from importlib import resources
from typing import TYPE_CHECKING

import metalabelnet
from metalabelnet.errors import InputError
from metalabelnet.report import finished_run, sample_content
from metalabelnet.report.comparison import comparison_html
from metalabelnet.report.markup import Html, join, name_tag, tag, truncate
from metalabelnet.report.run_section import make_section

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MAX_PAGE_BYTES = 4_500_000  # small enough for e-mail and phones
# The browser blocks scripts and everything from other sources.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)


def make_report(folders: Sequence[Path], warn: Callable[[str], None] | None = None) -> str:
    """Build the report of finished runs as one self-contained HTML page.

    To keep the page below 4.5 MB, the samples of a run are left out first, then its section.

    Parameters
    ----------
    folders : sequence of Path
        Run folders; a folder given twice counts once.
    warn : callable, optional
        Called with a message for each run whose samples cannot be shown.

    Returns
    -------
    str
        The HTML page.

    Raises
    ------
    InputError
        If there is no folder, or one is not a finished run.
    """
    unique = list({os.path.realpath(folder): folder for folder in folders}.values())  # no error for a loop of links
    if not unique:
        raise InputError("a report needs at least one run folder")
    runs = [finished_run.read_run(folder) for folder in unique]
    head = comparison_html(runs) if len(runs) > 1 else Html()
    bytes_left = MAX_PAGE_BYTES - size(head)
    sections: dict[str, Html] = {}
    left_out = []
    for number, run in enumerate(runs, 1):
        contents, note = sample_content.read_contents(run, run.suspects)
        anchor = f"run-{number}"
        html = make_section(run, contents, note, anchor=anchor)
        if size(html) > bytes_left:
            note = "The samples are left out to limit the size of the page; a report of this run alone contains them."
            html = make_section(run, {}, note, anchor=anchor)
        if size(html) > bytes_left:
            left_out.append(run.name)
            continue
        if note and warn is not None:
            warn(f"{run.path}: {note}")
        sections[anchor] = html
        bytes_left -= size(html)
    return assemble_page(runs, head, sections, left_out)


def assemble_page(
    runs: Sequence[finished_run.FinishedRun], comparison: Html, sections: dict[str, Html], left_out: Sequence[str]
) -> str:
    """The complete HTML document."""
    data = list(dict.fromkeys(str(run.settings["data"]) for run in runs))
    methods = list(dict.fromkeys(str(run.settings["method"]) for run in runs))
    title = f"{truncate(', '.join(methods), 60)} on {truncate(', '.join(data), 60)}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=CONTENT_SECURITY_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(resources.files("metalabelnet.report").joinpath("style.css").read_text(encoding="utf-8"))),
    )
    parts = [tag("header", tag("h1", tag("bdi", title)), tag("p", _intro(len(runs)), class_="note"))]
    if len(runs) > 1:
        links = (
            tag("li", tag("a", name_tag(run.name, 60), href=f"#run-{k}"))
            for k, run in enumerate(runs, 1)
            if f"run-{k}" in sections
        )
        inside = [tag("h2", "Comparison"), comparison, tag("nav", tag("ul", *links), aria_label="runs")]
        if left_out:
            some = ", ".join(truncate(name, 60) for name in left_out[:20])
            inside.append(tag("p", f"No section, to limit the size of the page: {some}.", class_="missing"))
        parts.append(tag("section", *inside))
    body = tag("body", tag("main", *parts, *sections.values()))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _intro(runs: int) -> Html:
    count = "one run" if runs == 1 else f"{runs} runs"
    return join(f"Report of {count} by metalabelnet {metalabelnet.__version__}. The page is self-contained.")


def size(text: str) -> int:
    """The size of the text in bytes."""
    return len(text.encode())
