"""The clean samples of `fit`: split from the others before training, put back into the labels after it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch

from metalabelnet.data.rows import UNLABELED, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from metalabelnet.labels.label_table import LabelTable


def split_clean(rows: Rows, mask: NDArray[np.bool_]) -> tuple[Rows, Rows | None, bool]:
    """Return the training rows, the clean rows, and whether the training rows include the clean rows.

    They do if there are no other labeled rows, because warm-up needs some.
    """
    clean_mask = torch.from_numpy(mask)
    if not clean_mask.any():
        return rows, None, False
    votes = None if rows.annotations is None else rows.annotations.majority_vote(len(rows.classes))
    given = torch.full_like(rows.given, UNLABELED) if votes is None else torch.from_numpy(votes)
    clean_set = dataclasses.replace(rows, true=rows.given, given=given)
    clean_set, rest = clean_set.take(clean_mask.nonzero()[:, 0]), rows.take((~clean_mask).nonzero()[:, 0])
    if int((rest.given != UNLABELED).sum()) >= 2:
        return rest, clean_set, False
    return rows, clean_set, True


def labels_and_suspects(
    table: LabelTable, given: NDArray[np.int64], clean_mask: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the corrected class index of each sample, and whether its given label is a suspect.

    Clean samples keep their label; they are not in the label table. A sample whose label was held out to select the
    epoch is unlabeled in the table: it is a suspect if its corrected label differs from the given one.
    """
    rows, decisions = table.rows, table.decisions()
    index = rows.index.cpu().numpy()
    label, suspect = given.copy(), np.zeros(len(given), dtype=bool)
    label[index], suspect[index] = decisions.label.cpu().numpy(), decisions.suspect.cpu().numpy()
    label[clean_mask] = given[clean_mask]
    held_out = given != UNLABELED
    held_out[index[(rows.given != UNLABELED).cpu().numpy()]] = False
    suspect = np.where(held_out, label != given, suspect) & ~clean_mask
    return label, suspect
