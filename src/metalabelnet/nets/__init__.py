"""Networks by name. A network is any `nn.Module` that maps a batch of samples to logits."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from metalabelnet.errors import InputError, unknown
from metalabelnet.nets import external
from metalabelnet.nets.cnn8 import CNN8
from metalabelnet.nets.mlp import MLP
from metalabelnet.nets.small_cnn import SmallCNN

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["NETS", "NetKind", "another", "auto", "build"]


@dataclass(frozen=True, kw_only=True)
class NetKind:
    """A row of the table: what the network is, what it takes, and how it is made."""

    summary: str
    takes: Callable[[tuple[int, ...]], bool]
    make: Callable[[tuple[int, ...], int], nn.Module]


NETS: dict[str, NetKind] = {
    "cnn8": NetKind(
        summary="the paper's 8-layer CNN, for images of 8 pixels or more",
        takes=lambda shape: len(shape) == 3 and min(shape[1:]) >= 8,
        make=CNN8,
    ),
    "small-cnn": NetKind(
        summary="three convolutions, for images of 8 to 28 pixels",
        takes=lambda shape: len(shape) == 3 and min(shape[1:]) >= 4,
        make=SmallCNN,
    ),
    "mlp": NetKind(
        summary="two hidden layers, for tables (images are flattened)",
        takes=lambda shape: len(shape) in (1, 3),
        make=MLP,
    ),
    "text-mlp": NetKind(
        summary="two hidden layers, for vectors of texts, which it takes as they are",
        takes=lambda shape: len(shape) == 1,
        make=lambda shape, classes: MLP(shape, classes, standardise=False),
    ),
}


def auto(shape: tuple[int, ...], kind: str | None = None) -> str:
    """The network for samples of this shape and kind: MLPs for tables and texts, by size for images."""
    if len(shape) == 1:
        return "text-mlp" if kind == "text" else "mlp"
    return "cnn8" if min(shape[1:]) > 28 else "small-cnn" if min(shape[1:]) >= 4 else "mlp"


def another(net: nn.Module, *, seed: int) -> nn.Module:
    """A network like this one, for methods that need several: with its weights, but a last layer drawn from the seed.

    The weights may be what the network is there for, because they were trained elsewhere. The last layer is the last
    module that is learned and has a `reset_parameters`, as PyTorch's own have.
    """
    copied = copy.deepcopy(net).cpu()  # the seed is of the generator there
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for module in reversed(list(copied.modules())):
            reset = getattr(module, "reset_parameters", None)
            before = [weight.clone() for weight in module.parameters(recurse=False) if weight.requires_grad]
            if not callable(reset) or not before:
                continue
            reset()
            learned = [weight for weight in module.parameters(recurse=False) if weight.requires_grad]
            if not all(map(torch.equal, before, learned)):
                break
    return copied


def build(name: str, shape: tuple[int, ...], classes: int, *, seed: int, pretrained: str | None = None) -> nn.Module:
    """A new network for samples of this shape, its weights drawn from the seed alone, or pretrained."""
    if name not in NETS and not external.is_outside(name):
        raise unknown("network", name, [*NETS, *external.OUTSIDE])
    if name in NETS and not NETS[name].takes(shape):
        raise InputError(f"the network {name} does not take samples of shape {shape}: it is {NETS[name].summary}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if name in NETS:
            return NETS[name].make(shape, classes)
        return external.build(name, shape, classes, pretrained)
