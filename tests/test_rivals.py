"""The rivals of the benchmark compute what we compute. Each is skipped where its package is missing."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import rivals

SHAPE = {"batch": 6, "size": 8, "device": "cpu", "net": "small-cnn"}


@pytest.fixture(params=rivals.RIVALS)
def make(request):
    if said := rivals.note(request.param):
        pytest.skip(f"{request.param}: {said}")
    return rivals.RIVALS[request.param]


@pytest.mark.parametrize("dtype", rivals.TOLERANCE)
def test_a_rival_computes_the_same(make, dtype):
    s = rivals.start(**SHAPE, dtype=dtype)
    found = rivals.check(make, s)
    assert rivals.agrees(found, s), found


def test_many_iterations_stay_together(make):
    """Momentum, Adam's moments and what is put back after a look-ahead carry over from one iteration to the next."""
    s = rivals.start(**SHAPE, dtype=torch.float64)
    mine, theirs = rivals.ours(s), make(s)
    for _ in range(4):
        assert float(theirs()) == pytest.approx(float(mine()), rel=1e-9)
    assert rivals.difference(mine.theta(), theirs.theta()) < 1e-9
    assert rivals.difference(mine.phi(), theirs.phi()) < 1e-9


WRONG = {
    "another inner step": lambda s: replace(s, settings=replace(s.settings, inner_step=1.01)),
    "no entropy loss": lambda s: replace(s, settings=replace(s.settings, entropy_weight=0.0)),
    "no decay": lambda s: replace(s, weight_decay=0.0),
    "the other batch": lambda s: replace(s, x=s.x_m),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("dtype", rivals.TOLERANCE)
def test_the_check_sees_what_is_wrong(wrong, dtype):
    s = rivals.start(**SHAPE, dtype=dtype)
    assert rivals.agrees(rivals.check(lambda t: rivals.ours(t, "exact"), s), s)
    assert not rivals.agrees(rivals.check(lambda t: rivals.ours(WRONG[wrong](t)), s), s)


def test_a_rate_is_seen_in_double_precision():
    s = rivals.start(**SHAPE, dtype=torch.float64)
    assert not rivals.agrees(rivals.check(lambda t: rivals.ours(replace(t, lr=0.04)), s), s)


def test_a_row_says_why_it_is_empty(monkeypatch):
    def broken(_s):
        raise RuntimeError("no such thing\nand more")

    monkeypatch.setitem(sys.modules, "higher", None)
    settings = {"batch": 4, "size": 8, "device": "cpu", "seconds": 0.0}
    assert rivals.row("higher", **settings)["note"] == "not installed"
    monkeypatch.setitem(rivals.OURS, "broken", broken)
    row = rivals.row("broken", **settings)
    assert (row["ms"], row["MiB"], row["note"]) == (None, None, "cannot: RuntimeError: no such thing")


def test_a_row_of_its_own_process():
    (row,) = rivals.rows(batch=4, size=8, device="cpu", seconds=0.0, names=["ours, exact"])
    assert row["note"] == ""
    assert row["ms"] > 0
    assert row["MiB"] > 0
