"""Image encoders: networks of timm and torchvision with downloaded weights, and ResNets from a weights file.

Preparation of an image: its shorter side is resized to 256 pixels (bilinear), the center of 224×224 pixels is cropped,
values are scaled to [0, 1], then reduced by the mean and divided by the standard deviation that the network was
trained with (those of ImageNet, unless timm names others). The embedding is the input of the network's last layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metalabelnet.data.embeddings.model import EmbeddingModel, weights_digest
from metalabelnet.data.embeddings.resnet import ARCHITECTURES, build_resnet
from metalabelnet.errors import InputError, import_package, shorten_reason, unknown_name_error
from metalabelnet.input_files.weights_download import quiet_download
from metalabelnet.input_files.weights_file import read_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESIZE, SIDE = 256, 224  # pixels
WEIGHTS_FORMS = "--encoder is timm:NAME, torchvision:NAME or a file of weights (.pth, .safetensors) for images"


def load_timm(name: str) -> EmbeddingModel:
    """Return a network of timm with its pretrained weights."""
    timm = import_package("timm", "encoders", f"the encoder timm:{name}")
    if not timm.is_model(name.partition(".")[0]):
        raise unknown_name_error("network of timm", name, timm.list_models(pretrained=True))
    net: Any = _download(f"timm:{name}", lambda: timm.create_model(name, pretrained=True, num_classes=0))
    config = net.pretrained_cfg
    return make_image_model(net, config.get("mean", IMAGENET_MEAN), config.get("std", IMAGENET_STD), f"timm:{name}")


def load_torchvision(name: str) -> EmbeddingModel:
    """Return a network of torchvision with its default pretrained weights; its last linear layer is left out."""
    models = import_package("torchvision", "encoders", f"the encoder torchvision:{name}").models
    names = models.list_models(module=models)
    if name not in names:
        raise unknown_name_error("network of torchvision", name, names)
    net: nn.Module = _download(f"torchvision:{name}", lambda: models.get_model(name, weights="DEFAULT"))
    last = [key for key, module in net.named_modules() if isinstance(module, nn.Linear)][-1:]
    if not last:
        raise InputError(f"the encoder torchvision:{name} has no linear layer at its end; choose another network")
    net.set_submodule(last[0], nn.Identity())
    return make_image_model(net, IMAGENET_MEAN, IMAGENET_STD, f"torchvision:{name}")


def load_weights_file(name: str) -> EmbeddingModel:
    """Return the ResNet in a weights file, FILE or ARCHITECTURE:FILE."""
    architecture, colon, file = name.partition(":")
    if not colon or architecture not in ARCHITECTURES:
        architecture, file = "", name
    if Path(file).is_dir():
        raise InputError(f"--encoder {name!r} names no file; {WEIGHTS_FORMS}")
    weights = read_weights(Path(file), WEIGHTS_FORMS)
    return make_image_model(build_resnet(weights, file, architecture or None), IMAGENET_MEAN, IMAGENET_STD, name)


@torch.inference_mode()
def make_image_model(net: nn.Module, mean: Sequence[float], std: Sequence[float], name: str) -> EmbeddingModel:
    """Return the model of a network that maps normalized images to vectors."""
    preparation = f"short side {RESIZE} bilinear, center {SIDE}, mean {tuple(mean)}, deviation {tuple(std)}"
    identity = weights_digest(preparation, net.state_dict())
    net = net.eval()
    means, deviations = (torch.tensor(tuple(values)).view(-1, 1, 1) for values in (mean, std))

    @torch.inference_mode()
    def embed(images: Tensor, device: torch.device) -> Tensor:
        x = (images.to(device).float() / 255 - means.to(device)) / deviations.to(device)
        embedded: Tensor = net.to(device)(x)
        return embedded.float().cpu()

    try:
        output = embed(torch.zeros(1, 3, SIDE, SIDE, dtype=torch.uint8), torch.device("cpu"))
    except Exception as error:  # a network may raise anything for images of this size
        reason = " ".join(str(error).split())[:150]
        raise InputError(f"the encoder {name} does not accept images of {SIDE}×{SIDE} pixels: {reason}") from error
    if output.ndim != 2:
        raise InputError(
            f"the encoder {name} returns {tuple(output.shape)} for an image, not one vector: choose another"
        )
    return EmbeddingModel(width=output.shape[1], identity=identity, embed=embed)


def _download(name: str, build: Any) -> Any:
    try:
        with quiet_download():
            return build()
    except Exception as error:  # of any kind: no network, no weights of this network, a file that is cut off
        raise InputError(
            f"the encoder {name}: its weights cannot be downloaded ({shorten_reason(error)}); give a file of weights "
            "instead"
        ) from error
