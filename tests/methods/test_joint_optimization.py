"""Joint Optimization: its losses by their formulas, and when labels, networks and rates change."""

import io
import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from metalabelnet.core.losses import cross_entropy
from metalabelnet.errors import InputError
from metalabelnet.labels.metrics import logits_of
from metalabelnet.methods.joint_optimization import (
    JointOptimization,
    JointOptimizationSettings,
    Predictions,
    prior_loss,
    soft_cross_entropy,
)
from metalabelnet.train.prepare import prepare
from metalabelnet.train.settings import recipe
from small import Walk, small_problem, small_run

NAME = "joint-optimization"
PRIOR = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def random(rows: int = 5, classes: int = 4, seed: int = 0) -> Tensor:
    return 2 * torch.randn(rows, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def probabilities(row: list[float]) -> list[float]:
    return [math.exp(v) / sum(map(math.exp, row)) for v in row]


def test_soft_cross_entropy_is_its_formula() -> None:
    z, y = random(), random(seed=1).softmax(1)
    naive = [
        -sum(yj * math.log(sj) for yj, sj in zip(row_y, probabilities(row_z), strict=True))
        for row_z, row_y in zip(z.tolist(), y.tolist(), strict=True)
    ]
    assert soft_cross_entropy(z, y).tolist() == pytest.approx(naive, rel=1e-12)


def test_soft_cross_entropy_of_a_hard_label_is_cross_entropy() -> None:
    z, k = random(), torch.tensor([0, 3, 1, 1, 2])
    torch.testing.assert_close(soft_cross_entropy(z, torch.nn.functional.one_hot(k, 4)), cross_entropy(z, k))


def test_soft_cross_entropy_is_least_where_prediction_and_label_agree() -> None:
    z, y = random().requires_grad_(), random().softmax(1)
    loss = soft_cross_entropy(z, y)
    torch.testing.assert_close(loss, -(y * y.log()).sum(1))
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), z)[0], torch.zeros(5, 4).double(), atol=1e-12, rtol=0)


def test_prior_loss_is_its_formula() -> None:
    rows = [probabilities(row) for row in random().tolist()]
    mean = [sum(row[j] for row in rows) / len(rows) for j in range(4)]
    naive = sum(p * math.log(p / m) for p, m in zip(PRIOR.tolist(), mean, strict=True))
    assert float(prior_loss(random(), PRIOR)) == pytest.approx(naive, rel=1e-12)


def test_prior_loss_is_zero_where_the_batch_is_as_the_prior_says_however_sure_it_is() -> None:
    uniform = torch.full((4,), 0.25).double()
    for sureness in (0.0, 1.0, 50.0):
        assert float(prior_loss(sureness * torch.eye(4).double(), uniform)) == pytest.approx(0, abs=1e-12)
    everything_one_class = torch.zeros(6, 4).double()
    everything_one_class[:, 2] = 9
    assert float(prior_loss(everything_one_class, uniform)) > 5


def test_a_class_without_prior_costs_nothing() -> None:
    prior = torch.tensor([0.5, 0.5, 0.0]).double()
    z = torch.tensor([[40.0, 0, -40], [0, 40, -40]]).double().requires_grad_()
    loss = prior_loss(z, prior)
    assert loss.item() == pytest.approx(0, abs=1e-12)
    assert torch.isfinite(torch.autograd.grad(loss, z)[0]).all()


def test_gradcheck() -> None:
    z, y = random().requires_grad_(), random(seed=1).softmax(1)
    assert gradcheck(lambda z: soft_cross_entropy(z, y), (z,))
    assert gradcheck(lambda z: prior_loss(z, PRIOR), (z,))


