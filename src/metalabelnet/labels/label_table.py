"""The label table: given label, corrected label, confidence and suspicion of every sample."""

from __future__ import annotations

import csv
import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metalabelnet.core.top_classes import TopClasses, dense
from metalabelnet.labels.correction import decide_labels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from torch import Tensor

    from metalabelnet.core.top_classes import ClassTable
    from metalabelnet.data import Rows
    from metalabelnet.labels.correction import LabelDecisions

MAX_CLASSES_IN_CSV = 50  # beyond, the CSV has the most likely classes only, and .npy files have the probabilities
TOP_CLASSES_IN_CSV = 5
ROWS_PER_CHUNK = 1 << 16  # rows formatted at a time


@dataclass(frozen=True, kw_only=True)
class LabelTable:
    """The corrected labels of a run, one row per training sample.

    Corrected label, confidence, suspicion and suspect follow the rule in `metalabelnet.labels.correction`.

    Parameters
    ----------
    rows : Rows
        The samples with their given labels.
    probabilities : Tensor or TopClasses
        (N, C) probability of each class; of the most likely ones in runs with more than 128 classes.
    suspicion : Tensor, optional
        (N,) suspicion from the snapshots of the run. Default: 1 − the probability of the given label.
    soft_labels : Tensor or TopClasses, optional
        (N, C) soft labels that the method trained the classifier on. They are not corrected labels.
    calibrated : bool, default True
        Whether the probabilities were calibrated on clean samples.

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.data.rows import make_rows
    >>> from metalabelnet.labels.label_table import LabelTable
    >>> rows = make_rows(torch.zeros(2, 1), torch.tensor([0, 1]), classes=("cat", "dog"), what="samples")
    >>> labels = LabelTable(rows=rows, probabilities=torch.tensor([[0.9, 0.1], [0.8, 0.2]]))
    >>> labels.decisions().label.tolist(), labels.decisions().suspect.tolist()
    ([0, 0], [False, True])
    >>> print(labels.to_csv().splitlines()[2])
    1,1,dog,cat,0.800000,1,0.800000,,0.800000,0.200000
    """

    rows: Rows
    probabilities: ClassTable
    suspicion: Tensor | None = None
    soft_labels: ClassTable | None = None
    calibrated: bool = True

    def decisions(self) -> LabelDecisions:
        """Return the decision on each sample.

        Returns
        -------
        LabelDecisions
            Tensors (N,): `label`, `confidence`, `suspicion` and `suspect`.
        """
        return self._decisions

    @functools.cached_property
    def _decisions(self) -> LabelDecisions:
        return decide_labels(self.probabilities, self.rows.given, self.suspicion, calibrated=self.calibrated)

    def columns(self) -> list[str]:
        """Return the names of the columns."""
        names = self.rows.classes
        has_soft = self.soft_labels is not None and len(names) <= MAX_CLASSES_IN_CSV
        return [*_FIRST_COLUMNS, *probability_columns(names), *(f"soft_{name}" for name in names if has_soft)]

    def __iter__(self) -> Iterator[list[Any]]:
        """Iterate over the rows; cells are in the order of `columns`."""
        for cells, numbers in zip(self._first_cells(), self._formatted_numbers(), strict=True):
            yield [*cells, *numbers.split(",")[1:]]

    def to_csv(self) -> str:
        """Return the table as CSV."""
        return "".join(self.csv_chunks())

    def csv_chunks(self) -> Iterator[str]:
        """Iterate over the text of the CSV, many lines at a time."""
        lines = _Lines()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(self.columns())
        yield lines.pop()
        first_cells, numbers = self._first_cells(), self._formatted_numbers()
        while cells := list(itertools.islice(first_cells, ROWS_PER_CHUNK)):
            lines.clear()
            writer.writerows(cells)
            rows = zip(lines, itertools.islice(numbers, len(cells)), strict=True)
            yield "".join(f"{line[:-1]}{row_numbers}\n" for line, row_numbers in rows)

    def _first_cells(self) -> Iterator[list[Any]]:
        """Iterate over the cells before those of `_formatted_numbers`."""
        names = [*self.rows.classes, ""]  # index −1, no label, is the empty string
        has_top_classes = len(self.rows.classes) > MAX_CLASSES_IN_CSV
        decisions = self.decisions()
        for start in range(0, len(self.rows), ROWS_PER_CHUNK):
            chunk = slice(start, start + ROWS_PER_CHUNK)
            columns = (self.rows.index, self.rows.given, self.rows.true, *decisions)
            index, given, true, label, confidence, suspicion, suspect = (x[chunk].tolist() for x in columns)
            top = self._top_class_cells(chunk) if has_top_classes else itertools.repeat(())
            for i, (name, top_cells) in enumerate(zip(self.rows.ids[chunk], top, strict=False)):
                yield [
                    index[i],
                    name,
                    names[given[i]],
                    names[label[i]],
                    f"{confidence[i]:.6f}",
                    int(suspect[i]),
                    "" if given[i] < 0 else f"{suspicion[i]:.6f}",
                    names[true[i]],
                    *top_cells,
                ]

    def _top_class_cells(self, chunk: slice) -> Iterator[list[str]]:
        """Iterate over the cells of the most likely classes."""
        values, classes = top_classes(self.probabilities[chunk], TOP_CLASSES_IN_CSV)
        for row_classes, row_values in zip(classes.tolist(), values.tolist(), strict=True):
            pairs = zip(row_classes, row_values, strict=True)
            yield [cell for c, value in pairs for cell in (self.rows.classes[c], f"{value:.6f}")]

    def _formatted_numbers(self) -> Iterator[str]:
        """Iterate over probabilities and soft labels of each row, a comma before each; empty for too many classes."""
        if len(self.rows.classes) > MAX_CLASSES_IN_CSV:
            yield from ("" for _ in range(len(self.rows)))
            return
        tables = [dense(table) for table in (self.probabilities, self.soft_labels) if table is not None]
        for start in range(0, len(self.rows), ROWS_PER_CHUNK):
            chunk = [table[start : start + ROWS_PER_CHUNK].cpu().double().numpy() for table in tables]
            yield from format_decimals(np.concatenate(chunk, 1))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the probabilities and soft labels that are too wide for the CSV, by file name.

        Of sparse rows, a second array has the classes of the columns of each row.
        """
        if len(self.rows.classes) <= MAX_CLASSES_IN_CSV:
            return {}
        files: dict[str, np.ndarray] = {}
        for name, table in (("labels", self.probabilities), ("soft_labels", self.soft_labels)):
            if isinstance(table, TopClasses):
                values = files[f"{name}.npy"] = np.empty(table.values.shape, np.float32)
                classes = files[f"{name}_classes.npy"] = np.empty(table.values.shape, np.int32)
                for start in range(0, len(table), ROWS_PER_CHUNK):  # sorting needs seven times the memory of its rows
                    rows = slice(start, start + ROWS_PER_CHUNK)
                    values[rows], classes[rows] = top_classes(table[rows], values.shape[1])
            elif table is not None:
                files[f"{name}.npy"] = table.cpu().float().numpy()
        return files


def top_classes(table: ClassTable, k: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the k largest values of each row, the lower class first among equals, and their classes."""
    if isinstance(table, TopClasses):
        values, classes = table.values.cpu().double().numpy(), table.classes.cpu().long().numpy()
    else:
        values = table.cpu().double().numpy()
        classes = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    order = np.lexsort((classes, -values))[:, :k]
    return np.take_along_axis(values, order, 1), np.take_along_axis(classes, order, 1)


