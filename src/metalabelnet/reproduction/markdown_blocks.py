"""Generated blocks of a Markdown page: the text between two markers is built from the results.

<!-- begin: cifar10-table -->
…
<!-- end: cifar10-table -->
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.reproduction.beyond_tables import learning_table
from metalabelnet.reproduction.claims import baseline_comparison, claims_table, paper_agreement, warmup_accuracy
from metalabelnet.reproduction.experiments import EXPERIMENTS
from metalabelnet.reproduction.figures import has_figure
from metalabelnet.reproduction.selection import Selection, run_specs
from metalabelnet.reproduction.table import Table
from metalabelnet.reproduction.tables import tables

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from metalabelnet.reproduction.results import Results

_BLOCK = re.compile(r"(<!-- begin: (?P<name>[\w-]+) -->\n).*?(<!-- end: (?P=name) -->)", flags=re.DOTALL)
FIGURE_FOLDER = "reproduction"  # relative to the page


def update_page(page: Path, results: Results) -> bool:
    """Rebuild the generated blocks of a page; returns whether the page changed."""
    if not page.is_file():
        raise InputError(f"doc: no file {str(page)!r}; create it with the block markers first")
    try:
        before = page.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"doc {page} is not UTF-8 text ({error}): convert it") from error
    after = fill_page(before, results)
    if after != before:
        page.write_text(after, encoding="utf-8")
    return after != before


def fill_page(text: str, results: Results) -> str:
    """The text of a page with its generated blocks rebuilt from the results."""

    def replacement(match: re.Match[str]) -> str:
        return f"{match[1]}\n{render_block(match['name'], results).strip()}\n\n{match[3]}"

    _check_markers(text)
    return _BLOCK.sub(replacement, text)


def _check_markers(text: str) -> None:
    """Raise InputError for unpaired, repeated or nested markers."""
    markers: dict[str, list[str]] = {}
    for kind, name in re.findall(r"<!-- (begin|end): ([\w-]+) -->", text):
        markers.setdefault(name, []).append(kind)
    blocks = {match["name"] for match in _BLOCK.finditer(text)}
    for name, kinds in markers.items():
        if kinds != ["begin", "end"]:
            raise InputError(
                f"the page has {len(kinds)} markers for {name!r} ({', '.join(kinds)}); use one begin and one end marker"
            )
        if name not in blocks:
            raise InputError(f"the markers for {name!r} are inside another block, or text follows the begin marker")


def render_block(name: str, results: Results) -> str:
    """The content of a block as Markdown."""
    if name in SUMMARY_BLOCKS:
        return SUMMARY_BLOCKS[name](results).markdown()
    if name not in EXPERIMENTS:
        raise unknown_name_error("block", name, [*EXPERIMENTS, *SUMMARY_BLOCKS])
    texts = [table.markdown() for table in tables(name, results)]
    if has_figure(name, results):
        texts.append(f"![{name}]({FIGURE_FOLDER}/{name}.svg)")
    return "\n".join(texts)


def provenance(results: Results) -> Table:
    """For each experiment: how many runs are done, when, on which devices and at which commits."""
    rows = []
    for name, experiment in EXPERIMENTS.items():
        if name.startswith(("beyond", "field")):  # not of the paper
            continue
        specs = run_specs(name, Selection())
        lines = [line for line in map(results.find, specs) if line is not None]
        if experiment.needs_data and not lines:
            rows.append([name, "needs data", "", "", ""])
            continue
        dates = sorted({line["date"] for line in lines})
        devices = sorted({str(line["versions"].get("device")) for line in lines})
        commits = sorted({str(line["commit"]) for line in lines})
        when = " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]]))
        rows.append([name, f"{len(lines)} of {len(specs)}", when, ", ".join(devices), ", ".join(commits)])
    return Table(title="Runs", columns=["experiment", "runs", "date", "device", "commit"], rows=rows)


SUMMARY_BLOCKS: dict[str, Callable[[Results], Table]] = {
    "provenance": provenance,
    "agreement": paper_agreement,
    "warm-up": warmup_accuracy,
    "standing": baseline_comparison,
    "claims": claims_table,
    "learning": learning_table,
}
