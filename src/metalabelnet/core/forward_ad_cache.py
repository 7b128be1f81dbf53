"""The pass that carries tangents, without what the pass before it has computed already.

Forward mode computes a value along with every tangent. For the meta-gradient the values are known: the same samples
went through the same weights in step 1. What costs most is kept from there, and autograd keeps nearly all of it anyway:

    y = x ⊛ W + b         ẏ = ẋ ⊛ W + x ⊛ Ẇ + ḃ, the first term only where x has a tangent: the samples have none
    y = max(x, 0)         ẏ = ẋ where y > 0
    y = max pooling of x  ẏ = ẋ at the pixel that was the largest, which the pooling has numbered
    y = BatchNorm of x    keeps mean and deviation. Its Jacobian J by x is symmetric (a projection, scaled, channel by
                          channel), so that J ẋ is what its backward pass makes of ẋ; on top of it weight and bias move
                          the values x̂ by ẇ x̂ + ḃ

All other functions keep the values and tangents PyTorch gives them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Untyped in PyTorch.
make_dual: Callable[[Tensor, Tensor], Tensor] = forward_ad.make_dual
unpack_dual: Callable[[Tensor], Any] = forward_ad.unpack_dual

Known = tuple[Tensor, ...]


def load_forward_mode() -> None:
    """Have PyTorch import what forward mode needs, which it does on first use, before there are activations.

    What an import allocates stays. In the middle of a step it comes to lie between large tensors, and the memory on
    both sides of it does not join again: a tenth more is resident from then on.
    """
    with forward_ad.dual_level():
        make_dual(torch.zeros(1), torch.zeros(1))


class Result(NamedTuple):
    """What a rule makes of a call: its output, the tangent if the rule has one, and what to know the next time."""

    y: Tensor
    of_y: Tensor | None = None
    known: Known = ()


class Call(NamedTuple):
    """A call of the first pass: its function, the form of what went in, where its weights lie, and what is known of it.

    The versions say whether that was overwritten since.
    """

    func: Any
    shape: torch.Size
    weights: set[int]
    known: Known
    versions: list[int]

    def is_like(self, func: Any, tensors: Sequence[Tensor]) -> bool:
        """Whether this is the same call, as far as one can tell without looking at numbers."""
        weights = {tensor.data_ptr() for tensor in tensors}
        return self.func is func and self.shape == tensors[0].shape and self.weights <= weights


class Products(TorchFunctionMode):
    """What a pass computes: filled by the first pass under it, used up by a pass with tangents later.

    A pass without tangents is left alone: its weights may be others. From where a pass does other things than the
    first, or the same in another order, all is computed again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: deque[Call] = deque()
        self.filled = False

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.filled = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in RULES or "input" in kwargs:
            return func(*args, **kwargs)
        tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
        if not self.filled:
            return self._remember(func, tensors, RULES[func](func, (), *args, **kwargs))
        known = self._recall(func, tensors)
        if all(unpack_dual(tensor).tangent is None for tensor in tensors):
            return func(*args, **kwargs)
        y, of_y, _ = RULES[func](func, known, *args, **kwargs)
        return y if of_y is None else make_dual(y, of_y)

    def _remember(self, func: Any, tensors: Sequence[Tensor], result: Result) -> Tensor:
        # A detached tensor has the version of the one it was, and does not keep its graph.
        known = tuple(tensor.detach() if tensor.requires_grad else tensor for tensor in result.known)
        weights = {tensor.data_ptr() for tensor in tensors if tensor.is_leaf and tensor.requires_grad}
        self.calls.append(Call(func, tensors[0].shape, weights, known, _versions(known)))
        return result.y

    def _recall(self, func: Any, tensors: Sequence[Tensor]) -> Known:
        call = self.calls.popleft() if self.calls else None
        if call is None or not call.is_like(func, tensors):
            self.calls.clear()
            return ()
        return call.known if call.versions == _versions(call.known) else ()


def _versions(tensors: Known) -> list[int]:
    return [tensor._version for tensor in tensors]  # noqa: SLF001 (its only name)


