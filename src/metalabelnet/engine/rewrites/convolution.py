"""Convolutions for tensor cores: over channels by the eight, and over few channels as a matrix product.

Tensor cores take channels by the eight. Where a layer has other numbers the library pads and cuts in kernels of its
own; padded here, that becomes a part of the kernels before and after. The few channels of an image would be padded to
more than twice as many: the first convolution is a matrix product of patches, which all passes over the same samples
share. What a kernel of our own does faster is left to it (see `hopper`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from metalabelnet.engine import hopper
from metalabelnet.engine.materialize import kept

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten
EIGHT = 8
FEW = 4  # channels of an image, not of a layer


def convolution(x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, hopper.Made | None]:
    """A convolution without bias: by our own kernel, a product of patches, or by the library, over eights of channels.

    Where it is our own, also what the kernel made.
    """
    outputs = len(weight)
    stride, padding, dilation, transposed, _, groups = rest
    if transposed or groups != 1:
        return aten.convolution.default(x, weight, None, *rest), None
    by_eights = _samples(x), by_eight(weight, 0, 1)
    made = None
    if hopper.takes(*by_eights, stride, padding, dilation, back=False):
        made = hopper.convolution(*by_eights)
        y = made.y
    elif _few(weight, dilation):
        rows = patches(x, weight, stride, padding) @ _as_matrix(weight).t()
        height, width = (_outputs(x, weight, stride, padding, d) for d in range(2))
        return rows.view(len(x), height, width, outputs).permute(0, 3, 1, 2), None
    else:
        y = aten.convolution.default(*by_eights, None, *rest)
    return y[:, :outputs] if outputs % EIGHT else y, made


def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, *rest: Any, joined: hopper.Joined | None = None
) -> tuple[Any, Any, hopper.Made | None]:
    """Its gradients by samples and weights in the same way; `joined` says what the gradient is made of."""
    outputs, inputs = weight.shape[:2]
    _, stride, padding, dilation, transposed, output_padding, groups, wanted = rest
    if transposed or groups != 1:
        return NotImplemented, None, None
    around, by_eights = (stride, padding, dilation), (by_eight(grad, 1), _samples(x), by_eight(weight, 0, 1))
    back = wanted[0] and hopper.takes(by_eights[0], by_eights[2], *around, back=True)
    weigh = wanted[1] and hopper.takes_by_weight(*by_eights[1:], *around)
    if _few(weight, dilation) and not (wanted[0] or weigh):
        by_patch = grad.permute(0, 2, 3, 1).reshape(-1, outputs).t() @ patches(x, weight, stride, padding)
        high, wide = weight.shape[2:]
        by_weight = by_patch[:, : weight[0].numel()].reshape(outputs, high, wide, inputs)
        return None, by_weight.permute(0, 3, 1, 2), None
    if not (back or weigh or outputs % EIGHT or inputs % EIGHT):
        return NotImplemented, None, None
    grad, x, weight = by_eights
    mask = [wanted[0] and not back, wanted[1] and not weigh, False]
    found: Any = (None, None, None)
    if any(mask):
        rest = (None, *around, transposed, output_padding, groups, mask)
        found = aten.convolution_backward.default(grad, x, weight, *rest)
    # Weights first: the gradient by samples is read next, and should still be near.
    by_weight = hopper.by_weight(x, grad, joined).to(weight.dtype) if weigh else found[1]
    made = hopper.back(grad, weight) if back else None
    by_x = found[0] if made is None else made.y
    return by_x[:, :inputs] if wanted[0] else None, by_weight[:outputs, :inputs] if wanted[1] else None, made


def _samples(x: Tensor) -> Tensor:
    """What goes in, by eights of channels. Images are drawn and moved once, not in every kernel that reads them."""
    eights = by_eight(x, 1)
    return kept(eights.contiguous(memory_format=torch.channels_last)) if x.ndim == 4 and x.shape[1] <= FEW else eights


def patches(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """What the kernel sees at each place, a row each: rows, columns and channels, then zeros to a multiple of eight."""
    high, wide = weight.shape[2:]
    around = pad(
        kept(x.contiguous(memory_format=torch.channels_last)), [padding[1], padding[1], padding[0], padding[0]]
    )
    seen = around.unfold(2, high, stride[0]).unfold(3, wide, stride[1])
    return by_eight(seen.permute(0, 2, 3, 4, 5, 1).reshape(-1, weight[0].numel()), 1)


def _few(weight: Tensor, dilation: Sequence[int]) -> bool:
    return weight.ndim == 4 and weight.shape[1] <= FEW and set(dilation) == {1}


def _outputs(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], d: int) -> int:
    """The height (d = 0) or width of what comes out."""
    return int((x.shape[2 + d] + 2 * padding[d] - weight.shape[2 + d]) // stride[d] + 1)


def _as_matrix(weight: Tensor) -> Tensor:
    """A row for each output, in the order of `patches`."""
    return by_eight(weight.permute(0, 2, 3, 1).reshape(len(weight), -1), 1)


def by_eight(tensor: Tensor, *dims: int) -> Tensor:
    """The tensor with zeros behind these dimensions, up to a multiple of eight."""
    widths = [0] * (2 * tensor.ndim)
    for d in dims:
        widths[2 * (tensor.ndim - 1 - d) + 1] = -tensor.shape[d] % EIGHT
    return pad(tensor, widths) if any(widths) else tensor
