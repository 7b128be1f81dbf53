"""Forward-mode differentiation that reuses the values of an earlier pass.

Forward mode computes a primal value along with every tangent. For the meta-gradient the primal values are known: step 1
of the iteration has passed the same samples through the same weights. The most expensive results are cached; autograd
stores nearly all of them anyway:

    y = x ⊛ W + b         ẏ = ẋ ⊛ W + x ⊛ Ẇ + ḃ, the first term only if x has a tangent (the samples have none)
    y = max(x, 0)         ẏ = ẋ where y > 0
    y = max pooling of x  ẏ = ẋ at the index of the maximum, which the pooling returns
    y = BatchNorm of x    mean and inverse standard deviation are cached. The Jacobian J with respect to x is symmetric
                          (per channel, a scaled projection), so J ẋ equals its backward pass applied to ẋ; the
                          tangents of weight and bias add ẇ x̂ + ḃ, with x̂ the normalized x

All other functions use PyTorch's own forward mode.
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

# PyTorch does not annotate these functions.
make_dual: Callable[[Tensor, Tensor], Tensor] = forward_ad.make_dual
unpack_dual: Callable[[Tensor], Any] = forward_ad.unpack_dual

CachedTensors = tuple[Tensor, ...]


def preload_forward_ad() -> None:
    """Import the modules that PyTorch loads at the first use of forward mode, before activations are allocated.

    Memory allocated by an import is not freed. In the middle of a step it fragments the heap between large tensors, and
    the resident memory stays about 10 % larger.
    """
    with forward_ad.dual_level():
        make_dual(torch.zeros(1), torch.zeros(1))


class RuleOutput(NamedTuple):
    """The output of a rule: the value, its tangent if the rule computes it, and the tensors to cache."""

    y: Tensor
    y_tangent: Tensor | None = None
    cached: CachedTensors = ()


class CachedCall(NamedTuple):
    """A function call of the first pass: function, input shape, addresses of its weights, and the cached tensors.

    The version counters tell whether a cached tensor has been overwritten since.
    """

    func: Any
    shape: torch.Size
    weights: set[int]
    cached: CachedTensors
    versions: list[int]

    def matches(self, func: Any, tensors: Sequence[Tensor]) -> bool:
        """Whether function, input shape and weights are the same; values are not compared."""
        weights = {tensor.data_ptr() for tensor in tensors}
        return self.func is func and self.shape == tensors[0].shape and self.weights <= weights


class ForwardADCache(TorchFunctionMode):
    """Cache of one forward pass: the first pass inside fills it, a later forward-mode pass consumes it.

    A later pass without tangents does not use the cached values, because its weights may differ. From the first call
    that differs from the first pass, in function or order, everything is recomputed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: deque[CachedCall] = deque()
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
            return self._store(func, tensors, RULES[func](func, (), *args, **kwargs))
        cached = self._take(func, tensors)
        if all(unpack_dual(tensor).tangent is None for tensor in tensors):
            return func(*args, **kwargs)
        y, y_tangent, _ = RULES[func](func, cached, *args, **kwargs)
        return y if y_tangent is None else make_dual(y, y_tangent)

    def _store(self, func: Any, tensors: Sequence[Tensor], output: RuleOutput) -> Tensor:
        # A detached tensor shares the version counter of its source, and does not keep the graph alive.
        cached = tuple(tensor.detach() if tensor.requires_grad else tensor for tensor in output.cached)
        weights = {tensor.data_ptr() for tensor in tensors if tensor.is_leaf and tensor.requires_grad}
        self.calls.append(CachedCall(func, tensors[0].shape, weights, cached, _versions(cached)))
        return output.y

    def _take(self, func: Any, tensors: Sequence[Tensor]) -> CachedTensors:
        call = self.calls.popleft() if self.calls else None
        if call is None or not call.matches(func, tensors):
            self.calls.clear()
            return ()
        return call.cached if call.versions == _versions(call.cached) else ()


def _versions(tensors: CachedTensors) -> list[int]:
    return [tensor._version for tensor in tensors]  # noqa: SLF001 (there is no public name)


