"""A classifier's last linear layer, and the features it reads."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from metalabelnet.core.forward_pass import precision, predict
from metalabelnet.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable


def find_head(net: nn.Module, sample: Tensor, classes: int, name: str | None = None) -> str:
    """The name of the classifier's last linear layer.

    Without a name it is looked for by running a few samples: the last `nn.Linear` to run that gives one
    number per class. The order in which a module lists its layers need not be the order they run in.
    """
    linear = {key: module for key, module in net.named_modules() if isinstance(module, nn.Linear)}
    if name is not None and name not in linear:
        raise unknown("linear layer", name, linear or ["no linear layer in this network"])
    ran: list[str] = []

    def remember(key: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if inputs[0].ndim == 2 and output.shape[1] == classes:
                ran.append(key)

        return hook

    hooks = [module.register_forward_hook(remember(key)) for key, module in linear.items()]
    mode = net.training
    try:
        with torch.no_grad():
            logits = net.eval()(sample)
    finally:
        net.train(mode)
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, Tensor) or logits.shape != (len(sample), classes):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"the network gives {shape} for {len(sample)} samples, not logits of shape ({len(sample)}, {classes})"
        )
    if name is not None and name not in ran:
        raise InputError(
            f"the layer {name!r} does not give one number for each of the {classes} classes: name the last linear layer"
        )
    if not ran:
        raise InputError(
            f"the network has no last linear layer with {classes} outputs, from which the label net takes "
            "its features: let it end in nn.Linear"
        )
    return ran[-1] if name is None else name


@torch.no_grad()
def read_and_given(net: nn.Module, head: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the last layer reads of x, and what it gives: features and logits, in eval mode."""
    read: list[Tensor] = []
    hook = net.get_submodule(head).register_forward_pre_hook(lambda _module, inputs: read.append(inputs[0]))
    try:
        logits = predict(net, x)
    finally:
        hook.remove()
    return read.pop(), logits


class Extractor(nn.Module):
    """g: a copy of a classifier as it is now, without its last layer, that never changes.

    Its output is what the last layer reads. The copy is in eval mode and stays there, so that its BatchNorm
    keeps the statistics it has and its dropout is off.
    """

    def __init__(self, net: nn.Module, head: str) -> None:
        super().__init__()
        self.net = copy.deepcopy(net).requires_grad_(requires_grad=False).eval()
        self.width = int(self.net.get_submodule(head).in_features)  # type: ignore[arg-type]
        self._features: list[Tensor] = []
        self.net.get_submodule(head).register_forward_pre_hook(lambda _module, inputs: self._features.append(inputs[0]))

    def train(self, mode: bool = True) -> Extractor:  # noqa: FBT001, FBT002
        """Stay in eval mode, whatever the rest of a model does."""
        return self

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """The features of x."""
        self._features.clear()
        with precision():
            self.net(x)
        return self._features.pop().to(x.dtype)
