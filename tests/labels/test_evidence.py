"""Which clean rows are asked: all of them at a first look that comes before their labels are learned."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from metalabelnet.data.problem import Problem
from metalabelnet.labels.correction import correct_labels
from metalabelnet.labels.snapshots import LabelDistribution, Clean, Snapshots, calibrated_distribution, given_probability
from metalabelnet.methods import METHODS
from metalabelnet.train import RunStopped, train
from metalabelnet.train.build_method import build_method
from tiny_data import run_outputs, table_samples, tiny_run, write_npz

sys.path.append(str(Path(__file__).parents[1]))  # for `small`
from small_runs import StepRunner, column_images, small_problem, small_run

FOLLOWS = [name for name in METHODS if build_method(small_run(name), small_problem()).clean_from is not None]


def test_these_follow_the_clean_labels() -> None:
    assert FOLLOWS == ["clean-only", "fine-tune", "metalabelnet-plus"]


def many_clean(count: int) -> Problem:
    """None of them with a given label."""
    problem = small_problem()
    clean, select = (
        rows.with_given_labels(torch.full((len(rows),), -1)) for rows in (column_images(count, seed=1), problem.validation)
    )
    return dataclasses.replace(problem, clean=clean, validation=select)


@pytest.mark.parametrize("name", FOLLOWS)
def test_weights_follow_clean_labels_from_the_epoch_that_is_said(name: str) -> None:
    """With other clean labels the classifier says the same to the bit, until that epoch is over."""
    problem = small_problem()
    other = dataclasses.replace(problem.clean, true=(problem.clean.true + 1) % 3)
    walks = [StepRunner(small_run(name), dataclasses.replace(problem, clean=rows)) for rows in (problem.clean, other)]
    said = []
    for epoch in range(4):
        for walk in walks:
            walk.advance(4)
            assert walk.epoch == epoch or walk.step == 0
        said.append(torch.equal(*(walk.method.logits(problem.test.x) for walk in walks)))
    first = walks[0].method.clean_from
    assert first is not None
    assert said == [epoch < first for epoch in range(4)]


def test_comparisons_and_suspicion_are_by_the_rows_of_any_epoch() -> None:
    """A p_F with its t from more rows than the others have would win what it should lose."""
    problem = many_clean(4000)
    histories = []
    for first in (0, 1):
        history, method = Snapshots(6, 6), build_method(small_run("metalabelnet-plus"), problem)
        method.clean_from = first
        history.add_epoch(method, problem, 0)
        histories.append(history)
    held_out, every = histories
    assert held_out.best is not None
    assert every.best is not None
    assert every.fit is not None
    assert held_out.fit is None
    assert len(held_out.best.losses) == len(every.best.losses) == 9
    assert torch.equal(held_out.best.p, every.best.p)
    assert torch.equal(held_out.suspicion(), every.suspicion())
    assert len(every.fit.losses) == 4009
    assert every.fit.temperature != every.best.temperature
    assert torch.equal(every.fit.p.argmax(1), every.best.p.argmax(1))


def test_one_that_was_asked_about_fewer_has_the_first() -> None:
    clean = Clean(torch.arange(6), torch.arange(6) - 1)
    found = calibrated_distribution(torch.zeros(2, 6), torch.zeros(3, 6), torch.arange(3), (0, 0))
    assert clean.asked(found).true.tolist() == [0, 1, 2]
    assert clean.asked(found).labeled.tolist() == [False, True, True]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,500 rows, one in six of the wrong class by its sample; 1,500 become the clean set, 300 of them held out."""
    x, y = table_samples(3500, seed=1)
    x = x + 0.9 * np.random.default_rng(10).normal(size=x.shape).astype(np.float32)
    return write_npz(tmp_path_factory.mktemp("data") / "many.npz", x_train=x, y_train=y)


