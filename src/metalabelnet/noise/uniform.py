"""Uniform noise: a label is wrong with the same probability everywhere, and wrong in every way alike."""

from __future__ import annotations

import torch
from torch import Tensor

from metalabelnet.noise.spec import UNLABELED, check_classes, flip_count


def uniform(true: Tensor, classes: int, rate: float, generator: torch.Generator) -> Tensor:
    """Flip exactly int(n·rate) of the n labeled rows, each to one of the other classes, equally likely.

    The count is exact, as the authors have it, so that runs at one rate differ in which labels are wrong
    and never in how many.
    """
    check_classes(classes)
    labeled = (true != UNLABELED).nonzero()[:, 0]
    count = flip_count(len(labeled), rate)
    chosen = labeled[torch.randperm(len(labeled), generator=generator)[:count]]
    # A step of 1 to C − 1 around the ring of classes reaches every class but the true one.
    step = torch.randint(1, classes, (count,), generator=generator)
    given = true.clone()
    given[chosen] = (true[chosen] + step) % classes
    return given