class _Lines(list[str]):
    """A file-like list: `csv.writer` appends one line per row."""

    def write(self, line: str) -> None:
        self.append(line)


def format_decimals(numbers: npt.NDArray[np.float64]) -> list[str]:
    """Return each row as text with six decimals and a comma before each number.

    The result equals `f",{number:.6f}"` and is computed about ten times faster. A float32 times a million is exact in
    double precision, so both round the same way.
    """
    if not ((numbers >= 0) & (numbers < 9)).all():  # the fast path has room for one digit before the point
        return ["".join(f",{number:.6f}" for number in row) for row in numbers.tolist()]
    text = np.empty((*numbers.shape, 9), np.uint8)
    text[..., 0], text[..., 2] = ord(","), ord(".")
    rest = np.rint(numbers * 1e6).astype(np.int32)
    for place in (8, 7, 6, 5, 4, 3):
        rest, digit = np.divmod(rest, 10)
        text[..., place] = ord("0") + digit
    text[..., 1] = ord("0") + rest
    width, whole = 9 * numbers.shape[1], text.tobytes().decode("ascii")
    return [whole[start : start + width] for start in range(0, len(whole), width)]


def probability_columns(classes: Sequence[str]) -> list[str]:
    """Return the names of the probability columns for these classes."""
    if len(classes) > MAX_CLASSES_IN_CSV:
        return [f"{kind}_{place}" for place in range(1, TOP_CLASSES_IN_CSV + 1) for kind in ("class", "p")]
    return [f"p_{name}" for name in classes]


def probability_cells(classes: Sequence[str], p: npt.NDArray[np.float64]) -> list[str]:
    """Return the cells of `probability_columns` for one sample."""
    if len(classes) > MAX_CLASSES_IN_CSV:
        order = np.argsort(-p, kind="stable")[:TOP_CLASSES_IN_CSV]
        return [cell for c in order for cell in (classes[c], f"{p[c]:.6f}")]
    return [f"{value:.6f}" for value in p.tolist()]


_FIRST_COLUMNS = ["index", "id", "given", "label", "confidence", "suspect", "suspicion", "true"]
