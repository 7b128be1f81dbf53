"""Networks by name. A network is any `nn.Module` that maps a batch of samples to logits."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.nets import external
from metalabelnet.nets.cnn8 import CNN8
from metalabelnet.nets.linear import LinearNet
from metalabelnet.nets.mlp import MLP
from metalabelnet.nets.resnet import preact_resnet18, resnet34, wide_resnet_28_2
from metalabelnet.nets.small_cnn import SmallCNN

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["NETS", "NetKind", "build", "copy_with_new_head", "default_net"]


@dataclass(frozen=True, kw_only=True)
class NetKind:
    """An entry of `NETS`: a summary, a test whether a sample shape is supported, and a constructor.

    `make` takes the shape of a sample and the number of classes.
    """

    summary: str
    accepts: Callable[[tuple[int, ...]], bool]
    make: Callable[[tuple[int, ...], int], nn.Module]


def _is_image_of_8_pixels(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and min(shape[1:]) >= 8


NETS: dict[str, NetKind] = {
    "cnn8": NetKind(
        summary="the paper's 8-layer CNN, for images of 8 pixels or more",
        accepts=_is_image_of_8_pixels,
        make=CNN8,
    ),
    "preact-resnet18": NetKind(
        summary="pre-activation ResNet-18 with a 3×3 first convolution, for images of 8 to 64 pixels",
        accepts=_is_image_of_8_pixels,
        make=preact_resnet18,
    ),
    "resnet34": NetKind(
        summary="ResNet-34 with a 3×3 first convolution, for images of 8 to 64 pixels",
        accepts=_is_image_of_8_pixels,
        make=resnet34,
    ),
    "wide-resnet-28-2": NetKind(
        summary="wide ResNet of depth 28 and widening factor 2, for images of 8 to 64 pixels",
        accepts=_is_image_of_8_pixels,
        make=wide_resnet_28_2,
    ),
    "small-cnn": NetKind(
        summary="three convolutions, for images of 8 to 28 pixels",
        accepts=lambda shape: len(shape) == 3 and min(shape[1:]) >= 4,
        make=SmallCNN,
    ),
    "mlp": NetKind(
        summary="two hidden layers, for tables (images are flattened)",
        accepts=lambda shape: len(shape) in (1, 3),
        make=MLP,
    ),
    "text-mlp": NetKind(
        summary="two hidden layers, for text vectors, which are not standardized",
        accepts=lambda shape: len(shape) == 1,
        make=lambda shape, classes: MLP(shape, classes, standardize=False),
    ),
    "linear": NetKind(
        summary="one linear layer, for tables and text vectors (images are flattened)",
        accepts=lambda shape: len(shape) in (1, 3),
        make=LinearNet,
    ),
}


def default_net(shape: tuple[int, ...], kind: str | None = None) -> str:
    """Return the name of the default network for samples of this shape and kind.

    Tables and texts get an MLP; images get a network that depends on their size.
    """
    if len(shape) == 1:
        return "text-mlp" if kind == "text" else "mlp"
    return "cnn8" if min(shape[1:]) > 28 else "small-cnn" if min(shape[1:]) >= 4 else "mlp"


def copy_with_new_head(net: nn.Module, *, seed: int) -> nn.Module:
    """Return a copy of a network whose last layer is initialized from the seed, for methods that train several.

    The other weights are copied, because they may be pretrained. The last layer is the last module that has trainable
    weights and `reset_parameters`, as PyTorch's layers do.
    """
    copied = copy.deepcopy(net).cpu()  # the CPU generator is seeded below
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for module in reversed(list(copied.modules())):
            reset = getattr(module, "reset_parameters", None)
            before = [weight.clone() for weight in module.parameters(recurse=False) if weight.requires_grad]
            if not callable(reset) or not before:
                continue
            reset()
            after = [weight for weight in module.parameters(recurse=False) if weight.requires_grad]
            if not all(map(torch.equal, before, after)):
                break
    return copied


def build(name: str, shape: tuple[int, ...], classes: int, *, seed: int, pretrained: str | None = None) -> nn.Module:
    """Return a new network.

    Parameters
    ----------
    name : str
        A key of `NETS` ("cnn8", "preact-resnet18", "resnet34", "wide-resnet-28-2", "small-cnn", "mlp", "text-mlp",
        "linear"),
        "timm:NAME", "torchvision:NAME", or "MODULE:FUNCTION" for a function of the user, called with `shape` and
        `classes`.
    shape : tuple of int
        Shape of one sample: (channels, height, width) or (columns,).
    classes : int
        Number of classes.
    seed : int
        Determines the initial weights. The global generator is not affected.
    pretrained : str, optional
        Pretrained weights of a timm or torchvision network: a file (.safetensors or a torch checkpoint), or "hub" to
        download them.

    Returns
    -------
    nn.Module
        Maps samples of shape (N, ...) to logits of shape (N, classes).

    Raises
    ------
    InputError
        If there is no such network, it does not accept the shape, or the weights cannot be loaded.

    References
    ----------
    .. [1] G. Algan and I. Ulusoy, "MetaLabelNet: Learning to Generate Soft-Labels from Noisy-Labels", 2021,
       https://arxiv.org/abs/2103.10869 (the 8-layer CNN)
    .. [2] K. He et al., "Identity Mappings in Deep Residual Networks", ECCV 2016, https://arxiv.org/abs/1603.05027
    .. [3] S. Zagoruyko and N. Komodakis, "Wide Residual Networks", BMVC 2016, https://arxiv.org/abs/1605.07146

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.nets import build
    >>> net = build("small-cnn", (1, 8, 8), 10, seed=0)
    >>> net(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    if name not in NETS and not external.is_external(name):
        raise unknown_name_error("network", name, [*NETS, *external.EXTERNAL_FORMS])
    if name in NETS and not NETS[name].accepts(shape):
        raise InputError(
            f"the network {name} does not accept samples of shape {shape}: it is {NETS[name].summary}; "
            "choose another network"
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if name in NETS:
            return NETS[name].make(shape, classes)
        return external.build(name, shape, classes, pretrained)
