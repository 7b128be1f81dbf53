"""BatchNorm with everything that is one number a channel computed once a channel.

    y  = (x − mean) s + b                    s = w / √(var + ε)
    ∂x = s ∂y − m − (x − mean) c             m = s · mean of ∂y,  c = s · mean of ∂y (x − mean) / (var + ε)

Joined to what comes before and after, each line is one kernel, and s, m, c are numbers it reads. That m and c both read
s lets the compiler compute them in one kernel, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.core.products import by_channel
from metalabelnet.engine.kept import kept
from metalabelnet.engine.pooling import chosen

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.engine.pooling import Pooled


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, totals: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The normalised values, and the mean, variance and 1/√(var + ε) of each channel of this batch.

    The statistics are sums over distances from the first number of each channel, so that a mean far from zero costs no
    digits; PyTorch's own way would take one kernel more. Where the totals of each channel and of its squares are there,
    they serve: they are of numbers in bfloat16, which a mean far from zero has cost more digits already.
    """
    if totals is None:
        of_each_channel: tuple[Any, ...] = (0, slice(None), *(0,) * (x.ndim - 2))
        near = x[of_each_channel]
        off = x - by_channel(near, x)
        first, second = off.mean(_places(x)), (off * off).mean(_places(x))
        mean = kept(near + first)
    else:
        first, second = (total * (x.shape[1] / x.numel()) for total in totals)
        mean = kept(first)
    var = (second - first * first).clamp_min(0)
    invstd = (var + eps).rsqrt()
    return _moved(x, mean, _scale(weight, invstd), bias), mean, var, kept(invstd)


def fixed_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """The values normalised with statistics that are there."""
    return _moved(x, mean, _scale(weight, (var + eps).rsqrt()), bias)


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    pooling: tuple[Tensor, Pooled] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by x, weight and bias where the statistics are the batch's.

    Behind a pooling all but one pixel of each window have no gradient: its sums go over the windows.
    """
    places, count = _places(x), x.numel() // x.shape[1]
    centred = x - by_channel(mean, x)
    if pooling is None:
        total, dot = grad.sum(places), (grad * centred).sum(places)
    else:
        by_window, pooled = pooling
        total, dot = by_window.sum(places), (by_window * chosen(centred, pooled)).sum(places)
    s = _scale(weight, invstd)
    m, c = kept(total * s / count), kept(dot * invstd * invstd * s / count)
    by_x = grad * by_channel(s, x) - by_channel(m, x) - centred * by_channel(c, x)
    return by_x, dot * invstd, total


@torch.no_grad()
def follow(running: Tensor, value: Tensor, momentum: float) -> None:
    """Move a running statistic towards that of a batch."""
    running.copy_(momentum * value + (1 - momentum) * running)


def _scale(weight: Tensor | None, invstd: Tensor) -> Tensor:
    return kept(invstd if weight is None else weight * invstd)


def _moved(x: Tensor, mean: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    y = (x - by_channel(mean, x)) * by_channel(scale, x)
    return y if bias is None else y + by_channel(bias, x)


def _places(x: Tensor) -> list[int]:
    return [d for d in range(x.ndim) if d != 1]
