"""Settings of a run and of a method, and recipes."""

import dataclasses
from pathlib import Path

import pytest

from metalabelnet.errors import InputError
from metalabelnet.methods import METHODS
from metalabelnet.train import Run, make_run
from metalabelnet.train.settings import IN_MEMORY, make_settings
from tiny_data import table_samples, write_npz


def test_text_setting() -> None:
    assert make_settings("forward", {"transition": "T.npy"}).transition == "T.npy"
    assert make_settings("forward", {}).transition == "anchor"


def test_setting_that_is_a_number_or_a_word() -> None:
    assert make_settings("co-teaching", {"noise_rate": "auto"}).noise_rate == "auto"
    assert make_settings("co-teaching", {"noise_rate": "0.4"}).noise_rate == 0.4
    assert make_settings("co-teaching", {"noise_rate": 0}).noise_rate == 0.0
    with pytest.raises(InputError, match="noise_rate=high: give a number or auto"):
        make_settings("co-teaching", {"noise_rate": "high"})
    with pytest.raises(InputError, match="0 or more"):
        make_settings("co-teaching", {"noise_rate": "-0.1"})
    with pytest.raises(InputError, match=r"noise_rate=40\.0 is out of range"):
        make_settings("co-teaching", {"noise_rate": "40"})


def test_choices_booleans_and_numbers() -> None:
    assert make_settings("bootstrap", {"kind": "hard", "hard_beta": "0.5"}).hard_beta == 0.5
    assert make_settings("gce", {"truncated": "true"}).truncated is True
    with pytest.raises(InputError, match="did you mean 'soft'"):
        make_settings("bootstrap", {"kind": "sofd"})
    with pytest.raises(InputError, match="choose from true, false"):
        make_settings("gce", {"truncated": "1"})
    with pytest.raises(InputError, match=r"q=x: give a number$"):
        make_settings("gce", {"q": "x"})


@pytest.mark.parametrize(
    ("data", "changes", "warmup", "milestones"),
    [
        ("digits", {}, 11, (10, 20)),
        ("digits", {"epochs": 8}, 3, (3, 5)),
        ("digits", {"epochs": 8, "warmup": 5}, 5, (3, 5)),
        ("digits", {"epochs": 2}, 1, (1, 1)),
        ("cifar10", {"epochs": 120}, 44, (40, 80)),
        ("cifar10", {"epochs": 30, "lr_milestones": (7,)}, 11, (7,)),
    ],
)
def test_warmup_and_milestones_scale_with_epochs(
    data: str, changes: dict, warmup: int, milestones: tuple[int, ...]
) -> None:
    run = make_run(data, recipe="paper", **changes)
    assert (run.warmup, run.lr_milestones) == (warmup, milestones)


@pytest.mark.parametrize("name", METHODS)
def test_own_recipe_is_a_valid_run(name: str) -> None:
    run = make_run("cifar10", method=name, recipe="own")
    for field, value in METHODS[name].traits.own_recipe.items():
        if field != "settings":
            assert getattr(run, field) == value
    assert dict(run.settings) == dict(METHODS[name].traits.own_recipe.get("settings", {}))


@pytest.mark.parametrize("name", METHODS)
def test_paper_recipe_is_the_paper_schedule(name: str) -> None:
    run = make_run("cifar10", recipe="paper", method=name)
    assert (run.epochs, run.warmup, run.lr, run.lr_milestones) == (120, 44, 0.01, (40, 80))
    assert (run.batch_size, run.momentum, run.weight_decay, run.augment) == (128, 0.9, 1e-4, "flip-crop")
    assert not run.settings


def test_explicit_settings_override_the_recipe() -> None:
    run = make_run("cifar10", method="pencil", recipe="own", epochs=7, lr_milestones=(3,), settings={"b": 0.7})
    assert (run.epochs, run.lr_milestones, run.settings["b"]) == (7, (3,), 0.7)
    assert run.settings["label_step"] == METHODS["pencil"].traits.own_recipe["settings"]["label_step"]


def test_own_recipes_change_existing_fields() -> None:
    fields = {field.name for field in dataclasses.fields(Run)}
    for name, method in METHODS.items():
        assert set(method.traits.own_recipe) <= fields, name


def test_data_format_is_detected(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "folder.csv").mkdir()
    x, y = table_samples(9, seed=0)
    for data, expected in (
        ("digits", "benchmark"),
        (str(tmp_path / "images"), "folder"),
        (f"{tmp_path}/images/", "folder"),
        (str(tmp_path / "folder.csv"), "folder"),
        (str(tmp_path / "table.CSV"), "table"),
        (str(write_npz(tmp_path / "arrays.npz", x_clean=x, y_clean=y)), "npz"),
    ):
        run = make_run(data, recipe="paper")
        assert (run.data, run.data_format) == (data, expected)
        assert run.is_folder_or_table == (expected in ("folder", "table"))
    with pytest.raises(InputError, match="nowhere/photos: no such file, folder or run; give a folder of images"):
        make_run(tmp_path / "nowhere" / "photos")
    (tmp_path / "data.doc").touch()
    with pytest.raises(InputError, match=r"data\.doc is not a supported kind of data: give a folder of images"):
        make_run(tmp_path / "data.doc")
    with pytest.raises(InputError, match="unknown data set 'digit': did you mean 'digits'"):
        make_run("digit", recipe="paper")


def test_data_format_is_kept_when_the_data_is_gone(tmp_path: Path) -> None:
    """A run folder can be read on a machine without its data."""
    data = tmp_path / "images"
    data.mkdir()
    run = make_run(str(data), recipe="paper")
    data.rmdir()
    assert dataclasses.replace(run, seed=1).data_format == "folder"
    assert Run(data=IN_MEMORY, data_format="memory").data == IN_MEMORY
    with pytest.raises(InputError, match="unknown data format 'dir'"):
        dataclasses.replace(run, data_format="dir")


def test_clean_is_a_number_or_all(tmp_path: Path) -> None:
    x, y = table_samples(9, seed=0)
    with_clean = str(write_npz(tmp_path / "clean.npz", x_clean=x, y_clean=y))
    assert (make_run(with_clean, recipe="paper").clean, make_run(with_clean, recipe="paper").clean_size) == (
        "all",
        None,
    )
    assert (
        make_run(with_clean, recipe="paper", clean=6).clean,
        make_run(with_clean, recipe="paper", clean=6).clean_size,
    ) == (6, 6)
    assert make_run("digits", recipe="paper").clean_size == 100
    with pytest.raises(InputError, match="clean all: digits marks no samples as clean"):
        make_run("digits", recipe="paper", clean="all")
    with pytest.raises(InputError, match="clean 'some' is not valid: give a number of samples, or all"):
        make_run("digits", recipe="paper", clean="some")
    with pytest.raises(InputError, match="clean=None: give a number of samples, or 'all'"):
        make_run("digits", recipe="paper", clean=None)
    with pytest.raises(InputError, match="clean 0 is too small: the minimum is 1"):
        make_run("digits", recipe="paper", clean=0)
    with pytest.raises(InputError, match="limit 0 is too small: the minimum is 2"):
        make_run("digits", recipe="paper", limit=0)
    assert make_run("digits", recipe="paper").limit is None
