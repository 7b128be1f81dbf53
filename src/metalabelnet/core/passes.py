"""A pass through a network with everything explicit that usually happens behind one's back.

A module called in train mode reads its own weights, draws dropout masks from a global generator and
updates BatchNorm's running statistics. Here the weights are an argument, the masks follow from a seed, and
the caller says whether the running statistics are updated. Normalisation always uses the statistics of
the batch while the module is in train mode.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase

if TYPE_CHECKING:
    from collections.abc import Iterator

Theta = dict[str, Tensor]


def trainable(net: nn.Module) -> Theta:
    """θ: the weights that are learned, by name. Frozen ones are left out and stay what they are."""
    return {name: weight for name, weight in net.named_parameters() if weight.requires_grad}


def forward(net: nn.Module, x: Tensor, theta: Theta, *, seed: int, update_statistics: bool) -> Tensor:
    """The logits f_θ(x). Two passes with one seed use one dropout mask."""
    with _seeded(seed, x.device), _statistics(net, update=update_statistics), sdpa_kernel(SDPBackend.MATH):
        logits: Tensor = functional_call(net, theta, (x,))
    return logits


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
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True
