"""Which clean rows are asked, look by look: all of them until the weights follow their labels, then those held out."""

import dataclasses
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import outcome, samples, tiny_run, write_npz
from torch import Tensor

from metalabelnet.core.calibration import calibrated
from metalabelnet.methods import METHODS
from metalabelnet.train import Stopped, train
from metalabelnet.train.build import build
from metalabelnet.train.correction import corrected
from metalabelnet.train.history import Candidate, Clean, History, better, candidate, clean_labels, given_probability
from metalabelnet.train.prepare import Problem

sys.path.append(str(Path(__file__).parents[1]))  # for `small`
from small import Walk, blobs, small_problem, small_run

FOLLOWS = [name for name in METHODS if build(small_run(name), small_problem()).clean_from is not None]


def test_these_follow_the_clean_labels() -> None:
    assert FOLLOWS == ["meta-only", "fine-tune", "metalabelnet-plus"]


@pytest.mark.parametrize("name", FOLLOWS)
def test_weights_follow_clean_labels_from_the_epoch_that_is_said(name: str) -> None:
    """With other clean labels the classifier says the same to the bit, until that epoch is over."""
    problem = small_problem()
    other = dataclasses.replace(problem.clean, true=(problem.clean.true + 1) % 3)
    walks = [Walk(small_run(name), dataclasses.replace(problem, clean=rows)) for rows in (problem.clean, other)]
    said = []
    for epoch in range(4):
        for walk in walks:
            walk.go(4)
            assert walk.epoch == epoch or walk.step == 0
        said.append(torch.equal(*(walk.method.logits(problem.test.x) for walk in walks)))
    first = walks[0].method.clean_from
    assert first is not None
    assert said == [epoch < first for epoch in range(4)]


class Said:
    """A method whose classifier says what it is told, and follows the clean labels from its third epoch on."""

    clean_from = 2
    reads_given = False

    def __init__(self) -> None:
        self.now = torch.empty(0)

    def logits(self, x: Tensor) -> Tensor:
        return self.now[: len(x)]


def test_the_mean_goes_on_with_the_rows_that_are_left() -> None:
    """By a naive loop: t of a look from all rows it is asked about, its weight from those that all looks are."""
    rows = blobs(12, seed=0)
    others = dataclasses.replace(rows, true=(rows.true + (torch.arange(12) < 7)) % 3)
    problem = Problem(train=rows, clean=others, select=rows, test=rows, noise_rate=0.0)
    g = torch.Generator().manual_seed(0)
    classes = torch.nn.functional.one_hot(rows.true, 3)
    epochs = [2 * classes + torch.randn(12, 3, generator=g, dtype=torch.float64) for _ in range(4)]
    history, method = History(4, 4), Said()
    losses, p_y = [], []
    for epoch, logits in enumerate(epochs):
        method.now = logits
        history.look(method, problem, epoch)  # type: ignore[arg-type]
        mean = torch.stack([e.softmax(1) for e in epochs[: epoch + 1]]).mean(0).log()
        if epoch < 2:
            t, _ = calibrated(torch.cat([mean, mean]), torch.cat([rows.true, others.true]))
        else:
            t, _ = calibrated(mean, rows.true)
        p = (mean / t).softmax(1)
        losses.append(-float(p[range(12), rows.true].log().mean()))
        p_y.append(p[range(12), rows.given])
    w = [math.exp(-math.sqrt(12) * (loss - min(losses))) for loss in losses]
    expected = 1 - math.prod(p ** (weight / sum(w)) for weight, p in zip(w, p_y, strict=True))
    torch.testing.assert_close(history.suspicion(), expected)
    assert history.clean is not None
    assert len(history.clean) == 12


def test_two_are_compared_on_the_rows_that_both_were_asked_about() -> None:
    few, many = torch.tensor([1.0, 1.1, 0.9]), torch.tensor([2.0, 2.0, 2.0, 0.0, 0.0, 0.0])
    assert better(few, many)
    assert not better(many, few)
    clean = Clean(torch.arange(6), torch.arange(6) - 1)
    found = candidate(torch.zeros(2, 6), torch.zeros(3, 6), torch.arange(3), (0, 0))
    assert clean.asked(found).true.tolist() == [0, 1, 2]
    assert clean.asked(found).labeled.tolist() == [False, True, True]


