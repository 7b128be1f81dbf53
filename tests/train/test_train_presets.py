"""The two presets: the recipe all methods share, and each method's own."""

import dataclasses

import pytest

from metalabelnet.methods import METHODS
from metalabelnet.train import Run, recipe


@pytest.mark.parametrize("name", METHODS)
def test_the_own_preset_of_every_method_is_a_run(name: str) -> None:
    run = recipe("cifar10", method=name, preset="own")
    for field, value in METHODS[name].traits.own_preset.items():
        if field != "settings":
            assert getattr(run, field) == value
    assert dict(run.settings) == dict(METHODS[name].traits.own_preset.get("settings", {}))


@pytest.mark.parametrize("name", METHODS)
def test_the_shared_recipe_is_the_papers_for_every_method(name: str) -> None:
    run = recipe("cifar10", method=name)
    assert (run.epochs, run.warmup, run.lr, run.lr_milestones) == (120, 44, 0.01, (40, 80))
    assert (run.batch_size, run.momentum, run.weight_decay, run.augment) == (128, 0.9, 1e-4, "flip-crop")
    assert not run.settings


def test_what_is_asked_for_wins_over_the_preset() -> None:
    run = recipe("cifar10", method="pencil", preset="own", epochs=7, lr_milestones=(3,), settings={"b": 0.7})
    assert (run.epochs, run.lr_milestones, run.settings["b"]) == (7, (3,), 0.7)
    assert run.settings["label_step"] == METHODS["pencil"].traits.own_preset["settings"]["label_step"]


def test_own_presets_change_fields_that_exist() -> None:
    fields = {field.name for field in dataclasses.fields(Run)}
    for name, method in METHODS.items():
        assert set(method.traits.own_preset) <= fields, name
