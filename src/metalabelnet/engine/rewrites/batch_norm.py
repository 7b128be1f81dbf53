"""Rewrite: BatchNorm with all per-channel values computed once per channel.

    y  = (x − mean) s + b                    s = w / √(var + ε)
    ∂x = s ∂y − (x − mean) c − m             m = s · mean of ∂y,  c = s · mean of ∂y (x − mean) / (var + ε)

Fused with its neighbors, each line is one kernel that reads s, m and c. Both m and c read s, so that Inductor computes
them in one kernel, too. Reading one such value for every pixel costs as much as a fifth of x. Where precision allows,
the mean is folded into the shift: (x − mean) s + b becomes x s + t.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from metalabelnet.core.forward_ad_cache import broadcast_channels
from metalabelnet.engine.materialize import materialize
from metalabelnet.engine.rewrites.max_pool import gather_maxima

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.engine.rewrites.max_pool import PooledWindows


def batch_norm_train(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, sums: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the normalized values, and the mean, variance and 1/√(var + ε) of each channel of this batch.

    The statistics are sums of distances from each channel's first value, so that a mean far from zero loses no
    precision; PyTorch's own decomposition needs one kernel more. `sums`, the sums of each channel and of its squares,
    are used if given. They come from bfloat16 values, where a mean far from zero has already lost that precision.
    """
    if sums is None:
        first_of_channel: tuple[Any, ...] = (0, slice(None), *(0,) * (x.ndim - 2))
        origin = x[first_of_channel]
        distance = x - broadcast_channels(origin, x)
        first, second = distance.mean(_reduced_dims(x)), (distance * distance).mean(_reduced_dims(x))
        mean = materialize(origin + first)
    else:
        first, second = (total * (x.shape[1] / x.numel()) for total in sums)
        mean = materialize(first)
    var = (second - first * first).clamp_min(0)
    invstd = materialize((var + eps).rsqrt())
    y = _affine(x, mean, _scale(weight, invstd), bias, fold_mean=sums is not None)
    return y, mean, var, invstd


def batch_norm_eval(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float, *, fold_mean: bool
) -> Tensor:
    """Return the values normalized with the given statistics."""
    return _affine(x, mean, _scale(weight, (var + eps).rsqrt()), bias, fold_mean=fold_mean)


def backward_sums(
    grad: Tensor, x: Tensor, mean: Tensor, pooling: tuple[Tensor, PooledWindows] | None = None
) -> tuple[Tensor, Tensor]:
    """Return, for every channel, the sums of ∂y and of ∂y (x − mean).

    If the gradient comes from a max pooling (`pooling`: the gradient of each window, and the windows), only one pixel
    of each window has a gradient, and the sums go over windows.
    """
    dims, centered = _reduced_dims(x), x - broadcast_channels(mean, x)
    if pooling is None:
        return grad.sum(dims), (grad * centered).sum(dims)
    window_grad, pooled = pooling
    return window_grad.sum(dims), (window_grad * gather_maxima(centered, pooled)).sum(dims)


class BatchNormGrads(NamedTuple):
    """Gradients of BatchNorm with the batch's statistics.

    `coefficients` are a, b, c of ∂x = a ∂y + b x + c, one of each per channel.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor
    coefficients: tuple[Tensor, Tensor, Tensor]


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    sums: tuple[Tensor, Tensor],
    *,
    fold_mean: bool,
) -> BatchNormGrads:
    """Return the gradients with respect to x, weight and bias, from the sums of ∂y and of ∂y (x − mean)."""
    count, (total, dot) = x.numel() // x.shape[1], sums
    s = _scale(weight, invstd)
    m, c = total * s / count, dot * invstd * invstd * s / count
    x_grad = grad * broadcast_channels(s, x) + _affine(x, mean, -c, -m, fold_mean=fold_mean)
    x_scale = materialize(-c)
    return BatchNormGrads(x_grad, dot * invstd, total, (s, x_scale, _fold(mean, x_scale, -m)))


def scale_and_shift(weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor) -> tuple[Tensor, Tensor]:
    """Return s and t of y = x s + t."""
    scale = _scale(weight, invstd)
    return scale, _fold(mean, scale, bias)


@torch.no_grad()
def update_running_stat(running: Tensor, value: Tensor, momentum: float) -> None:
    """Move a running statistic towards that of a batch, in place."""
    running.copy_(momentum * value + (1 - momentum) * running)


def _scale(weight: Tensor | None, invstd: Tensor) -> Tensor:
    return materialize(invstd if weight is None else weight * invstd)


def _affine(x: Tensor, mean: Tensor, scale: Tensor, bias: Tensor | None, *, fold_mean: bool) -> Tensor:
    """Return (x − mean) scale + bias for every channel."""
    scale = materialize(scale)
    if fold_mean:
        return x * broadcast_channels(scale, x) + broadcast_channels(_fold(mean, scale, bias), x)
    y = (x - broadcast_channels(mean, x)) * broadcast_channels(scale, x)
    return y if bias is None else y + broadcast_channels(materialize(bias), x)


def _fold(mean: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Return the shift bias − mean · scale."""
    return materialize(-mean * scale if bias is None else bias - mean * scale)


def _reduced_dims(x: Tensor) -> list[int]:
    return [d for d in range(x.ndim) if d != 1]
