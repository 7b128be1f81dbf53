"""Networks from elsewhere: timm's, torchvision's, and the user's own function."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pickle
import sys
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from metalabelnet.errors import InputError, missing_package, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OUTSIDE = ("timm:NAME", "torchvision:NAME", "MODULE:FUNCTION")
HUB = "hub"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet: what nearly all of them were trained with


def is_outside(name: str) -> bool:
    """Whether a name means a network from elsewhere."""
    place, colon, rest = name.partition(":")
    return bool(place and colon and rest) and name not in OUTSIDE


def is_users(name: str) -> bool:
    """Whether a name means the user's own function, code that runs when the network is built."""
    return is_outside(name) and name.partition(":")[0] not in ("timm", "torchvision")


def build(name: str, shape: tuple[int, ...], classes: int, pretrained: str | None) -> nn.Module:
    """The network of that name for samples of this shape."""
    place, _, rest = name.partition(":")
    if is_users(name):
        net = _users(place, rest, shape, classes)
    elif len(shape) != 3 or shape[0] != 3:
        raise InputError(f"the network {name} takes color images, not samples of shape {shape}")
    else:
        net = (_timm if place == "timm" else _torchvision)(rest, classes, pretrained)
    _try(net, name, shape, classes)
    return net


@torch.no_grad()
def _try(net: nn.Module, name: str, shape: tuple[int, ...], classes: int) -> None:
    """Show that samples of this shape go through, before anything is trained."""
    mode, dtype = net.training, next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
    try:
        logits = net.eval()(torch.zeros(2, *shape, dtype=dtype))
    except (RuntimeError, ValueError, TypeError, AssertionError, IndexError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the network {name} does not take samples of shape {shape}: {reason}") from error
    finally:
        net.train(mode)
    if not isinstance(logits, Tensor) or logits.shape != (2, classes):
        gives = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"the network {name} gives {gives} for 2 samples, not logits of shape (2, {classes})")


class Standardised(nn.Module):
    """A network for images standardised by its own mean and deviation, given images scaled to [−1, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", torch.tensor(tuple(mean)).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(tuple(std)).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return self.net(((x + 1) / 2 - self.mean) / self.std)  # type: ignore[no-any-return]


def _timm(name: str, classes: int, pretrained: str | None) -> nn.Module:
    timm = _imported("timm", f"the network timm:{name}")
    if not timm.is_model(name.partition(".")[0]):
        raise unknown("network of timm", name, timm.list_models())
    with _hub(f"timm:{name}"):
        net: nn.Module = timm.create_model(name, pretrained=pretrained == HUB, num_classes=classes)
    if pretrained not in (None, HUB):
        load_weights(net, Path(str(pretrained)))
    about: Any = net.pretrained_cfg
    return Standardised(net, about.get("mean", MEAN), about.get("std", STD))


def _torchvision(name: str, classes: int, pretrained: str | None) -> nn.Module:
    models = _imported("torchvision", f"the network torchvision:{name}").models
    known = models.list_models(module=models)
    if name not in known:
        raise unknown("network of torchvision", name, known)
    if pretrained == HUB:
        with _hub(f"torchvision:{name}"):
            net: nn.Module = models.get_model(name, weights="DEFAULT")
        last = [key for key, module in net.named_modules() if isinstance(module, nn.Linear)][-1]
        old = net.get_submodule(last)
        new = nn.Linear(old.in_features, classes)  # type: ignore[arg-type]
        net.set_submodule(last, new)
    else:
        net = models.get_model(name, weights=None, num_classes=classes)
        if pretrained is not None:
            load_weights(net, Path(pretrained))
    return Standardised(net, MEAN, STD)


def _imported(package: str, purpose: str) -> Any:
    """The package, or a sentence that says what to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise missing_package(package, "nets", purpose) from error
    except (RuntimeError, OSError) as error:  # its compiled part, or that of torchvision, was made for another torch
        reason = " ".join(str(error).split())[:150]
        raise InputError(
            f"{purpose} needs {package}, which cannot be imported here ({reason}): "
            "install the version of torchvision that belongs to the version of torch"
        ) from error


def _users(place: str, function: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Call the user's function with the shape of a sample and the number of classes.

    The place is a module as Python finds it, the current folder first, or the path of a .py file.
    """
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            with _current_folder():
                module = importlib.import_module(place)
    except (ImportError, FileNotFoundError) as error:
        raise InputError(
            f"the network {place}:{function}: {place} cannot be imported ({error}); it is a module that Python finds "
            "from the current folder, or the path of a .py file"
        ) from error
    except Exception as error:
        raise _fails(f"{place}:{function}", error) from error
    make = getattr(module, function, None)
    if not callable(make):
        raise InputError(f"the network {place}:{function}: {place} has no function {function}")
    try:
        net = make(shape, classes)
    except Exception as error:
        raise _fails(f"{place}:{function}", error) from error
    if not isinstance(net, nn.Module):
        raise InputError(f"the network {place}:{function}: it gives {type(net).__name__}, not an nn.Module")
    return net


def _fails(name: str, error: Exception) -> InputError:
    """What the user's own code ended in, and where."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    file, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (last.filename, last.lineno)
    where = "" if file == __file__ else f" at {file}:{line}"
    reason = " ".join(str(error).split())[:200]
    return InputError(
        f"the network {name} cannot be made: {type(error).__name__}{where} ({reason}); its function is called with the "
        "shape of a sample and the number of classes"
    )


def load_weights(net: nn.Module, file: Path) -> None:
    """Take over the weights that fit, all but those of the last layer at least. Nothing in the file is executed."""
    weights = read_weights(file)
    own = net.state_dict()
    fit = {name: tensor for name, tensor in weights.items() if name in own and own[name].shape == tensor.shape}
    absent = [name for name in own if name not in fit]
    last = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)][-1:]
    others = [name for name in absent if name.rpartition(".")[0] not in last]
    if others:
        raise InputError(f"{file}: does not fit the network, {len(others)} tensors differ, {others[0]} among them")
    net.load_state_dict(fit, strict=False)


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors in a file of safetensors or torch. A pickle that is more than tensors is refused unread."""
    if not file.is_file():
        raise InputError(f"{file}: there is no such file; pretrained weights are a file, or {HUB} to download them")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of protocols it may not know: then it says so
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a file that is no such file leads to
        reason = " ".join(str(error).split())[:150] or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # torch would advise to run what is in it
            reason = "it holds something else than tensors, and nothing in it is run"
        raise InputError(f"{file}: is not a file of weights ({reason})") from error
    content = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not content or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"{file}: holds no weights by name")
    return content


@contextlib.contextmanager
def _hub(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{name}: cannot be made, or its weights cannot be downloaded ({reason})") from error


@contextlib.contextmanager
def _current_folder() -> Iterator[None]:
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path.remove(str(Path.cwd()))
