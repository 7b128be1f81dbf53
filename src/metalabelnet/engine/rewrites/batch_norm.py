"""BatchNorm with everything that is one number a channel computed once a channel.

    y  = (x − mean) s + b                    s = w / √(var + ε)
    ∂x = s ∂y − (x − mean) c − m             m = s · mean of ∂y,  c = s · mean of ∂y (x − mean) / (var + ε)

Joined to what comes before and after, each line is one kernel, and s, m, c are numbers it reads. That m and c both read
s lets the compiler compute them in one kernel, too. Every such number costs as much as a fifth of x: where digits allow
it, the line (x − mean) s + b is x s + t.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from metalabelnet.core.forward_ad_cache import by_channel
from metalabelnet.engine.materialize import kept
from metalabelnet.engine.rewrites.max_pool import chosen

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.engine.rewrites.max_pool import Pooled


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, totals: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The normalised values, and the mean, variance and 1/√(var + ε) of each channel of this batch.

    The statistics are sums over distances from the first number of each channel, so that a mean far from zero costs no
    digits; PyTorch's own way would take one kernel more. Where the totals of each channel and of its squares are there,
    they serve: they are of numbers in bfloat16, which a mean far from zero has cost more digits already (`coarse`).
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
    invstd = kept((var + eps).rsqrt())
    y = _line(x, mean, _scale(weight, invstd), bias, coarse=totals is not None)
    return y, mean, var, invstd


def fixed_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float, *, coarse: bool
) -> Tensor:
    """The values normalised with statistics that are there."""
    return _line(x, mean, _scale(weight, (var + eps).rsqrt()), bias, coarse=coarse)


def gradient_sums(
    grad: Tensor, x: Tensor, mean: Tensor, pooling: tuple[Tensor, Pooled] | None = None
) -> tuple[Tensor, Tensor]:
    """For every channel the sums of ∂y and of ∂y (x − mean).

    Behind a pooling all but one pixel of each window have no gradient: its sums go over the windows.
    """
    places, centred = _places(x), x - by_channel(mean, x)
    if pooling is None:
        return grad.sum(places), (grad * centred).sum(places)
    by_window, pooled = pooling
    return by_window.sum(places), (by_window * chosen(centred, pooled)).sum(places)


class Backward(NamedTuple):
    """The gradients where the statistics are the batch's, and for every channel that by x in numbers.

    ∂x = s ∂y + p x + q
    """

    by_x: Tensor
    by_weight: Tensor
    by_bias: Tensor
    numbers: tuple[Tensor, Tensor, Tensor]


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    sums: tuple[Tensor, Tensor],
    *,
    coarse: bool,
) -> Backward:
    """The gradients by x, weight and bias, with the sums of ∂y and of ∂y (x − mean)."""
    count, (total, dot) = x.numel() // x.shape[1], sums
    s = _scale(weight, invstd)
    m, c = total * s / count, dot * invstd * invstd * s / count
    by_x = grad * by_channel(s, x) + _line(x, mean, -c, -m, coarse=coarse)
    slope = kept(-c)
    return Backward(by_x, dot * invstd, total, (s, slope, _at_zero(mean, slope, -m)))


def line(weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers s and t of y = x s + t."""
    slope = _scale(weight, invstd)
    return slope, _at_zero(mean, slope, bias)


@torch.no_grad()
def follow(running: Tensor, value: Tensor, momentum: float) -> None:
    """Move a running statistic towards that of a batch."""
    running.copy_(momentum * value + (1 - momentum) * running)


def _scale(weight: Tensor | None, invstd: Tensor) -> Tensor:
    return kept(invstd if weight is None else weight * invstd)


def _line(x: Tensor, mean: Tensor, slope: Tensor, height: Tensor | None, *, coarse: bool) -> Tensor:
    """For every channel the line of this slope that has this height, or none, where x is the mean."""
    slope = kept(slope)
    if coarse:
        return x * by_channel(slope, x) + by_channel(_at_zero(mean, slope, height), x)
    y = (x - by_channel(mean, x)) * by_channel(slope, x)
    return y if height is None else y + by_channel(kept(height), x)


def _at_zero(mean: Tensor, slope: Tensor, height: Tensor | None) -> Tensor:
    return kept(-mean * slope if height is None else height - mean * slope)


def _places(x: Tensor) -> list[int]:
    return [d for d in range(x.ndim) if d != 1]
