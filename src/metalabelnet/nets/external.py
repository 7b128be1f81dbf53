"""Networks from timm, from torchvision, or from a user's function."""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metalabelnet.errors import InputError, import_package, unknown_name_error
from metalabelnet.input_files.regular_files import check_regular_file
from metalabelnet.input_files.weights_download import quiet_download
from metalabelnet.input_files.weights_file import read_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXTERNAL_FORMS = ("timm:NAME", "torchvision:NAME", "MODULE:FUNCTION")
HUB = "hub"
PACKAGE = Path(__file__).resolve().parents[1]  # whose code is not a user's
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # most networks are pretrained with these


def is_external(name: str) -> bool:
    """Whether a name has one of the forms `EXTERNAL_FORMS`."""
    source, colon, rest = name.partition(":")
    return bool(source and colon and rest) and name not in EXTERNAL_FORMS


def is_user_function(name: str) -> bool:
    """Whether a name refers to a user's function, which is executed when the network is built."""
    return is_external(name) and name.partition(":")[0] not in ("timm", "torchvision")


def build(name: str, shape: tuple[int, ...], classes: int, pretrained: str | None) -> nn.Module:
    """Return the network of that name for samples of this shape."""
    source, _, rest = name.partition(":")
    if is_user_function(name):
        net = _build_user_net(source, rest, shape, classes)
    elif len(shape) != 3 or shape[0] != 3:
        raise InputError(f"the network {name} takes color images, not samples of shape {shape}; choose another network")
    else:
        net = (_build_timm if source == "timm" else _build_torchvision)(rest, classes, pretrained)
    _check_output(net, name, shape, classes)
    return net


def _check_output(net: nn.Module, name: str, shape: tuple[int, ...], classes: int) -> None:
    """Raise `InputError` unless the network returns one logit per class, in eval mode and in training mode."""
    mode = net.training
    _check_logits(net.eval(), name, shape, classes)  # also initializes lazy modules
    net.train(mode)
    _check_logits(copy.deepcopy(net).train(), name, shape, classes)  # a copy: BatchNorm statistics change


@torch.no_grad()
def _check_logits(net: nn.Module, name: str, shape: tuple[int, ...], classes: int) -> None:
    dtype = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
    try:
        logits = net(torch.zeros(2, *shape, dtype=dtype))
    except (Exception, SystemExit) as error:
        if (in_user_code := user_code_error(name, error)) is not None:
            raise in_user_code from error
        reason = " ".join(str(error).split())[:150] or type(error).__name__
        raise InputError(f"the network {name} does not accept samples of shape {shape}: {reason}") from error
    if not isinstance(logits, Tensor) or logits.shape != (2, classes):
        output = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        when = " in training mode" if net.training else ""
        raise InputError(f"the network {name} returns {output} for 2 samples{when}, not logits of shape (2, {classes})")


class InputNormalization(nn.Module):
    """Normalizes images scaled to [−1, 1] by the mean and standard deviation that a network was pretrained with."""

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", torch.tensor(tuple(mean)).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(tuple(std)).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the network."""
        return self.net(((x + 1) / 2 - self.mean) / self.std)  # type: ignore[no-any-return]


def _build_timm(name: str, classes: int, pretrained: str | None) -> nn.Module:
    timm = import_package("timm", "nets", f"the network timm:{name}")
    if not timm.is_model(name.partition(".")[0]):
        raise unknown_name_error("network of timm", name, timm.list_models())
    with _hub_errors(f"timm:{name}"):
        net: nn.Module = timm.create_model(name, pretrained=pretrained == HUB, num_classes=classes)
    if pretrained not in (None, HUB):
        load_weights(net, Path(str(pretrained)))
    config: Any = net.pretrained_cfg
    return InputNormalization(net, config.get("mean", IMAGENET_MEAN), config.get("std", IMAGENET_STD))


def _build_torchvision(name: str, classes: int, pretrained: str | None) -> nn.Module:
    models = import_package("torchvision", "nets", f"the network torchvision:{name}").models
    names = models.list_models(module=models)
    if name not in names:
        raise unknown_name_error("network of torchvision", name, names)
    if pretrained == HUB:
        with _hub_errors(f"torchvision:{name}"):
            net: nn.Module = models.get_model(name, weights="DEFAULT")
        last = [key for key, module in net.named_modules() if isinstance(module, nn.Linear)][-1]
        old = net.get_submodule(last)
        new = nn.Linear(old.in_features, classes)  # type: ignore[arg-type]
        net.set_submodule(last, new)
    else:
        net = models.get_model(name, weights=None, num_classes=classes)
        if pretrained is not None:
            load_weights(net, Path(pretrained))
    return InputNormalization(net, IMAGENET_MEAN, IMAGENET_STD)


