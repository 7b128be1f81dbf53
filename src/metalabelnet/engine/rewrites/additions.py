"""Rewrite: additions to the output of a custom convolution kernel move into the kernel's epilogue.

residual block    conv(a) + shortcut: the kernel adds the shortcut, and sums what the next BatchNorm needs
tangent           ẋ ⊛ W + x ⊛ Ẇ: the second kernel adds the output of the first; in a residual block, the first
adds the tangent of the shortcut
BatchNorm         the sum of its gradient and an affine function of its input is one expression
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from metalabelnet.core.forward_ad_cache import broadcast_channels
from metalabelnet.engine.materialize import materialize
from metalabelnet.engine.tensor_facts import storage_key

if TYPE_CHECKING:
    from metalabelnet.engine.kernels import AffineGrad, ConvResult
    from metalabelnet.engine.tensor_facts import TensorFacts


class Additions:
    """Rewrites of `add` and `add_`. The facts are those of `OperatorRewrites`."""

    def __init__(
        self, *, conv_results: TensorFacts, bias_added: TensorFacts, bn_eval: TensorFacts, bn_grads: TensorFacts
    ) -> None:
        self.conv_results, self.bias_added, self.bn_eval, self.bn_grads = conv_results, bias_added, bn_eval, bn_grads

    def add(self, x: Any, y: Any, *, alpha: float = 1) -> Any:
        """Let the kernel that computed one of the operands add the other one."""
        if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or alpha != 1:
            return NotImplemented
        for operand, addend in ((x, y), (y, x)):
            result = self.conv_results.get(operand)
            if result is None or not result.y.dtype == x.dtype == y.dtype or not _have_layout(result.y, x, y):
                continue
            if (total := self._add_to(result, addend)) is not None:
                self.conv_results[total.y] = total
                return total.y
        return NotImplemented

    def _add_to(self, result: ConvResult, addend: Tensor) -> ConvResult | None:
        """Issue a kernel again with an addend. A kernel adds one tensor only; one more is left to its addend."""
        if result.addend is None:
            return result.add(addend)
        inner = self.conv_results.get(result.addend)
        return None if inner is None or inner.addend is not None else result.add(inner.add(addend).y)

    def add_(self, x: Tensor, y: Any, *, alpha: float = 1) -> Any:
        """Fuse the sums of tangents: two convolutions, or BatchNorm's gradient and a function of its input."""
        if not isinstance(y, Tensor) or alpha != 1:
            return NotImplemented
        if (affine_grad := self.bn_grads.get(x)) is not None and (fact := self.bn_eval.get(y)) is not None:
            return _add_affine(x, affine_grad, *fact)
        unbiased, bias = self.bias_added.get(y) or (y, None)
        first, second = self.conv_results.get(x), self.conv_results.get(unbiased)
        if first is None or second is None or first.y.shape != second.y.shape or second.addend is not None:
            return NotImplemented
        first = first.reissue()  # because x is overwritten
        self.conv_results[first.y] = first
        result = second.add(first.y)
        total = result.y[:, : x.shape[1]]
        self.conv_results[total] = result
        x.copy_(total if bias is None else total + bias.view(-1, 1, 1))
        if bias is None:
            self.conv_results.set_after_write(x, result)
        else:
            self.bias_added.set_after_write(x, (total, bias))
        return x


def _have_layout(y: Tensor, *tensors: Tensor) -> bool:
    """Tell whether tensors have the shape and the strides of a kernel's output."""
    return all((tensor.shape, tensor.stride()) == (y.shape, y.stride()) for tensor in tensors)


def _add_affine(x: Tensor, affine_grad: AffineGrad, result: ConvResult, scale: Tensor, shift: Tensor) -> Any:
    """Merge two affine functions of the same tensor into one."""
    if storage_key(affine_grad.x) != storage_key(result.y):
        return NotImplemented
    grad, values = (tensor[:, : x.shape[1]].to(x.dtype) for tensor in affine_grad[:2])
    scale, shift = materialize(affine_grad.x_scale + scale), materialize(affine_grad.shift + shift)
    affine = values * broadcast_channels(scale, x) + broadcast_channels(shift, x)
    return x.copy_(grad * broadcast_channels(affine_grad.grad_scale, x) + affine)
