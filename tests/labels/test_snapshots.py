"""Which clean rows evaluate labels: all of them at the first snapshot, if the classifier is not yet trained on them."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from metalabelnet.data.problem import Problem
from metalabelnet.labels.correction import correct_labels
from metalabelnet.labels.snapshots import (
    CleanLabels,
    LabelDistribution,
    Snapshots,
    calibrated_distribution,
    given_probability,
)
from metalabelnet.train import RunStopped, train
from metalabelnet.train.build_method import build_method
from small_runs import TRAINED_METHODS, StepRunner, column_images, small_problem, small_run, tiny_cnn
from tiny_data import run_outputs, table_samples, tiny_run, write_npz

TRAINED_ON_CLEAN = ["clean-only", "fine-tune", "fixmatch", "glc", "metalabelnet-plus", "dividemix", "mlc"]


def test_methods_trained_on_clean_labels() -> None:
    methods = {name: build_method(small_run(name), small_problem(), tiny_cnn()) for name in TRAINED_METHODS}
    assert [name for name, method in methods.items() if method.clean_from is not None] == TRAINED_ON_CLEAN


def problem_with_clean(count: int) -> Problem:
    """Return a problem with this many clean rows, none of which has a given label."""
    problem = small_problem()
    clean, select = (
        rows.with_given_labels(torch.full((len(rows),), -1))
        for rows in (column_images(count, seed=1), problem.validation)
    )
    return dataclasses.replace(problem, clean=clean, validation=select)


@pytest.mark.parametrize("name", TRAINED_ON_CLEAN)
def test_clean_labels_change_weights_from_clean_from_on(name: str) -> None:
    """With other clean labels the classifier predicts the same bits before that epoch."""
    problem = small_problem()
    other = dataclasses.replace(problem.clean, true=(problem.clean.true + 1) % 3)
    runners = [StepRunner(small_run(name), dataclasses.replace(problem, clean=rows)) for rows in (problem.clean, other)]
    equal = []
    for epoch in range(4):
        for runner in runners:
            runner.advance(4)
            assert runner.epoch == epoch or runner.step == 0
        equal.append(torch.equal(*(runner.method.logits(problem.test.x) for runner in runners)))
    first = runners[0].method.clean_from
    assert first is not None
    assert equal == [epoch < first for epoch in range(4)]


def test_comparisons_and_suspicion_use_the_same_rows_in_all_epochs() -> None:
    """With t fitted on more rows than the others have, p_F would win comparisons that it should lose."""
    problem = problem_with_clean(4000)
    histories = []
    for first in (0, 1):
        history, method = Snapshots(6, 6), build_method(small_run("metalabelnet-plus"), problem)
        method.clean_from = first
        history.add_epoch(method, problem, 0)
        histories.append(history)
    held_out, every = histories
    assert held_out.best is not None
    assert every.best is not None
    assert every.refit is not None
    assert held_out.refit is None
    assert len(held_out.best.losses) == len(every.best.losses) == 9
    assert torch.equal(held_out.best.p, every.best.p)
    assert torch.equal(held_out.suspicion(), every.suspicion())
    assert len(every.refit.losses) == 4009
    assert every.refit.temperature != every.best.temperature
    assert torch.equal(every.refit.p.argmax(1), every.best.p.argmax(1))


def test_distribution_evaluated_on_fewer_rows_has_the_first() -> None:
    clean = CleanLabels(torch.arange(6), torch.arange(6) - 1)
    found = calibrated_distribution(torch.zeros(2, 6), torch.zeros(3, 6), torch.arange(3), (0, 0))
    assert clean.rows_evaluated_by(found).true.tolist() == [0, 1, 2]
    assert clean.rows_evaluated_by(found).labeled.tolist() == [False, True, True]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,500 rows with overlapping classes (one in six is misclassified); 1,500 become clean, 300 of them held out."""
    x, y = table_samples(3500, seed=1)
    x = x + 0.9 * np.random.default_rng(10).normal(size=x.shape).astype(np.float32)
    return write_npz(tmp_path_factory.mktemp("data") / "many.npz", x_train=x, y_train=y)


@pytest.mark.parametrize(
    "method", [pytest.param("metalabelnet-plus", marks=pytest.mark.slow), "fine-tune", "metalabelnet"]
)
def test_first_snapshot_evaluates_given_labels_on_all_clean_rows(method: str, many: Path, tmp_path: Path) -> None:
    """One label in ten is randomly wrong; 300 validation rows are too few to see it."""
    changes = {
        "noise": "uniform:0.1",
        "clean": 1500,
        "unlabeled": 0,
        "epochs": 3,
        "batch_size": 100,
        "lr_milestones": (),
        "net": "mlp",
    }
    summary = train(tiny_run(many, method, **changes), folder=tmp_path / "run").summary
    assert json.loads((tmp_path / "run" / "calibration.json").read_text())["labels"]["given"] is True
    assert summary["right_before"] == pytest.approx(90, abs=1)
    assert summary["right_after"] > 92