@pytest.mark.parametrize("method", ["metalabelnet-plus", "fine-tune", "metalabelnet"])
def test_the_first_look_finds_out_what_a_given_label_is_worth(method: str, many: Path, tmp_path: Path) -> None:
    """One label in ten is wrong by chance, which 300 clean rows are too few to see."""
    changes = {
        "noise": "uniform:0.1",
        "clean": 1500,
        "unlabeled": 0,
        "epochs": 3,
        "batch_size": 100,
        "lr_milestones": (),
    }
    summary = train(tiny_run(many, method, **changes), folder=tmp_path / "run").summary
    assert json.loads((tmp_path / "run" / "calibration.json").read_text())["labels"]["given"] is True
    assert summary["right_before"] == pytest.approx(90, abs=0.1)
    assert summary["right_after"] > 92


def made(p: Tensor, said: Tensor, true: Tensor, *, refitted: bool = False) -> LabelDistribution:
    return calibrated_distribution(p.log(), said.log(), true, (0, 0))._replace(refitted=refitted)


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
    history = Snapshots(1, 1)
    history.fit = made(p[trained], p[checked], true[checked], refitted=True)
    history.best = made(later, p[held_out], true[held_out])
    history.add_given_probability(given_probability(history.best.p, given[trained]), history.best.losses)
    bad = calibrated_distribution(torch.zeros(4000, 3), torch.zeros(60, 3), true[held_out], (0, 0))
    clean = Clean(true[checked], torch.full((2000,), -1))
    found, _ = correct_labels(history, bad, given[trained], clean)
    assert found.given is taken
    history.fit = None
    assert correct_labels(history, bad, given[trained], clean)[0] is history.best


@pytest.mark.parametrize(
    ("name", "kept"), [("metalabelnet-plus", True), ("clean-only", False), ("metalabelnet", False)]
)
def test_the_first_look_is_kept_where_later_ones_have_fewer_rows(name: str, kept: bool) -> None:
    """And where it can tell: it is as large as the label table, and every checkpoint has it."""
    for count, tells in ((4000, kept), (12, False)):
        problem = many_clean(count)
        history = Snapshots(6, 6)
        history.add_epoch(build_method(small_run(name), problem), problem, 0)
        assert (history.state()["fit"] is not None) is tells


def test_bayes_rule_is_held_to_the_rows_of_the_one_it_is_compared_with() -> None:
    """Of p_F, which was asked about more of them, t is then that of those rows alone."""
    g = torch.Generator().manual_seed(3)
    p = torch.randn(900, 3, generator=g, dtype=torch.float64).mul(2).softmax(1)
    true = torch.multinomial(p, 1, generator=g)[:, 0]
    given = torch.where(torch.rand(900, generator=g) < 0.1, (true + 1) % 3, true)
    true[500:] = true[500:].roll(1)  # by the other clean rows p is worth nothing
    results = []
    for last in (500, 900):
        history = Snapshots(1, 1)
        history.fit = made(p[:400], p[400:last], true[400:last], refitted=True)
        history.best = made(torch.ones(400, 3), torch.ones(100, 3), true[400:500])
        history.add_given_probability(given_probability(history.best.p, given[:400]), history.best.losses)
        found, _ = correct_labels(history, history.best, given[:400], Clean(true[400:], given[400:]))
        assert found.given
        assert len(found.losses) == 100
        results.append((history.fit.temperature, found))
    (few, alone), (many, cut) = results
    assert many > 2 * few
    torch.testing.assert_close(cut.p, alone.p, atol=1e-3, rtol=0)
    torch.testing.assert_close(cut.losses, alone.losses, atol=0, rtol=1e-2)


@pytest.mark.parametrize("steps", [3, 4, 5, 9])
def test_resumed_it_asks_the_same_rows(steps: int, tmp_path: Path) -> None:
    """Four steps are the epoch of warm-up, after which there are fewer."""
    run = tiny_run(write_npz(tmp_path / "tiny.npz"), "metalabelnet-plus")
    train(run, folder=tmp_path / "whole")
    left = [steps]

    def stop() -> bool:
        left[0] -= 1
        return left[0] == 0

    with pytest.raises(RunStopped):
        train(run, folder=tmp_path / "run", stop=stop)
    train(run, folder=tmp_path / "run", resume=True)
    assert run_outputs(tmp_path / "run") == run_outputs(tmp_path / "whole")
