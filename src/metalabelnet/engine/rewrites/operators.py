"""Operators written another way, so that what is recorded compiles to fast kernels. Same values, but for rounding.

max pooling              where windows do not overlap: see `pooling`
ReLU, backwards          asks the number that went in, not the one that came out: the kernel reads what that was
                         computed of anyway. After a pooling it asks the windows only.
BatchNorm                see `norms`
a bias before BatchNorm  moves the mean and nothing else: the normalisation reads what is there without it. It has no
                         gradient: what comes back through BatchNorm sums to zero over samples and places.
convolutions             on CUDA: see `convolutions`. Where a kernel of our own makes one, it does more on its way: it
                         sums what BatchNorm asks for, adds the other product of a tangent, gives what comes out of
                         BatchNorm with fixed statistics and ReLU. What is asked shows later: the convolution is then
                         said again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metalabelnet.core.forward_ad_cache import by_channel
from metalabelnet.engine import hopper
from metalabelnet.engine.materialize import kept
from metalabelnet.engine.rewrites.batch_norm import (
    batch_norm,
    batch_norm_backward,
    fixed_norm,
    follow,
    gradient_sums,
    line,
)
from metalabelnet.engine.rewrites.convolution import by_eight, convolution, convolution_backward
from metalabelnet.engine.rewrites.max_pool import Pooled, chosen, max_pool, spread
from metalabelnet.engine.tensor_facts import Known, place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten


class Operators:
    """What one recording writes down in place of PyTorch's operators. `NotImplemented`: the operator as it is."""

    def __init__(self, *, tensor_cores: bool) -> None:
        self.tensor_cores = tensor_cores
        self._centred = Known()  # what sums to zero over samples and places
        self._biased = Known()  # what came before a bias was added, and the bias
        self._made = Known()  # what a kernel of ours made, by what a convolution or its way back gave
        self._lined = Known()  # BatchNorm's line over what such a kernel made, by what came out, pooled or not
        self._fixed = Known()  # what such a kernel made, and a line with statistics that are there, by what came out
        self._joined = Known()  # BatchNorm's gradient, as it is made of two that such kernels made
        self._masked = Known()  # what such a kernel made, and the line, by a ReLU's gradient
        self._normed = Known()  # what BatchNorm read in place of its input, and the mean of that
        self._rectified = Known()  # what went into a ReLU, by what came out
        self._pooled = Known()  # a pooling, by its indices in any view
        self._flat = Known()  # what was laid flat, of tensors with channels last
        self._spread = Known()  # the gradient at each window and the pooling, by the gradient at each pixel
        self._of_copies = (
            self._made,
            self._lined,
            self._fixed,
            self._joined,
            self._masked,
        )  # which know the same of them
        self._as_it_is = False
        self.table: dict[Any, Callable[..., Any]] = {
            aten.relu.default: self._relu,
            aten.threshold_backward.default: self._relu_backward,
            aten.max_pool2d_with_indices.default: self._max_pool,
            aten.max_pool2d_with_indices_backward.default: self._max_pool_backward,
            aten.view.default: self._view,
            aten.clone.default: self._clone,
            aten._unsafe_view.default: self._unsafe_view,  # noqa: SLF001 (its only name)
            aten.gather.default: self._gather,
            aten.native_batch_norm.default: self._native_norm,
            aten.cudnn_batch_norm.default: self._cudnn_norm,
            aten.native_batch_norm_backward.default: self._native_norm_backward,
            aten.cudnn_batch_norm_backward.default: self._cudnn_norm_backward,
            aten.add_.Tensor: self._add_,
            aten.copy_.default: self._copy_,
            aten._to_copy.default: self._to_copy,  # noqa: SLF001 (its only name)
            aten.convolution_backward.default: self._convolution_backward,
        }
        if tensor_cores:
            self.table[aten.convolution.default] = self._convolution

    def _plain(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        before, self._as_it_is = self._as_it_is, True
        try:
            return operator(*args, **kwargs)
        finally:
            self._as_it_is = before

    def _relu(self, x: Tensor) -> Any:
        if self._as_it_is:
            return NotImplemented
        if (found := self._fixed.get(x)) is None:
            y = self._plain(aten.relu.default, x)
        else:
            made, *along = found
            y = made.rectified(*along)[:, : x.shape[1]].to(x.dtype)
        self._rectified[y] = x
        return y

    def _relu_backward(self, grad: Tensor, y: Tensor, threshold: float) -> Any:
        if self._as_it_is:
            return NotImplemented
        if threshold == 0 and (found := self._spread.get(grad)) is not None:
            by_window, pooled = found
            if place(pooled.x) == place(y):  # the largest was kept if its window's value is positive
                return self._spread_over(self._rectify(by_window, pooled.y), pooled)
        before = self._rectified.get(y)
        if threshold == 0 and before is not None:
            return self._rectify(grad, before)
        return self._plain(aten.threshold_backward.default, grad, y, threshold)

    def _rectify(self, grad: Tensor, y: Tensor) -> Tensor:
        result: Tensor = self._plain(aten.threshold_backward.default, grad, y, 0)
        if (made := self._made.get(grad)) is not None and (along := self._lined.get(y)) is not None:
            self._masked[result] = made, along
        return result

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
        self._pooled[pooled.indices] = pooled
        if (before := self._rectified.get(x)) is not None and (along := self._lined.get(before)) is not None:
            of = kept(by_eight(chosen(along.of[:, : x.shape[1]], pooled), 1))
            self._lined[pooled.y] = along._replace(of=of)
        return pooled.y, pooled.indices

    def _max_pool_backward(self, grad: Tensor, x: Tensor, *rest: Any) -> Any:
        *_, indices = rest
        pooled = self._pooled.get(indices)
        if pooled is None:
            return NotImplemented
        return self._spread_over(grad, pooled)

    def _spread_over(self, by_window: Tensor, pooled: Pooled) -> Tensor:
        result = spread(by_window, pooled)
        self._spread[result] = by_window, pooled
        return result

    def _view(self, x: Tensor, size: Sequence[int]) -> Any:
        if self._as_it_is or (pooled := self._pooled.get(x)) is None:
            return NotImplemented
        result = self._plain(aten.view.default, x, size)
        self._pooled[result] = pooled
        return result

    def _clone(self, x: Tensor, **kwargs: Any) -> Any:
        if self._as_it_is or x.ndim != 4 or kwargs.get("memory_format") != torch.contiguous_format:
            return NotImplemented
        result = self._plain(aten.clone.default, x, **kwargs)
        self._flat[result] = x
        return result

    def _unsafe_view(self, x: Tensor, size: Sequence[int]) -> Any:
        if self._as_it_is or (laid := self._flat.get(x)) is None:
            return NotImplemented
        result = self._plain(aten._unsafe_view.default, x, size)  # noqa: SLF001
        self._flat[result] = laid
        return result

    def _gather(self, x: Tensor, dim: int, index: Tensor, **_: Any) -> Any:
        """What forward mode makes of a pooling: the tangent of the largest."""
        pooled = self._pooled.get(index)
        if pooled is None or dim != -1 or x.ndim != 3:
            return NotImplemented
        laid = self._flat.get(x)
        whole = laid if laid is not None and laid.shape == pooled.x.shape else x.view(pooled.x.shape)
        return chosen(whole, pooled).view(index.shape)

    def _native_norm(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,  # noqa: FBT001 (PyTorch's signature)
        momentum: float,
        eps: float,
    ) -> Any:
        if self._as_it_is or (weight is not None and weight.dtype != x.dtype):
            return NotImplemented
        if not training:
            if running_mean is None or running_var is None:
                return NotImplemented
            read, mean = self._without_bias(x, running_mean)
            made = self._made.get(read)
            y = fixed_norm(read, weight, bias, mean, running_var, eps, coarse=made is not None)
            if made is not None:
                self._fixed[y] = made, *line(weight, bias, mean, (running_var + eps).rsqrt())
            return y, x.new_empty(0), x.new_empty(0)
        read, before = self._biased.get(x) or (x, None)
        made = self._made.get(read)
        y, mean, var, invstd = batch_norm(read, weight, bias, eps, made and made.totals(x.shape[1]))
        self._normed[x] = read, mean
        if made is not None:
            self._lined[y] = hopper.Line(made.y, *line(weight, bias, mean, invstd))
        mean = mean if before is None else mean + before
        count = x.numel() // x.shape[1]
        if running_mean is not None and running_var is not None:
            follow(running_mean, mean, momentum)
            follow(running_var, var * (count / max(1, count - 1)), momentum)
        return y, mean, invstd

    def _without_bias(self, x: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """What was there before a bias was added, and its mean."""
        read, before = self._biased.get(x) or (x, None)
        return read, mean if before is None else mean - before

    def _cudnn_norm(self, *args: Any, **kwargs: Any) -> Any:
        result = self._native_norm(*args, **kwargs)
        reserve = args[0].new_empty(0, dtype=torch.uint8)
        return result if result is NotImplemented else (*result, reserve)

    def _native_norm_backward(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        mean: Tensor | None,
        invstd: Tensor | None,
        train: bool,  # noqa: FBT001 (PyTorch's signature)
        eps: float,
        wanted: Sequence[bool],
    ) -> Any:
        if self._as_it_is or not train or mean is None or invstd is None or mean.dtype != x.dtype:
            return NotImplemented
        x, mean = self._normed.get(x) or self._without_bias(x, mean)
        if not any(wanted[1:]):  # the same bias in all places changes nothing then
            grad, _ = self._biased.get(grad) or (grad, None)
        by_window, pooled = self._spread.get(grad) or (grad, None)
        channels, values, made = x.shape[1], self._made.get(x), self._anew(by_window, x)
        if made is None:
            sums = gradient_sums(grad, x, mean, self._spread.get(grad))
        else:
            total, dot = made.totals(channels)
            alone, sums = made.y[:, :channels], (total, dot - mean * total)
            grad = (alone if pooled is None else spread(alone, pooled)).to(grad.dtype)
        found = batch_norm_backward(grad, x, weight, mean, invstd, sums, coarse=values is not None)
        self._centred[found.by_x] = True
        if made is not None and values is not None and pooled is None:
            self._joined[found.by_x] = hopper.Joined(made.y, values.y, *found.numbers)
        return tuple(g if asked else None for g, asked in zip(found[:3], wanted, strict=True))

    def _anew(self, grad: Tensor, x: Tensor) -> hopper.Made | None:
        """What came to BatchNorm, said again so that the kernel that made it sums it and its products with x."""
        if (found := self._masked.get(grad)) is not None:
            made, along = found
            return made.again(positive=along)  # type: ignore[no-any-return]
        made, values = self._made.get(grad), self._made.get(x)
        return None if made is None or values is None else made.again(other=values.y)

    def _cudnn_norm_backward(
        self,
        x: Tensor,
        grad: Tensor,
        weight: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        mean: Tensor | None,
        invstd: Tensor | None,
        eps: float,
        reserve: Tensor,
    ) -> Any:
        statistics = running_mean, running_var, mean, invstd
        return self._native_norm_backward(grad, x, weight, *statistics, True, eps, [True] * 3)  # noqa: FBT003

    def _to_copy(self, x: Tensor, **kwargs: Any) -> Any:
        known = self._centred, self._biased, self._spread, *self._of_copies
        if self._as_it_is or all(of.get(x) is None for of in known):
            return NotImplemented
        return self._copied(x, **kwargs)

    def _copied(self, x: Tensor, **kwargs: Any) -> Tensor:
        """A copy, of which the same is known as of the tensor itself."""
        result: Tensor = self._plain(aten._to_copy.default, x, **kwargs)  # noqa: SLF001
        if self._centred.get(x):
            self._centred[result] = True
        if (biased := self._biased.get(x)) is not None:
            self._biased[result] = tuple(self._copied(part, **kwargs) for part in biased)
        for known in self._of_copies:
            if (what := known.get(x)) is not None:
                known[result] = what
        if (found := self._spread.get(x)) is not None:
            by_window, pooled = found
            self._spread[result] = self._copied(by_window, **kwargs), pooled
        return result

    def _copy_(self, x: Tensor, y: Tensor, *rest: Any) -> Any:
        """Forward mode lays tangents as the values lie."""
        made, biased = self._made.get(y), self._biased.get(y)
        if self._as_it_is or (made is None and biased is None) or (x.shape, x.dtype) != (y.shape, y.dtype):
            return NotImplemented
        self._plain(aten.copy_.default, x, y, *rest)
        if made is not None:
            self._made.after_writing(x, made)
        if biased is not None:
            self._biased.after_writing(x, biased)
        return x

    def _convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Any:
        if self._as_it_is:
            return NotImplemented
        y, made = self._plain(convolution, x, weight, *rest)
        if made is not None:
            self._made[y] = made
        if bias is None:
            return y
        result = y + bias.view(-1, *(1,) * (y.ndim - 2))
        self._biased[result] = y, bias
        return result

    def _add_(self, x: Tensor, y: Any, *, alpha: float = 1) -> Any:
        """What tangents are added up of: two convolutions, or what BatchNorm makes of one and what moves it."""
        if not isinstance(y, Tensor) or alpha != 1:
            return NotImplemented
        if (joined := self._joined.get(x)) is not None and (fixed := self._fixed.get(y)) is not None:
            return self._add_line(x, joined, *fixed)
        read, bias = self._biased.get(y) or (y, None)
        first, second = self._made.get(x), self._made.get(read)
        if first is None or second is None or first.y.shape != second.y.shape:
            return NotImplemented
        made = second.again(plus=first.again().y)  # the second kernel adds the first; x itself is written into
        both = made.y[:, : x.shape[1]]
        self._made[both] = made
        x.copy_(both if bias is None else both + bias.view(-1, 1, 1))
        if bias is None:
            self._made.after_writing(x, made)
        else:
            self._biased.after_writing(x, (both, bias))
        return x

    def _add_line(self, x: Tensor, joined: hopper.Joined, made: hopper.Made, slope: Tensor, at_zero: Tensor) -> Any:
        """Two lines over the same numbers are one."""
        if place(joined.other) != place(made.y):
            return NotImplemented
        grad, values = (tensor[:, : x.shape[1]].to(x.dtype) for tensor in joined[:2])
        slope, at_zero = kept(joined.of_other + slope), kept(joined.more + at_zero)
        line = values * by_channel(slope, x) + by_channel(at_zero, x)
        return x.copy_(grad * by_channel(joined.of_grad, x) + line)

    def _convolution_backward(self, grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
        if self._as_it_is:
            return NotImplemented
        *_, wanted = rest
        by_bias = None
        if wanted[2]:
            places = [d for d in range(grad.ndim) if d != 1]
            by_bias = grad.new_zeros(grad.shape[1]) if self._centred.get(grad) else grad.sum(places)
        by_x, by_weight, made = NotImplemented, None, None
        if self.tensor_cores:
            joined = None if wanted[0] else self._joined.get(grad)  # else it is wanted as it is
            by_x, by_weight, made = self._plain(convolution_backward, grad, x, weight, *rest, joined=joined)
        if by_x is NotImplemented:
            rest = (None, *rest[1:-1], [wanted[0], wanted[1], False])
            by_x, by_weight, _ = self._plain(aten.convolution_backward.default, grad, x, weight, *rest)
        if made is not None:
            self._made[by_x] = made
        return by_x, by_weight, by_bias
