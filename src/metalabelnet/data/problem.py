"""The rows of one run: training, clean, validation and test rows, on its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metalabelnet.data.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The rows of a run, on its device.

    train       with the labels nobody trusts
    clean       clean rows to learn from
    validation  clean rows on which the epoch is selected: held out, or the same as `clean`
    test        rows that decide nothing
    noise_rate  the share of wrong labels among the training labels, NaN where the truth is unknown
    has_clean_set  whether the labels of `validation` are clean; without a clean set they are given labels
    inputs      how samples were made into numbers, where they were not numbers already
    cells       what stands for the cells or texts they were made of
    notes       what the reader of the data has to say
    """

    train: Rows
    clean: Rows
    validation: Rows
    test: Rows
    noise_rate: float
    has_clean_set: bool = True
    inputs: dict[str, Any] | None = None
    cells: str = ""
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.x.shape[1:])
