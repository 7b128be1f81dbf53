"""Names and types of a run's settings, passed from Python."""

import dataclasses
import json
import types
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch

from metalabelnet.errors import InputError
from metalabelnet.inference.predict import Predictor
from metalabelnet.noise import Noise
from metalabelnet.train import Run, RunFolder, make_run, train
from metalabelnet.train.option_types import convert_options

HINTS = get_type_hints(Run)
WRONG_VALUES = [None, float("nan"), 2.5, True, b"x", object(), np.array([1, 2]), np.bool_(True), {"a": 1}, [1, "a"], ""]


def may_be(value: Any, hint: Any) -> bool:
    """Return whether the type hint of a setting allows a value."""
    members = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for member in members:
        if member is float and isinstance(value, float):
            return True
        if "Mapping" in str(member) and isinstance(value, dict):
            return True
        if "tuple" in str(member) and isinstance(value, np.ndarray):
            return True
        if isinstance(member, type) and type(value) is member:
            return True
    return False


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Run)])
def test_value_of_another_type_gives_one_line_that_names_the_setting(name: str) -> None:
    for value in WRONG_VALUES:
        if may_be(value, HINTS[name]):
            continue
        with pytest.raises(InputError, match=rf"^{name}=.*: give ") as caught:
            make_run(**{"data": "digits", name: value})
        assert "\n" not in str(caught.value)
        with pytest.raises(InputError, match=rf"^{name}="):
            Run(**{name: value})


def test_module_as_network() -> None:
    with pytest.raises(
        InputError, match=r"net=Linear\(.*: give the name of a network; a module goes to train\(run, net="
    ):
        make_run("digits", net=torch.nn.Linear(2, 2))


def test_unknown_name() -> None:
    with pytest.raises(InputError, match="unknown setting of a run 'epoch': did you mean 'epochs'"):
        make_run("digits", epoch=3)


def test_numbers_of_numpy_paths_and_lists_are_converted(tmp_path: Path) -> None:
    run = make_run(
        "digits",
        data_dir=tmp_path,
        epochs=np.int64(4),
        lr=np.float32(0.5),
        lr_milestones=np.array([1, 2]),
        seed=np.uint8(3),
        device=torch.device("cpu"),
    )
    assert (run.data_dir, run.epochs, run.lr, run.lr_milestones, run.seed) == (str(tmp_path), 4, 0.5, (1, 2), 3)
    assert run == make_run(
        "digits", data_dir=str(tmp_path), epochs=4, lr=0.5, lr_milestones=[1, 2], seed=3, device="cpu"
    )
    assert json.loads(json.dumps(dataclasses.asdict(run)))["epochs"] == 4


def test_long_value_is_cut() -> None:
    with pytest.raises(InputError, match=r"^epochs=.{1,80}: give an integer$"):
        convert_options({"epochs": "x" * 1000})
    with pytest.raises(InputError, match=r"^epochs=.{1,80}: give an integer$"):
        convert_options({"epochs": np.zeros((40, 40))})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({1: 2}, "unknown setting of ssr '1'"),
        ({"neighbors": 2.5}, "neighbors=2.5: give an integer"),
        ({"neighbors": None}, "neighbors=None: give an integer"),
        ({"alpha": float("nan")}, "alpha=nan: give a number that is 0 or more"),
        ({"alpha": [1]}, r"alpha=\[1\]: give a number"),
    ],
)
def test_wrong_setting_of_a_method(settings: dict[Any, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_run("digits", method="ssr", settings=settings)


def test_arguments_of_train() -> None:
    run = make_run("digits")
    for wrong, message in (
        ({"run": "digits"}, "run='digits': give the settings that make_run returns"),
        ({"run": run, "net": "mlp"}, "net='mlp': give a module"),
        ({"run": run, "folder": 3}, "folder=3: give a path"),
        ({"run": run, "on_progress": "x"}, "on_progress='x': give a function"),
    ):
        with pytest.raises(InputError, match=message):
            train(**wrong)


def test_folders_as_text(tmp_path: Path) -> None:
    assert RunFolder(str(tmp_path)).path == tmp_path
    for reader in (lambda path: RunFolder(path).summary(), Predictor):
        with pytest.raises(InputError, match="is not a run folder"):
            reader(str(tmp_path))
        with pytest.raises(InputError, match="folder=3: give a path"):
            reader(3)


def test_noise_of_another_type() -> None:
    with pytest.raises(InputError, match=r"noise=0\.4: give a string such as 'uniform:0\.4'"):
        Noise.parse(0.4)
    for rate in ("0.4", True, float("nan")):
        with pytest.raises(InputError, match=r"noise rate .* is not in"):
            Noise(kind="uniform", rate=rate)
    assert Noise(kind="uniform", rate=np.float32(0.5)).rate == 0.5
