"""The label table: for every sample the label it was given and the one the run would give it."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metalabelnet.labels.correction import judge

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from torch import Tensor

    from metalabelnet.data import Rows
    from metalabelnet.labels.correction import Verdict

MOST_COLUMNS = 50  # classes; beyond, a table has the five most likely and an .npy file all
TOP = 5
PIECE = 1 << 16  # rows made into text at once


@dataclass(frozen=True, kw_only=True)
class LabelTable:
    """A row for each sample.

    `label`, `confidence`, `suspect` and `suspicion` are those of the rule in `correction`. Where no suspicion is known
    from the history of a run, it is 1 − the probability of the given label; a sample without a label has none. The
    soft labels of the method, where it makes some, stand beside them; they teach the classifier and are not the better
    guess. `calibrated` says whether probabilities were, on clean samples.
    """

    rows: Rows
    probabilities: Tensor
    suspicion: Tensor | None = None
    soft_labels: Tensor | None = None
    calibrated: bool = True

    def verdict(self) -> Verdict:
        """What the table says of each sample, as tensors."""
        return judge(self.probabilities, self.rows.given, self.suspicion, calibrated=self.calibrated)

    def columns(self) -> list[str]:
        """The names of the columns."""
        names = self.rows.classes
        has_soft = self.soft_labels is not None and len(names) <= MOST_COLUMNS
        return [*_FIRST, *probability_columns(names), *(f"soft_{name}" for name in names if has_soft)]

    def __iter__(self) -> Iterator[list[Any]]:
        """The rows, in the order of the columns."""
        for cells, numbers in zip(self._cells(), self._numbers(), strict=True):
            yield [*cells, *numbers.split(",")[1:]]

    def to_csv(self) -> str:
        """The table as text."""
        lines = _Lines()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(self.columns())
        head = lines.pop()
        writer.writerows(self._cells())
        rows = zip(lines, self._numbers(), strict=True)
        return "".join([head, *(f"{line[:-1]}{numbers}\n" for line, numbers in rows)])

    def _cells(self) -> Iterator[list[Any]]:
        """Of each row the cells before those that are probabilities alone."""
        names = [*self.rows.classes, ""]  # the last is what −1 means: no label
        p = self.probabilities.cpu().double().numpy()
        verdict = self.verdict()
        best, suspects, suspicion = (part.tolist() for part in (verdict.label, verdict.suspect, verdict.suspicion))
        confidence = p[np.arange(len(p)), best].tolist()
        given, true = self.rows.given.tolist(), self.rows.true.tolist()
        for i, (index, name) in enumerate(zip(self.rows.index.tolist(), self.rows.ids, strict=True)):
            row = [
                index,
                name,
                names[given[i]],
                names[best[i]],
                f"{confidence[i]:.6f}",
                int(suspects[i]),
                "" if given[i] < 0 else f"{suspicion[i]:.6f}",
                names[true[i]],
            ]
            if p.shape[1] > MOST_COLUMNS:
                row += probability_cells(self.rows.classes, p[i])
            yield row

    def _numbers(self) -> Iterator[str]:
        """Of each row all probabilities and soft labels, a comma before each; nothing where there are too many."""
        if len(self.rows.classes) > MOST_COLUMNS:
            yield from ("" for _ in range(len(self.rows)))
            return
        parts = [part for part in (self.probabilities, self.soft_labels) if part is not None]
        for start in range(0, len(self.rows), PIECE):
            piece = [part[start : start + PIECE].cpu().double().numpy() for part in parts]
            yield from decimals(np.concatenate(piece, 1))

    def arrays(self) -> dict[str, np.ndarray]:
        """What does not fit into columns, by file name."""
        if len(self.rows.classes) <= MOST_COLUMNS:
            return {}
        files = {"labels.npy": self.probabilities.cpu().float().numpy()}
        return (
            files if self.soft_labels is None else files | {"soft_labels.npy": self.soft_labels.cpu().float().numpy()}
        )


class _Lines(list[str]):
    """What a writer of tables writes, line by line."""

    def write(self, line: str) -> None:
        self.append(line)


def decimals(numbers: npt.NDArray[np.float64]) -> list[str]:
    """Each row with six decimals and a comma before each number: as Python would format them, which takes ten times.

    A million times a number in single precision is exact in double precision, so that both round the same.
    """
    if not ((numbers >= 0) & (numbers < 9)).all():  # one digit and a point: others are no probabilities
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
    """The columns of a table for the probabilities of these classes."""
    if len(classes) > MOST_COLUMNS:
        return [f"{kind}_{place}" for place in range(1, TOP + 1) for kind in ("class", "p")]
    return [f"p_{name}" for name in classes]


def probability_cells(classes: Sequence[str], p: npt.NDArray[np.float64]) -> list[str]:
    """What stands in these columns for one sample."""
    if len(classes) > MOST_COLUMNS:
        order = np.argsort(-p, kind="stable")[:TOP]
        return [cell for c in order for cell in (classes[c], f"{p[c]:.6f}")]
    return [f"{value:.6f}" for value in p.tolist()]


_FIRST = ["index", "id", "given", "label", "confidence", "suspect", "suspicion", "true"]
