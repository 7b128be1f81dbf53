"""The head of a classifier (its last linear layer), and the features that are its input."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from metalabelnet.core.forward_pass import mixed_precision_context, predict
from metalabelnet.core.sharded_pass import pass_input, pass_output, share_rows
from metalabelnet.errors import InputError, unknown_name_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def find_head(net: nn.Module, sample: Tensor, classes: int, name: str | None = None) -> str:
    """Return the name of the classifier's last linear layer, or check the given name.

    The layer is found by passing a few samples through the network: it is the last `nn.Linear` executed that has one
    output per class. The order in which a module lists its layers may differ from the order of execution.
    """
    linear = {key: module for key, module in net.named_modules() if isinstance(module, nn.Linear)}
    if name is not None and name not in linear:
        raise unknown_name_error("linear layer", name, linear)
    executed: list[str] = []

    def make_hook(key: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if inputs[0].ndim == 2 and output.shape[1] == classes:
                executed.append(key)

        return hook

    hooks = [module.register_forward_hook(make_hook(key)) for key, module in linear.items()]
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
            f"the network returns {shape} for {len(sample)} samples, not logits of shape ({len(sample)}, {classes})"
        )
    if name is not None and name not in executed:
        raise InputError(
            f"the layer {name!r} does not have {classes} outputs, one per class: name the last linear layer"
        )
    if not executed:
        raise InputError(
            f"the network has no last linear layer with {classes} outputs, whose input the label net uses as features: "
            "end the network with nn.Linear"
        )
    return executed[-1] if name is None else name


@contextmanager
def collect_features(net: nn.Module, head: str) -> Iterator[list[Tensor]]:
    """Collect the features, inputs of the last layer, of each forward pass inside: those of all rows."""
    features: list[Tensor] = []

    def keep(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        features.append(pass_output(inputs[0]))

    hook = net.get_submodule(head).register_forward_pre_hook(keep)
    try:
        yield features
    finally:
        hook.remove()


@torch.no_grad()
def features_and_logits(net: nn.Module, head: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return features and logits of x in eval mode: input and output of the last layer."""
    with collect_features(net, head) as features:
        logits = predict(net, x)
    return features.pop(), logits


class FeatureExtractor(nn.Module):
    """g: a frozen copy of a classifier that returns the input of its last layer.

    The copy stays in eval mode: BatchNorm uses the running statistics of the time of copying, and dropout is off.
    """

    def __init__(self, net: nn.Module, head: str) -> None:
        super().__init__()
        self.net = copy.deepcopy(net).requires_grad_(requires_grad=False).eval()
        self.width = int(self.net.get_submodule(head).in_features)  # type: ignore[arg-type]
        self._features: list[Tensor] = []
        self.net.get_submodule(head).register_forward_pre_hook(lambda _module, inputs: self._features.append(inputs[0]))

    def train(self, mode: bool = True) -> FeatureExtractor:  # noqa: FBT001, FBT002
        """Stay in eval mode; the argument is ignored."""
        return self

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Return the features of x."""
        self._features.clear()
        with share_rows(x), mixed_precision_context():
            self.net(pass_input(x))
            return pass_output(self._features.pop()).to(x.dtype)
