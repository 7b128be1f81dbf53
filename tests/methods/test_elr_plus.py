"""ELR+: one step of both networks by the formulas, the teachers, MixUp and the recipe."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from metalabelnet.core.losses import cross_entropy
from metalabelnet.errors import InputError
from metalabelnet.methods.elr_plus import ELRPlusSettings, teacher_decay
from metalabelnet.train.build_method import build_method
from metalabelnet.train.settings import Run
from small_runs import StepRunner, column_images, small_problem, small_run


def plus_run(**changes: object) -> Run:
    return small_run("elr-plus", **changes)


def prepared(run: Run) -> tuple[StepRunner, object]:
    """A runner after some steps, so that teachers differ from networks, and its next batch."""
    runner = StepRunner(run, small_problem()).advance(6)
    batch = list(runner.batches.epoch(1, labeled_only=True))[2]
    return runner, batch


def mixed_loss(net: nn.Module, batch: object, y: Tensor, t: Tensor, regularization: float) -> Tensor:
    """The paper's loss, with a loop over pairs of samples."""
    share, partner = float(batch.views.share), batch.views.partner.tolist()
    x = torch.stack([share * batch.x[i] + (1 - share) * batch.x[j] for i, j in enumerate(partner)])
    p = net(x).softmax(1)
    losses = []
    for i, j in enumerate(partner):
        label, target = share * y[i] + (1 - share) * y[j], share * t[i] + (1 - share) * t[j]
        losses.append(-(label * p[i].log()).sum() + regularization * (1 - (p[i] * target).sum()).log())
    return torch.stack(losses).mean()


def test_step_by_the_formulas() -> None:
    run = plus_run(settings={"beta": 0.6, "regularization": 2.0, "ema": 0.9, "ramp": 0.0}, momentum=0.0)
    runner, batch = prepared(run)
    method = runner.method
    y = functional.one_hot(batch.given, 3).double()
    losses, expected_weights, expected_targets = [], [], []
    pairs = [(method.net, method.peer_teacher, "net"), (method.peer, method.teacher, "peer")]
    for net, other_teacher, name in pairs:
        t = 0.6 * method.targets[name][batch.index] + 0.4 * copy.deepcopy(other_teacher)(batch.x).softmax(1)
        trained = copy.deepcopy(net)
        loss = mixed_loss(trained, batch, y, t, 2.0)
        weights = list(trained.parameters())
        steps = torch.autograd.grad(loss, weights)
        expected_weights.append(
            [w.detach() - 0.05 * (g + 1e-4 * w.detach()) for w, g in zip(weights, steps, strict=True)]
        )
        expected_targets.append(t)
        losses.append(loss.detach())
    teachers = [[w.clone() for w in teacher.parameters()] for teacher in (method.teacher, method.peer_teacher)]
    assert not torch.allclose(teachers[0][0], next(iter(method.net.parameters())))
    torch.testing.assert_close(method.step(batch), sum(losses) / 2)
    for (net, _, name), weights, t in zip(pairs, expected_weights, expected_targets, strict=True):
        torch.testing.assert_close([w.detach() for w in net.parameters()], weights)
        torch.testing.assert_close(method.targets[name][batch.index], t)
    for teacher, before, weights in zip((method.teacher, method.peer_teacher), teachers, expected_weights, strict=True):
        for now, old, new in zip(teacher.parameters(), before, weights, strict=True):
            torch.testing.assert_close(now, 0.9 * old + 0.1 * new)


def test_networks_and_targets_differ() -> None:
    m = StepRunner(plus_run(), small_problem()).advance(2).method
    assert not torch.allclose(m.targets["net"], m.targets["peer"])
    assert not torch.allclose(next(m.net.parameters()), next(m.peer.parameters()))


def test_without_mixup_and_regularization_it_is_cross_entropy() -> None:
    runner = StepRunner(plus_run(settings={"mixup": 0.0, "regularization": 0.0}), small_problem()).advance(8)
    plain = StepRunner(small_run("cross-entropy"), small_problem()).advance(8)
    ours, theirs = runner.method.net.state_dict(), plain.method.net.state_dict()
    assert all(torch.allclose(ours[key], theirs[key]) for key in ours)


