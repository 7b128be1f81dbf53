"""Operators written another way, so that what is recorded compiles to fast kernels. Same values, but for rounding.

max pooling              where windows do not overlap, every pixel asks its window whether it was the largest, and the
                         window remembers which one was. The usual way scatters into zeros, which no other kernel can
                         be joined to.
ReLU, backwards          asks the number that went in, not the one that came out: the kernel reads what that was
                         computed of anyway. After a pooling it asks the windows only.
a bias before BatchNorm  has no gradient: what comes back through BatchNorm sums to zero over samples and places. The
                         sum is left out.
convolutions             on CUDA: see `convolutions`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metalabelnet.train.convolutions import convolution, convolution_backward

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten


@dataclass(frozen=True)
class Pooled:
    """A pooling by windows that do not overlap: its input, its output, and which pixel of each window was the largest.

    `which` counts the pixels of a window row by row, in bytes; `indices` is the same as PyTorch counts.
    """

    x: Tensor
    y: Tensor
    which: Tensor
    indices: Tensor
    window: tuple[int, int]


# Where a kernel shall store a value for others, however quick it is to compute: compilers are told by a lowering.
_library = torch.library.Library("metalabelnet", "FRAGMENT")
_library.define("stored(Tensor x) -> Tensor")
_library.impl("stored", lambda x: x.clone(), "CompositeExplicitAutograd")
stored = torch.ops.metalabelnet.stored.default


class Operators:
    """What one recording writes down in place of PyTorch's operators. `NotImplemented`: the operator as it is.

    What is known of a tensor is kept by its id, along with the tensor, so that no other can come to have that id.
    """

    def __init__(self, *, tensor_cores: bool) -> None:
        self.tensor_cores = tensor_cores
        self._centred: dict[int, Tensor] = {}  # what sums to zero over samples and places
        self._rectified: dict[int, tuple[Tensor, Tensor]] = {}  # what came out of a ReLU, and what went in
        self._pooled: dict[int, Pooled] = {}  # a pooling, by its indices in any view
        self._spread: dict[int, tuple[Tensor, Tensor, Pooled]] = {}  # the gradient at each pixel, and at each window
        self._views: list[Tensor] = []
        self._as_it_is = False
        self.table: dict[Any, Callable[..., Any]] = {
            aten.relu.default: self._relu,
            aten.threshold_backward.default: self._relu_backward,
            aten.max_pool2d_with_indices.default: self._max_pool,
            aten.max_pool2d_with_indices_backward.default: self._max_pool_backward,
            aten.view.default: self._view,
            aten.gather.default: self._gather,
            aten.native_batch_norm_backward.default: self._norm_backward(aten.native_batch_norm_backward.default),
            aten.cudnn_batch_norm_backward.default: self._norm_backward(aten.cudnn_batch_norm_backward.default),
            aten._to_copy.default: self._to_copy,  # noqa: SLF001 (its only name)
            aten.convolution_backward.default: self._convolution_backward,
        }
        if tensor_cores:
            self.table[aten.convolution.default] = convolution

    def _plain(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        before, self._as_it_is = self._as_it_is, True
        try:
            return operator(*args, **kwargs)
        finally:
            self._as_it_is = before

    def _relu(self, x: Tensor) -> Any:
        if self._as_it_is:
            return NotImplemented
        y = self._plain(aten.relu.default, x)
        self._rectified[id(y)] = y, x
        return y

    def _relu_backward(self, grad: Tensor, y: Tensor, threshold: float) -> Any:
        if self._as_it_is:
            return NotImplemented
        if threshold == 0 and id(grad) in self._spread:
            _, by_window, pooled = self._spread[id(grad)]
            if pooled.x is y:  # the largest was kept if its window's value is positive
                return spread(self._plain(aten.threshold_backward.default, by_window, pooled.y, 0), pooled)
        if threshold == 0 and id(y) in self._rectified:
            y = self._rectified[id(y)][1]
        return self._plain(aten.threshold_backward.default, grad, y, threshold)

    def _max_pool(
        self,
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,  # noqa: FBT001, FBT002 (PyTorch's signature)
    ) -> Any:
        high, wide = kernel if len(kernel) == 2 else (*kernel, *kernel)
        height, width = x.shape[-2:]
        apart = tuple(stride or kernel) == tuple(kernel) and not any(padding) and set(dilation) == {1} and not ceil_mode
        if not apart or height % high or width % wide:
            return NotImplemented
        pooled = max_pool(x, (high, wide))
        self._pooled[id(pooled.indices)] = pooled
        return pooled.y, pooled.indices

    def _max_pool_backward(self, grad: Tensor, x: Tensor, *rest: Any) -> Any:
        *_, indices = rest
        if id(indices) not in self._pooled:
            return NotImplemented
        pooled = self._pooled[id(indices)]
        result = spread(grad, pooled)
        self._spread[id(result)] = result, grad, pooled
        return result

    def _view(self, x: Tensor, size: Sequence[int]) -> Any:
        if self._as_it_is or id(x) not in self._pooled:
            return NotImplemented
        result = self._plain(aten.view.default, x, size)
        self._pooled[id(result)] = self._pooled[id(x)]
        self._views.append(result)
        return result

    def _gather(self, x: Tensor, dim: int, index: Tensor, **_: Any) -> Any:
        """What forward mode makes of a pooling: the tangent of the largest."""
        if id(index) not in self._pooled or dim != -1 or x.ndim != 3:
            return NotImplemented
        pooled = self._pooled[id(index)]
        return chosen(x.view(pooled.x.shape), pooled).view(index.shape)

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


def max_pool(x: Tensor, window: tuple[int, int]) -> Pooled:
    """The largest pixel of every window, the first of equals, and not-a-number before all."""
    high, wide = window
    y, which = x[..., ::high, ::wide], torch.zeros((), dtype=torch.int8, device=x.device)
    for number, pixel in enumerate(_pixels(x, window)[1:], 1):
        larger = (pixel > y) | pixel.isnan()
        y, which = torch.where(larger, pixel, y), torch.where(larger, number, which).to(torch.int8)
    y, which = stored(y), stored(which)
    rows = torch.arange(y.shape[-2], device=x.device)[:, None] * high + which // wide
    columns = torch.arange(y.shape[-1], device=x.device) * wide + which % wide
    return Pooled(x=x, y=y, which=which, indices=rows * x.shape[-1] + columns, window=window)


def spread(by_window: Tensor, pooled: Pooled) -> Tensor:
    """The gradient of each pixel: its window's, if the window's largest is this pixel."""
    high, wide = pooled.window
    # Every pixel as (row of windows, row within the window, column of windows, column within it).
    here = torch.arange(high * wide, dtype=torch.int8, device=by_window.device).view(high, 1, wide)
    largest = pooled.which[..., :, None, :, None] == here
    return torch.where(largest, by_window[..., :, None, :, None], 0.0).reshape(pooled.x.shape)


def chosen(x: Tensor, pooled: Pooled) -> Tensor:
    """Of every window of x the pixel that was the largest in the pooling."""
    first, *others = _pixels(x, pooled.window)
    for number, pixel in enumerate(others, 1):
        first = torch.where(pooled.which == number, pixel, first)
    return first


def _pixels(x: Tensor, window: tuple[int, int]) -> list[Tensor]:
    """The pixels of all windows, one of each window at a time, row by row."""
    high, wide = window
    return [x[..., row::high, column::wide] for row in range(high) for column in range(wide)]
