"""Forward passes with explicit weights, dropout masks and BatchNorm statistics.

A module called in train mode uses its own weights, draws dropout masks from the global generator and updates
BatchNorm's running statistics. Here the weights are an argument, a seed determines the dropout masks, and the caller
decides whether the running statistics are updated. In train mode, normalization always uses the statistics of the
batch. Where several ranks train together, each passes its share of the rows, and all have the logits of the batch
(`metalabelnet.core.sharded_pass`).
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

from metalabelnet.core.sharded_pass import pass_input, pass_output, pass_weights, share_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from metalabelnet.core.forward_ad_cache import ForwardADCache

Theta = dict[str, Tensor]


def trainable_parameters(net: nn.Module) -> Theta:
    """Return θ: the weights with `requires_grad`, by name."""
    return {name: weight for name, weight in net.named_parameters() if weight.requires_grad}


def forward(
    net: nn.Module, x: Tensor, theta: Theta, *, seed: int, update_statistics: bool, cache: ForwardADCache | None = None
) -> Tensor:
    """Return the logits f_θ(x). Two passes with the same seed use the same dropout mask.

    The first pass with a `cache` stores intermediate results in it; a later forward-mode pass reuses them.
    """
    caching = nullcontext() if cache is None else cache
    randomness, statistics = _seeded(seed, x.device), _running_statistics(net, update=update_statistics)
    with randomness, statistics, sdpa_kernel(SDPBackend.MATH), caching, share_rows(x), mixed_precision_context():
        logits: Tensor = functional_call(net, pass_weights(net, theta), (pass_input(x),))
        return pass_output(logits).to(x.dtype)


def label_net_forward(m: nn.Module, v: Tensor, *, seed: int, update_statistics: bool) -> Tensor:
    """Return log ŷ = m_φ(v), with explicit dropout masks and statistics, in the precision of the weights."""
    with _seeded(seed, v.device), _running_statistics(m, update=update_statistics):
        log_y_hat: Tensor = m(v)
    return log_y_hat


@torch.no_grad()
def predict(net: nn.Module, x: Tensor) -> Tensor:
    """Return the logits in eval mode: running statistics, no dropout. The mode of the network is restored."""
    mode = net.training
    try:
        with share_rows(x):
            return pass_output(net.eval()(pass_input(x))).to(x.dtype)
    finally:
        net.train(mode)


@torch.no_grad()
def recompute_running_statistics(net: nn.Module, batches: Iterable[Tensor], *, seed: int) -> None:
    """Replace the running statistics by the averages over these batches, with equal weights.

    Running statistics collected during training lag behind the weights: with momentum 0.1, after ten steps a third of
    them still is the initial value.
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
            if len(x) > 1:  # a single sample has no variance
                passes += 1
                for norm in norms:
                    norm.momentum = 1 / passes  # cumulative average
                forward(net, x, trainable_parameters(net), seed=seed, update_statistics=True)
    finally:
        net.train(mode)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


@contextmanager
def mixed_precision(*, enabled: bool) -> Iterator[None]:
    """Compute matrix products and convolutions of the passes inside in bfloat16. Weights and logits keep their type."""
    before = _bfloat16_enabled.set(enabled)
    try:
        yield
    finally:
        _bfloat16_enabled.reset(before)


def mixed_precision_context() -> AbstractContextManager[Any]:
    """Return the context of a pass: bfloat16 casts if `mixed_precision` is enabled."""
    return _BFloat16() if _bfloat16_enabled.get() else nullcontext()


_bfloat16_enabled: ContextVar[bool] = ContextVar("bfloat16_enabled", default=False)
_BFLOAT16_FUNCTIONS = {
    functional.linear,
    functional.conv1d,
    functional.conv2d,
    functional.conv3d,
    torch.matmul,
    torch.bmm,
}
_FLOAT32_FUNCTIONS = {functional.batch_norm, functional.layer_norm, functional.group_norm, functional.instance_norm}


class _BFloat16(TorchFunctionMode):
    """Casts the inputs of torch functions: products run in bfloat16, normalization in float32.

    `torch.autocast` casts below autograd and does not cast forward-mode tangents: BatchNorm then returns bfloat16
    values with float32 tangents, which the next convolution rejects.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _BFLOAT16_FUNCTIONS:
            args = tuple(_cast(arg, torch.bfloat16) for arg in args)
            return func(*args, **{name: _cast(arg, torch.bfloat16) for name, arg in (kwargs or {}).items()})
        if func in _FLOAT32_FUNCTIONS:
            return func(_cast(args[0], torch.float32), *args[1:], **(kwargs or {})).to(torch.bfloat16)
        return func(*args, **(kwargs or {}))


def _cast(arg: Any, dtype: torch.dtype) -> Any:
    return arg.to(dtype) if isinstance(arg, Tensor) and arg.is_floating_point() else arg


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators, and restore them afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


@contextmanager
def _running_statistics(net: nn.Module, *, update: bool) -> Iterator[None]:
    """Prevent BatchNorm and InstanceNorm from updating their running statistics, unless `update`."""
    tracking = [] if update else [m for m in net.modules() if isinstance(m, _NormBase) and m.track_running_stats]
    # InstanceNorm in train mode updates its statistics even if it does not track them.
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