def distribution(p: Tensor, clean_p: Tensor, true: Tensor, *, is_refit: bool = False) -> LabelDistribution:
    return calibrated_distribution(p.log(), clean_p.log(), true, (0, 0))._replace(is_refit=is_refit)


@pytest.mark.parametrize(
    ("wrong", "memorized", "taken"),
    [("chance", False, True), ("unsure", False, False), ("chance", True, False)],
)
def test_refit_measures_the_gap_for_a_later_mean(wrong: str, memorized: bool, taken: bool) -> None:
    """For class-dependent noise, and a p that has not memorized given labels."""
    g = torch.Generator().manual_seed(3)
    p = torch.randn(6000, 3, generator=g, dtype=torch.float64).mul(2).softmax(1)
    true = torch.multinomial(p, 1, generator=g)[:, 0]
    by_chance = torch.where(torch.rand(6000, generator=g) < 0.1, (true + 1) % 3, true)
    given = by_chance if wrong == "chance" else torch.where(p.max(1).values < 0.7, p.argsort(1)[:, 1], true)
    trained, checked, held_out = slice(0, 4000), slice(4000, 6000), slice(4000, 4060)
    later = (0.4 * p + 0.6 * torch.nn.functional.one_hot(given, 3) if memorized else p)[trained]
    history = Snapshots(1, 1)
    history.refit = distribution(p[trained], p[checked], true[checked], is_refit=True)
    history.best = distribution(later, p[held_out], true[held_out])
    history.add_given_probability(given_probability(history.best.p, given[trained]), history.best.losses)
    bad = calibrated_distribution(torch.zeros(4000, 3), torch.zeros(60, 3), true[held_out], (0, 0))
    clean = CleanLabels(true[checked], torch.full((2000,), -1))
    found, _ = correct_labels(history, bad, given[trained], clean)
    assert found.uses_given is taken
    history.refit = None
    assert correct_labels(history, bad, given[trained], clean)[0] is history.best


@pytest.mark.parametrize(
    ("name", "kept"), [("metalabelnet-plus", True), ("clean-only", False), ("metalabelnet", False)]
)
def test_refit_is_stored_if_later_snapshots_have_fewer_rows(name: str, kept: bool) -> None:
    """And if its rows are enough: it is as large as the label table, and every checkpoint contains it."""
    for count, expected in ((4000, kept), (12, False)):
        problem = problem_with_clean(count)
        history = Snapshots(6, 6)
        history.add_epoch(build_method(small_run(name), problem), problem, 0)
        assert (history.state()["refit"] is not None) is expected


def test_posterior_is_compared_on_the_same_rows() -> None:
    """p_F was evaluated on more rows; its t is fitted again on the common ones."""
    g = torch.Generator().manual_seed(3)
    p = torch.randn(900, 3, generator=g, dtype=torch.float64).mul(2).softmax(1)
    true = torch.multinomial(p, 1, generator=g)[:, 0]
    given = torch.where(torch.rand(900, generator=g) < 0.1, (true + 1) % 3, true)
    true[500:] = true[500:].roll(1)  # on the other clean rows p is useless
    results = []
    for last in (500, 900):
        history = Snapshots(1, 1)
        history.refit = distribution(p[:400], p[400:last], true[400:last], is_refit=True)
        history.best = distribution(torch.ones(400, 3), torch.ones(100, 3), true[400:500])
        history.add_given_probability(given_probability(history.best.p, given[:400]), history.best.losses)
        found, _ = correct_labels(history, history.best, given[:400], CleanLabels(true[400:], given[400:]))
        assert found.uses_given
        assert len(found.losses) == 100
        results.append((history.refit.temperature, found))
    (few, alone), (many, cut) = results
    assert many > 2 * few
    torch.testing.assert_close(cut.p, alone.p, atol=1e-3, rtol=0)
    torch.testing.assert_close(cut.losses, alone.losses, atol=0, rtol=1e-2)


@pytest.mark.parametrize("steps", [3, 4, 5, 9])
def test_resume_gives_same_bytes(steps: int, tmp_path: Path) -> None:
    """Warm-up, after which fewer rows are evaluated, has four steps."""
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
