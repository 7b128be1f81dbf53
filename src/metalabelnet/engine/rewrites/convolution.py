"""Rewrite: convolutions for tensor cores, with channels padded to multiples of eight, or as a matrix product.

Tensor cores process channels in multiples of eight. For other numbers cuDNN pads and crops in separate kernels; padding
in the graph is fused with the kernels before and after. The few channels of an image would be padded to more than
twice as many, so the first convolution is a matrix product of im2col patches, which all passes over the same samples
share. Layers that a custom kernel supports are left to it (see `kernels.ConvKernels`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from metalabelnet.engine.materialize import materialize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metalabelnet.engine.kernels import AffineGrad, ConvKernels, ConvResult

aten = torch.ops.aten
CHANNEL_MULTIPLE = 8
MAX_IMAGE_CHANNELS = 4  # inputs with at most so many channels are images, not activations


def convolution(kernels: ConvKernels, x: Tensor, weight: Tensor, *options: Any) -> tuple[Tensor, ConvResult | None]:
    """Return a convolution without bias; if a custom kernel computes it, also the kernel's result.

    `options` are stride, padding, dilation, transposed, output_padding, groups.
    """
    out_channels = len(weight)
    stride, padding, dilation, transposed, _, groups = options
    if transposed or groups != 1:
        return aten.convolution.default(x, weight, None, *options), None
    padded_x, padded_weight = _pad_input(x), pad_channels(weight, 0, 1)
    result = None
    if kernels.supports_forward(padded_x, padded_weight, stride, padding, dilation):
        result = kernels.forward(padded_x, padded_weight)
        y = result.y
    elif _is_image_conv(weight, dilation):
        rows = im2col(x, weight, stride, padding) @ _weight_matrix(weight).t()
        height, width = (_output_size(x, weight, stride, padding, d) for d in range(2))
        return rows.view(len(x), height, width, out_channels).permute(0, 3, 1, 2), None
    else:
        y = aten.convolution.default(padded_x, padded_weight, None, *options)
    return y[:, :out_channels] if out_channels % CHANNEL_MULTIPLE else y, result


def convolution_backward(
    kernels: ConvKernels,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    *options: Any,
    affine_grad: AffineGrad | None = None,
) -> tuple[Any, Any, ConvResult | None]:
    """Return dgrad and wgrad in the same way, and the result of a custom dgrad kernel.

    `affine_grad` is the expression that `grad` was computed from, if a wgrad kernel may compute it instead of reading
    `grad`. The first value is NotImplemented if the convolution should stay as it is.
    """
    out_channels, in_channels = weight.shape[:2]
    _, stride, padding, dilation, transposed, output_padding, groups, needed = options
    if transposed or groups != 1:
        return NotImplemented, None, None
    geometry = stride, padding, dilation
    padded_grad, padded_x, padded_weight = pad_channels(grad, 1), _pad_input(x), pad_channels(weight, 0, 1)
    custom_dgrad = needed[0] and kernels.supports_dgrad(padded_grad, padded_weight, *geometry)
    custom_wgrad = needed[1] and kernels.supports_wgrad(padded_x, padded_weight, *geometry)
    if _is_image_conv(weight, dilation) and not (needed[0] or custom_wgrad):
        patches = im2col(x, weight, stride, padding)
        matrix_grad = grad.permute(0, 2, 3, 1).reshape(-1, out_channels).t() @ patches
        wgrad = matrix_grad[:, : weight[0].numel()].reshape(out_channels, *weight.shape[2:], in_channels)
        return None, wgrad.permute(0, 3, 1, 2), None
    if not (custom_dgrad or custom_wgrad or out_channels % CHANNEL_MULTIPLE or in_channels % CHANNEL_MULTIPLE):
        return NotImplemented, None, None
    mask = [needed[0] and not custom_dgrad, needed[1] and not custom_wgrad, False]
    library: Any = (None, None, None)
    if any(mask):
        options = (None, *geometry, transposed, output_padding, groups, mask)
        library = aten.convolution_backward.default(padded_grad, padded_x, padded_weight, *options)
    # wgrad comes first: dgrad's output is read by the next operator and should still be in the cache.
    wgrad = kernels.wgrad(padded_x, padded_grad, affine_grad).to(weight.dtype) if custom_wgrad else library[1]
    result = kernels.dgrad(padded_grad, padded_weight) if custom_dgrad else None
    dgrad = library[0] if result is None else result.y
    return (
        dgrad[:, :in_channels] if needed[0] else None,
        wgrad[:out_channels, :in_channels] if needed[1] else None,
        result,
    )


def _pad_input(x: Tensor) -> Tensor:
    """Pad a layer's input. Augmented images are stored once instead of being recomputed in every kernel that reads."""
    padded = pad_channels(x, 1)
    is_image = x.ndim == 4 and x.shape[1] <= MAX_IMAGE_CHANNELS
    return materialize(padded.contiguous(memory_format=torch.channels_last)) if is_image else padded


def im2col(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """Return a row for each output pixel with what the kernel reads there: rows, columns, channels, zero padding."""
    height, width = weight.shape[2:]
    image = materialize(x.contiguous(memory_format=torch.channels_last))
    image = pad(image, [padding[1], padding[1], padding[0], padding[0]])
    patches = image.unfold(2, height, stride[0]).unfold(3, width, stride[1])
    return pad_channels(patches.permute(0, 2, 3, 4, 5, 1).reshape(-1, weight[0].numel()), 1)


def _is_image_conv(weight: Tensor, dilation: Sequence[int]) -> bool:
    return weight.ndim == 4 and weight.shape[1] <= MAX_IMAGE_CHANNELS and set(dilation) == {1}


def _output_size(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], d: int) -> int:
    """Return the height (d = 0) or width (d = 1) of the output."""
    return int((x.shape[2 + d] + 2 * padding[d] - weight.shape[2 + d]) // stride[d] + 1)


def _weight_matrix(weight: Tensor) -> Tensor:
    """Return the weights with a row for each output channel, in the order of `im2col`."""
    return pad_channels(weight.permute(0, 2, 3, 1).reshape(len(weight), -1), 1)


def pad_channels(tensor: Tensor, *dims: int) -> Tensor:
    """Return the tensor with zeros appended to these dimensions, up to a multiple of eight."""
    widths = [0] * (2 * tensor.ndim)
    for d in dims:
        widths[2 * (tensor.ndim - 1 - d) + 1] = -tensor.shape[d] % CHANNEL_MULTIPLE
    return pad(tensor, widths) if any(widths) else tensor
