"""Joint Optimization: losses by their formulas, label updates, stages and learning rates."""

import io
import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from metalabelnet.core.losses import cross_entropy
from metalabelnet.errors import InputError
from metalabelnet.labels.metrics import predict_logits
from metalabelnet.methods.joint_optimization import (
    JointOptimization,
    JointOptimizationSettings,
    PredictionWindow,
    prior_loss,
    soft_label_cross_entropy,
)
from metalabelnet.train.prepare import prepare
from metalabelnet.train.settings import make_run
from small_runs import StepRunner, small_problem, small_run

NAME = "joint-optimization"
PRIOR = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def random(rows: int = 5, classes: int = 4, seed: int = 0) -> Tensor:
    return 2 * torch.randn(rows, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def probabilities(row: list[float]) -> list[float]:
    return [math.exp(v) / sum(map(math.exp, row)) for v in row]


def test_soft_label_cross_entropy_equals_its_formula() -> None:
    z, y = random(), random(seed=1).softmax(1)
    naive = [
        -sum(yj * math.log(sj) for yj, sj in zip(row_y, probabilities(row_z), strict=True))
        for row_z, row_y in zip(z.tolist(), y.tolist(), strict=True)
    ]
    assert soft_label_cross_entropy(z, y).tolist() == pytest.approx(naive, rel=1e-12)


def test_soft_label_cross_entropy_of_one_hot_labels_is_cross_entropy() -> None:
    z, k = random(), torch.tensor([0, 3, 1, 1, 2])
    torch.testing.assert_close(soft_label_cross_entropy(z, torch.nn.functional.one_hot(k, 4)), cross_entropy(z, k))


def test_soft_label_cross_entropy_is_minimal_at_the_label() -> None:
    z, y = random().requires_grad_(), random().softmax(1)
    loss = soft_label_cross_entropy(z, y)
    torch.testing.assert_close(loss, -(y * y.log()).sum(1))
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), z)[0], torch.zeros(5, 4).double(), atol=1e-12, rtol=0)


def test_prior_loss_equals_its_formula() -> None:
    rows = [probabilities(row) for row in random().tolist()]
    mean = [sum(row[j] for row in rows) / len(rows) for j in range(4)]
    naive = sum(p * math.log(p / m) for p, m in zip(PRIOR.tolist(), mean, strict=True))
    assert float(prior_loss(random(), PRIOR)) == pytest.approx(naive, rel=1e-12)


def test_prior_loss_is_zero_if_the_mean_prediction_is_the_prior() -> None:
    uniform = torch.full((4,), 0.25).double()
    for scale in (0.0, 1.0, 50.0):
        assert float(prior_loss(scale * torch.eye(4).double(), uniform)) == pytest.approx(0, abs=1e-12)
    one_class = torch.zeros(6, 4).double()
    one_class[:, 2] = 9
    assert float(prior_loss(one_class, uniform)) > 5


def test_class_with_prior_0_does_not_contribute() -> None:
    prior = torch.tensor([0.5, 0.5, 0.0]).double()
    z = torch.tensor([[40.0, 0, -40], [0, 40, -40]]).double().requires_grad_()
    loss = prior_loss(z, prior)
    assert loss.item() == pytest.approx(0, abs=1e-12)
    assert torch.isfinite(torch.autograd.grad(loss, z)[0]).all()


def test_gradcheck() -> None:
    z, y = random().requires_grad_(), random(seed=1).softmax(1)
    assert gradcheck(lambda z: soft_label_cross_entropy(z, y), (z,))
    assert gradcheck(lambda z: prior_loss(z, PRIOR), (z,))


