"""Rewrites of PyTorch operators during tracing, so that the graph compiles to faster kernels.

The values are the same up to rounding.

max pooling              Where windows do not overlap: see `max_pool`.
ReLU backward            Reads ReLU's input instead of its output: the kernel reads what the input was computed from
                         anyway. Behind a max pooling it is applied to windows instead of pixels.
BatchNorm                See `batch_norm`.
bias before BatchNorm    A bias shifts the mean and changes nothing else: BatchNorm reads the tensor without the bias.
                         The bias has no gradient, because BatchNorm's gradient sums to zero over samples and pixels.
convolutions             On CUDA: see `convolution`. Custom kernels fuse the operators that follow into their epilogue:
                         BatchNorm's sums, additions (see `additions`), BatchNorm with fixed statistics and ReLU.
                         Whether the epilogue is needed is known only when the following operator is traced; the
                         convolution is then issued again with it, and the first one is removed as dead code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metalabelnet.engine.kernels import AffineGrad, ChannelAffine
from metalabelnet.engine.materialize import materialize
from metalabelnet.engine.rewrites.additions import Additions
from metalabelnet.engine.rewrites.batch_norm import (
    backward_sums,
    batch_norm_backward,
    batch_norm_eval,
    batch_norm_train,
    scale_and_shift,
    update_running_stat,
)
from metalabelnet.engine.rewrites.convolution import (
    CHANNEL_MULTIPLE,
    convolution,
    convolution_backward,
    pad_channels,
)
from metalabelnet.engine.rewrites.max_pool import PooledWindows, gather_maxima, max_pool, max_pool_backward
from metalabelnet.engine.tensor_facts import TensorFacts, storage_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metalabelnet.engine.kernels import ConvKernels, ConvResult

aten = torch.ops.aten


class OperatorRewrites:
    """A decomposition table for one trace. A rewrite that returns NotImplemented keeps PyTorch's operator.

    Parameters
    ----------
    rewrite_convolutions : bool
        Whether to rewrite convolutions for tensor cores.
    kernels : ConvKernels
        Custom kernels that may replace convolutions.
    """

    def __init__(self, *, rewrite_convolutions: bool, kernels: ConvKernels) -> None:
        self.rewrite_convolutions, self.kernels = rewrite_convolutions, kernels
        self._sums_to_zero = TensorFacts()  # True for tensors that sum to zero over samples and pixels
        self._bias_added = TensorFacts()  # the tensor before a bias was added, and the bias
        self._conv_results = TensorFacts()  # the ConvResult, by the output of a custom forward or dgrad kernel
        self._stored = TensorFacts()  # the bfloat16 tensor that custom kernels can read, by its copy in float32
        self._bn_train = TensorFacts()  # ChannelAffine over a stored tensor, by BatchNorm's output, also pooled
        self._bn_eval = TensorFacts()  # ConvResult, scale and shift, by the output of BatchNorm with fixed statistics
        self._bn_grads = TensorFacts()  # AffineGrad, by BatchNorm's gradient with respect to its input
        self._relu_grads = TensorFacts()  # ConvResult and ChannelAffine, by ReLU's gradient
        self._bn_inputs = TensorFacts()  # what BatchNorm read instead of its input, and the mean of that
        self._relu_inputs = TensorFacts()  # ReLU's input, by its output
        self._pools = TensorFacts()  # PooledWindows, by their indices in any view
        self._flattened = TensorFacts()  # the tensor in channels last that was flattened
        self._pool_grads = TensorFacts()  # the gradient of each window and the PooledWindows, by the gradient of pixels
        # Facts that also hold for a copy of the tensor.
        self._copied_facts = (
            self._conv_results,
            self._bn_train,
            self._bn_eval,
            self._bn_grads,
            self._relu_grads,
        )
        self._inside_rewrite = False
        additions = Additions(
            conv_results=self._conv_results,
            bias_added=self._bias_added,
            bn_eval=self._bn_eval,
            bn_grads=self._bn_grads,
        )
        self.table: dict[Any, Callable[..., Any]] = {
            aten.relu.default: self._relu,
            aten.threshold_backward.default: self._relu_backward,
            aten.max_pool2d_with_indices.default: self._max_pool,
            aten.max_pool2d_with_indices_backward.default: self._max_pool_backward,
            aten.view.default: self._view,
            aten.clone.default: self._clone,
            aten._unsafe_view.default: self._unsafe_view,  # noqa: SLF001 (its only name)
            aten.gather.default: self._gather,
            aten.native_batch_norm.default: self._native_batch_norm,
            aten.cudnn_batch_norm.default: self._cudnn_batch_norm,
            aten.native_batch_norm_backward.default: self._native_batch_norm_backward,
            aten.cudnn_batch_norm_backward.default: self._cudnn_batch_norm_backward,
            aten.add.Tensor: additions.add,
            aten.add_.Tensor: additions.add_,
            aten.copy_.default: self._copy_,
            aten._to_copy.default: self._to_copy,  # noqa: SLF001 (its only name)
            aten.convolution_backward.default: self._convolution_backward,
        }
        if rewrite_convolutions:
            self.table[aten.convolution.default] = self._convolution

    def _call(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        """Call an operator without rewriting it, or what it calls, again."""
        before, self._inside_rewrite = self._inside_rewrite, True
        try:
            return operator(*args, **kwargs)
        finally:
            self._inside_rewrite = before

    def _relu(self, x: Tensor) -> Any:
        if self._inside_rewrite:
            return NotImplemented
        result, scale, shift = self._bn_eval.get(x) or (None, None, None)
        if result is None or result.addend is not None:  # a kernel that adds a tensor has no such epilogue
            y = self._call(aten.relu.default, x)
        else:
            y = result.affine_relu(scale, shift)[:, : x.shape[1]].to(x.dtype)
        self._relu_inputs[y] = x
        return y

    def _relu_backward(self, grad: Tensor, y: Tensor, threshold: float) -> Any:
        if self._inside_rewrite:
            return NotImplemented
        if threshold == 0 and (fact := self._pool_grads.get(grad)) is not None:
            window_grad, pooled = fact
            if storage_key(pooled.x) == storage_key(y):  # the gradient passes if the window's maximum is positive
                return self._backward_through_pool(self._mask_grad(window_grad, pooled.y), pooled)
        relu_input = self._relu_inputs.get(y)
        if threshold == 0 and relu_input is not None:
            return self._mask_grad(grad, relu_input)
        return self._call(aten.threshold_backward.default, grad, y, threshold)

    def _mask_grad(self, grad: Tensor, x: Tensor) -> Tensor:
        """Return the gradient where x is positive, else zero."""
        masked: Tensor = self._call(aten.threshold_backward.default, grad, x, 0)
        if (result := self._conv_results.get(grad)) is not None and (affine := self._bn_train.get(x)) is not None:
            self._relu_grads[masked] = result, affine
        return masked

    def _max_pool(
        self,
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,  # noqa: FBT001, FBT002 (PyTorch's signature)
    ) -> Any:
        window_height, window_width = kernel if len(kernel) == 2 else (*kernel, *kernel)
        height, width = x.shape[-2:]
        is_disjoint = (
            tuple(stride or kernel) == tuple(kernel) and not any(padding) and set(dilation) == {1} and not ceil_mode
        )
        if not is_disjoint or height % window_height or width % window_width:
            return NotImplemented
        pooled = max_pool(x, (window_height, window_width))
        self._pools[pooled.indices] = pooled
        relu_input = self._relu_inputs.get(x)
        if relu_input is not None and (affine := self._bn_train.get(relu_input)) is not None:
            pooled_x = materialize(pad_channels(gather_maxima(affine.x[:, : x.shape[1]], pooled), 1))
            self._bn_train[pooled.y] = affine._replace(x=pooled_x)
        return pooled.y, pooled.indices

    def _max_pool_backward(self, grad: Tensor, x: Tensor, *options: Any) -> Any:
        *_, indices = options
        pooled = self._pools.get(indices)
        return NotImplemented if pooled is None else self._backward_through_pool(grad, pooled)

    def _backward_through_pool(self, window_grad: Tensor, pooled: PooledWindows) -> Tensor:
        grad = max_pool_backward(window_grad, pooled)
        self._pool_grads[grad] = window_grad, pooled
        return grad

    def _view(self, x: Tensor, size: Sequence[int]) -> Any:
        if self._inside_rewrite or (pooled := self._pools.get(x)) is None:
            return NotImplemented
        view = self._call(aten.view.default, x, size)
        self._pools[view] = pooled
        return view

    def _clone(self, x: Tensor, **kwargs: Any) -> Any:
        if self._inside_rewrite or x.ndim != 4 or kwargs.get("memory_format") != torch.contiguous_format:
            return NotImplemented
        clone = self._call(aten.clone.default, x, **kwargs)
        self._flattened[clone] = x
        return clone

    def _unsafe_view(self, x: Tensor, size: Sequence[int]) -> Any:
        if self._inside_rewrite or (original := self._flattened.get(x)) is None:
            return NotImplemented
        view = self._call(aten._unsafe_view.default, x, size)  # noqa: SLF001
        self._flattened[view] = original
        return view

    def _gather(self, x: Tensor, dim: int, index: Tensor, **_: Any) -> Any:
        """Rewrite what forward mode emits for the tangent of a max pooling."""
        pooled = self._pools.get(index)
        if pooled is None or dim != -1 or x.ndim != 3:
            return NotImplemented
        original = self._flattened.get(x)
        has_shape = original is not None and original.shape == pooled.x.shape
        return gather_maxima(original if has_shape else x.view(pooled.x.shape), pooled).view(index.shape)

    def _native_batch_norm(
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
        if self._inside_rewrite or (weight is not None and weight.dtype != x.dtype):
            return NotImplemented
        if not training:
            if running_mean is None or running_var is None:
                return NotImplemented
            unbiased, mean = self._without_bias(x, running_mean)
            result = self._conv_results.get(unbiased)
            y = batch_norm_eval(unbiased, weight, bias, mean, running_var, eps, fold_mean=result is not None)
            if result is not None:
                self._bn_eval[y] = result, *scale_and_shift(weight, bias, mean, (running_var + eps).rsqrt())
            return y, x.new_empty(0), x.new_empty(0)
        unbiased, conv_bias = self._bias_added.get(x) or (x, None)
        result = self._conv_results.get(unbiased)
        sums = result and result.channel_sums(x.shape[1])
        y, mean, var, invstd = batch_norm_train(unbiased, weight, bias, eps, sums)
        self._bn_inputs[x] = unbiased, mean
        stored = self._stored.get(unbiased) if result is None else result.y
        if stored is not None:
            self._bn_train[y] = ChannelAffine(stored, *scale_and_shift(weight, bias, mean, invstd))
        mean = mean if conv_bias is None else mean + conv_bias
        count = x.numel() // x.shape[1]
        if running_mean is not None and running_var is not None:
            update_running_stat(running_mean, mean, momentum)
            update_running_stat(running_var, var * (count / max(1, count - 1)), momentum)
        return y, mean, invstd

    def _without_bias(self, x: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tensor before a bias was added, and its mean."""
        unbiased, bias = self._bias_added.get(x) or (x, None)
        return unbiased, mean if bias is None else mean - bias

    def _cudnn_batch_norm(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self._native_batch_norm(*args, **kwargs)
        reserve = args[0].new_empty(0, dtype=torch.uint8)
        return outputs if outputs is NotImplemented else (*outputs, reserve)

    def _native_batch_norm_backward(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        mean: Tensor | None,
        invstd: Tensor | None,
        train: bool,  # noqa: FBT001
        eps: float,
        needed: Sequence[bool],
    ) -> Any:
        if self._inside_rewrite or not train or mean is None or invstd is None or mean.dtype != x.dtype:
            return NotImplemented
        x, mean = self._bn_inputs.get(x) or self._without_bias(x, mean)
        if not any(needed[1:]):  # then adding the same bias to all pixels changes nothing
            grad, _ = self._bias_added.get(grad) or (grad, None)
        window_grad, pooled = self._pool_grads.get(grad) or (grad, None)
        channels, x_result, grad_result = x.shape[1], self._conv_results.get(x), self._grad_with_sums(window_grad, x)
        if grad_result is None:
            sums = backward_sums(grad, x, mean, self._pool_grads.get(grad))
        else:
            total, dot = grad_result.channel_sums(channels)
            unpadded, sums = grad_result.y[:, :channels], (total, dot - mean * total)
            grad = (unpadded if pooled is None else max_pool_backward(unpadded, pooled)).to(grad.dtype)
        grads = batch_norm_backward(grad, x, weight, mean, invstd, sums, fold_mean=x_result is not None)
        self._sums_to_zero[grads.x] = True
        if grad_result is not None and x_result is not None and pooled is None:
            self._bn_grads[grads.x] = AffineGrad(grad_result.y, x_result.y, *grads.coefficients)
        return tuple(g if is_needed else None for g, is_needed in zip(grads[:3], needed, strict=True))

    def _grad_with_sums(self, grad: Tensor, x: Tensor) -> ConvResult | None:
        """Issue the dgrad kernel that computed BatchNorm's gradient again, with BatchNorm's sums in its epilogue."""
        if (fact := self._relu_grads.get(grad)) is not None:
            result, affine = fact
            return result.reissue(relu_mask=affine)  # type: ignore[no-any-return]
        result, x_result = self._conv_results.get(grad), self._conv_results.get(x)
        return None if result is None or x_result is None else result.reissue(factor=x_result.y)

    def _cudnn_batch_norm_backward(
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
        return self._native_batch_norm_backward(grad, x, weight, *statistics, True, eps, [True] * 3)  # noqa: FBT003

    def _to_copy(self, x: Tensor, **kwargs: Any) -> Any:
        facts = self._sums_to_zero, self._bias_added, self._pool_grads, *self._copied_facts
        is_operand = self.rewrite_convolutions and kwargs.get("dtype") == torch.float32 and _is_kernel_operand(x)
        if self._inside_rewrite or not (is_operand or any(fact.get(x) is not None for fact in facts)):
            return NotImplemented
        copy = self._copy_with_facts(x, **kwargs)
        if is_operand:
            self._stored[copy] = x
        return copy

    def _copy_with_facts(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Return a copy of a tensor, with the tensor's facts."""
        copy: Tensor = self._call(aten._to_copy.default, x, **kwargs)  # noqa: SLF001
        if self._sums_to_zero.get(x):
            self._sums_to_zero[copy] = True
        if (parts := self._bias_added.get(x)) is not None:
            self._bias_added[copy] = tuple(self._copy_with_facts(part, **kwargs) for part in parts)
        for facts in self._copied_facts:
            if (fact := facts.get(x)) is not None:
                facts[copy] = fact
        if (parts := self._pool_grads.get(x)) is not None:
            window_grad, pooled = parts
            self._pool_grads[copy] = self._copy_with_facts(window_grad, **kwargs), pooled
        return copy

    def _copy_(self, x: Tensor, y: Tensor, *options: Any) -> Any:
        """Keep facts when forward mode copies a tangent to the memory layout of its value."""
        result, parts = self._conv_results.get(y), self._bias_added.get(y)
        if self._inside_rewrite or (result is None and parts is None) or (x.shape, x.dtype) != (y.shape, y.dtype):
            return NotImplemented
        self._call(aten.copy_.default, x, y, *options)
        if result is not None:
            self._conv_results.set_after_write(x, result)
        if parts is not None:
            self._bias_added.set_after_write(x, parts)
        return x

    def _convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Any:
        if self._inside_rewrite:
            return NotImplemented
        y, result = self._call(convolution, self.kernels, x, weight, *options)
        if result is not None:
            self._conv_results[y] = result
        if bias is None:
            return y
        biased = y + bias.view(-1, *(1,) * (y.ndim - 2))
        self._bias_added[biased] = y, bias
        return biased

    def _convolution_backward(self, grad: Tensor, x: Tensor, weight: Tensor, *options: Any) -> Any:
        if self._inside_rewrite:
            return NotImplemented
        *_, needed = options
        bias_grad = None
        if needed[2]:
            dims = [d for d in range(grad.ndim) if d != 1]
            bias_grad = grad.new_zeros(grad.shape[1]) if self._sums_to_zero.get(grad) else grad.sum(dims)
        dgrad, wgrad, result = NotImplemented, None, None
        if self.rewrite_convolutions:
            # If dgrad is needed, the gradient is computed anyway, and wgrad reads it.
            affine_grad = None if needed[0] else self._bn_grads.get(grad)
            dgrad, wgrad, result = self._call(
                convolution_backward, self.kernels, grad, x, weight, *options, affine_grad=affine_grad
            )
        if dgrad is NotImplemented:
            options = (None, *options[1:-1], [needed[0], needed[1], False])
            dgrad, wgrad, _ = self._call(aten.convolution_backward.default, grad, x, weight, *options)
        if result is not None:
            self._conv_results[dgrad] = result
        return dgrad, wgrad, bias_grad


def _is_kernel_operand(x: Tensor) -> bool:
    """Tell whether a custom kernel can read a tensor next to its output: bfloat16, channels last, without padding."""
    is_image = x.ndim == 4 and x.dtype == torch.bfloat16 and x.shape[1] % CHANNEL_MULTIPLE == 0
    return is_image and x.is_contiguous(memory_format=torch.channels_last)
