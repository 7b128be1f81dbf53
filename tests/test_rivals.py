"""The implementations with other packages in benchmarks/rivals.py compute what metalabelnet computes.

Each is skipped where its package is missing.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import rivals

SHAPE = {"batch": 6, "size": 8, "device": "cpu", "net": "small-cnn"}


@pytest.fixture(params=rivals.RIVALS)
def make_iteration(request):
    if problem := rivals.import_problem(request.param):
        pytest.skip(f"{request.param}: {problem}")
    return rivals.RIVALS[request.param]


@pytest.mark.parametrize("dtype", rivals.TOLERANCE)
def test_package_computes_the_same_iteration(make_iteration, dtype):
    s = rivals.make_start(**SHAPE, dtype=dtype)
    differences = rivals.compare(make_iteration, s)
    assert rivals.agrees(differences, s), differences


def test_package_computes_the_same_sequence_of_iterations(make_iteration):
    """Momentum, Adam's moments and the weights restored after a look-ahead carry over to the next iteration."""
    s = rivals.make_start(**SHAPE, dtype=torch.float64)
    expected, actual = rivals.with_metalabelnet(s), make_iteration(s)
    for _ in range(4):
        assert float(actual()) == pytest.approx(float(expected()), rel=1e-9)
    assert rivals.relative_difference(expected.theta(), actual.theta()) < 1e-9
    assert rivals.relative_difference(expected.phi(), actual.phi()) < 1e-9


ERRORS = {
    "another inner step": lambda s: replace(s, settings=replace(s.settings, inner_step=1.01)),
    "no entropy loss": lambda s: replace(s, settings=replace(s.settings, entropy_weight=0.0)),
    "no weight decay": lambda s: replace(s, weight_decay=0.0),
    "the other batch": lambda s: replace(s, x=s.x_m),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("dtype", rivals.TOLERANCE)
def test_comparison_detects_errors(error, dtype):
    s = rivals.make_start(**SHAPE, dtype=dtype)
    assert rivals.agrees(rivals.compare(lambda t: rivals.with_metalabelnet(t, "exact"), s), s)
    assert not rivals.agrees(rivals.compare(lambda t: rivals.with_metalabelnet(ERRORS[error](t)), s), s)


def test_comparison_detects_another_learning_rate_in_float64():
    s = rivals.make_start(**SHAPE, dtype=torch.float64)
    assert not rivals.agrees(rivals.compare(lambda t: rivals.with_metalabelnet(replace(t, lr=0.04)), s), s)


def test_row_without_a_measurement_has_the_reason(monkeypatch):
    def broken(_s):
        raise RuntimeError("no such thing\nand more")

    monkeypatch.setitem(sys.modules, "higher", None)
    settings = {"batch": 4, "size": 8, "device": "cpu", "seconds": 0.0}
    assert rivals.measure_row("higher", **settings)["note"] == "not installed"
    monkeypatch.setitem(rivals.REFERENCES, "broken", broken)
    row = rivals.measure_row("broken", **settings)
    assert (row["ms"], row["MiB"], row["note"]) == (None, None, "failed: RuntimeError: no such thing")


@pytest.mark.slow
def test_row_is_measured_in_a_subprocess():
    (row,) = rivals.measure_rows(batch=4, size=8, device="cpu", seconds=0.0, names=["metalabelnet, exact"])
    assert row["note"] == ""
    assert row["ms"] > 0
    assert row["MiB"] > 0
