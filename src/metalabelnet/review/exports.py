"""Exports as CSV: the clean set, the corrected labels, the verdicts and the annotations."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

from metalabelnet.data.files.spreadsheet import escape_formula
from metalabelnet.data.unlabeled import UNLABELED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from metalabelnet.review.source import ReviewSource
    from metalabelnet.review.store import CurrentVerdicts, ReviewStore

    ExportRows = Iterator[tuple[Any, ...]]

REVIEWER = "reviewer"  # the annotator of verdicts
# Whether the sample c has a verdict from the clean set page that was not undone.
_DRAWN = (
    "EXISTS (SELECT 1 FROM verdicts v WHERE v.n = c.n AND v.page = 'clean' AND v.kind = 'label' "
    "AND NOT EXISTS (SELECT 1 FROM verdicts u WHERE u.undoes = v.v))"
)


def clean_set(store: ReviewStore, source: ReviewSource, *, drawn: bool = False) -> ExportRows:
    """The clean set for `train --clean`: the samples confirmed by a reviewer and the clean set of the run.

    A verdict overrides the clean set of the run. With `drawn` only samples from the clean set page are included, not
    suspects that were checked; samples of the run's clean set stay unless a verdict contradicts them.

    Samples marked as clean in the data itself that are no longer clean come last, without a label, so that `train`
    leaves them out of the clean set.
    """
    yield "id", "label", "from"
    query = (
        "SELECT s.position, s.id, c.label, 'person' AS origin FROM samples s NOT INDEXED "  # noqa: S608
        "JOIN current_verdicts c ON c.n = s.n WHERE s.n IN (SELECT n FROM current_verdicts) "
        f"AND c.kind = 'label' AND (NOT :drawn OR {_DRAWN}) "
        "UNION ALL SELECT s.position, s.id, s.clean_label, 'run' FROM samples s INDEXED BY by_clean_label "
        "WHERE s.clean_label >= 0 "
        "AND NOT EXISTS (SELECT 1 FROM current_verdicts c WHERE c.n = s.n AND (c.kind = 'unusable' OR c.kind = 'label' "
        f"AND (NOT :drawn OR c.label != s.clean_label OR {_DRAWN}))) ORDER BY 1"
    )
    exported = set()
    for row in store.connection().execute(query, {"drawn": drawn}):
        exported.add(row["position"])
        yield row["id"], source.classes[row["label"]], row["origin"]
    decided = (
        "SELECT s.position FROM current_verdicts c JOIN samples s ON s.n = c.n WHERE c.kind IN ('label', 'unusable')"
    )
    reviewed = {row["position"] for row in store.connection().execute(decided)} if source.marked_clean else ()
    for position in sorted(source.marked_clean - exported):
        if position in reviewed or position not in source.clean_labels:
            yield source.ids[position], "", "left out"


def corrected_labels(store: ReviewStore, source: ReviewSource) -> ExportRows:
    """A label for every usable sample: the verdict, else the clean label, the corrected label or the given label."""
    query = (
        "SELECT s.id, s.given, s.label, s.clean_label, s.confidence, c.kind, c.label AS decided FROM samples s "
        "LEFT JOIN current_verdicts c ON c.n = s.n WHERE c.kind IS NULL OR c.kind != 'unusable' ORDER BY s.position"
    )
    return _label_rows(store.connection().execute(query), source.classes)


def corrected_labels_without_import(verdicts: CurrentVerdicts, source: ReviewSource) -> ExportRows:
    """The rows of `corrected_labels` from the source itself: importing samples takes longer than writing their labels.

    `verdicts` has the kind and label of the current verdict by the position of the sample.
    """
    return _label_rows(_samples_with_verdicts(verdicts, source), source.classes)


def _samples_with_verdicts(verdicts: CurrentVerdicts, source: ReviewSource) -> Iterator[tuple[Any, ...]]:
    """Yield the usable samples by position, as the query of `corrected_labels`."""
    trained, clean_labels = source.run_labels, source.clean_labels
    is_trained = bytes(len(source)) if trained is None else trained.is_trained
    for position, name in enumerate(source.ids):
        kind, decided = verdicts.get(position, (None, None))
        if kind == "unusable":
            continue
        if trained is not None and is_trained[position]:
            given, corrected = trained.given[position], trained.label[position]
            yield name, given, corrected, UNLABELED, trained.confidence[position], kind, decided
        else:
            clean = clean_labels.get(position, UNLABELED)
            yield name, source.given[position], UNLABELED, clean, 0.0, kind, decided


def _label_rows(samples: Iterable[tuple[Any, ...]], classes: Sequence[str]) -> ExportRows:
    yield "id", "given", "label", "from", "confidence"
    names = [*classes, ""]
    for name, given, corrected, clean, confidence, kind, decided in samples:
        if kind == "label":
            yield name, names[given], names[decided], "person", ""
        elif clean >= 0:
            yield name, names[given], names[clean], "clean", ""
        elif corrected >= 0:
            yield name, names[given], names[corrected], "run", f"{confidence:.6f}"
        else:
            yield name, names[given], names[given], "given" if given >= 0 else "", ""


def all_verdicts(store: ReviewStore, source: ReviewSource) -> ExportRows:
    """All verdicts in order, including those on samples that are no longer in the data."""
    yield "verdict", "time", "id", "given", "corrected", "kind", "label", "undoes", "page", "blind", "sampling", "tab"
    names = [*source.classes, ""]
    query = (
        "SELECT v.*, coalesce(s.id, sample_ids.id, '') AS id, s.given, s.label AS corrected FROM verdicts v "
        "LEFT JOIN samples s ON s.n = v.n LEFT JOIN sample_ids ON sample_ids.n = v.n ORDER BY v.v"
    )
    for row in store.connection().execute(query):
        label = "" if row["label"] is None else names[row["label"]]
        labels = ("", "") if row["given"] is None else (names[row["given"]], names[row["corrected"]])
        details = (row["undoes"] or "", row["page"], row["blind"], row["sampling"], row["tab"])
        yield row["v"], row["time"], row["id"], *labels, row["kind"], label, *details


def all_annotations(store: ReviewStore, source: ReviewSource) -> ExportRows:
    """All annotations for `train --annotations`: those of the data, and the verdicts as those of one more annotator."""
    yield "id", "annotator", "label"
    for position, annotator, label in source.annotations:
        yield source.ids[position], annotator, label
    reviewer, known = REVIEWER, {annotator for _, annotator, _ in source.annotations}
    while reviewer in known:
        reviewer += "'"
    query = (
        "SELECT s.id, c.label FROM samples s JOIN current_verdicts c ON c.n = s.n WHERE c.kind = 'label' "
        "ORDER BY s.position"
    )
    for name, label in store.connection().execute(query):
        yield name, reviewer, source.classes[label]


EXPORTS: dict[str, Callable[[ReviewStore, ReviewSource], ExportRows]] = {
    "clean": clean_set,
    "labels": corrected_labels,
    "verdicts": all_verdicts,
    "annotations": all_annotations,
}


class _Echo:
    """A file for a CSV writer whose `writerow` returns the line."""

    def write(self, line: str) -> str:
        return line


def csv_lines(rows: ExportRows, *, spreadsheet_safe: bool = False) -> Iterator[str]:
    """Format rows as CSV lines; `spreadsheet_safe` escapes cells that a spreadsheet would evaluate as formulas."""
    write_row: Callable[[Iterable[Any]], Any] = csv.writer(_Echo(), lineterminator="\n").writerow
    for row in rows:
        cells = (escape_formula(cell) if isinstance(cell, str) else cell for cell in row) if spreadsheet_safe else row
        yield write_row(cells)