@pytest.mark.parametrize("size", [1e3, 1e10, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_are_finite(size: float, dtype: torch.dtype) -> None:
    z = (size * random().sign()).to(dtype)
    z[:, 1] = -size  # class 1 is never predicted
    z.requires_grad_()
    hard = torch.nn.functional.one_hot(torch.arange(5) % 4, 4).to(dtype)
    for loss in (soft_label_cross_entropy(z, hard).sum(), prior_loss(z, PRIOR.to(dtype))):
        assert torch.isfinite(loss)
        assert torch.isfinite(torch.autograd.grad(loss, z)[0]).all()


def test_prediction_window_keeps_the_last_epochs() -> None:
    window, seen = PredictionWindow(3, 5, 4, PRIOR), []
    for seed in range(8):
        seen.append(random(seed=seed).softmax(1))
        window.add(seen[-1].split(2))  # a chunk at a time
        torch.testing.assert_close(window.mean().local, torch.stack(seen[-3:]).mean(0))


# In the first stage of 12 epochs, epochs 0 to 3 use the given labels. The second stage has 12 more epochs.


def train_by_epoch(**changes: object) -> tuple[StepRunner, list[Tensor], list[Tensor]]:
    """Return the runner, the soft labels at the start and after each epoch, and the predictions after each epoch."""
    run = small_run(NAME, epochs=12, **changes)
    runner = StepRunner(run, small_problem(unlabeled=5))
    table, predicted = [runner.method.soft_labels()], []
    for epoch in range(runner.method.epochs):
        runner.method.begin_epoch(epoch)
        for batch in runner.batches.epoch(epoch, labeled_only=True):
            runner.method.step(batch)
        predicted.append(predict_logits(runner.method, runner.problem.train.x).softmax(1))
        runner.method.end_epoch(epoch)
        table.append(runner.method.soft_labels())
    return runner, table, predicted


def test_labels_start_as_given_and_change_from_update_from_to_the_second_stage() -> None:
    runner, table, _ = train_by_epoch()
    given = runner.problem.train.given[5:]
    assert torch.equal(table[0][5:], torch.nn.functional.one_hot(given, 3).double())
    moved = [not torch.equal(before, after) for before, after in itertools.pairwise(table)]
    assert moved == 3 * [False] + 9 * [True] + 12 * [False]  # epoch 4 is the first with updated labels


@pytest.mark.parametrize("window", [1, 30, 50])
def test_labels_are_the_mean_of_the_last_predictions_without_augmentation(window: int) -> None:
    """Windows are for 120 epochs, so 30 means 3 of 12. A longer window uses all epochs so far."""
    epochs = max(1, window // 10)
    _, table, predicted = train_by_epoch(settings={"window": window}, augment="flip-crop")
    for epoch in range(3, 12):
        mean = torch.stack(predicted[max(0, epoch + 1 - epochs) : epoch + 1]).mean(0)
        torch.testing.assert_close(table[epoch + 1][5:], mean[5:])


def test_hard_labels_are_the_most_likely_class() -> None:
    _, table, predicted = train_by_epoch(settings={"window": 20, "labels": "hard"})
    hard = torch.nn.functional.one_hot(torch.stack(predicted[10:12]).mean(0).argmax(1), 3).double()
    assert torch.equal(table[-1][5:], hard[5:])


def test_unlabeled_rows_stay_uniform() -> None:
    _, table, _ = train_by_epoch()
    torch.testing.assert_close(table[-1][:5], torch.full((5, 3), 1 / 3).double())


def test_second_stage_trains_a_new_network_from_the_initial_lr() -> None:
    runner = StepRunner(small_run(NAME), small_problem()).advance(6 * 4)
    first, sgd = runner.method.net, runner.method.sgd
    assert isinstance(runner.method, JointOptimization)
    runner.method.end_epoch(5)
    runner.method.begin_epoch(6)
    new = {k: w.clone() for k, w in runner.method.net.state_dict().items()}
    assert runner.method.net is not first
    assert runner.method.sgd is not sgd
    assert all(torch.equal(w, new[k]) for k, w in runner.method.task.make_net(1).state_dict().items())
    assert runner.method.sgd.lr == 0.05
    runner.method.begin_epoch(6)  # as after a resume
    assert all(torch.equal(w, new[k]) for k, w in runner.method.net.state_dict().items())


def test_second_stage_minimizes_cross_entropy_only() -> None:
    runner = StepRunner(small_run(NAME), small_problem()).advance(6 * 4)
    runner.method.end_epoch(5)
    runner.method.begin_epoch(6)
    batch = next(runner.batches.epoch(6, labeled_only=True))
    y = runner.method.soft_labels()[batch.index]
    expected = soft_label_cross_entropy(runner.method.task.make_net(1)(batch.x), y).mean()
    torch.testing.assert_close(runner.method.step(batch), expected.detach())


@pytest.mark.parametrize("after", [20, 24, 25, 40])
def test_resume_around_the_second_stage_gives_same_bits(after: int) -> None:
    settings = {"window": 60}
    whole = StepRunner(small_run(NAME, settings=settings), small_problem()).advance()
    half = StepRunner(small_run(NAME, settings=settings), small_problem()).advance(after)
    file = io.BytesIO()
    torch.save(half.method.state_dict(), file)
    file.seek(0)
    resumed = StepRunner(small_run(NAME, settings=settings), small_problem())
    resumed.method.load_state_dict(torch.load(file, weights_only=True))
    resumed.epoch, resumed.step = half.epoch, half.step
    resumed.advance()
    assert half.losses + resumed.losses == whole.losses
    assert torch.equal(resumed.method.soft_labels(), whole.method.soft_labels())


def test_prior_is_uniform_or_the_frequencies_of_given_labels() -> None:
    runners = [
        StepRunner(small_run(NAME, settings={"prior": p}), small_problem(unlabeled=5)) for p in ("uniform", "given")
    ]
    uniform, counted = (runner.method.prior for runner in runners)
    torch.testing.assert_close(uniform, torch.full((3,), 1 / 3).double())
    given = runners[0].problem.train.given.tolist()
    assert counted.tolist() == pytest.approx([given.count(c) / 43 for c in range(3)])


def test_stages_and_learning_rates_of_both_recipes() -> None:
    common = StepRunner(small_run(NAME, epochs=120, lr=0.01, lr_milestones=(40, 80)), small_problem()).method
    assert (common.epochs, common.update_from, common.window, common.candidates_from) == (240, 42, 10, 120)
    rates = [common.lr_at(e) for e in (0, 40, 80, 119, 120, 160, 239)]
    assert rates == pytest.approx([1e-2, 1e-3, 1e-4, 1e-4, 1e-2, 1e-3, 1e-4])
    own = StepRunner(
        make_run("digits", method=NAME, recipe="own", device="cpu", dtype="float64"), small_problem()
    ).method
    assert (own.epochs, own.update_from, own.window, own.candidates_from) == (320, 70, 10, 200)
    rates = [own.lr_at(e) for e in (0, 199, 200, 239, 240, 280, 319)]
    assert rates == pytest.approx([0.08, 0.08, 0.2, 0.2, 0.02, 0.002, 0.002])


def test_update_from_out_of_range_is_rejected() -> None:
    with pytest.raises(InputError, match="update_from=121 is out of range: give an epoch from 0 to 120"):
        JointOptimizationSettings(update_from=121)


@pytest.mark.slow
def test_labels_improve_on_digits() -> None:
    """From 60 % correct labels to over 80 %, in the first stage alone."""
    pytest.importorskip("sklearn")
    fields = {"noise": "uniform:0.4", "epochs": 8, "lr_milestones": (), "dtype": "float64", "device": "cpu"}
    run = make_run("digits", recipe="paper", method=NAME, settings={"retrain": 1}, **fields)
    runner = StepRunner(run, prepare(run))
    true = runner.problem.train.true
    before, after = runner.method.soft_labels().argmax(1), runner.advance().method.soft_labels().argmax(1)
    assert float((before == true).double().mean()) == pytest.approx(0.6, abs=0.01)
    assert float((after == true).double().mean()) > 0.8
