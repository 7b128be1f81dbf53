"""The label table: for every sample the label it was given and the one the run would give it."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metalabelnet.train.correction import judge

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from torch import Tensor

    from metalabelnet.data import Rows
    from metalabelnet.train.correction import Verdict

MOST_COLUMNS = 50  # classes; beyond, a table has the five most likely and an .npy file all
TOP = 5


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
        names = [*self.rows.classes, ""]  # the last is what −1 means: no label
        p = self.probabilities.cpu().double().numpy()
        verdict = self.verdict()
        best, suspects, suspicion = (part.tolist() for part in (verdict.label, verdict.suspect, verdict.suspicion))
        given, true = self.rows.given.tolist(), self.rows.true.tolist()
        soft = None if self.soft_labels is None else self.soft_labels.cpu().double().numpy()
        for i, (index, name) in enumerate(zip(self.rows.index.tolist(), self.rows.ids, strict=True)):
            row = [
                index,
                name,
                names[given[i]],
                names[best[i]],
                f"{p[i, best[i]]:.6f}",
                int(suspects[i]),
                "" if given[i] < 0 else f"{suspicion[i]:.6f}",
                names[true[i]],
            ]
            row += probability_cells(self.rows.classes, p[i])
            if soft is not None and p.shape[1] <= MOST_COLUMNS:
                row += [f"{value:.6f}" for value in soft[i].tolist()]
            yield row

    def to_csv(self) -> str:
        """The table as text."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns())
        writer.writerows(self)
        return text.getvalue()

    def arrays(self) -> dict[str, np.ndarray]:
        """What does not fit into columns, by file name."""
        if len(self.rows.classes) <= MOST_COLUMNS:
            return {}
        files = {"labels.npy": self.probabilities.cpu().float().numpy()}
        return (
            files if self.soft_labels is None else files | {"soft_labels.npy": self.soft_labels.cpu().float().numpy()}
        )


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