def _product(
    func: Any, known: Known, x: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **named: Any
) -> Result:
    (x, of_x), (weight, of_weight) = unpack_dual(x), unpack_dual(weight)
    bias, of_bias = (None, None) if bias is None else unpack_dual(bias)
    y = known[0] if known else func(x, weight, bias, *rest, **named)
    through_x = None if of_x is None else func(of_x, weight, None, *rest, **named)
    if of_weight is None and of_bias is None:
        return Result(y, through_x, (y,))
    of_weight = torch.zeros_like(weight) if of_weight is None else of_weight
    through_weight = func(x, of_weight, of_bias, *rest, **named)
    return Result(y, through_weight if through_x is None else through_x.add_(through_weight), (y,))


def _relu(func: Any, known: Known, x: Tensor, *, inplace: bool = False) -> Result:
    if inplace:  # whoever holds x expects it changed
        return Result(func(x, inplace=True))
    x, of_x = unpack_dual(x)
    y = known[0] if known else func(x)
    return Result(y, None if of_x is None else torch.ops.aten.threshold_backward(of_x, y, 0), (y,))


def _max_pool(_: Any, known: Known, x: Tensor, *window: Any, **named: Any) -> Result:
    x, of_x = unpack_dual(x)
    y, which = known or functional.max_pool2d_with_indices(x, *window, **named)
    of_y = None if of_x is None else of_x.flatten(-2).gather(-1, which.flatten(-2)).view_as(which)
    return Result(y, of_y, (y, which))


def _batch_norm(
    func: Any,
    known: Known,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,  # noqa: FBT001, FBT002 (PyTorch's signature)
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Result:
    same = (running_mean, running_var, weight, bias, training, momentum, eps)
    if not training or weight is None or bias is None:
        return Result(func(x, *same))
    (values, of_x), (w, of_w), (b, of_b) = unpack_dual(x), unpack_dual(weight), unpack_dual(bias)
    if of_x is not None:
        return _normalised((values, w, b), (of_x, of_w, of_b), known, eps)
    # On CUDA it is cuDNN's, whose statistics are its own, and one number a channel is PyTorch's to refuse.
    if of_w is None and of_b is None and x.device.type == "cpu" and x.numel() > x.shape[1]:
        y, mean, invstd = torch.native_batch_norm(x, weight, bias, *same[:2], training, momentum, eps)
        return Result(y, None, (mean, invstd))
    return Result(func(x, *same))


def _normalised(
    values: tuple[Tensor, Tensor, Tensor],
    tangents: tuple[Tensor, Tensor | None, Tensor | None],
    known: Known,
    eps: float,
) -> Result:
    """Batch normalisation of numbers that have tangents; weight and bias may have some."""
    (x, weight, bias), (of_x, of_weight, of_bias) = values, tangents
    normalise, backward = torch.native_batch_norm, torch.ops.aten.native_batch_norm_backward.default
    if known:
        mean, invstd = known
        y = normalise(x, weight, bias, mean, invstd.pow(-2), False, 0.0, 0.0)[0]  # noqa: FBT003
    else:
        y, mean, invstd = normalise(x, weight, bias, None, None, True, 0.0, eps)  # noqa: FBT003
    tangent = backward(of_x, x, weight, None, None, mean, invstd, True, eps, [True, False, False])[0]  # noqa: FBT003
    if of_weight is not None or of_bias is not None:
        by_weight, by_bias = (torch.zeros_like(weight) if of is None else of for of in (of_weight, of_bias))
        tangent.add_(normalise(x, by_weight, by_bias, mean, invstd.pow(-2), False, 0.0, 0.0)[0])  # noqa: FBT003
    return Result(y, tangent)


def by_channel(values: Tensor, like: Tensor) -> Tensor:
    """One value a channel, in a shape that spreads over samples and places."""
    return values.view(1, -1, *(1,) * (like.ndim - 2))


RULES: dict[Any, Callable[..., Result]] = {
    **dict.fromkeys((functional.linear, functional.conv1d, functional.conv2d, functional.conv3d), _product),
    **dict.fromkeys((functional.relu, torch.relu, Tensor.relu), _relu),
    **dict.fromkeys((functional.max_pool2d, torch.max_pool2d), _max_pool),
    functional.batch_norm: _batch_norm,
}
