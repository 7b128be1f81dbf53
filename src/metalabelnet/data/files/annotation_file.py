"""A table of annotations: columns for the sample's id, the annotator and the label, a row for each annotation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from metalabelnet.core.annotations import ABSTAINED, Annotations
from metalabelnet.data.files import clean_set, listing, table_file
from metalabelnet.data.unlabeled import UNLABELED
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from metalabelnet.data.files.listing import Columns, Listing
    from metalabelnet.data.rows import DataSet

# Names of the columns; the second ones are crowd-kit's.
ID_COLUMNS, ANNOTATOR_COLUMNS, LABEL_COLUMNS = ("id", "task"), ("annotator", "worker"), ("label",)


@dataclass(frozen=True, kw_only=True)
class ListedAnnotations:
    """Annotations before classes have numbers.

    Attributes
    ----------
    file : Path
        The table.
    positions, annotators : list of int
        Position of the sample in the data and number of the annotator, of each annotation.
    labels : list of str
        Label of each annotation; "": abstained.
    names : tuple of str
        The annotators.
    """

    file: Path
    positions: list[int]
    annotators: list[int]
    labels: list[str]
    names: tuple[str, ...]

    def to_numbers(self, class_numbers: Mapping[str, int], size: int) -> Annotations:
        """Return the annotations of `size` samples with numbers for labels."""
        numbers = {**class_numbers, "": ABSTAINED}
        return Annotations.from_entries(
            np.array(self.positions, np.int64),
            np.array(self.annotators, np.int64),
            np.array([numbers[label] for label in self.labels], np.int64),
            size=size,
            names=self.names,
        )

    def entries(self) -> list[tuple[int, str, str]]:
        """Return position, annotator and label of each annotation."""
        columns = zip(self.positions, self.annotators, self.labels, strict=True)
        return [(position, self.names[annotator], label) for position, annotator, label in columns]

    def majority_vote(self, size: int) -> list[str]:
        """Return the label with the most votes for each of `size` samples; "": no votes."""
        classes = sorted({*self.labels} - {""})
        votes = self.to_numbers({name: k for k, name in enumerate(classes)}, size).majority_vote(len(classes))
        names = [*classes, ""]  # index −1, no votes, is the empty string
        return [names[k] for k in votes.tolist()]


def list_annotations(file: Path, data: Listing, columns: Columns) -> ListedAnnotations:
    """List the annotations in a file. The ids are those of the data, for arrays row numbers from 0."""
    if not table_file.is_table_file(file):
        problem = "is not supported" if file.exists() else "does not exist"
        raise InputError(f"{file} {problem}: annotations are a table ({', '.join(table_file.SUFFIXES)})")
    names = table_file.column_names(file)
    id_column = _find_column(file, names, (columns.id, *ID_COLUMNS), "ids")
    annotator_column = _find_column(file, names, ANNOTATOR_COLUMNS, "annotators")
    label_column = _find_column(file, names, (*LABEL_COLUMNS, columns.label), "labels")
    roles = listing.Columns(kind="table", samples=(annotator_column,), id=id_column, label=label_column)
    rows = listing.from_table(file, roles, data)
    clean_set.undo_spreadsheet_escapes(rows, data)
    by_id = clean_set.positions_by_id(data, file)
    known = {*data.labels, *data.true_labels} - {""}
    positions, annotators, numbers = [], [], dict[str, int]()
    seen: set[tuple[int, int]] = set()
    for name, (annotator,), label in zip(rows.ids, rows.items, rows.labels, strict=True):
        position = by_id.get(listing.normalize_name(name))
        if position is None:
            raise InputError(f"{file}: {clean_set.no_sample_message(name, by_id, data.source)}")
        if not annotator:
            raise InputError(f"{file}: an annotation of {name!r} names no annotator; fill the cell in")
        if label and known and label not in known:
            raise listing.unknown_class_error(label, known, f"{file}, annotation")
        number = numbers.setdefault(annotator, len(numbers))
        if (position, number) in seen:
            raise InputError(f"{file}: annotator {annotator!r} has two annotations of {name!r}; remove one of them")
        seen.add((position, number))
        positions.append(position)
        annotators.append(number)
    if not any(rows.labels):
        raise InputError(f"{file}: no annotation has a label; an empty label means that the annotator abstained")
    return ListedAnnotations(
        file=file, positions=positions, annotators=annotators, labels=rows.labels, names=tuple(numbers)
    )


def add_annotations(data: DataSet, file: Path) -> DataSet:
    """Return a data set of tensors with the annotations in a file; ids are row numbers from 0 unless it has others.

    Unlabeled training rows get the majority vote.
    """
    import torch  # here, because listing annotations needs no PyTorch

    train, clean = data.train, data.clean
    class_numbers = {listing.normalize_name(name): k for k, name in enumerate(data.classes)}
    rows = listing.Listing(source=Path(data.name), kind="table", ids=list(train.ids), labels=list(class_numbers))
    found = list_annotations(file, rows, listing.Columns(kind="table"))
    annotations = found.to_numbers(class_numbers, len(train))
    votes = torch.from_numpy(annotations.majority_vote(len(data.classes)))
    filled = (train.given == UNLABELED) & (votes != UNLABELED)
    train = dataclasses.replace(train, given=torch.where(filled, votes, train.given), annotations=annotations)
    if clean is not None:
        clean = dataclasses.replace(clean, annotations=Annotations.empty(len(clean), found.names))
    return dataclasses.replace(data, train=train, clean=clean, notes=(*data.notes, describe(found, int(filled.sum()))))


def describe(annotations: ListedAnnotations, filled: int) -> str:
    """Return a message about the annotations; `filled` given labels are their majority vote."""
    counts = {
        "annotation": len(annotations.labels),
        "sample": len({*annotations.positions}),
        "annotator": len(annotations.names),
    }
    labels, samples, people = (f"{count} {what}{'s' if count != 1 else ''}" for what, count in counts.items())
    text = f"{annotations.file}: {labels} of {samples} by {people}"
    return text + (f"; the majority vote is the given label of {filled} samples without one" if filled else "")


def _find_column(file: Path, names: Sequence[str], wanted: Sequence[str | None], what: str) -> str:
    """Return the first wanted column that the file has."""
    lower = {name.lower(): name for name in reversed(names)}
    found = next((lower[name.lower()] for name in wanted if name is not None and name.lower() in lower), None)
    if found is None:
        raise InputError(
            f"{file}: no column of {what} among {listing.shorten_list(names, 8)}; name the columns id, annotator, label"
        )
    return found