def test_the_most_rows_are_those_of_the_first_epoch() -> None:
    problem = small_problem()
    method = build(small_run("metalabelnet-plus"), problem)
    assert len(clean_labels(method, problem).true) == len(problem.select) + len(problem.clean)
    assert len(clean_labels(method, problem, 5).true) == len(problem.select)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,500 rows, one in six of the wrong class by its sample; 1,500 become the clean set, 300 of them held out."""
    x, y = samples(3500, seed=1)
    x = x + 0.9 * np.random.default_rng(10).normal(size=x.shape).astype(np.float32)
    return write_npz(tmp_path_factory.mktemp("data") / "many.npz", x_train=x, y_train=y)


@pytest.mark.parametrize("method", ["metalabelnet-plus", "fine-tune", "metalabelnet"])
def test_the_first_look_finds_out_what_a_given_label_is_worth(method: str, many: Path, tmp_path: Path) -> None:
    """One label in ten is wrong by chance, which 300 clean rows are too few to see.

    Of `fine-tune` a later epoch is taken for p, and the first look vouches for it.
    """
    changes = {"noise": "uniform:0.1", "meta": 1500, "unlabeled": 0, "epochs": 3, "batch_size": 100, "rate_drops": ()}
    summary = train(tiny_run(many, method, **changes), folder=tmp_path / "run").summary
    assert json.loads((tmp_path / "run" / "calibration.json").read_text())["labels"]["given"] is True
    assert summary["right_before"] == pytest.approx(90, abs=0.1)
    assert summary["right_after"] > 92


def made(p: Tensor, said: Tensor, true: Tensor, *, refitted: bool = False) -> Candidate:
    return candidate(p.log(), said.log(), true, (0, 0))._replace(refitted=refitted)


@pytest.mark.parametrize(
    ("wrong", "learned", "taken"),
    [("chance", False, True), ("unsure", False, False), ("chance", True, False)],
)
def test_the_first_look_vouches_for_a_later_one(wrong: str, learned: bool, taken: bool) -> None:
    """Of class-dependent noise, and of a p that has not learned given labels already."""
    g = torch.Generator().manual_seed(3)
    p = torch.randn(6000, 3, generator=g, dtype=torch.float64).mul(2).softmax(1)
    true = torch.multinomial(p, 1, generator=g)[:, 0]
    by_chance = torch.where(torch.rand(6000, generator=g) < 0.1, (true + 1) % 3, true)
    given = by_chance if wrong == "chance" else torch.where(p.max(1).values < 0.7, p.argsort(1)[:, 1], true)
    trained, checked, held_out = slice(0, 4000), slice(4000, 6000), slice(4000, 4060)
    later = (0.4 * p + 0.6 * torch.nn.functional.one_hot(given, 3) if learned else p)[trained]
    history = History(1, 1)
    history.fit = made(p[trained], p[checked], true[checked], refitted=True)
    history.best = made(later, p[held_out], true[held_out])
    history.believe(given_probability(history.best.p, given[trained]), history.best.losses)
    bad = candidate(torch.zeros(4000, 3), torch.zeros(60, 3), true[held_out], (0, 0))
    clean = Clean(true[checked], torch.full((2000,), -1))
    found, _ = corrected(history, bad, given[trained], clean)
    assert found.given is taken
    history.fit = None
    assert corrected(history, bad, given[trained], clean)[0] is history.best


@pytest.mark.parametrize(("name", "kept"), [("metalabelnet-plus", True), ("meta-only", False), ("metalabelnet", False)])
def test_the_first_look_is_kept_where_later_ones_have_fewer_rows(name: str, kept: bool) -> None:
    """And where it can tell: it is as large as the label table, and every checkpoint has it."""
    problem = small_problem()
    nobody = problem.select.with_given(torch.full_like(problem.select.given, -1))
    for count, tells in ((4000, kept), (12, False)):
        clean = blobs(count, seed=1).with_given(torch.full((count,), -1))
        some = dataclasses.replace(problem, clean=clean, select=nobody)
        history = History(6, 6)
        history.look(build(small_run(name), some), some, 0)
        assert (history.state()["fit"] is not None) is tells


@pytest.mark.parametrize("steps", [3, 4, 5, 9])
def test_resumed_it_asks_the_same_rows(steps: int, tmp_path: Path) -> None:
    """Four steps are the epoch of warm-up, after which there are fewer."""
    run = tiny_run(write_npz(tmp_path / "tiny.npz"), "metalabelnet-plus")
    train(run, folder=tmp_path / "whole")
    left = [steps]

    def stop() -> bool:
        left[0] -= 1
        return left[0] == 0

    with pytest.raises(Stopped):
        train(run, folder=tmp_path / "run", stop=stop)
    train(run, folder=tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
