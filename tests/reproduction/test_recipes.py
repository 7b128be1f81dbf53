"""The runs behind each table and figure."""

import pytest

from made import entry
from metalabelnet.errors import InputError
from metalabelnet.methods import METHODS
from metalabelnet.reproduction.entries import Selection, check, entries
from metalabelnet.reproduction.paper_numbers import CELLS
from metalabelnet.reproduction.recipes import READY, TABLE_METHODS, WHATS
from metalabelnet.reproduction.resources import Places
from metalabelnet.reproduction.results import key

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
    "beyond": 9 * 30 * 5,
    "beyond-ablation": 13 * 4 * 3,
    "beyond-unlabeled": 2 * 2 * 2,
}


@pytest.mark.parametrize("name", READY)
def test_every_run_of_it_is_different_and_its_own(name: str) -> None:
    made = entries(name, Selection())
    assert len(made) == COUNTS[name]
    told_apart = [e for e in made if METHODS[e.method].reads_given]
    assert len({key(e) for e in told_apart}) == len(told_apart)


def test_the_table_has_every_method() -> None:
    assert {*TABLE_METHODS, "metalabelnet-plus"} == set(METHODS)


def test_a_run_that_several_need_is_one_run() -> None:
    default = key(entry("cifar10-table"))
    shared = [
        entry("fig-curves"),
        entry("fig-stability"),
        entry("fig-warmup", point="44"),
        entry("fig-clean-size", point="5000"),
        entry("fig-unlabeled", point="0"),
        entry("ablation-entropy", point="1"),
        entry("ablation-beta", point="0.01"),
        entry("ablation-labelnet", point="single-layer"),
    ]
    assert {key(e) for e in shared} == {default}
    assert key(entry("ablation-beta", point="0.001")) != default
    assert key(entry("fig-losses")) != default
    assert key(entry("cifar10-table", seed=1)) != default


def test_the_recipe_is_the_papers() -> None:
    run = Places(device="cpu").run(entry("cifar10-table", cell="uniform:0.6"))
    assert (run.data, run.split, run.protocol, run.clean, run.noise) == (
        "cifar10",
        "paper",
        "paper",
        5000,
        "uniform:0.6",
    )
    assert (run.epochs, run.warmup, run.batch_size, run.lr, run.lr_milestones) == (120, 44, 128, 0.01, (40, 80))
    assert (run.augment, run.dtype, run.noise_probs) == ("flip-crop", "float32", None)
    assert Places(device="cuda").run(entry("cifar10-table", cell="uniform:0.6")).dtype == "bf16"


def test_labels_of_people_leave_1000_clean_images_out_of_the_training_images() -> None:
    fields = entry("cifar10n", cell="worst").fields
    assert (fields["split"], fields["clean"], fields["noise"]) == ("general", 1000, "file:cifar10n-worst")


def test_points_change_one_thing() -> None:
    plain = entry("cifar10-table").fields
    for what, point, changed in (
        ("fig-warmup", "20", {"warmup": 20}),
        ("fig-clean-size", "250", {"clean": 250}),
        ("fig-unlabeled", "36000", {"unlabeled": 36000}),
        ("ablation-entropy", "0.5", {"settings": {"entropy_weight": 0.5}}),
        ("ablation-labelnet", "mlp", {"settings": {"label_net": "mlp"}}),
    ):
        assert entry(what, point=point).fields == {**plain, **changed}


def test_what_matters_most_comes_first() -> None:
    order = [(e.method, e.cell) for e in entries("cifar10-table", Selection(seeds=1))]
    assert [method for method, _ in order[:8]] == ["metalabelnet"] * 8
    assert {method for method, _ in order[8:32]} == {"cross-entropy", "clean-only", "fine-tune"}
    assert all(cell.endswith(("0.4", "0.8")) for _, cell in order[32:68])
    assert {method for method, _ in order[-8:]} == {"mlnt"}
    seeds = [e.seed for e in entries("cifar10-table", Selection(seeds=3))]
    assert seeds == sorted(seeds)


def test_a_selection_is_a_part() -> None:
    chosen = entries("cifar10-table", Selection(methods=("gce", "mslg"), cells=("uniform:0.4",), seeds=2))
    assert {(e.method, e.cell, e.seed) for e in chosen} == {
        (m, "uniform:0.4", s) for m in ("gce", "mslg") for s in (0, 1)
    }
    assert [e.point for e in entries("ablation-beta", Selection(points=("1e-3", "0.01")))] == ["0.001", "0.01"]
    assert [e.cell for e in entries("ablation-beta", Selection(points=("0.1",), cells=("uniform:0.2",)))] == [
        "uniform:0.2"
    ]


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        (Selection(methods=("gcee",)), "unknown method 'gcee': did you mean 'gce'"),
        (Selection(cells=("uniform:0.5",)), "unknown cell 'uniform:0.5': did you mean 'uniform:0."),
        (Selection(seeds=0), "seeds 0 is too small: the least is 1"),
        (Selection(cells=("uniform:0.4", "worst")), "cifar10-table: unknown cell 'worst': there is feature:0.2"),
        (Selection(methods=("gce", "metalabelnet-plus")), "cifar10-table: unknown method 'metalabelnet-plus'"),
        (Selection(points=("0.1",)), "cifar10-table: unknown point '0.1': there is none"),
    ],
)
def test_what_does_not_exist_is_refused(selection: Selection, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        check(["cifar10-table"], selection)


def test_what_one_of_several_has_is_there() -> None:
    names = ["cifar10-table", "ablation-beta", "beyond"]
    check(names, Selection(methods=("gce", "metalabelnet-plus"), cells=("uniform:0.4", "digits/uniform:0.4")))
    check(names, Selection(points=("1e-3", "0.1")))
    with pytest.raises(InputError, match="no run has these methods, cells and points"):
        check(names, Selection(methods=("metalabelnet-plus",), cells=("uniform:0.4",)))


@pytest.mark.parametrize("name", [name for name in WHATS if name not in READY])
def test_tables_that_need_data_have_their_recipe(name: str) -> None:
    (one,) = entries(name, Selection())
    assert one.fields["settings"] == {"beta": 1e-3}
    assert one.paper is not None
    assert one.fields["warmup"] == {"clothing1m": 1, "food101n": 6, "webvision": 14}[name]


@pytest.mark.parametrize("name", READY)
def test_smoke_runs_are_small_runs_of_the_same_kind(name: str) -> None:
    for e in entries(name, Selection(smoke=True)):
        run = Places(device="cpu").run(e)
        assert (run.data, run.epochs, run.method) == ("digits", 4, e.method)
        assert e.paper is None


def test_the_paper_s_number_stands_beside_the_run_of_the_table_alone() -> None:
    assert str(entry("cifar10-table").paper) == "78.42 ± 0.36"
    assert entry("ablation-beta", point="0.01").paper is None
    assert {e.cell for e in entries("cifar10-table", Selection())} == set(CELLS)
