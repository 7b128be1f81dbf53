"""Uniform (symmetric) noise: every label is equally likely to be wrong, with every other class equally likely."""

from __future__ import annotations

import torch
from torch import Tensor

from metalabelnet.noise.spec import UNLABELED, check_classes, flip_count


def uniform_noise(true: Tensor, classes: int, rate: float, generator: torch.Generator) -> Tensor:
    """Return labels with exactly int(n·rate) of the n labeled rows flipped to a random other class.

    The count is exact, as in the authors' code: runs with the same rate differ in which labels are wrong, not in how
    many.
    """
    check_classes(classes)
    labeled = (true != UNLABELED).nonzero()[:, 0]
    count = flip_count(len(labeled), rate)
    flipped = labeled[torch.randperm(len(labeled), generator=generator)[:count]]
    # Adding 1 to C − 1, modulo C, reaches every class but the true one.
    offset = torch.randint(1, classes, (count,), generator=generator)
    given = true.clone()
    given[flipped] = (true[flipped] + offset) % classes
    return given
