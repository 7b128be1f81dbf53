"""BatchNorm with everything that is one number a channel computed once a channel.

    y  = (x − mean) s + b                    s = w / √(var + ε)
    ∂x = (∂y − m − (x − mean) c) s           m = mean of ∂y,  c = mean of ∂y (x − mean) / (var + ε)

Joined to what comes before and after, each line is one kernel, and s, m, c are numbers it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metalabelnet.core.products import by_channel
from metalabelnet.engine.kept import kept

if TYPE_CHECKING:
    from torch import Tensor


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The normalised values, and the mean, variance and 1/√(var + ε) of each channel of this batch."""
    var, mean = torch.var_mean(x, _places(x), correction=0)
    invstd = (var + eps).rsqrt()
    return _moved(x, mean, _scale(weight, invstd), bias), mean, var, kept(invstd)


def fixed_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """The values normalised with statistics that are there."""
    return _moved(x, mean, _scale(weight, (var + eps).rsqrt()), bias)


def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, invstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by x, weight and bias where the statistics are the batch's."""
    places, count = _places(x), x.numel() // x.shape[1]
    centred = x - by_channel(mean, x)
    total, dot = grad.sum(places), (grad * centred).sum(places)
    m, c, s = kept(total / count), kept(dot * invstd * invstd / count), _scale(weight, invstd)
    by_x = (grad - by_channel(m, x) - centred * by_channel(c, x)) * by_channel(s, x)
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
