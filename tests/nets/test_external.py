"""Networks of timm, torchvision and user functions; files of weights, also damaged and malicious ones."""

import pickle
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from metalabelnet import nets
from metalabelnet.errors import InputError
from metalabelnet.nets import external
from metalabelnet.nets.head import find_head

SHAPES = {
    "timm:test_resnet": (3, 64, 64),
    "torchvision:squeezenet1_1": (3, 64, 64),
    "torchvision:resnet18": (3, 32, 32),
}


def build(name: str, shape: tuple[int, ...], classes: int = 4, pretrained: str | None = None) -> nn.Module:
    return nets.build(name, shape, classes, seed=0, pretrained=pretrained)


@pytest.mark.parametrize("name", ["timm:test_resnet", "torchvision:resnet18"])
@pytest.mark.usefixtures("torchvision")
def test_network_of_timm_and_torchvision(name: str) -> None:
    net = build(name, SHAPES[name])
    x = torch.rand(2, *SHAPES[name])
    assert net.eval()(x).shape == (2, 4)
    head = net.get_submodule(find_head(net, x, 4))
    assert isinstance(head, nn.Linear)
    rebuilt = build(name, SHAPES[name])
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), rebuilt.state_dict().values(), strict=True))


def test_input_is_normalized_with_imagenet_statistics() -> None:
    inputs_seen: list[torch.Tensor] = []
    net = external.InputNormalization(nn.Identity(), external.IMAGENET_MEAN, external.IMAGENET_STD)
    net.net.register_forward_pre_hook(lambda _m, inputs: inputs_seen.append(inputs[0]))
    net(torch.full((1, 3, 1, 1), 0.2))  # 0.6 in the range [0, 1]
    expected = [(0.6 - mean) / std for mean, std in zip(external.IMAGENET_MEAN, external.IMAGENET_STD, strict=True)]
    assert inputs_seen[0].flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.usefixtures("torchvision")
def test_weights_from_file(suffix: str, tmp_path: Path) -> None:
    source = build("torchvision:resnet18", (3, 32, 32), classes=7)
    weights = {name: tensor + 1 for name, tensor in source.net.state_dict().items()}  # type: ignore[operator, union-attr]
    file = tmp_path / f"weights.{suffix}"
    save_file(weights, file) if suffix == "safetensors" else torch.save({"state_dict": weights}, file)
    net = build("torchvision:resnet18", (3, 32, 32), pretrained=str(file)).net
    assert isinstance(net, nn.Module)
    for name, tensor in net.state_dict().items():
        if not name.startswith("fc."):  # the last layer is new, because the number of classes differs
            assert torch.equal(tensor, weights[name])
    with pytest.raises(InputError, match=r"does not fit the network: \d+ tensors differ"):
        build("timm:test_resnet", (3, 64, 64), pretrained=str(file))


@pytest.mark.usefixtures("torchvision")
def test_unknown_names_raise_input_error() -> None:
    with pytest.raises(InputError, match="unknown network of timm 'test_resnt': did you mean 'test_resnet'"):
        build("timm:test_resnt", (3, 64, 64))
    with pytest.raises(InputError, match="unknown network of torchvision 'resnet81': did you mean 'resnet18'"):
        build("torchvision:resnet81", (3, 64, 64))
    with pytest.raises(InputError, match=r"takes color images, not samples of shape \(4,\)"):
        build("torchvision:resnet18", (4,))


@pytest.mark.usefixtures("torchvision")
def test_too_small_images_raise_input_error() -> None:
    with pytest.raises(InputError, match=r"torchvision:alexnet does not accept samples of shape \(3, 16, 16\)"):
        build("torchvision:alexnet", (3, 16, 16))


class MaliciousPickle:
    """Creates a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (f"open({str(self.trace)!r}, 'w').close()",)


@pytest.mark.parametrize("name", ["evil.pt", "evil.pth", "evil.bin", "evil.safetensors"])
def test_malicious_pickle_is_not_executed(name: str, tmp_path: Path) -> None:
    trace, file = tmp_path / "trace", tmp_path / name
    for content in (pickle.dumps(MaliciousPickle(trace)), None):
        torch.save({"fc.weight": MaliciousPickle(trace)}, file) if content is None else file.write_bytes(content)
        with pytest.raises(InputError, match="is not a file of weights"):
            external.read_weights(file)
        assert not trace.exists()
    pickle.loads(pickle.dumps(MaliciousPickle(trace)))
    assert trace.exists()  # the attack works if the pickle is loaded


@pytest.mark.parametrize("content", [b"", b"some text", b"PK\x03\x04", b"\x80\x02}q\x00."])
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_file_without_weights_raises_input_error(content: bytes, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"x.{suffix}"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.\w+: (is not a file of weights|contains no named weights|does not fit)"):
        external.load_weights(nn.Linear(2, 2), file)


USER_MODULE = """
from torch import nn
def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes))
def number(shape, classes):
    return 3
def wrong(shape, classes):
    return nn.Linear(shape[0] + 1, classes)
def few(shape, classes):
    return nn.Linear(shape[0], 1)
"""


def test_user_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "users_nets.py").write_text(USER_MODULE)
    for name in ("users_nets:make", "users_nets.py:make", f"{tmp_path}/users_nets.py:make"):
        assert nets.build(name, (5,), 3, seed=0)(torch.zeros(2, 5)).shape == (2, 3)
    for name, message in {
        "users_nets:mak": "users_nets has no function mak",
        "users_nets:number": "it returns int, not an nn.Module",
        "users_nets:wrong": r"does not accept samples of shape \(5,\)",
        "users_nets:few": r"returns \(2, 1\) for 2 samples, not logits of shape \(2, 3\)",
        "nowhere:make": "nowhere cannot be imported",
        "nowhere.py:make": r"nowhere\.py cannot be imported",
    }.items():
        with pytest.raises(InputError, match=message):
            nets.build(name, (5,), 3, seed=0)


@pytest.mark.parametrize(
    ("first_line", "message"),
    [
        (
            "raise RuntimeError('operator torchvision::nms does not exist')",
            "the version of torchvision that belongs to",
        ),
        (
            "raise ModuleNotFoundError('no PreTrainedModel') from RuntimeError('operator torchvision::nms')",
            "the version of torchvision that belongs to",
        ),
        ("from math import no_such_name", "cannot be imported (cannot import name 'no_such_name' from 'math'"),
        ("import no_such_package_at_all", ": pip install 'metalabelnet[nets]'"),
    ],
)
@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_import_error_of_package_raises_input_error(
    package: str, first_line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{package}.py").write_text(first_line)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError, match=re.escape(message)):
        build(f"{package}:resnet18", (3, 32, 32))
