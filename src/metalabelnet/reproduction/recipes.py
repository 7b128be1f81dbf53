"""What can be reproduced, each as a list of runs. A run that several need is the same run, and is made once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from metalabelnet.core.label_net import KINDS
from metalabelnet.reproduction import beyond
from metalabelnet.reproduction.paper_numbers import CELLS, Number, paper_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HUMAN_CELLS = ("aggregate", "random1", "worst")

# The paper's rows, then the two it left out.
TABLE_METHODS = (
    "cross-entropy",
    "sce",
    "gce",
    "bootstrap",
    "forward",
    "joint-optimization",
    "pencil",
    "co-teaching",
    "mlnt",
    "meta-weight-net",
    "mslg",
    "metalabelnet",
    "clean-only",
    "fine-tune",
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run of a table or figure, and the place of its number there.

    fields  the fields of the run, without what depends on the machine: folders, files, device, dtype
    curves  whether the number is in the epochs, not in the result alone
    kind    run, or losses: the losses along one step of a run
    """

    what: str
    method: str
    cell: str
    point: str
    seed: int
    fields: Mapping[str, Any]
    curves: bool = False
    kind: str = "run"

    @property
    def paper(self) -> Number | None:
        """The paper's number in this place."""
        smoke = self.fields["data"] == "digits"
        return None if smoke or self.point else paper_number(self.what, self.method, self.cell)

    @property
    def needs_probs(self) -> bool:
        """Whether it takes class probabilities from a file: those that the authors made their noise from."""
        return str(self.fields["noise"]).startswith("feature:") and self.fields.get("noise_probs") != "probe"

    @property
    def needs_human(self) -> bool:
        """Whether it takes the labels that people gave."""
        return str(self.fields["noise"]).startswith("file:")

    def __str__(self) -> str:
        point = f" {self.point}" if self.point else ""
        return f"{self.method} {self.cell}{point} seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class What:
    """A table or figure: which runs it is made of.

    vary          what a point changes in a run; a table has no points
    methods       what is run if nothing else is asked for; `all_methods` what can be asked for
    cells         likewise
    needs_data    the data set it needs and this package does not read yet
    """

    summary: str
    make: Callable[..., dict[str, Any]]
    methods: tuple[str, ...] = ("metalabelnet",)
    all_methods: tuple[str, ...] = ("metalabelnet",)
    cells: tuple[str, ...] = ("feature:0.6",)
    all_cells: tuple[str, ...] = CELLS
    smoke_cells: tuple[str, ...] = ("feature:0.6",)
    points: tuple[str, ...] = ("",)
    vary: Callable[[str], dict[str, Any]] = field(default=lambda _point: {})
    seeds: int = 1
    curves: bool = False
    kind: str = "run"
    needs_data: str = ""


def cifar10(method: str, cell: str, seed: int, **changes: Any) -> dict[str, Any]:
    """The paper's CIFAR-10: all 50,000 training images noisy, half of the test images clean samples, half test."""
    return {
        "data": "cifar10",
        "method": method,
        "noise": cell,
        "split": "paper",
        "protocol": "paper",
        "seed": seed,
        **changes,
    }


def cifar10n(method: str, cell: str, seed: int, **changes: Any) -> dict[str, Any]:
    """Labels by people: 1,000 clean images, class by class, out of the training images; all test images as test.

    The recipe is that of the CIFAR-10 table, and the epoch is selected on the 1,000 as it is there.
    """
    general = {"noise": f"file:cifar10n-{cell}", "split": "general", "clean": 1000}
    return cifar10(method, cell, seed, **general, **changes)


def _large(data: str, net: str, **fields: Any) -> Callable[..., dict[str, Any]]:
    def make(method: str, _cell: str, seed: int, **changes: Any) -> dict[str, Any]:
        return {"data": data, "method": method, "noise": "none", "net": net, "seed": seed, **fields, **changes}

    return make


_RESNET = {"batch_size": 32, "lr": 1e-3, "lr_milestones": (5,), "epochs": 10, "settings": {"beta": 1e-3}}
clothing1m = _large("clothing1m", "resnet50, pre-trained on ImageNet", warmup=1, clean=14_000, **_RESNET)
food101n = _large("food101n", "resnet50, pre-trained on ImageNet", warmup=6, clean=15_000, **_RESNET)
webvision = _large(
    "webvision",
    "inception-resnet-v2",
    warmup=14,
    clean=1000,
    batch_size=16,
    lr=1e-2,
    lr_milestones=(12,),
    epochs=30,
    settings={"beta": 1e-3},
)


def _number(name: str) -> Callable[[str], dict[str, Any]]:
    return lambda point: {name: int(point)}


def _setting(name: str, kind: Callable[[str], Any]) -> Callable[[str], dict[str, Any]]:
    return lambda point: {"settings": {name: kind(point)}}


_FEATURE = CELLS[4:]

# What differs from the authors' code and can be set as there, and the other way where ours is theirs.
DIFFERENCES: dict[str, dict[str, Any]] = {
    "none": {},
    "not shuffled": {"order": "given"},
    "rate drops at 41 and 81": {"lr_milestones": (41, 81)},
    "losses summed over classes": {"settings": {"loss_scale": "sum"}},
    "statistics of the training batches alone": {"settings": {"clean_updates_statistics": False}},
}

