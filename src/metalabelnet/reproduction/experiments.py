"""The experiments: tables and figures, each with the runs it consists of.

A run that several experiments share is trained once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metalabelnet.core.label_net import LABEL_NET_KINDS
from metalabelnet.reproduction import beyond, field, photos
from metalabelnet.reproduction.experiment import Experiment
from metalabelnet.reproduction.paper_numbers import CELLS

if TYPE_CHECKING:
    from collections.abc import Callable

CIFAR10N_CELLS = ("aggregate", "random1", "worst")

# The methods of the paper's table, then two baselines that the paper does not have.
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


def cifar10(method: str, cell: str, seed: int, **changes: Any) -> dict[str, Any]:
    """The settings of the paper's CIFAR-10 runs.

    All 50,000 training images are noisy; half of the test images are the clean set, the other half are for testing.
    """
    return {
        "data": "cifar10",
        "recipe": "paper",
        "method": method,
        "noise": cell,
        "split": "paper",
        "protocol": "paper",
        "seed": seed,
        **changes,
    }


def cifar10n(method: str, cell: str, seed: int, **changes: Any) -> dict[str, Any]:
    """The settings of the CIFAR-10N runs (human labels).

    The clean set is 1,000 training images, stratified by class; all test images are for testing. The recipe is that of
    the CIFAR-10 table, which selects the epoch on the clean set.
    """
    changes = {"noise": f"cifar10n:{cell}", "split": "general", "clean": 1000, **changes}
    return cifar10(method, cell, seed, **changes)


def _int_field(name: str) -> Callable[[str], dict[str, Any]]:
    return lambda point: {name: int(point)}


def _method_setting(name: str, parse: Callable[[str], Any]) -> Callable[[str], dict[str, Any]]:
    return lambda point: {"settings": {name: parse(point)}}


_FEATURE_CELLS = CELLS[4:]

# Differences from the authors' code that can be set to theirs, and the reverse where our default is theirs.
DIFFERENCES: dict[str, dict[str, Any]] = {
    "none": {},
    "not shuffled": {"order": "given"},
    "learning rate drops at 41 and 81": {"lr_milestones": (41, 81)},
    "losses summed over classes": {"settings": {"loss_scale": "sum"}},
    "BatchNorm statistics of the training batches only": {"settings": {"clean_updates_statistics": False}},
}

EXPERIMENTS: dict[str, Experiment] = {
    "cifar10-table": Experiment(
        summary="test accuracy under uniform and feature-dependent noise at 20, 40, 60, 80 %, fourteen methods",
        make_fields=cifar10,
        methods=TABLE_METHODS,
        all_methods=TABLE_METHODS,
        cells=CELLS,
        smoke_cells=("uniform:0.4", "feature:0.6"),
        seeds=4,
    ),
    "fig-curves": Experiment(
        summary="test accuracy by epoch, uniform and feature-dependent noise at 40 and 60 %",
        make_fields=cifar10,
        all_methods=TABLE_METHODS,
        cells=("uniform:0.4", "uniform:0.6", "feature:0.4", "feature:0.6"),
        smoke_cells=("uniform:0.4", "feature:0.6"),
        curves=True,
    ),
    "fig-stability": Experiment(
        summary="change of the soft labels between epochs, MetaLabelNet and MSLG",
        make_fields=cifar10,
        methods=("metalabelnet", "mslg"),
        all_methods=("metalabelnet", "mslg"),
        curves=True,
    ),
    "fig-warmup": Experiment(
        summary="test accuracy by epoch for a warm-up of 20 to 80 epochs, feature-dependent noise at 60 %",
        make_fields=cifar10,
        points=("20", "40", "44", "50", "60", "80"),
        vary=_int_field("warmup"),
        curves=True,
    ),
    "fig-clean-size": Experiment(
        summary="test accuracy by the number of clean samples, 100 to 5,000, feature-dependent noise",
        make_fields=cifar10,
        cells=_FEATURE_CELLS,
        points=("100", "250", "500", "1000", "2000", "5000"),
        vary=_int_field("clean"),
    ),
    "fig-unlabeled": Experiment(
        summary="test accuracy by the number of unlabeled images, 0 to 49,000, feature-dependent noise",
        make_fields=cifar10,
        cells=_FEATURE_CELLS,
        points=("0", "12000", "24000", "36000", "45000", "49000"),
        vary=_int_field("unlabeled"),
    ),
    "ablation-entropy": Experiment(
        summary="weight of the entropy loss: 0, 0.5, 1",
        make_fields=cifar10,
        points=("0", "0.5", "1"),
        vary=_method_setting("entropy_weight", float),
    ),
    "ablation-beta": Experiment(
        summary="β, the learning rate of the label net: 1e-4 to 1e-1",
        make_fields=cifar10,
        points=("0.0001", "0.001", "0.01", "0.1"),
        vary=_method_setting("beta", float),
    ),
    "ablation-labelnet": Experiment(
        summary="architecture of the label net: a single layer, and three MLPs with one hidden layer",
        make_fields=cifar10,
        points=LABEL_NET_KINDS,
        vary=_method_setting("label_net", str),
    ),
    "differences": Experiment(
        summary="one change at a time: possible reasons why our numbers differ from the paper's",
        make_fields=cifar10,
        cells=("uniform:0.6", "feature:0.6"),
        points=tuple(DIFFERENCES),
        vary=lambda point: DIFFERENCES[point],
    ),
    "fig-losses": Experiment(
        summary="the three losses along the step of one training iteration",
        make_fields=cifar10,
        kind="losses",
    ),
    "cifar10n": Experiment(
        summary="human labels of CIFAR-10N (aggregate, random 1, worst), fourteen methods, 1,000 clean images",
        make_fields=cifar10n,
        methods=TABLE_METHODS,
        all_methods=TABLE_METHODS,
        cells=CIFAR10N_CELLS,
        all_cells=CIFAR10N_CELLS,
        smoke_cells=("worst",),
    ),
    "beyond": Experiment(
        summary="metalabelnet-plus and baselines on digits, Fashion-MNIST and CIFAR-10",
        make_fields=beyond.make_fields,
        methods=beyond.METHODS,
        all_methods=beyond.METHODS,
        cells=beyond.CELLS,
        all_cells=beyond.CELLS,
        smoke_cells=("digits/uniform:0.4", "digits/feature:0.8"),
        seeds=5,
    ),
    "beyond-ablation": Experiment(
        summary="ablation of metalabelnet-plus: each component removed on its own, digits and CIFAR-10",
        make_fields=beyond.make_fields,
        methods=("metalabelnet-plus",),
        all_methods=("metalabelnet-plus",),
        cells=beyond.ABLATION_CELLS,
        all_cells=beyond.ABLATION_CELLS,
        smoke_cells=("digits/uniform:0.4",),
        points=tuple(beyond.ABLATIONS),
        vary=lambda point: {"settings": beyond.ABLATIONS[point]} if beyond.ABLATIONS[point] else {},
        seeds=3,
    ),
    "beyond-clean-given": Experiment(
        summary="metalabelnet-plus with a clean set whose given labels are not known, digits",
        make_fields=beyond.make_fields,
        methods=("metalabelnet-plus",),
        all_methods=("metalabelnet-plus",),
        cells=beyond.FOUR_OF_DIGITS,
        all_cells=beyond.FOUR_OF_DIGITS,
        smoke_cells=beyond.FOUR_OF_DIGITS[-1:],
        points=("keep", "drop"),
        vary=lambda point: {"clean_given": point} if point != "keep" else {},
        seeds=5,
    ),
    "beyond-length": Experiment(
        summary="seven methods with 40 and 120 epochs, CIFAR-10",
        make_fields=beyond.make_fields,
        methods=beyond.LENGTH_METHODS,
        all_methods=beyond.LENGTH_METHODS,
        cells=beyond.CIFAR10,
        all_cells=beyond.CIFAR10,
        smoke_cells=("cifar10-1000/uniform:0.4",),
        points=beyond.LENGTHS,
        vary=_int_field("epochs"),
        seeds=3,
    ),
    "beyond-unlabeled": Experiment(
        summary="metalabelnet-plus without the labels of 36,000 images, feature-dependent noise at 40 %",
        make_fields=beyond.make_fields,
        methods=("metalabelnet-plus",),
        all_methods=("metalabelnet-plus",),
        cells=beyond.UNLABELED_CELLS,
        all_cells=beyond.UNLABELED_CELLS,
        smoke_cells=beyond.UNLABELED_CELLS[:1],
        points=("0", "36000"),
        vary=_int_field("unlabeled"),
        seeds=2,
    ),
    "field": Experiment(
        summary="recent methods with equal GPU minutes: CIFAR-10N, symmetric and asymmetric noise, PreAct ResNet-18",
        make_fields=field.make_fields,
        methods=field.METHODS,
        all_methods=field.METHODS,
        cells=field.CELLS,
        all_cells=field.CELLS,
        smoke_cells=("worst", "symmetric:0.5"),
        points=field.MINUTES,
        all_points=field.ALL_MINUTES,
        seeds=2,
        budgeted=True,
    ),
    "clothing1m-table": Experiment(
        summary="test accuracy on Clothing1M, ResNet-50 from ImageNet, 14,000 clean images",
        make_fields=photos.clothing1m,
        all_methods=TABLE_METHODS,
        cells=("accuracy",),
        all_cells=("accuracy",),
        smoke_cells=("accuracy",),
        seeds=4,
        needs_data="Clothing1M",
    ),
    "clothing1m-clean-size": Experiment(
        summary="test accuracy on Clothing1M by the number of clean images, 500 to 14,000",
        make_fields=photos.clothing1m,
        cells=("accuracy",),
        all_cells=("accuracy",),
        smoke_cells=("accuracy",),
        points=("500", "1000", "2000", "4000", "8000", "12000", "14000"),
        vary=_int_field("clean"),
        needs_data="Clothing1M",
    ),
    "clothing1m-unlabeled": Experiment(
        summary="test accuracy on Clothing1M by the number of unlabeled images, 100,000 to 950,000",
        make_fields=photos.clothing1m,
        methods=("cross-entropy", "metalabelnet"),
        all_methods=("cross-entropy", "metalabelnet"),
        cells=("accuracy",),
        all_cells=("accuracy",),
        smoke_cells=("accuracy",),
        points=("100000", "300000", "500000", "700000", "900000", "950000"),
        vary=_int_field("unlabeled"),
        needs_data="Clothing1M",
    ),
    "food101n-table": Experiment(
        summary="test accuracy on Food-101N, ResNet-50 from ImageNet, 15,000 clean images",
        make_fields=photos.food101n,
        all_methods=TABLE_METHODS,
        cells=("accuracy",),
        all_cells=("accuracy",),
        smoke_cells=("accuracy",),
        seeds=4,
        needs_data="Food-101N",
    ),
    "webvision-table": Experiment(
        summary="top-1 and top-5 accuracy on WebVision (mini), Inception-ResNet-v2, 1,000 clean images",
        make_fields=photos.webvision,
        all_methods=TABLE_METHODS,
        cells=(photos.TOP1,),
        all_cells=(photos.TOP1,),
        smoke_cells=(photos.TOP1,),
        seeds=4,
        needs_data="WebVision",
    ),
}
RUNNABLE = tuple(name for name, experiment in EXPERIMENTS.items() if not experiment.needs_data)
