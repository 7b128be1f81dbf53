"""Symmetric noise in the field's convention: labels are redrawn from all classes, the true one included.

`uniform` noise, the convention of the paper, never draws the true class: `symmetric:RATE` with C classes has the noise
rate RATE (C − 1)/C.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metalabelnet.noise.spec import UNLABELED, check_classes, flip_count


def symmetric_noise(true: Tensor, classes: int, rate: float, generator: torch.Generator) -> Tensor:
    """Return labels with exactly int(n·rate) of the n labeled rows redrawn uniformly from all classes.

    The rows are drawn at random. The count is exact, as in the public code of DivideMix and ELR.
    """
    check_classes(classes)
    labeled = (true != UNLABELED).nonzero()[:, 0]
    count = flip_count(len(labeled), rate)
    redrawn = labeled[torch.randperm(len(labeled), generator=generator)[:count]]
    given = true.clone()
    given[redrawn] = torch.randint(classes, (count,), generator=generator)
    return given
