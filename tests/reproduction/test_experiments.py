"""The runs of each experiment and their selection."""

from pathlib import Path

import pytest
import torch

from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import make_rows
from metalabelnet.errors import InputError
from metalabelnet.methods import METHODS
from metalabelnet.reproduction import beyond
from metalabelnet.reproduction.experiments import RUNNABLE, TABLE_METHODS
from metalabelnet.reproduction.paper_numbers import CELLS
from metalabelnet.reproduction.resources import Resources
from metalabelnet.reproduction.results import spec_key
from metalabelnet.reproduction.selection import Selection, check_selection, run_specs
from metalabelnet.train.settings import make_run
from metalabelnet.train.train_run import training_steps
from sample_results import run_spec

COUNTS = {
    "cifar10-table": 14 * 8 * 4,
    "fig-curves": 4,
    "fig-stability": 2,
    "fig-warmup": 6,
    "fig-clean-size": 24,
    "fig-unlabeled": 24,
    "ablation-entropy": 3,
    "ablation-beta": 4,
    "ablation-labelnet": 4,
    "differences": 10,
    "fig-losses": 1,
    "cifar10n": 14 * 3,
    "beyond": 28 * 44 * 5,
    "beyond-ablation": 13 * 8 * 3,
    "beyond-length": 7 * 28 * 2 * 3,
    "beyond-clean-given": 2 * 4 * 5,
    "beyond-unlabeled": 2 * 2 * 2,
    "field": 0,  # until the methods are measured
}


@pytest.mark.parametrize("name", RUNNABLE)
def test_runs_of_an_experiment_are_distinct(name: str) -> None:
    sample_results = run_specs(name, Selection())
    assert len(sample_results) == COUNTS[name]
    reading_given_labels = [e for e in sample_results if METHODS[e.fields["method"]].traits.reads_given]
    assert len({spec_key(e) for e in reading_given_labels}) == len(reading_given_labels)


def test_tables_have_methods_of_the_package() -> None:
    assert set(TABLE_METHODS) < set(METHODS)
    assert {name.partition(":")[0] for name in beyond.METHODS} <= set(METHODS)
    assert set(TABLE_METHODS) < set(beyond.METHODS)


def test_shared_runs_have_one_key() -> None:
    default = spec_key(run_spec("cifar10-table"))
    shared = [
        run_spec("fig-curves"),
        run_spec("fig-stability"),
        run_spec("fig-warmup", point="44"),
        run_spec("fig-clean-size", point="5000"),
        run_spec("fig-unlabeled", point="0"),
        run_spec("ablation-entropy", point="1"),
        run_spec("ablation-beta", point="0.01"),
        run_spec("ablation-labelnet", point="single-layer"),
    ]
    assert {spec_key(e) for e in shared} == {default}
    assert spec_key(run_spec("ablation-beta", point="0.001")) != default
    assert spec_key(run_spec("fig-losses")) != default
    assert spec_key(run_spec("cifar10-table", seed=1)) != default


def test_recipe_is_the_papers() -> None:
    run = Resources(device="cpu").run(run_spec("cifar10-table", cell="uniform:0.6"))
    assert (run.data, run.split, run.protocol, run.clean, run.noise) == (
        "cifar10",
        "paper",
        "paper",
        5000,
        "uniform:0.6",
    )
    assert (run.epochs, run.warmup, run.batch_size, run.lr, run.lr_milestones) == (120, 44, 128, 0.01, (40, 80))
    assert (run.augment, run.dtype, run.noise_probs) == ("flip-crop", "float32", None)
    assert Resources(device="cuda").run(run_spec("cifar10-table", cell="uniform:0.6")).dtype == "bf16"


def test_cifar10n_takes_1000_clean_images_from_the_training_images() -> None:
    fields = run_spec("cifar10n", cell="worst").fields
    assert (fields["split"], fields["clean"], fields["noise"]) == ("general", 1000, "cifar10n:worst")


def test_point_changes_one_setting() -> None:
    plain = run_spec("cifar10-table").fields
    for experiment, point, changed in (
        ("fig-warmup", "20", {"warmup": 20}),
        ("fig-clean-size", "250", {"clean": 250}),
        ("fig-unlabeled", "36000", {"unlabeled": 36000}),
        ("ablation-entropy", "0.5", {"settings": {"entropy_weight": 0.5}}),
        ("ablation-labelnet", "mlp", {"settings": {"label_net": "mlp"}}),
    ):
        assert run_spec(experiment, point=point).fields == {**plain, **changed}


def test_run_order() -> None:
    order = [(e.method, e.cell) for e in run_specs("cifar10-table", Selection(seeds=1))]
    assert [method for method, _ in order[:8]] == ["metalabelnet"] * 8
    assert {method for method, _ in order[8:32]} == {"cross-entropy", "clean-only", "fine-tune"}
    assert all(cell.endswith(("0.4", "0.8")) for _, cell in order[32:68])
    assert {method for method, _ in order[-8:]} == {"mlnt"}
    seeds = [e.seed for e in run_specs("cifar10-table", Selection(seeds=3))]
    assert seeds == sorted(seeds)


