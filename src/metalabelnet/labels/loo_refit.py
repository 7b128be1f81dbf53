"""What a classifier's features say of each training row once the row's own label is left out.

A network that is large for its data learns labels by heart within a few epochs, and from then on agrees with all of
them, wrong or right. Its features after the first look tell the classes apart before that: the last layer, fitted to
the given labels in closed form and for each row without its own (`core/ridge.py`), has nothing to learn by heart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metalabelnet.core.loo_ridge import Moments
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import DiskTensor, chunks
from metalabelnet.errors import InputError
from metalabelnet.nets.head import find_head, read_and_given

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from metalabelnet.data import Rows
    from metalabelnet.data.disk_tensor import Samples
    from metalabelnet.methods import Method

WIDEST = 4096  # features; the sums hold their products with each other
KEPT = 1 << 26  # features of all rows together, up to which they are computed once


def refitted(method: Method, train: Rows, clean: Sequence[Rows]) -> tuple[Tensor, Tensor] | None:
    """Logits of the training rows, each without its own label, and of clean rows, which have no part in the fit.

    None where there is no last layer to fit, where it is too wide, and for methods that do not read given labels.
    """
    if not method.reads_given or int((train.given >= 0).sum()) < 2:
        return None
    net = method.reader()
    try:
        name = find_head(net, to_input(train.x[:2], method.task.dtype), len(train.classes), method.task.head)
    except InputError:
        return None
    width = int(net.get_submodule(name).in_features)  # type: ignore[arg-type]
    if width > WIDEST:
        return None

    def features(x: Samples) -> Iterator[Tensor]:
        for part in chunks(x):
            yield read_and_given(net, name, to_input(part, method.task.dtype))[0]

    keeps = len(train) * width <= KEPT and not isinstance(train.x, DiskTensor)  # samples on disk: memory is short
    kept = list(features(train.x)) if keeps else None  # they are asked for twice

    def labeled() -> Iterator[tuple[Tensor, Tensor]]:
        start = 0
        for v in features(train.x) if kept is None else kept:
            yield v, train.given[start : start + len(v)]
            start += len(v)

    moments = Moments(width, len(train.classes), train.given.device)
    for v, y in labeled():
        moments.add(v, y)
    head = moments.fit()
    left_out = torch.cat([head.logits(v, y) for v, y in labeled()])
    return left_out, torch.cat([head.logits(v) for rows in clean for v in features(rows.x)])
