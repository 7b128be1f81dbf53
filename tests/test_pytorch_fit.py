"""`metalabelnet.fit` on PyTorch data sets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import metalabelnet
from metalabelnet import NoCleanSetWarning
from metalabelnet.errors import InputError
from metalabelnet.inference.predict import Predictor
from metalabelnet.train import Progress, RunFolder
from small_runs import column_images

QUICK = {
    "method": "metalabelnet",
    "epochs": 6,
    "warmup": 2,
    "batch_size": 12,
    "lr": 0.05,
    "lr_milestones": (4,),
    "device": "cpu",
    "seed": 0,
}


def network(channels: int = 1, classes: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((1, 8)),
            nn.Flatten(),
            nn.Linear(64, classes),
        )


def pairs(count: int, seed: int, wrong: float = 0.0, *, as_float: bool = True) -> TensorDataset:
    rows = column_images(count, seed, wrong)
    return TensorDataset(rows.x.float() / 127.5 - 1 if as_float else rows.x, rows.given)


class Files(Dataset[Any]):
    """PIL images, passed through a transform."""

    classes = ("left", "middle", "right")

    def __init__(self, rows: Any, transform: Any) -> None:
        self.rows, self.transform, self.reads = rows, transform, 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        self.reads += 1
        return self.transform(Image.fromarray(self.rows.x[i, 0].numpy())), int(self.rows.given[i])


def test_model_labels_and_history() -> None:
    net = network()
    train, truth = pairs(48, 0, wrong=0.2), column_images(48, 0).true
    result = metalabelnet.fit(net, train, pairs(24, 1), pairs(20, 4), pairs(60, 3), **QUICK)
    assert type(result.model) is type(net)  # the EMA of the network
    assert not result.model.training
    test_x, test_y = pairs(60, 3).tensors
    with torch.no_grad():
        accuracy = 100 * (result.model(test_x).argmax(1) == test_y).double().mean()
    assert result.summary["test_accuracy"] == pytest.approx(float(accuracy))
    assert accuracy > 80
    assert [line["epoch"] for line in result.history] == list(range(6))
    columns = result.labels.columns()
    table = [dict(zip(columns, row, strict=True)) for row in result.labels]
    assert len(table) == 48 + 20
    assert all(row["given"] == "" for row in table[48:])
    right = [row["label"] == str(int(label)) for row, label in zip(table, truth, strict=False)]
    assert np.mean(right) > 0.85


def test_pil_numpy_and_tensor_images_are_equivalent() -> None:
    rows = {"train_set": column_images(36, 0), "clean_set": column_images(12, 1)}
    results = []
    for transform in (
        lambda image: image,
        lambda image: np.asarray(image)[None],
        lambda i: torch.tensor(np.array(i))[None],
    ):
        sets = {name: Files(part, transform) for name, part in rows.items()}
        results.append(metalabelnet.fit("small-cnn", **sets, **QUICK))
        assert all(items.reads == len(items) for items in sets.values())  # each item is read once
    first, *others = (list(result.labels) for result in results)
    assert all(other == first for other in others)
    assert results[0].labels.rows.classes == Files.classes


def test_samples_of_other_shapes_and_a_run_folder(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 2
    x = torch.randn(40, 6, 4, generator=g, dtype=torch.float64) + y[:, None, None]
    net = nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 2))
    reports = []
    result = metalabelnet.fit(
        net, TensorDataset(x[:30], y[:30]), TensorDataset(x[30:], y[30:]), folder=tmp_path / "run",
        on_progress=reports.append, beta=0.02, **QUICK,
    )  # fmt: skip
    assert RunFolder(tmp_path / "run").summary() == result.summary
    assert RunFolder(tmp_path / "run").run().settings == {"beta": 0.02}
    assert reports[-1].epoch == 6


def test_without_a_clean_set() -> None:
    with pytest.warns(NoCleanSetWarning, match="instead of metalabelnet") as caught:
        result = metalabelnet.fit(network(), pairs(80, 0), None, **QUICK)
    assert caught[0].filename == __file__
    assert result.summary["method"] != "metalabelnet"


def check_error(sentence: str, *sets: Any, net: Any = None, **settings: Any) -> None:
    given = [pairs(24, 0), pairs(12, 1)]
    given[: len(sets)] = sets
    with pytest.raises(InputError, match=sentence):
        metalabelnet.fit(network() if net is None else net, *given, **QUICK | settings)


class GrowingSamples(Dataset[Any]):
    """Samples of increasing width."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        if not 0 <= i < 4:
            raise IndexError
        return torch.zeros(1, 8, 8 + i // 2), i % 2


class Endless(IterableDataset[Any]):
    """An iterable data set, without access by index."""

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        return iter(pairs(4, 0))


def test_resume_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = pairs(24, 0), pairs(12, 1)

    def stop(progress: Progress) -> None:
        if progress.epoch == 4 and progress.step == 0:
            raise KeyboardInterrupt

    whole = metalabelnet.fit("small-cnn", *sets, folder=tmp_path / "whole", **QUICK)
    # The clock advances a minute per call, so that a checkpoint is due after every step.
    monkeypatch.setattr("metalabelnet.train.loop.time.monotonic", iter(range(0, 10**6, 60)).__next__)
    with pytest.raises(KeyboardInterrupt):
        metalabelnet.fit("small-cnn", *sets, folder=tmp_path / "run", on_progress=stop, **QUICK)
    with pytest.raises(InputError, match="already holds a run"):
        metalabelnet.fit("small-cnn", *sets, folder=tmp_path / "run", **QUICK)
    steps: list[int] = []
    again = metalabelnet.fit(
        "small-cnn", *sets, folder=tmp_path / "run", resume=True, on_progress=lambda p: steps.append(p.epoch), **QUICK
    )
    assert min(steps) >= 3  # earlier epochs are not trained again
    assert list(again.labels) == list(whole.labels)
    assert again.summary["clean_accuracy"] == whole.summary["clean_accuracy"]


class AssertsWidth(nn.Module):
    """Asserts the width of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(81, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[-1] == 9, "images of 9 pixels"
        return self.layer(x.flatten(1))  # type: ignore[no-any-return]


class TwoHeads(nn.Module):
    """Has a second output in train mode, as Inception has."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> Any:
        return (self.net(x), self.net(x)) if self.training else self.net(x)


class Named(TensorDataset):
    """Pairs with an attribute `classes`, as torchvision data sets have."""

    def __init__(self, rows: TensorDataset, classes: tuple[str, ...]) -> None:
        super().__init__(*rows.tensors)
        self.classes = classes


def test_different_class_order() -> None:
    train, clean, test = pairs(24, 0), pairs(12, 1), pairs(12, 2)
    abc, acb = ("a", "b", "c"), ("a", "c", "b")
    for sets in (
        (Named(train, abc), Named(clean, acb)),
        (Named(train, abc), clean, None, Named(test, acb)),
        (train, Named(clean, ("a", "c")), None, Named(test, abc)),
    ):
        with pytest.raises(InputError, match=r"has the classes a, .*: number the classes of both in the same order"):
            metalabelnet.fit(network(), *sets, **QUICK)
    shorter = metalabelnet.fit(network(), Named(train, abc[:2]), Named(clean, abc), **{**QUICK, "epochs": 3})
    assert shorter.labels.rows.classes == abc


def test_predictor_rejects_run_on_float_images(tmp_path: Path) -> None:
    """The run folder does not contain the user's transform from images to floats."""
    metalabelnet.fit("small-cnn", pairs(24, 0), pairs(12, 1), folder=tmp_path / "floats", **QUICK)
    with pytest.raises(InputError, match="was trained on floating-point images"):
        Predictor(tmp_path / "floats")
    train, clean = pairs(24, 0, as_float=False), pairs(12, 1, as_float=False)
    result = metalabelnet.fit("small-cnn", train, clean, folder=tmp_path / "bytes", **QUICK)
    asked = Predictor(tmp_path / "bytes").method.logits(train.tensors[0])
    assert torch.allclose(asked, result.method.logits(train.tensors[0]))


@pytest.mark.parametrize("method", ["joint-optimization", "forward", "co-teaching", "metalabelnet-plus"])
def test_frozen_weights_do_not_change(method: str) -> None:
    net = network()
    net[0].requires_grad_(requires_grad=False)
    before = net[0].weight.clone()
    result = metalabelnet.fit(net, pairs(24, 0), pairs(12, 1), **{**QUICK, "method": method})
    weights = dict(result.model.named_parameters())
    frozen = [weight.detach() for weight in weights.values() if weight.shape == before.shape]
    assert frozen
    assert all(torch.allclose(weight, before, rtol=1e-5) for weight in frozen)  # the EMA rounds
    assert any(weight.requires_grad for weight in weights.values())


def test_numpy_integer_as_epochs() -> None:
    rest = {name: QUICK[name] for name in ("batch_size", "lr", "device", "seed")}
    sets = pairs(24, 0), pairs(12, 1)
    one, other = (metalabelnet.fit(network(), *sets, method="gce", epochs=n, **rest) for n in (6, np.int64(6)))
    assert [line["lr"] for line in one.history] == [line["lr"] for line in other.history]


def test_wrong_input() -> None:
    check_error("did you mean 'epochs'", epoch=3)
    check_error("did you mean 'beta'", betta=3)
    check_error("did you mean 'q'", method="gce", qq=0.5)
    check_error("unknown setting of a run or of metalabelnet 'noise'", noise="uniform:0.4")
    check_error("did you mean 'metalabelnet'", method="metalabel")
    check_error("unknown method 'None'", method=None)
    check_error(r"unknown method \"\['gce'\]\": did you mean 'gce'", method=["gce"])
    check_error("epochs='3': give an integer", epochs="3")
    check_error("train_set=None: give a data set of pairs", None)
    check_error(r"train_set: item 2 is torch.float32 of shape \(1, 8, 9\), but item 0", GrowingSamples())
    check_error(r"\(3, 8, 8\) in clean_set, but", pairs(24, 0), TensorDataset(torch.zeros(3, 3, 8, 8), torch.arange(3)))
    check_error(
        "class '2' is missing from the clean set", pairs(24, 0), torch.utils.data.Subset(pairs(12, 1), [0, 1, 3])
    )
    check_error("clean_set: item 1 is unlabeled", pairs(24, 0), [(torch.zeros(1, 8, 8), 0), (torch.zeros(1, 8, 8), -1)])
    check_error("item 0 has the label 0.5", [(torch.zeros(1, 8, 8), 0.5)])
    check_error("item 0 is not a pair", [torch.zeros(1, 8, 8)])
    check_error("is int64 of shape|is torch.int64 of shape", [(torch.arange(5), 0)])
    check_error("there are no samples", [])
    for loader in (iter([]), DataLoader(pairs(24, 0), 8), Endless()):
        check_error(r"train_set is .*give a map-style data set \(with __len__ and __getitem__\), not a loader", loader)
    check_error(
        "net is torch.utils.data.dataset.TensorDataset: give a module, .* as the first argument", net=pairs(24, 0)
    )
    check_error("unknown setting of a run or of metalabelnet 'label'", label="kind")
    check_error("unknown setting of a run or of metalabelnet 'memory_limit'", memory_limit=1.0)
    check_error(r"returns \(2, 5\) for 2 samples in eval mode", net=network(classes=5))
    check_error("the network fails on a batch", net=network(channels=2))
    check_error("did you mean 'small-cnn'", net="smal-cnn")
    check_error("item 0 has the label inf", [(torch.zeros(1, 8, 8), float("inf"))])
    check_error("the network fails on a batch .*: images of 9 pixels", net=AssertsWidth())
    check_error("the network returns tuple for 2 samples in train mode", net=TwoHeads())
    check_error("the network has no trainable weight", net=network().requires_grad_(requires_grad=False))
    check_error("the network is wrapped in DataParallel: pass net.module", net=nn.DataParallel(network()))
