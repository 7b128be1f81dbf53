"""Operators written another way, so that what is recorded compiles to fast kernels. Same values, but for rounding.

max pooling, backwards   where windows do not overlap every pixel asks its window whether it was the largest. The
                         usual way scatters into zeros, which no other kernel can be joined to.
a bias before BatchNorm  has no gradient: what comes back through BatchNorm sums to zero over samples and places. The
                         sum is left out.
convolutions             tensor cores take channels by the eight. Where a layer has other numbers the library pads and
                         cuts in kernels of its own; padded here, that becomes a part of the kernels before and after.
the first convolution    its few channels would be padded to more than twice as many. It is a matrix product of patches,
                         which all passes over the same samples share.

The last two are for CUDA only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten
EIGHT = 8
FEW = 4  # channels of an image, not of a layer


class Operators:
    """What one recording writes down in place of PyTorch's operators. `NotImplemented`: the operator as it is."""

    def __init__(self, *, tensor_cores: bool) -> None:
        self.tensor_cores = tensor_cores
        self._centred: dict[int, Tensor] = {}  # what sums to zero over samples and places, by id
        self._as_it_is = False
        self.table: dict[Any, Callable[..., Any]] = {
            aten.max_pool2d_with_indices_backward.default: max_pool2d_backward,
            aten.native_batch_norm_backward.default: self._norm_backward(aten.native_batch_norm_backward.default),
            aten.cudnn_batch_norm_backward.default: self._norm_backward(aten.cudnn_batch_norm_backward.default),
            aten._to_copy.default: self._to_copy,  # noqa: SLF001 (its only name)
            aten.convolution_backward.default: self._convolution_backward,
        }
        if tensor_cores:
            self.table[aten.convolution.default] = convolution

    def _plain(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        self._as_it_is = True
        try:
            return operator(*args, **kwargs)
        finally:
            self._as_it_is = False

    def _norm_backward(self, operator: Any) -> Callable[..., Any]:
        names = [argument.name for argument in operator._schema.arguments]  # noqa: SLF001 (its only name)

        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._as_it_is:
                return NotImplemented
            result = self._plain(operator, *args, **kwargs)
            with_statistics_of_the_batch = dict(zip(names, args, strict=False)).get("train", True)
            if with_statistics_of_the_batch and result[0] is not None:
                self._centred[id(result[0])] = result[0]
            return result

        return backward

    def _to_copy(self, x: Tensor, **kwargs: Any) -> Any:
        if self._as_it_is or id(x) not in self._centred:
            return NotImplemented
        result = self._plain(aten._to_copy.default, x, **kwargs)  # noqa: SLF001
        self._centred[id(result)] = result
        return result

    def _convolution_backward(self, grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
        if self._as_it_is:
            return NotImplemented
        *_, wanted = rest
        by_bias = None
        if wanted[2]:
            places = [d for d in range(grad.ndim) if d != 1]
            by_bias = grad.new_zeros(grad.shape[1]) if id(grad) in self._centred else grad.sum(places)
        by_x, by_weight = NotImplemented, None
        if self.tensor_cores:
            by_x, by_weight = convolution_backward(grad, x, weight, *rest)
        if by_x is NotImplemented:
            rest = (None, *rest[1:-1], [wanted[0], wanted[1], False])
            by_x, by_weight, _ = self._plain(aten.convolution_backward.default, grad, x, weight, *rest)
        return by_x, by_weight, by_bias


def max_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,  # noqa: FBT001 (PyTorch's signature)
    indices: Tensor,
) -> Any:
    """The gradient of each pixel: its window's, if the window's largest is this pixel."""
    high, wide = kernel if len(kernel) == 2 else (*kernel, *kernel)
    height, width = x.shape[-2:]
    apart = tuple(stride or kernel) == tuple(kernel) and not any(padding) and set(dilation) == {1} and not ceil_mode
    if not apart or height % high or width % wide:
        return NotImplemented
    # Every pixel as (row of windows, row within the window, column of windows, column within it).
    here = torch.arange(height * width, device=x.device).view(height // high, high, width // wide, wide)
    largest = indices[..., :, None, :, None] == here
    return torch.where(largest, grad[..., :, None, :, None], 0.0).reshape(x.shape)


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Any:
    """A convolution as a product of patches, or over channels padded with zeros to a multiple of eight."""
    outputs, inputs = weight.shape[:2]
    stride, padding, dilation, transposed, _, groups = rest
    if transposed or groups != 1:
        return NotImplemented
    if _few(weight, dilation):
        y = patches(x, weight, stride, padding) @ _as_matrix(weight).t()
        height, width = (_outputs(x, weight, stride, padding, d) for d in range(2))
        y = y.view(len(x), height, width, outputs).permute(0, 3, 1, 2)
        return y if bias is None else y + bias[:, None, None]
    if not (outputs % EIGHT or inputs % EIGHT):
        return NotImplemented
    bias = None if bias is None else _by_eight(bias, 0)
    return aten.convolution.default(_by_eight(x, 1), _by_eight(weight, 0, 1), bias, *rest)[:, :outputs]


def convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Any, Any]:
    """Its gradients by samples and weights in the same way."""
    outputs, inputs = weight.shape[:2]
    _, stride, padding, dilation, transposed, output_padding, groups, wanted = rest
    if transposed or groups != 1:
        return NotImplemented, None
    if _few(weight, dilation) and not wanted[0]:
        by_patch = grad.permute(0, 2, 3, 1).reshape(-1, outputs).t() @ patches(x, weight, stride, padding)
        return None, by_patch[:, : weight[0].numel()].reshape(weight.shape)
    if not (outputs % EIGHT or inputs % EIGHT):
        return NotImplemented, None
    rest = (None, stride, padding, dilation, transposed, output_padding, groups, [wanted[0], wanted[1], False])
    by_x, by_weight, _ = aten.convolution_backward.default(
        _by_eight(grad, 1), _by_eight(x, 1), _by_eight(weight, 0, 1), *rest
    )
    return by_x[:, :inputs] if wanted[0] else None, by_weight[:outputs, :inputs] if wanted[1] else None


def patches(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """What the kernel sees at each place, a row each: channels, rows and columns, then zeros to a multiple of eight."""
    ways = []
    for d in range(2):
        starts = torch.arange(_outputs(x, weight, stride, padding, d), device=x.device) * stride[d] - padding[d]
        ways.append(starts[:, None] + torch.arange(weight.shape[2 + d], device=x.device))
    rows, columns = ways[0][:, None, :, None], ways[1][None, :, None, :]
    height, width = x.shape[2:]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    seen = torch.where(inside, x[:, :, rows.clamp(0, height - 1), columns.clamp(0, width - 1)], 0)
    return _by_eight(seen.permute(0, 2, 3, 1, 4, 5).reshape(-1, weight[0].numel()), 1)


def _few(weight: Tensor, dilation: Sequence[int]) -> bool:
    return weight.ndim == 4 and weight.shape[1] <= FEW and set(dilation) == {1}


def _outputs(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], d: int) -> int:
    """The height (d = 0) or width of what comes out."""
    return int((x.shape[2 + d] + 2 * padding[d] - weight.shape[2 + d]) // stride[d] + 1)


def _as_matrix(weight: Tensor) -> Tensor:
    return _by_eight(weight.reshape(len(weight), -1), 1)


def _by_eight(tensor: Tensor, *dims: int) -> Tensor:
    """The tensor with zeros behind these dimensions, up to a multiple of eight."""
    widths = [0] * (2 * tensor.ndim)
    for d in dims:
        widths[2 * (tensor.ndim - 1 - d) + 1] = -tensor.shape[d] % EIGHT
    return pad(tensor, widths) if any(widths) else tensor
