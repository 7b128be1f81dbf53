"""Networks of timm, of torchvision and the user's own; files of weights, and files that only say so."""

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

SMALL = {"timm:test_resnet": (3, 64, 64), "torchvision:squeezenet1_1": (3, 64, 64), "torchvision:resnet18": (3, 32, 32)}


def build(name: str, shape: tuple[int, ...], classes: int = 4, pretrained: str | None = None) -> nn.Module:
    return nets.build(name, shape, classes, seed=0, pretrained=pretrained)


@pytest.mark.parametrize("name", ["timm:test_resnet", "torchvision:resnet18"])
@pytest.mark.usefixtures("torchvision")
def test_a_network_of_theirs(name: str) -> None:
    net = build(name, SMALL[name])
    x = torch.rand(2, *SMALL[name])
    assert net.eval()(x).shape == (2, 4)
    head = net.get_submodule(find_head(net, x, 4))
    assert isinstance(head, nn.Linear)
    again = build(name, SMALL[name])
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), again.state_dict().values(), strict=True))


def test_they_see_images_standardised_as_they_were_trained() -> None:
    seen: list[torch.Tensor] = []
    net = external.Standardised(nn.Identity(), external.MEAN, external.STD)
    net.net.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    net(torch.full((1, 3, 1, 1), 0.2))  # 0.6 of white
    expected = [(0.6 - mean) / std for mean, std in zip(external.MEAN, external.STD, strict=True)]
    assert seen[0].flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.usefixtures("torchvision")
def test_weights_from_a_file(suffix: str, tmp_path: Path) -> None:
    theirs = build("torchvision:resnet18", (3, 32, 32), classes=7)
    weights = {name: tensor + 1 for name, tensor in theirs.net.state_dict().items()}  # type: ignore[operator, union-attr]
    file = tmp_path / f"weights.{suffix}"
    save_file(weights, file) if suffix == "safetensors" else torch.save({"state_dict": weights}, file)
    net = build("torchvision:resnet18", (3, 32, 32), pretrained=str(file)).net
    assert isinstance(net, nn.Module)
    for name, tensor in net.state_dict().items():
        if not name.startswith("fc."):  # another number of classes: the last layer is new
            assert torch.equal(tensor, weights[name])
    with pytest.raises(InputError, match=r"does not fit the network, \d+ tensors differ"):
        build("timm:test_resnet", (3, 64, 64), pretrained=str(file))


@pytest.mark.usefixtures("torchvision")
def test_names_that_are_not_there() -> None:
    with pytest.raises(InputError, match="unknown network of timm 'test_resnt': did you mean 'test_resnet'"):
        build("timm:test_resnt", (3, 64, 64))
    with pytest.raises(InputError, match="unknown network of torchvision 'resnet81': did you mean 'resnet18'"):
        build("torchvision:resnet81", (3, 64, 64))
    with pytest.raises(InputError, match=r"takes color images, not samples of shape \(4,\)"):
        build("torchvision:resnet18", (4,))


@pytest.mark.usefixtures("torchvision")
def test_images_too_small_for_a_network() -> None:
    with pytest.raises(InputError, match=r"torchvision:alexnet does not take samples of shape \(3, 16, 16\)"):
        build("torchvision:alexnet", (3, 16, 16))


class Bomb:
    """What unpickles into a file on the disk."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (f"open({str(self.trace)!r}, 'w').close()",)


@pytest.mark.parametrize("name", ["evil.pt", "evil.pth", "evil.bin", "evil.safetensors"])
def test_a_crafted_pickle_is_not_run(name: str, tmp_path: Path) -> None:
    trace, file = tmp_path / "trace", tmp_path / name
    for content in (pickle.dumps(Bomb(trace)), None):
        torch.save({"fc.weight": Bomb(trace)}, file) if content is None else file.write_bytes(content)
        with pytest.raises(InputError, match="is not a file of weights"):
            external.read_weights(file)
        assert not trace.exists()
    pickle.loads(pickle.dumps(Bomb(trace)))
    assert trace.exists()  # it would have


@pytest.mark.parametrize("content", [b"", b"dear Ada", b"PK\x03\x04", b"\x80\x02}q\x00."])
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_a_file_that_holds_no_weights(content: bytes, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"x.{suffix}"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.\w+: (is not a file of weights|holds no weights|does not fit)"):
        external.load_weights(nn.Linear(2, 2), file)


USERS = """
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


def test_the_users_own_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "users_nets.py").write_text(USERS)
    for name in ("users_nets:make", "users_nets.py:make", f"{tmp_path}/users_nets.py:make"):
        assert nets.build(name, (5,), 3, seed=0)(torch.zeros(2, 5)).shape == (2, 3)
    for name, says in {
        "users_nets:mak": "users_nets has no function mak",
        "users_nets:number": "it gives int, not an nn.Module",
        "users_nets:wrong": r"does not take samples of shape \(5,\)",
        "users_nets:few": r"gives \(2, 1\) for 2 samples, not logits of shape \(2, 3\)",
        "nowhere:make": "nowhere cannot be imported",
        "nowhere.py:make": r"nowhere\.py cannot be imported",
    }.items():
        with pytest.raises(InputError, match=says):
            nets.build(name, (5,), 3, seed=0)


@pytest.mark.parametrize(
    ("first_line", "sentence"),
    [
        (
            "raise RuntimeError('operator torchvision::nms does not exist')",
            "the version of torchvision that belongs to",
        ),
        ("import no_such_package_at_all", "pip install 'metalabelnet[nets]'"),
    ],
)
@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_package_that_cannot_be_imported_is_one_sentence(
    package: str, first_line: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{package}.py").write_text(first_line)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError, match=re.escape(sentence)):
        build(f"{package}:resnet18", (3, 32, 32))
