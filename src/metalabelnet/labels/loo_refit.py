"""LOO head refit: logits of each training row from a last layer fitted without the row's own label.

A network that is large for its data memorizes labels within a few epochs and then agrees with all of them. Its
features at the first snapshot already separate the classes. The last layer, fitted to the given labels in closed form
and for each row without its own label (`core/loo_ridge.py`), cannot memorize that label.

The fit takes a time of order d³ for d features. More than 2,048 are projected onto 1,024 directions first
(`core/projection.py`), which are found without labels, so that the predictions are still those without the label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metalabelnet.core.loo_ridge import RidgeMoments
from metalabelnet.core.projection import find_projection
from metalabelnet.core.top_classes import LogitChunks, row_chunks
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import chunks
from metalabelnet.data.streamed_tensor import StreamedTensor
from metalabelnet.errors import InputError
from metalabelnet.nets.head import features_and_logits, find_head
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from metalabelnet.core.loo_ridge import RidgeHead
    from metalabelnet.data import Rows
    from metalabelnet.data.disk_tensor import Samples
    from metalabelnet.methods import Method

MAX_FEATURES = 4096  # width of the last layer
MAX_FEATURES_OF_FIT = 2048  # the fit holds a matrix of this size squared; more features are projected
PROJECTED_FEATURES, ROWS_OF_PROJECTION = 1024, 2048
MAX_CACHED_FEATURE_VALUES = 1 << 26  # rows × features; beyond, features are computed twice instead of stored


def loo_logits(method: Method, train: Rows, clean: Sequence[Rows]) -> tuple[LogitChunks, Tensor] | None:
    """Return LOO logits of the training rows, and logits of clean rows, which are not part of the fit.

    Return None where the network has no last linear layer, where that layer is too wide, and for methods that do not
    use given labels.
    """
    if not method.traits.reads_given or int((train.given >= 0).sum()) < 2:
        return None
    net = method.feature_net()
    try:
        name = find_head(net, to_input(train.x[:2], method.task.dtype), len(train.classes), method.task.head)
    except InputError:
        return None
    width = int(net.get_submodule(name).in_features)  # type: ignore[arg-type]
    if width > MAX_FEATURES:
        return None

    projection: Tensor | None = None

    def features(x: Samples) -> Iterator[Tensor]:
        for chunk in chunks(x):
            v = features_and_logits(net, name, to_input(chunk, method.task.dtype))[0]
            yield v if projection is None else v @ projection

    if width > MAX_FEATURES_OF_FIT:
        spread = torch.linspace(0, len(train) - 1, min(len(train), ROWS_OF_PROJECTION)).long().to(train.given.device)
        v = torch.cat(list(features(train.take(spread).x)))
        width = min(PROJECTED_FEATURES, len(v))
        projection = find_projection(v, width, generator(method.task.seed, "refit projection"))

    # Samples are on disk where memory is short, so their features are not cached either.
    use_cache = len(train) * width <= MAX_CACHED_FEATURE_VALUES and not isinstance(train.x, StreamedTensor)
    cache = list(features(train.x)) if use_cache else None

    def labeled_features() -> Iterator[tuple[Tensor, Tensor]]:
        start = 0
        for v in features(train.x) if cache is None else cache:
            yield v, train.given[start : start + len(v)]
            start += len(v)

    moments = RidgeMoments(width, len(train.classes), train.given.device)
    for v, y in labeled_features():
        moments.add(v, y)
    head = moments.fit()
    train_logits = LogitChunks(lambda: _logits_in_chunks(head, labeled_features()), train.given)
    return train_logits, torch.cat([head.logits(v) for rows in clean for v in features(rows.x)])


def _logits_in_chunks(head: RidgeHead, features: Iterator[tuple[Tensor, Tensor]]) -> Iterator[Tensor]:
    """Yield the logits of labeled features, of a few rows at a time where there are many classes."""
    for v, y in features:
        for rows in row_chunks((len(v), len(head.bias)), v.device):
            yield head.logits(v[rows], y[rows])
