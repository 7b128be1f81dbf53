"""A run's label table: what the run says of the samples it was trained on, by their position in the data of today.

Since the run samples may have gone, and classes may have got other names. Such rows are left out and counted; where
they are more than half, it is other data.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from metalabelnet.data import UNLABELED
from metalabelnet.data.files.table_file import LONGEST_CELL
from metalabelnet.errors import InputError
from metalabelnet.review.informative import MEASURE, MEASURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    Likely = Callable[[list[str]], list[tuple[int, float]]]

BARS = 6
COLUMNS = ("index", "id", "given", "label", "confidence", "suspect", "suspicion")
AGAIN = "copy the run folder again, or train again"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table, and all its cells as they stand there."""

    index: int
    id: str
    given: str
    label: str
    confidence: float
    suspect: int
    suspicion: float
    cells: list[str]


@dataclass(frozen=True, kw_only=True)
class Table:
    """The table in a file, and the data whose samples it names."""

    file: Path
    data: str
    ids: Sequence[str]
    classes: Sequence[str]
    numbered: bool = False  # ids are the numbers of rows: where some have gone, nobody knows which

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The position of each row in the data, and what the run says of it. There may be a million: none is kept."""
        likely: Likely | None = None
        for columns, row in self._rows():
            likely = likely or likely_classes(columns, self._number)
            position = self._position(row)
            if position >= 0 and not self._unknown(row):
                yield position, self._said(row, likely)

    def notes(self) -> tuple[str, ...]:
        """What is left out, in a sentence each; refuses a table that is not whole, or one of other data."""
        count, gone, renamed = 0, list[str](), list[str]()
        for _, row in self._rows():
            count += 1
            if self._position(row) < 0:
                gone.append(row.id)
            elif unknown := self._unknown(row):
                renamed += unknown[:1]
        if gone and (self.numbered or 2 * len(gone) > count):
            raise InputError(f"{self.file} names {gone[0]!r}, which is not in {self.data} any more; give --data PATH")
        if 2 * (len(gone) + len(renamed)) > count:
            raise InputError(
                f"{self.file} has the class {renamed[0]!r}, which {self.data} does not have any more; "
                "give it its name back, or train again"
            )
        notes = []
        if gone:
            notes.append(f"{len(gone)} samples of the run are not in {self.data} any more, as {gone[0]!r}: left out")
        if renamed:
            notes.append(
                f"{len(renamed)} samples had a class in the run that {self.data} does not have, as {renamed[0]!r}: "
                "what the run says of them is left out"
            )
        return tuple(notes)

    def _rows(self) -> Iterator[tuple[list[str], Row]]:
        """The columns with each row."""
        csv.field_size_limit(LONGEST_CELL)
        try:
            with self.file.open(newline="", encoding="utf-8") as opened:
                reader = csv.reader(opened)
                columns = next(reader, [])
                if not {*COLUMNS} <= {*columns}:
                    raise InputError(f"{self.file} is not a label table of this version; run it again")
                places = [columns.index(name) for name in COLUMNS]
                for cells in reader:
                    if len(cells) != len(columns):
                        raise self._cut_off()
                    yield columns, self._row([cells[k] for k in places], cells)
        except FileNotFoundError:
            raise InputError(f"{self.file} is missing: {AGAIN}") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{self.file} cannot be read ({error}): {AGAIN}") from error

    def _row(self, own: list[str], cells: list[str]) -> Row:
        index, name, given, label, confidence, suspect, suspicion = own
        try:
            return Row(int(index), name, given, label, float(confidence), int(suspect), float(suspicion or -1), cells)
        except ValueError:
            raise self._cut_off() from None

    def _cut_off(self) -> InputError:
        return InputError(f"{self.file} is not a whole label table: {AGAIN}")

    def _said(self, row: Row, likely: Likely) -> dict[str, Any]:
        try:
            p = likely(row.cells)
        except ValueError:
            raise self._cut_off() from None
        return {
            "split": "train",
            "given": self._number[row.given],
            "label": self._number[row.label],
            "confidence": row.confidence,
            "suspect": row.suspect,
            "suspicion": row.suspicion,
            "informative": MEASURES[MEASURE]([value for _, value in p], max(0.0, row.suspicion)),
            "bars": json.dumps([[c, round(value, 4)] for c, value in p[:BARS]]),
        }

    def _position(self, row: Row) -> int:
        """Where the sample is in the data; −1: nowhere. Some samples could not be read, or have gone since."""
        if 0 <= row.index < len(self.ids) and self.ids[row.index] == row.id:
            return row.index
        return self._by_id.get(row.id, -1)

    def _unknown(self, row: Row) -> list[str]:
        return [name for name in (row.given, row.label) if name not in self._number]

    @cached_property
    def _by_id(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.ids)}

    @cached_property
    def _number(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.classes)} | {"": UNLABELED}


def likely_classes(columns: list[str], number: Mapping[str, int]) -> Likely:
    """A function that gives the classes of a row with their probabilities, the most likely first."""
    if "class_1" in columns:  # too many classes for a column each
        places = [(columns.index(f"class_{k}"), columns.index(f"p_{k}")) for k in range(1, 6) if f"p_{k}" in columns]
        return lambda row: [(number[row[c]], float(row[p])) for c, p in places if row[c] in number]
    by_class = [(c, columns.index(f"p_{name}")) for name, c in number.items() if f"p_{name}" in columns]
    return lambda row: sorted(((c, float(row[k])) for c, k in by_class), key=lambda pair: -pair[1])
