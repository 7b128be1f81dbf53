"""The table of annotators in a report: how often the labels of each one are right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metalabelnet.report.markup import Html, join, name_tag, table, tag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_ANNOTATORS = 50  # those with the most labels


def annotator_table(annotators: Sequence[Mapping[str, Any]]) -> Html:
    """The table of the annotators of summary.json, those with the most labels first."""
    total = sum(one["labels"] for one in annotators)
    intro = (
        f"{len(annotators)} annotators gave {total} labels. Accuracy is the share of right labels with its 95 % CI: by "
        "the probabilities of the corrected labels, and on the clean samples alone."
    )
    rows = [
        [
            name_tag(one["annotator"]),
            str(one["labels"]),
            str(one["abstained"]),
            _share(one, ""),
            str(one["clean_labels"]),
            _share(one, "clean_"),
        ]
        for one in annotators[:MAX_ANNOTATORS]
    ]
    columns = ["annotator", "labels", "abstained", "accuracy", "labels of clean samples", "accuracy on them"]
    more = len(annotators) - MAX_ANNOTATORS
    note = tag("p", f"and {more} more in summary.json", class_="note") if more > 0 else Html()
    return join(tag("h3", "Annotators"), tag("p", intro), table(columns, rows, class_="numbers"), note)


def _share(one: Mapping[str, Any], prefix: str) -> str:
    accuracy, low, high = (one[f"{prefix}{key}"] for key in ("accuracy", "low", "high"))
    if accuracy is None or low is None or high is None:
        return "–"
    return f"{accuracy:.0f}\u00a0% ({low:.0f}–{high:.0f}\u00a0%)"
