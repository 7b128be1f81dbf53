"""The label table of a run, matched with the current data by sample id.

Since the run, samples may have been removed and classes renamed. Such rows are left out and counted. If they are more
than half of the table, the data is not that of the run.
"""

from __future__ import annotations

import csv
import json
import math
from array import array
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from metalabelnet.data import UNLABELED
from metalabelnet.data.files.table_file import MAX_CELL_CHARACTERS
from metalabelnet.errors import InputError
from metalabelnet.review.informativeness import DEFAULT_MEASURE, MEASURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    ClassProbabilities = Callable[[list[str]], list[tuple[int, float]]]

MAX_CLASSES_SHOWN = 6
REQUIRED_COLUMNS = ("index", "id", "given", "label", "confidence", "suspect", "suspicion")
DAMAGED_HINT = "copy the run folder again, or train again"


class LabelRow(NamedTuple):
    """A row of the table with all its cells as text."""

    row_index: int
    id: str
    given: str
    label: str
    confidence: float
    suspect: int
    suspicion: float
    cells: list[str]


@dataclass(frozen=True, kw_only=True)
class RunLabels:
    """The labels of a run by position in the data, in little memory: the table may have a million rows.

    Attributes
    ----------
    is_trained : bytearray
        Whether the table has the sample. If not, the other values mean nothing.
    given, label : array of int
        Given and corrected labels; −1: unlabeled.
    confidence : array of float
        Confidences of the corrected labels.
    notes : tuple of str
        Messages about rows that are left out.
    """

    is_trained: bytearray
    given: array[int]
    label: array[int]
    confidence: array[float]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunLabelTable:
    """The label table in a file and the data it refers to."""

    file: Path
    data: str
    ids: Sequence[str]
    classes: Sequence[str]
    ids_are_row_numbers: bool = False  # removed rows cannot be identified

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the position in the data and the database columns of each row, without keeping rows in memory."""
        class_probabilities: ClassProbabilities | None = None
        for columns, row in self._rows():
            class_probabilities = class_probabilities or class_probability_reader(columns, self._class_numbers)
            position = self._position(row)
            if position >= 0 and not self._unknown_classes(row):
                yield position, self._database_columns(row, class_probabilities)

    def read_labels(self) -> RunLabels:
        """The labels by position.

        Raises
        ------
        InputError
            If the table is damaged, has two rows for a sample, or belongs to other data.
        """
        is_trained = bytearray(len(self.ids))
        given, label = (array("l", [UNLABELED]) * len(self.ids) for _ in range(2))
        confidence = array("d", [0.0]) * len(self.ids)
        count, missing, renamed = 0, list[str](), list[str]()
        for _, row in self._rows():
            count += 1
            position = self._position(row)
            if position < 0:
                missing.append(row.id)
            elif unknown := self._unknown_classes(row):
                renamed += unknown[:1]
            elif is_trained[position]:
                raise InputError(f"{self.file} has two rows for {row.id!r}: {DAMAGED_HINT}")
            else:
                is_trained[position] = 1
                given[position], label[position] = self._class_numbers[row.given], self._class_numbers[row.label]
                confidence[position] = row.confidence
        notes = self._check_matches(count, missing, renamed)
        return RunLabels(is_trained=is_trained, given=given, label=label, confidence=confidence, notes=notes)

    def _check_matches(self, count: int, missing: list[str], renamed: list[str]) -> tuple[str, ...]:
        """Messages about rows that are left out; raises InputError if the data is not that of the run."""
        if missing and (self.ids_are_row_numbers or 2 * len(missing) > count):
            raise InputError(
                f"{self.file} has the sample {missing[0]!r}, which is not in {self.data}; pass --data PATH"
            )
        if 2 * (len(missing) + len(renamed)) > count:
            raise InputError(
                f"{self.file} has the class {renamed[0]!r}, which is not a class of {self.data}; "
                "restore the name of the class, or train again"
            )
        notes = []
        if missing:
            notes.append(
                f"{len(missing)} samples of the run are no longer in {self.data}, such as {missing[0]!r}: left out"
            )
        if renamed:
            notes.append(
                f"{len(renamed)} samples have a class that is not in {self.data}, such as {renamed[0]!r}: "
                "their corrected labels are left out"
            )
        return tuple(notes)

    def _rows(self) -> Iterator[tuple[list[str], LabelRow]]:
        """Yield the column names with each row."""
        csv.field_size_limit(MAX_CELL_CHARACTERS)
        try:
            with self.file.open(newline="", encoding="utf-8") as opened:
                reader = csv.reader(opened)
                columns = next(reader, [])
                if not {*REQUIRED_COLUMNS} <= {*columns}:
                    raise InputError(f"{self.file} is not a label table of this version; train again")
                width, required_cells = len(columns), itemgetter(*map(columns.index, REQUIRED_COLUMNS))
                for cells in reader:
                    if len(cells) != width:
                        raise self._damaged()
                    yield columns, self._parse_row(required_cells(cells), cells)
        except FileNotFoundError:
            raise InputError(f"{self.file} is missing: {DAMAGED_HINT}") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{self.file} cannot be read ({error}): {DAMAGED_HINT}") from error

    def _parse_row(self, own: tuple[str, ...], cells: list[str]) -> LabelRow:
        index, name, given, label, confidence, suspect, suspicion = own
        try:
            row = LabelRow(
                int(index), name, given, label, float(confidence), int(suspect), float(suspicion or -1), cells
            )
        except ValueError:
            raise self._damaged() from None
        if row.suspect not in (0, 1) or not (math.isfinite(row.confidence) and math.isfinite(row.suspicion)):
            raise self._damaged()
        return row

    def _damaged(self) -> InputError:
        return InputError(f"{self.file} is an incomplete label table: {DAMAGED_HINT}")

    def _database_columns(self, row: LabelRow, class_probabilities: ClassProbabilities) -> dict[str, Any]:
        try:
            p = class_probabilities(row.cells)
        except ValueError:
            raise self._damaged() from None
        if not all(math.isfinite(value) for _, value in p):
            raise self._damaged()
        return {
            "split": "train",
            "given": self._class_numbers[row.given],
            "label": self._class_numbers[row.label],
            "confidence": row.confidence,
            "suspect": row.suspect,
            "suspicion": row.suspicion,
            "informativeness": MEASURES[DEFAULT_MEASURE]([value for _, value in p], max(0.0, row.suspicion)),
            "probabilities": json.dumps([[c, round(value, 4)] for c, value in p[:MAX_CLASSES_SHOWN]]),
        }

    def _position(self, row: LabelRow) -> int:
        """The position of the sample in the data, or −1 if it is no longer there."""
        if 0 <= row.row_index < len(self.ids) and self.ids[row.row_index] == row.id:
            return row.row_index
        return self._by_id.get(row.id, -1)

    def _unknown_classes(self, row: LabelRow) -> list[str]:
        known = self._class_numbers
        if row.given in known and row.label in known:  # nearly always, and faster than a list
            return []
        return [name for name in (row.given, row.label) if name not in known]

    @cached_property
    def _by_id(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.ids)}

    @cached_property
    def _class_numbers(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.classes)} | {"": UNLABELED}


def class_probability_reader(columns: list[str], class_numbers: Mapping[str, int]) -> ClassProbabilities:
    """Return a function that reads the classes of a row with their probabilities, most likely first."""
    if "class_1" in columns:  # many classes: only the most likely have columns
        positions = [(columns.index(f"class_{k}"), columns.index(f"p_{k}")) for k in range(1, 6) if f"p_{k}" in columns]
        return lambda row: [(class_numbers[row[c]], float(row[p])) for c, p in positions if row[c] in class_numbers]
    by_class = [(c, columns.index(f"p_{name}")) for name, c in class_numbers.items() if f"p_{name}" in columns]
    return lambda row: sorted(((c, float(row[k])) for c, k in by_class), key=lambda pair: -pair[1])
