"""Labels by several annotators: one entry for each label that an annotator gave a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Numbers = NDArray[np.int64]

ABSTAINED = -1  # an annotator was asked for a label and gave none


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """Annotations of samples, in the order of the samples. Annotators need not label every sample.

    Attributes
    ----------
    sample, annotator, label : ndarray
        (A,) numbers of the sample, of the annotator and of the class of each annotation; class −1: abstained.
    size : int
        The number of samples, with and without annotations.
    names : tuple of str
        The annotators.

    Examples
    --------
    >>> import numpy as np
    >>> from metalabelnet.core.annotations import Annotations
    >>> table = np.array([[0, 0, -1], [1, 0, 1]])
    >>> annotations = Annotations.from_array(table, ("ann", "ben", "eve"))
    >>> annotations.label.tolist(), annotations.take(np.array([1])).annotator.tolist()
    ([0, 0, 1, 0, 1], [0, 1, 2])
    """

    sample: Numbers
    annotator: Numbers
    label: Numbers
    size: int
    names: tuple[str, ...]

    @classmethod
    def from_entries(
        cls, sample: Numbers, annotator: Numbers, label: Numbers, *, size: int, names: tuple[str, ...]
    ) -> Annotations:
        """Return annotations from entries in any order.

        Parameters
        ----------
        sample, annotator, label : ndarray
            (A,) numbers of the sample, of the annotator and of the class of each annotation; class −1: abstained.
        size : int
            The number of samples.
        names : tuple of str
            The annotators.

        Returns
        -------
        Annotations
        """
        order = np.lexsort((annotator, sample))
        return cls(sample=sample[order], annotator=annotator[order], label=label[order], size=size, names=names)

    @classmethod
    def from_array(cls, table: Numbers, names: tuple[str, ...]) -> Annotations:
        """Return annotations from an array.

        Parameters
        ----------
        table : ndarray
            (samples, annotators) classes; −1: not asked.
        names : tuple of str
            The annotators.

        Returns
        -------
        Annotations
        """
        sample, annotator = np.nonzero(table >= 0)
        return cls(sample=sample, annotator=annotator, label=table[sample, annotator], size=len(table), names=names)

    @classmethod
    def empty(cls, size: int, names: tuple[str, ...]) -> Annotations:
        """Return no annotations of so many samples."""
        none = np.zeros(0, np.int64)
        return cls(sample=none, annotator=none, label=none, size=size, names=names)

    def __len__(self) -> int:
        return len(self.sample)

    def take(self, positions: Numbers) -> Annotations:
        """Return the annotations of some samples.

        Parameters
        ----------
        positions : ndarray
            Numbers of the samples, which are numbered in this order in the result.

        Returns
        -------
        Annotations
        """
        first = np.searchsorted(self.sample, np.arange(self.size + 1))
        count = np.diff(first)[positions]
        sample = np.repeat(np.arange(len(positions)), count)
        place = np.arange(len(sample)) - np.repeat(np.cumsum(count) - count, count)
        entry = first[positions][sample] + place
        return Annotations(
            sample=sample,
            annotator=self.annotator[entry],
            label=self.label[entry],
            size=len(positions),
            names=self.names,
        )

    def concat(self, others: Annotations) -> Annotations:
        """Return these annotations and those of further samples by the same annotators."""
        return Annotations(
            sample=np.concatenate([self.sample, self.size + others.sample]),
            annotator=np.concatenate([self.annotator, others.annotator]),
            label=np.concatenate([self.label, others.label]),
            size=self.size + others.size,
            names=self.names,
        )

    def entries(self, classes: tuple[str, ...]) -> list[tuple[int, str, str]]:
        """Return sample, annotator and class name of each annotation; "": abstained."""
        columns = zip(self.sample.tolist(), self.annotator.tolist(), self.label.tolist(), strict=True)
        names = (*classes, "")  # index −1 is the empty string
        return [(sample, self.names[annotator], names[label]) for sample, annotator, label in columns]

    def votes(self, classes: int) -> Array:
        """Return how many annotators gave each sample each class.

        Parameters
        ----------
        classes : int
            The number of classes C.

        Returns
        -------
        ndarray
            (N, C).
        """
        voted = self.label != ABSTAINED
        cells = self.sample[voted] * classes + self.label[voted]
        return np.bincount(cells, minlength=self.size * classes).reshape(self.size, classes).astype(np.float64)

    def majority_vote(self, classes: int) -> Numbers:
        """Return the class with the most votes for each sample; −1 if it has none.

        Ties go to the tied classes in turn, in the order of the samples, so that no class is favored.

        Parameters
        ----------
        classes : int
            The number of classes.

        Returns
        -------
        ndarray
            (N,) class numbers.
        """
        votes = self.votes(classes)
        tied = (votes == votes.max(1, keepdims=True)) & (votes.sum(1, keepdims=True) > 0)
        count = tied.sum(1)
        turn = np.where(count > 1, np.cumsum(count > 1) - 1, 0) % np.maximum(count, 1)
        winner = (np.cumsum(tied, 1) > turn[:, None]).argmax(1)
        return np.where(count > 0, winner, ABSTAINED)