def test_selection_filters_runs() -> None:
    specs = run_specs("cifar10-table", Selection(methods=("gce", "mslg"), cells=("uniform:0.4",), seeds=2))
    assert {(e.method, e.cell, e.seed) for e in specs} == {
        (m, "uniform:0.4", s) for m in ("gce", "mslg") for s in (0, 1)
    }
    assert [e.point for e in run_specs("ablation-beta", Selection(points=("1e-3", "0.01")))] == ["0.001", "0.01"]
    assert [e.cell for e in run_specs("ablation-beta", Selection(points=("0.1",), cells=("uniform:0.2",)))] == [
        "uniform:0.2"
    ]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(methods=("gcee",)), "unknown method 'gcee': did you mean 'gce'"),
        (Selection(cells=("uniform:0.5",)), "unknown cell 'uniform:0.5': did you mean 'uniform:0."),
        (Selection(seeds=0), "seeds 0 is too small: use at least 1"),
        (Selection(cells=("uniform:0.4", "worst")), "cifar10-table: unknown cell 'worst': choose from feature:0.2"),
        (Selection(methods=("gce", "metalabelnet-plus")), "cifar10-table: unknown method 'metalabelnet-plus'"),
        (Selection(points=("0.1",)), "cifar10-table: unknown point '0.1': choose from none"),
    ],
)
def test_unknown_values_are_rejected(selection: Selection, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_selection(["cifar10-table"], selection)


def test_value_of_one_experiment_is_valid() -> None:
    names = ["cifar10-table", "ablation-beta", "beyond"]
    check_selection(names, Selection(methods=("gce", "metalabelnet-plus"), cells=("uniform:0.4", "digits/uniform:0.4")))
    check_selection(names, Selection(points=("1e-3", "0.1")))
    with pytest.raises(InputError, match="no run has these methods, cells and points"):
        check_selection(names, Selection(methods=("metalabelnet-plus",), cells=("uniform:0.4",)))


PHOTO_TABLES = {
    "clothing1m-table": (10, 1, 14_000),
    "food101n-table": (10, 6, 15_000),
    "webvision-table": (30, 14, 1000),
}


@pytest.mark.parametrize("name", PHOTO_TABLES)
def test_photo_tables_are_the_runs_of_the_paper(name: str) -> None:
    specs = run_specs(name, Selection())
    assert [spec.seed for spec in specs] == [0, 1, 2, 3]
    run = Resources(device="cpu").run(specs[0])
    assert (run.epochs, run.warmup, run.clean) == PHOTO_TABLES[name]
    assert dict(run.settings) == {"beta": 1e-3}
    assert (run.split, run.protocol, run.augment) == ("paper", "paper", "flip")
    assert (run.momentum, run.weight_decay) == (0.9, 1e-4)
    assert specs[0].paper is not None
    if name == "webvision-table":
        assert (run.net, run.pretrained, run.batch_size) == ("timm:inception_resnet_v2", None, 16)
        assert (run.lr, run.lr_milestones) == (1e-2, (12,))
    else:
        assert (run.net, run.pretrained, run.batch_size) == ("torchvision:resnet50", "hub", 32)
        assert (run.lr, run.lr_milestones) == (1e-3, (5,))
        assert Resources(device="cpu", pretrained=Path("w.pth")).run(specs[0]).pretrained == "w.pth"


def test_photo_tables_that_vary_one_setting() -> None:
    clean_sizes, unlabeled = (run_specs(f"clothing1m-{name}", Selection()) for name in ("clean-size", "unlabeled"))
    assert [spec.fields["clean"] for spec in clean_sizes][::6] == [500, 14_000]
    assert [str(spec.paper) for spec in clean_sizes][::6] == ["76.13", "78.20"]
    last = {spec.method: spec for spec in unlabeled if spec.point == "950000"}
    assert {spec.fields["unlabeled"] for spec in last.values()} == {950_000}
    assert {method: str(spec.paper) for method, spec in last.items()} == {
        "cross-entropy": "66.88",
        "metalabelnet": "71.32",
    }


@pytest.mark.parametrize("name", RUNNABLE)
def test_smoke_runs_are_small(name: str) -> None:
    for e in run_specs(name, Selection(smoke=True)):
        run = Resources(device="cpu").run(e)
        assert (run.data, run.epochs, run.method) == ("digits", 4, e.fields["method"])
        assert e.paper is None


def test_only_table_runs_have_a_paper_number() -> None:
    assert str(run_spec("cifar10-table").paper) == "78.42 ± 0.36"
    assert run_spec("ablation-beta", point="0.01").paper is None
    assert {e.cell for e in run_specs("cifar10-table", Selection())} == set(CELLS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), [("clothing1m-table", 64), ("webvision-table", 96)])
@pytest.mark.usefixtures("torchvision")
def test_networks_of_the_photo_tables_take_a_step(name: str, side: int) -> None:
    """ResNet-50 and Inception-ResNet-v2 in phase 2 of metalabelnet, on images smaller than those of the paper."""
    fields = run_specs(name, Selection(seeds=1))[0].fields
    run = make_run("digits", recipe="paper", net=fields["net"], method="metalabelnet", warmup=0, epochs=1, device="cpu")
    x = torch.randint(0, 256, (4, 3, side, side), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    y = torch.arange(4) % 2
    rows = make_rows(x, y, true=y, classes=("a", "b"), what="random images")
    problem = Problem(train=rows, clean=rows, validation=rows, test=rows, noise_rate=0.0, holds_out=False)
    done: list[int] = []
    steps = training_steps(run, problem=problem, on_progress=lambda progress: done.append(progress.step))
    next(steps)
    steps.close()
    assert done == [0, 1]
