"""The rows of one run: training, clean, validation and test rows, on its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metalabelnet.data.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The rows of one run, on its device.

    Attributes
    ----------
    train : Rows
        Training rows with given labels.
    clean : Rows
        Clean rows that methods learn from.
    validation : Rows
        Clean rows used to select the epoch and to calibrate: a held-out part of the clean set, or the same rows as
        `clean`.
    test : Rows
        Test rows, used for evaluation alone.
    holds_out : bool
        Whether `validation` is a held-out part of the clean set. If False, `validation` and `clean` are the same rows.
    second_test : Rows or None
        Rows of a second test set, evaluated once at the end.
    noise_rate : float
        Share of wrong labels among the training labels; NaN if true labels are unknown.
    draws_clean : bool
        Whether the clean set was drawn from the training rows.
    has_clean_set : bool
        Whether the labels of `validation` are clean. Without a clean set they are given labels.
    encoder_config : dict or None
        JSON configuration of the encoder that made the samples; None if the source holds tensors already.
    cells_digest : str
        Digest of the table cells or texts the samples were encoded from; "" for other data.
    notes : tuple of str
        Messages of the data reader for the user.
    """

    train: Rows
    clean: Rows
    validation: Rows
    test: Rows
    noise_rate: float
    second_test: Rows | None = None
    holds_out: bool = True
    draws_clean: bool = False
    has_clean_set: bool = True
    encoder_config: dict[str, Any] | None = None
    cells_digest: str = ""
    notes: tuple[str, ...] = ()

    def drawn_clean_labels(self) -> dict[int, int] | None:
        """The class of each clean row by its position in the data; None if they are not of the training rows."""
        if not self.draws_clean:
            return None
        parts = (self.clean, self.validation) if self.holds_out else (self.clean,)
        pairs = [pair for rows in parts for pair in zip(rows.index.tolist(), rows.true.tolist(), strict=True)]
        return dict(sorted(pairs))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.x.shape[1:])
