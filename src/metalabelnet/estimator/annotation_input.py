"""The argument `annotations` of `fit`: labels with a row for each sample and a column for each annotator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metalabelnet.core.annotations import Annotations
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError
from metalabelnet.estimator.input_validation import as_column, read_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


def read_annotated_labels(y: Any, annotations: Any, name: str) -> tuple[NDArray[np.int64], Array, Annotations]:
    """Return the class index of each sample, the sorted classes, and the annotations.

    A sample without a label in `y` has the majority vote of its annotators; −1 without votes.
    """
    table, names = _as_table(annotations)
    y = np.full(len(table), None, object) if y is None else as_column(y)
    if len(y) != len(table):
        raise InputError(f"annotations have {len(table)} rows and y has {len(y)} labels: give a row for each sample")
    labels = np.concatenate([part.astype(object) for part in (y, table.ravel())])
    numbers, classes = read_labels(labels, name)
    given, voted = numbers[: len(y)], numbers[len(y) :].reshape(table.shape)
    found = Annotations.from_array(voted, names)
    return np.where(given == UNLABELED, found.majority_vote(len(classes)), given), classes, found


def _as_table(annotations: Any) -> tuple[Array, tuple[str, ...]]:
    """Return the labels as a two-dimensional array, and the names of the annotators: of columns, or their numbers."""
    table: Array = np.asarray(annotations.to_numpy() if hasattr(annotations, "to_numpy") else annotations)
    if table.ndim != 2 or not table.size:
        raise InputError(
            f"annotations have the shape {table.shape}: give a row for each sample and a column for each annotator"
        )
    if table.dtype.kind == "f":  # integers beside NaN
        missing = np.isnan(table)
        filled = np.where(missing, UNLABELED, table)
        table = filled.astype(np.int64) if (filled == np.floor(filled)).all() else table
    columns = getattr(annotations, "columns", range(table.shape[1]))
    return table, tuple(map(str, columns))