def _build_user_net(source: str, function: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Call the user's function with the shape of a sample and the number of classes.

    The source is a module on Python's path, with the current folder first, or the path of a .py file.
    """
    try:
        if source.endswith(".py"):
            check_regular_file(Path(source))
            spec = importlib.util.spec_from_file_location(Path(source).stem, source)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            with _current_folder_on_path():
                module = importlib.import_module(source)
    except (ImportError, FileNotFoundError) as error:
        raise InputError(
            f"the network {source}:{function}: {source} cannot be imported ({error}); give a module that Python finds "
            "from the current folder, or the path of a .py file"
        ) from error
    except (Exception, SystemExit) as error:
        raise _build_error(f"{source}:{function}", error) from error
    make = getattr(module, function, None)
    if not callable(make):
        raise InputError(f"the network {source}:{function}: {source} has no function {function}")
    try:
        net = make(shape, classes)
    except (Exception, SystemExit) as error:
        raise _build_error(f"{source}:{function}", error) from error
    if not isinstance(net, nn.Module):
        raise InputError(f"the network {source}:{function}: it returns {type(net).__name__}, not an nn.Module")
    return net


def _build_error(name: str, error: BaseException) -> InputError:
    """Return the error for a user's module or function that raises, with the position in the user's code."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    file, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (last.filename, last.lineno)
    where = "" if file == __file__ else f" at {file}:{line}"
    return InputError(
        f"the network {name} cannot be built: {_describe_error(error, where)}; its function is called with the shape "
        "of a sample and the number of classes"
    )


def user_code_error(name: str, error: BaseException) -> InputError | None:
    """Return the error for an exception raised by the code of a user's network; None if it comes from elsewhere.

    The code of a network is everything in the folder of its module. The error names the last line of it that was
    executed.
    """
    if not is_user_function(name):
        return None
    source = name.partition(":")[0]
    module_file = source if source.endswith(".py") else getattr(sys.modules.get(source), "__file__", None)
    if module_file is None:
        return None
    folder = Path(module_file).resolve().parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename).resolve()
        inside = file.relative_to(folder).parts if file.is_relative_to(folder) else ("site-packages",)
        if "site-packages" not in inside and not file.is_relative_to(PACKAGE):
            where = f" at {frame.filename}:{frame.lineno}"
            return InputError(f"the network {name} fails: {_describe_error(error, where)}")
    return None


@contextlib.contextmanager
def user_code_errors(name: str) -> Iterator[None]:
    """Turn errors in the code of a user's network into an `InputError`."""
    try:
        yield
    except Exception as error:
        if (in_user_code := user_code_error(name, error)) is not None:
            raise in_user_code from error
        raise


def _describe_error(error: BaseException, where: str) -> str:
    reason = " ".join(str(error).split())
    return f"{type(error).__name__}{where} ({reason if len(reason) <= 100 else reason[:99] + '…'})"


def load_weights(net: nn.Module, file: Path) -> None:
    """Load the weights of a file into a network. Only the last layer may differ in shape, and keeps its weights."""
    weights = read_weights(file, f"give a file of pretrained weights, or {HUB} to download them")
    own = net.state_dict()
    matching = {name: tensor for name, tensor in weights.items() if name in own and own[name].shape == tensor.shape}
    missing = [name for name in own if name not in matching]
    last = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)][-1:]
    others = [name for name in missing if name.rpartition(".")[0] not in last]
    if others:
        raise InputError(
            f"{file}: does not fit the network: {len(others)} tensors differ, such as {others[0]}; give weights of "
            "this network"
        )
    net.load_state_dict(matching, strict=False)


@contextlib.contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Turn errors of building or downloading into an `InputError`."""
    try:
        with quiet_download():
            yield
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{name}: cannot be built, or its weights cannot be downloaded ({reason}); give a file of weights with "
            "--pretrained FILE, or choose another network"
        ) from error


@contextlib.contextmanager
def _current_folder_on_path() -> Iterator[None]:
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path.remove(str(Path.cwd()))
