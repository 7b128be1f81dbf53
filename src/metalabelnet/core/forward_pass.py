"""A pass through a network with everything explicit that usually happens behind one's back.

A module called in train mode reads its own weights, draws dropout masks from a global generator and
updates BatchNorm's running statistics. Here the weights are an argument, the masks follow from a seed, and
the caller says whether the running statistics are updated. Normalisation always uses the statistics of
the batch while the module is in train mode.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from metalabelnet.core.forward_ad_cache import Products

Theta = dict[str, Tensor]


def trainable(net: nn.Module) -> Theta:
    """θ: the weights that are learned, by name. Frozen ones are left out and stay what they are."""
    return {name: weight for name, weight in net.named_parameters() if weight.requires_grad}


def forward(
    net: nn.Module, x: Tensor, theta: Theta, *, seed: int, update_statistics: bool, products: Products | None = None
) -> Tensor:
    """The logits f_θ(x). Two passes with one seed use one dropout mask.

    `products` keeps what the first pass under it multiplies, for passes that carry tangents later.
    """
    kept = nullcontext() if products is None else products
    randomness, statistics = _seeded(seed, x.device), _statistics(net, update=update_statistics)
    with randomness, statistics, sdpa_kernel(SDPBackend.MATH), kept, precision():
        logits: Tensor = functional_call(net, theta, (x,))
    return logits.to(x.dtype)


def generate(m: nn.Module, v: Tensor, *, seed: int, update_statistics: bool) -> Tensor:
    """A pass through a label net, log ŷ = m_φ(v), explicit in the same way, always in the weights' own precision."""
    with _seeded(seed, v.device), _statistics(m, update=update_statistics):
        log_y_hat: Tensor = m(v)
    return log_y_hat


@torch.no_grad()
def predict(net: nn.Module, x: Tensor) -> Tensor:
    """The logits in eval mode: running statistics, no dropout. The network's mode is afterwards as it was."""
    mode = net.training
    try:
        logits: Tensor = net.eval()(x)
    finally:
        net.train(mode)
    return logits.to(x.dtype)


@torch.no_grad()
def measure_statistics(net: nn.Module, batches: Iterable[Tensor], *, seed: int) -> None:
    """Make the running statistics those of these batches, in equal parts.

    Learned along with the weights they lag behind: after ten steps a third of them is still what they began with.
    """
    norms = [m for m in net.modules() if isinstance(m, _NormBase) and m.track_running_stats]
    momenta = [m.momentum for m in norms]
    mode = net.training
    try:
        for norm in norms:
            norm.reset_running_stats()
        net.train()
        passes = 0
        for x in batches if norms else ():
            if len(x) > 1:  # one sample alone has no spread
                passes += 1
                for norm in norms:
                    norm.momentum = 1 / passes  # the mean over all of them
                forward(net, x, trainable(net), seed=seed, update_statistics=True)
    finally:
        net.train(mode)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


@contextmanager
def low_precision(*, on: bool) -> Iterator[None]:
    """Let all passes within compute their matrix products in bfloat16. Weights and logits stay what they are."""
    before = _low.set(on)
    try:
        yield
    finally:
        _low.reset(before)


def precision() -> AbstractContextManager[Any]:
    """The precision of a pass, as `low_precision` has set it."""
    return _BFloat16() if _low.get() else nullcontext()


_low: ContextVar[bool] = ContextVar("low", default=False)
_PRODUCTS = {functional.linear, functional.conv1d, functional.conv2d, functional.conv3d, torch.matmul, torch.bmm}
_NORMS = {functional.batch_norm, functional.layer_norm, functional.group_norm, functional.instance_norm}


class _BFloat16(TorchFunctionMode):
    """Casts at the functions a network calls: products in bfloat16, normalisation in single precision.

    `torch.autocast` casts below autograd, where the tangents of forward mode do not follow: BatchNorm then gives
    bfloat16 values with single-precision tangents, which the next convolution refuses.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS:
            args = tuple(_cast(arg, torch.bfloat16) for arg in args)
            return func(*args, **{name: _cast(arg, torch.bfloat16) for name, arg in (kwargs or {}).items()})
        if func in _NORMS:
            return func(_cast(args[0], torch.float32), *args[1:], **(kwargs or {})).to(torch.bfloat16)
        return func(*args, **(kwargs or {}))


def _cast(arg: Any, dtype: torch.dtype) -> Any:
    return arg.to(dtype) if isinstance(arg, Tensor) and arg.is_floating_point() else arg


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators for the time of a pass; afterwards they are as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


@contextmanager
def _statistics(net: nn.Module, *, update: bool) -> Iterator[None]:
    """Keep BatchNorm and InstanceNorm from touching their running statistics, unless asked to."""
    tracking = [] if update else [m for m in net.modules() if isinstance(m, _NormBase) and m.track_running_stats]
    # InstanceNorm in train mode updates whatever statistics it has.
    hidden = [(m, m.running_mean, m.running_var) for m in tracking if isinstance(m, _InstanceNorm) and m.training]
    for module in tracking:
        module.track_running_stats = False
    for module, _, _ in hidden:
        module.running_mean = module.running_var = None
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True
        for module, mean, var in hidden:
            module.running_mean, module.running_var = mean, var
