"""What the clean samples show of the label noise, in a report: rate, rate by class, matrix, and warnings of the run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from metalabelnet.errors import InputError
from metalabelnet.report.markup import Html, join, name_tag, table, tag
from metalabelnet.report.matrices import pair_table

if TYPE_CHECKING:
    from metalabelnet.report.finished_run import FinishedRun, PairCounts

MAX_CLASSES_IN_TEXT = 5


def format_rate(rate: dict[str, Any]) -> str:
    """Return a rate with its confidence interval."""
    return f"{rate['rate']:.0f} % (95 % CI {rate['low']:.0f}–{rate['high']:.0f} %)"


def format_noise(noise: dict[str, Any]) -> str:
    """Return the noise rate that the clean samples show, and the classes with the most noise, as plain text."""
    worst = sorted(noise["by_class"], key=lambda name: -noise["by_class"][name]["rate"])[:MAX_CLASSES_IN_TEXT]
    by_class = ", ".join(f"{name}: {format_rate(noise['by_class'][name])}" for name in worst)
    return f"{format_rate(noise)} of {noise['samples']} clean samples have a wrong given label; {by_class}"


def warnings_html(run: FinishedRun) -> Html:
    """The warnings of a run as a list; empty without any."""
    warnings = run.summary.get("warnings") or ()
    return tag("ul", *(tag("li", warning) for warning in warnings), class_="missing") if warnings else Html()


def clean_noise_html(run: FinishedRun) -> Html:
    """The noise rate on the clean samples, by class, and the counted matrix."""
    noise, check = run.summary.get("clean_noise"), run.summary.get("given_check")
    if noise is None:
        return tag("p", "No clean sample carries a given label, which would show the noise.", class_="missing")
    text = f"{format_rate(noise)} of {noise['samples']} clean samples have a wrong given label."
    if check is not None:
        kept = " The label table keeps the given labels." if check["keeps_given"] else ""
        text += (
            f" On {check['samples']} clean samples {check['given_right']:.0f} % of given labels and "
            f"{check['corrected_right']:.0f} % of corrected labels are right.{kept}"
        )
    if not all(len(cell) == 3 and min(cell) >= 0 and max(cell[:2]) < len(run.classes) for cell in noise["counts"]):
        raise InputError(
            f"{run.path}/summary.json: the noise matrix has a class beyond those of the run: copy the run folder "
            "again, or train again"
        )
    rows = [[name_tag(name), format_rate(rate), str(rate["samples"])] for name, rate in noise["by_class"].items()]
    pairs: PairCounts = Counter({(true, given): n for true, given, n in noise["counts"]})
    caption = "Number of clean samples by true class and given label"
    matrix = pair_table(pairs, run.classes, rows="true", columns="given", shares=False, caption=caption)
    by_class = table(["class", "wrong given labels", "clean samples"], rows)
    return join(tag("p", text), matrix, tag("details", tag("summary", "Noise rate by class"), by_class))