@pytest.mark.parametrize("size", [1e3, 1e10, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_give_numbers(size: float, dtype: torch.dtype) -> None:
    z = (size * random().sign()).to(dtype)
    z[:, 1] = -size  # nobody predicts class 1
    z.requires_grad_()
    hard = torch.nn.functional.one_hot(torch.arange(5) % 4, 4).to(dtype)
    for loss in (soft_cross_entropy(z, hard).sum(), prior_loss(z, PRIOR.to(dtype))):
        assert torch.isfinite(loss)
        assert torch.isfinite(torch.autograd.grad(loss, z)[0]).all()


def test_predictions_keep_the_last_few_epochs() -> None:
    kept, seen = Predictions(3, 5, 4, PRIOR), []
    for seed in range(8):
        seen.append(random(seed=seed).softmax(1))
        kept.add(seen[-1])
        torch.testing.assert_close(kept.mean(), torch.stack(seen[-3:]).mean(0))


# Stages: of 12 epochs the first 4 have the given labels; the second stage has 12 more.


def follow(**changes: object) -> tuple[Walk, list[Tensor], list[Tensor]]:
    """The soft labels at the start and after each epoch, and what was predicted after each epoch."""
    run = small_run(NAME, epochs=12, **changes)
    walk = Walk(run, small_problem(unlabeled=5))
    table, predicted = [walk.method.soft_labels()], []
    for epoch in range(walk.method.epochs):
        walk.method.begin_epoch(epoch)
        for batch in walk.batches.epoch(epoch, labeled_only=True):
            walk.method.step(batch)
        predicted.append(logits_of(walk.method, walk.problem.train.x).softmax(1))
        walk.method.end_epoch(epoch)
        table.append(walk.method.soft_labels())
    return walk, table, predicted


def test_labels_start_as_the_given_ones_and_move_after_each_epoch_from_the_update_to_the_second_stage() -> None:
    walk, table, _ = follow()
    given = walk.problem.train.given[5:]
    assert torch.equal(table[0][5:], torch.nn.functional.one_hot(given, 3).double())
    moved = [not torch.equal(before, after) for before, after in itertools.pairwise(table)]
    assert moved == 3 * [False] + 9 * [True] + 12 * [False]  # epoch 4 is the first with new labels


@pytest.mark.parametrize("window", [1, 30, 50])
def test_labels_are_the_mean_of_the_last_predictions_on_the_samples_as_they_are(window: int) -> None:
    """In epochs of 120, so that 30 are 3 of 12. A window longer than what there is takes all there is."""
    epochs = max(1, window // 10)
    _, table, predicted = follow(settings={"window": window}, augment="flip-crop")
    for epoch in range(3, 12):
        mean = torch.stack(predicted[max(0, epoch + 1 - epochs) : epoch + 1]).mean(0)
        torch.testing.assert_close(table[epoch + 1][5:], mean[5:])


def test_hard_labels_are_the_most_likely_class() -> None:
    _, table, predicted = follow(settings={"window": 20, "labels": "hard"})
    hard = torch.nn.functional.one_hot(torch.stack(predicted[10:12]).mean(0).argmax(1), 3).double()
    assert torch.equal(table[-1][5:], hard[5:])


def test_rows_without_a_label_stay_uniform() -> None:
    _, table, _ = follow()
    torch.testing.assert_close(table[-1][:5], torch.full((5, 3), 1 / 3).double())


def test_the_second_stage_trains_a_new_network_at_the_first_rate() -> None:
    walk = Walk(small_run(NAME), small_problem()).go(6 * 4)
    first, sgd = walk.method.net, walk.method.sgd
    assert isinstance(walk.method, JointOptimization)
    walk.method.end_epoch(5)
    walk.method.begin_epoch(6)
    new = {k: w.clone() for k, w in walk.method.net.state_dict().items()}
    assert walk.method.net is not first
    assert walk.method.sgd is not sgd
    assert all(torch.equal(w, new[k]) for k, w in walk.method.task.make_net(1).state_dict().items())
    assert walk.method.sgd.lr == 0.05
    walk.method.begin_epoch(6)  # as after a resume
    assert all(torch.equal(w, new[k]) for k, w in walk.method.net.state_dict().items())


def test_the_second_stage_has_cross_entropy_alone() -> None:
    walk = Walk(small_run(NAME), small_problem()).go(6 * 4)
    walk.method.end_epoch(5)
    walk.method.begin_epoch(6)
    batch = next(walk.batches.epoch(6, labeled_only=True))
    y = walk.method.soft_labels()[batch.index]
    expected = soft_cross_entropy(walk.method.task.make_net(1)(batch.x), y).mean()
    torch.testing.assert_close(walk.method.step(batch), expected.detach())


@pytest.mark.parametrize("after", [20, 24, 25, 40])
def test_saved_and_resumed_around_the_second_stage_it_goes_on_to_the_bit(after: int) -> None:
    settings = {"window": 60}
    whole = Walk(small_run(NAME, settings=settings), small_problem()).go()
    half = Walk(small_run(NAME, settings=settings), small_problem()).go(after)
    file = io.BytesIO()
    torch.save(half.method.state(), file)
    file.seek(0)
    resumed = Walk(small_run(NAME, settings=settings), small_problem())
    resumed.method.load_state(torch.load(file, weights_only=True))
    resumed.epoch, resumed.step = half.epoch, half.step
    resumed.go()
    assert half.losses + resumed.losses == whole.losses
    assert torch.equal(resumed.method.soft_labels(), whole.method.soft_labels())


def test_the_prior_is_uniform_or_counted_from_the_given_labels() -> None:
    walks = [Walk(small_run(NAME, settings={"prior": p}), small_problem(unlabeled=5)) for p in ("uniform", "given")]
    uniform, counted = (walk.method.prior for walk in walks)
    torch.testing.assert_close(uniform, torch.full((3,), 1 / 3).double())
    given = walks[0].problem.train.given.tolist()
    assert counted.tolist() == pytest.approx([given.count(c) / 43 for c in range(3)])


def test_stages_and_rates_of_both_recipes() -> None:
    common = Walk(small_run(NAME, epochs=120, lr=0.01, lr_milestones=(40, 80)), small_problem()).method
    assert (common.epochs, common.update_from, common.window, common.candidates_from) == (240, 42, 10, 120)
    rates = [common.lr_at(e) for e in (0, 40, 80, 119, 120, 160, 239)]
    assert rates == pytest.approx([1e-2, 1e-3, 1e-4, 1e-4, 1e-2, 1e-3, 1e-4])
    own = Walk(recipe("digits", method=NAME, preset="own", device="cpu", dtype="float64"), small_problem()).method
    assert (own.epochs, own.update_from, own.window, own.candidates_from) == (320, 70, 10, 200)
    rates = [own.lr_at(e) for e in (0, 199, 200, 239, 240, 280, 319)]
    assert rates == pytest.approx([0.08, 0.08, 0.2, 0.2, 0.02, 0.002, 0.002])


def test_an_update_that_never_comes_is_refused() -> None:
    with pytest.raises(InputError, match="update_from=121: give an epoch of 120"):
        JointOptimizationSettings(update_from=121)


def test_labels_get_better_on_digits() -> None:
    """From 60 % right labels to well over 80, in the first stage alone."""
    pytest.importorskip("sklearn")
    fields = {"noise": "uniform:0.4", "epochs": 8, "lr_milestones": (), "dtype": "float64", "device": "cpu"}
    run = recipe("digits", method=NAME, settings={"retrain": 1}, **fields)
    walk = Walk(run, prepare(run))
    true = walk.problem.train.true
    before, after = walk.method.soft_labels().argmax(1), walk.go().method.soft_labels().argmax(1)
    assert float((before == true).double().mean()) == pytest.approx(0.6, abs=0.01)
    assert float((after == true).double().mean()) > 0.8