def test_teacher_decay_rises_to_its_maximum() -> None:
    assert teacher_decay(0.997, 0, 10) == pytest.approx(0.997 * math.exp(-5))
    assert teacher_decay(0.997, 5, 10) == pytest.approx(0.997 * math.exp(-1.25))
    assert teacher_decay(0.997, 10, 10) == teacher_decay(0.997, 40, 10) == teacher_decay(0.997, 0, 0) == 0.997
    runner = StepRunner(plus_run(epochs=12), small_problem())
    runner.method.begin_epoch(3)
    assert float(runner.method.gamma) == pytest.approx(0.997 * math.exp(-5 * (1 - 3 / 6.14) ** 2))


def test_teachers_have_their_own_statistics() -> None:
    """They are those of forward passes in train mode, not averages of the networks' statistics."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))
    runner = StepRunner(plus_run(), small_problem())
    runner.method = build_method(runner.run, runner.problem, net)
    before = copy.deepcopy(runner.method.teacher[2].running_mean)
    runner.advance(4)
    assert runner.method.teacher.training
    assert int(runner.method.teacher[2].num_batches_tracked) == 4
    assert not torch.equal(runner.method.teacher[2].running_mean, before)


def test_prediction_is_the_mean_of_both_networks() -> None:
    m, x = StepRunner(plus_run(), small_problem()).advance(6).method, column_images(5, seed=8).x
    inputs = x.double() / 127.5 - 1
    nets = [copy.deepcopy(net).eval() for net in (m.net, m.peer)]
    torch.testing.assert_close(m.logits(x).softmax(1), sum(net(inputs).softmax(1) for net in nets) / 2)


def test_emas_of_the_recipe_predict() -> None:
    m, x = StepRunner(plus_run(ema=0.9), small_problem()).advance(6).method, column_images(5, seed=8).x
    assert set(m.averages) == {"net", "peer"}
    inputs = x.double() / 127.5 - 1
    mean = sum(average.net(inputs).softmax(1) for average in m.averages.values()) / 2
    torch.testing.assert_close(m.logits(x).softmax(1), mean)


def test_mixup_of_the_method_replaces_that_of_the_recipe() -> None:
    losses = [StepRunner(plus_run(mixup=alpha), small_problem()).advance(2).losses for alpha in (0.0, 4.0)]
    assert losses[0] == losses[1]
    other = StepRunner(plus_run(settings={"mixup": 4.0}), small_problem()).advance(2).losses
    assert losses[0] != other


def test_strong_samples_are_mixed_like_weak_ones() -> None:
    """With λ = 0 the recipe adds the cross-entropy of the mixed strong samples with the mixed labels."""
    run = plus_run(strong_augment="supervised", strong_weight=0.5, settings={"regularization": 0.0})
    runner, batch = prepared(run)
    share, partner = batch.views.share, batch.views.partner
    losses = []
    for net in (runner.method.net, runner.method.peer):
        for x, weight in ((batch.views.weak, 1.0), (batch.views.strong, 0.5)):
            logits = copy.deepcopy(net)(share * x + (1 - share) * x[partner])
            given = share * cross_entropy(logits, batch.given) + (1 - share) * cross_entropy(
                logits, batch.given[partner]
            )
            losses.append(weight * given.mean().detach())
    torch.testing.assert_close(runner.method.step(batch), sum(losses) / 2)


def test_loaded_model_has_no_soft_labels() -> None:
    one = StepRunner(plus_run(), small_problem()).advance(1)
    assert one.method.soft_labels() is not None
    other = StepRunner(plus_run(), small_problem(wrong=0.5)).method
    other.load_model_state_dict(one.method.model_state_dict())
    assert other.soft_labels() is None


def test_settings_out_of_range_are_rejected() -> None:
    with pytest.raises(InputError, match="ema=2"):
        ELRPlusSettings(ema=2.0)
    with pytest.raises(InputError, match="beta=-1"):
        ELRPlusSettings(beta=-1.0)