def _product(
    func: Any, cached: CachedTensors, x: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> RuleOutput:
    (x, x_tangent), (weight, weight_tangent) = unpack_dual(x), unpack_dual(weight)
    bias, bias_tangent = (None, None) if bias is None else unpack_dual(bias)
    y = cached[0] if cached else func(x, weight, bias, *args, **kwargs)
    from_x = None if x_tangent is None else func(x_tangent, weight, None, *args, **kwargs)
    if weight_tangent is None and bias_tangent is None:
        return RuleOutput(y, from_x, (y,))
    weight_tangent = torch.zeros_like(weight) if weight_tangent is None else weight_tangent
    from_weight = func(x, weight_tangent, bias_tangent, *args, **kwargs)
    return RuleOutput(y, from_weight if from_x is None else from_x.add_(from_weight), (y,))


def _relu(func: Any, cached: CachedTensors, x: Tensor, *, inplace: bool = False) -> RuleOutput:
    if inplace:  # the caller expects x to be modified
        return RuleOutput(func(x, inplace=True))
    x, x_tangent = unpack_dual(x)
    y = cached[0] if cached else func(x)
    return RuleOutput(y, None if x_tangent is None else torch.ops.aten.threshold_backward(x_tangent, y, 0), (y,))


def _max_pool(_: Any, cached: CachedTensors, x: Tensor, *args: Any, **kwargs: Any) -> RuleOutput:
    x, x_tangent = unpack_dual(x)
    y, indices = cached or functional.max_pool2d_with_indices(x, *args, **kwargs)
    y_tangent = None if x_tangent is None else x_tangent.flatten(-2).gather(-1, indices.flatten(-2)).view_as(indices)
    return RuleOutput(y, y_tangent, (y, indices))


def _batch_norm(
    func: Any,
    cached: CachedTensors,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,  # noqa: FBT001, FBT002 (PyTorch's signature)
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> RuleOutput:
    arguments = (running_mean, running_var, weight, bias, training, momentum, eps)
    if not training or weight is None or bias is None:
        return RuleOutput(func(x, *arguments))
    (values, x_tangent), (w, weight_tangent), (b, bias_tangent) = unpack_dual(x), unpack_dual(weight), unpack_dual(bias)
    if x_tangent is not None:
        return _batch_norm_with_tangents((values, w, b), (x_tangent, weight_tangent, bias_tangent), cached, eps)
    # On CUDA, cuDNN keeps its own statistics. One value per channel is an error that PyTorch's own function raises.
    if weight_tangent is None and bias_tangent is None and x.device.type == "cpu" and x.numel() > x.shape[1]:
        y, mean, invstd = torch.native_batch_norm(x, weight, bias, *arguments[:2], training, momentum, eps)
        return RuleOutput(y, None, (mean, invstd))
    return RuleOutput(func(x, *arguments))


def _batch_norm_with_tangents(
    values: tuple[Tensor, Tensor, Tensor],
    tangents: tuple[Tensor, Tensor | None, Tensor | None],
    cached: CachedTensors,
    eps: float,
) -> RuleOutput:
    """Return batch normalization of x with a tangent; weight and bias may have tangents."""
    (x, weight, bias), (x_tangent, weight_tangent, bias_tangent) = values, tangents
    batch_norm, backward = torch.native_batch_norm, torch.ops.aten.native_batch_norm_backward.default
    if cached:
        mean, invstd = cached
        y = batch_norm(x, weight, bias, mean, invstd.pow(-2), False, 0.0, 0.0)[0]  # noqa: FBT003
    else:
        y, mean, invstd = batch_norm(x, weight, bias, None, None, True, 0.0, eps)  # noqa: FBT003
    tangent = backward(x_tangent, x, weight, None, None, mean, invstd, True, eps, [True, False, False])[0]  # noqa: FBT003
    if weight_tangent is not None or bias_tangent is not None:
        given = (weight_tangent, bias_tangent)
        weight_tangent, bias_tangent = (torch.zeros_like(weight) if each is None else each for each in given)
        tangent.add_(batch_norm(x, weight_tangent, bias_tangent, mean, invstd.pow(-2), False, 0.0, 0.0)[0])  # noqa: FBT003
    return RuleOutput(y, tangent)


def broadcast_channels(values: Tensor, like: Tensor) -> Tensor:
    """Return one value per channel in a shape that broadcasts over samples and positions of `like`."""
    return values.view(1, -1, *(1,) * (like.ndim - 2))


RULES: dict[Any, Callable[..., RuleOutput]] = {
    **dict.fromkeys((functional.linear, functional.conv1d, functional.conv2d, functional.conv3d), _product),
    **dict.fromkeys((functional.relu, torch.relu, Tensor.relu), _relu),
    **dict.fromkeys((functional.max_pool2d, torch.max_pool2d), _max_pool),
    functional.batch_norm: _batch_norm,
}