WHATS: dict[str, What] = {
    "cifar10-table": What(
        summary="test accuracy under uniform and feature-dependent noise at 20, 40, 60, 80 %, fourteen methods",
        make=cifar10,
        methods=TABLE_METHODS,
        all_methods=TABLE_METHODS,
        cells=CELLS,
        smoke_cells=("uniform:0.4", "feature:0.6"),
        seeds=4,
    ),
    "fig-curves": What(
        summary="test accuracy by epoch, both noises at 40 and 60 %",
        make=cifar10,
        all_methods=TABLE_METHODS,
        cells=("uniform:0.4", "uniform:0.6", "feature:0.4", "feature:0.6"),
        smoke_cells=("uniform:0.4", "feature:0.6"),
        curves=True,
    ),
    "fig-stability": What(
        summary="how much the soft labels change between epochs, MetaLabelNet against MSLG",
        make=cifar10,
        methods=("metalabelnet", "mslg"),
        all_methods=("metalabelnet", "mslg"),
        curves=True,
    ),
    "fig-warmup": What(
        summary="test accuracy by epoch for a warm-up of 20 to 80 epochs, feature-dependent noise at 60 %",
        make=cifar10,
        points=("20", "40", "44", "50", "60", "80"),
        vary=_number("warmup"),
        curves=True,
    ),
    "fig-clean-size": What(
        summary="test accuracy by the number of clean samples, 100 to 5,000, feature-dependent noise",
        make=cifar10,
        cells=_FEATURE,
        points=("100", "250", "500", "1000", "2000", "5000"),
        vary=_number("clean"),
    ),
    "fig-unlabeled": What(
        summary="test accuracy by the number of unlabeled images, 0 to 49,000, feature-dependent noise",
        make=cifar10,
        cells=_FEATURE,
        points=("0", "12000", "24000", "36000", "45000", "49000"),
        vary=_number("unlabeled"),
    ),
    "ablation-entropy": What(
        summary="the weight of the entropy loss: 0, 0.5, 1",
        make=cifar10,
        points=("0", "0.5", "1"),
        vary=_setting("entropy_weight", float),
    ),
    "ablation-beta": What(
        summary="β, the rate of the label net: 1e-4 to 1e-1",
        make=cifar10,
        points=("0.0001", "0.001", "0.01", "0.1"),
        vary=_setting("beta", float),
    ),
    "ablation-labelnet": What(
        summary="the label net: a single layer against three MLPs with one hidden layer",
        make=cifar10,
        points=KINDS,
        vary=_setting("label_net", str),
    ),
    "differences": What(
        summary="one thing changed at a time: what may set our numbers apart from the paper's",
        make=cifar10,
        cells=("uniform:0.6", "feature:0.6"),
        points=tuple(DIFFERENCES),
        vary=lambda point: DIFFERENCES[point],
    ),
    "fig-losses": What(
        summary="the three losses along the step of one real iteration",
        make=cifar10,
        kind="losses",
    ),
    "cifar10n": What(
        summary="labels given by people (aggregate, random 1, worst), fourteen methods, 1,000 clean images",
        make=cifar10n,
        methods=TABLE_METHODS,
        all_methods=TABLE_METHODS,
        cells=HUMAN_CELLS,
        all_cells=HUMAN_CELLS,
        smoke_cells=("worst",),
    ),
    "beyond": What(
        summary="metalabelnet-plus against what one would try first, on digits, Fashion-MNIST and CIFAR-10",
        make=beyond.make,
        methods=beyond.METHODS,
        all_methods=beyond.METHODS,
        cells=beyond.CELLS,
        all_cells=beyond.CELLS,
        smoke_cells=("digits/uniform:0.4", "digits/feature:0.8"),
        seeds=5,
    ),
    "beyond-ablation": What(
        summary="each ingredient of metalabelnet-plus taken out alone, four cells of digits",
        make=beyond.make,
        methods=("metalabelnet-plus",),
        all_methods=("metalabelnet-plus",),
        cells=beyond.ABLATION_CELLS,
        all_cells=beyond.ABLATION_CELLS,
        smoke_cells=("digits/uniform:0.4",),
        points=tuple(beyond.WITHOUT),
        vary=lambda point: {"settings": beyond.WITHOUT[point]} if beyond.WITHOUT[point] else {},
        seeds=3,
    ),
    "beyond-unlabeled": What(
        summary="metalabelnet-plus without the labels of 36,000 images, feature-dependent noise at 40 %",
        make=beyond.make,
        methods=("metalabelnet-plus",),
        all_methods=("metalabelnet-plus",),
        cells=beyond.UNLABELED_CELLS,
        all_cells=beyond.UNLABELED_CELLS,
        smoke_cells=beyond.UNLABELED_CELLS[:1],
        points=("0", "36000"),
        vary=_number("unlabeled"),
        seeds=2,
    ),
    "clothing1m": What(
        summary="the Clothing1M table",
        make=clothing1m,
        cells=("accuracy",),
        all_cells=("accuracy",),
        needs_data="Clothing1M",
    ),
    "food101n": What(
        summary="the Food-101N table",
        make=food101n,
        cells=("accuracy",),
        all_cells=("accuracy",),
        needs_data="Food-101N",
    ),
    "webvision": What(
        summary="the WebVision table", make=webvision, cells=("top 1",), all_cells=("top 1",), needs_data="WebVision"
    ),
}
READY = tuple(name for name, what in WHATS.items() if not what.needs_data)
