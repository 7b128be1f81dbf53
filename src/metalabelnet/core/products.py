"""The pass that carries tangents, without what the pass before it has computed already.

Forward mode computes a value along with every tangent. For the meta-gradient the values are known: the same samples
went through the same weights in step 1. What costs most of them, the matrix products, is kept from there:

    y = x ⊛ W + b        remembered
    ẏ = ẋ ⊛ W + x ⊛ Ẇ + ḃ    and the first term only where x has a tangent: the samples have none

BatchNorm's tangent needs no formula of its own. Its Jacobian J by x is symmetric (a projection, scaled, channel by
channel), so that J ẋ is what its backward pass makes of ẋ; on top of it weight and bias move the values x̂ by ẇ x̂ + ḃ.

All other functions keep the tangents PyTorch gives them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable

# Untyped in PyTorch.
make_dual: Callable[[Tensor, Tensor], Tensor] = forward_ad.make_dual
unpack_dual: Callable[[Tensor], Any] = forward_ad.unpack_dual

PRODUCTS = {functional.linear, functional.conv1d, functional.conv2d, functional.conv3d}


class Products(TorchFunctionMode):
    """The outputs of a pass's products: filled by the first pass under it, used by passes with tangents later.

    A pass without tangents is left alone: its weights may be others.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[tuple[Tensor, int]] = []
        self.filled = False
        self.place = 0

    def __enter__(self) -> Products:
        self.place = 0
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.filled = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in PRODUCTS:
            return self._recall(func, *args, **kwargs) if self.filled else self._remember(func(*args, **kwargs))
        if self.filled and func is functional.batch_norm:
            return _batch_norm(*args, **kwargs)
        return func(*args, **kwargs)

    def _remember(self, output: Tensor) -> Tensor:
        self.outputs.append((output.detach(), output._version))  # noqa: SLF001 (its only name)
        return output

    def _recall(
        self, func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **named: Any
    ) -> Any:
        (x, of_x), (weight, of_weight) = unpack_dual(x), unpack_dual(weight)
        bias, of_bias = (None, None) if bias is None else unpack_dual(bias)
        place, self.place = self.place, self.place + 1
        if of_x is None and of_weight is None and of_bias is None:
            return func(x, weight, bias, *rest, **named)
        output, version = self.outputs[place]
        if output._version != version:  # noqa: SLF001 (an activation in place has overwritten it)
            output = func(x, weight, bias, *rest, **named)
        of_weight = torch.zeros_like(weight) if of_weight is None and of_bias is not None else of_weight
        through_weight = None if of_weight is None else func(x, of_weight, of_bias, *rest, **named)
        if of_x is None:
            return make_dual(output, through_weight)  # type: ignore[arg-type]
        through_x = func(of_x, weight, None, *rest, **named)
        return make_dual(output, through_x if through_weight is None else through_x.add_(through_weight))


def _batch_norm(
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,  # noqa: FBT001, FBT002 (PyTorch's signature)
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch normalisation of a dual tensor."""
    x, of_x = unpack_dual(x)
    if not training or of_x is None or weight is None or bias is None:
        dual = x if of_x is None else make_dual(x, of_x)
        return functional.batch_norm(dual, mean, var, weight, bias, training, momentum, eps)
    (weight, of_weight), (bias, of_bias) = unpack_dual(weight), unpack_dual(bias)
    y, mean, invstd = torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)  # noqa: FBT003
    backward = torch.ops.aten.native_batch_norm_backward.default
    tangent = backward(of_x, x, weight, None, None, mean, invstd, True, eps, [True, False, False])[0]  # noqa: FBT003
    if of_weight is not None:
        by_x = of_weight * invstd
        tangent.addcmul_(x, _channels(by_x, x)).sub_(_channels(by_x * mean, x))
    if of_bias is not None:
        tangent.add_(_channels(of_bias, x))
    return make_dual(y, tangent)


def _channels(values: Tensor, like: Tensor) -> Tensor:
    """One value a channel, in a shape that spreads over samples and places."""
    return values.view(1, -1, *(1,) * (like.ndim - 2))
