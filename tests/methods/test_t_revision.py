"""T-Revision: the importance weights by their definition, the gradient of ΔT in closed form, and the three stages."""

import dataclasses
import functools
import io
import math

import pytest
import torch
from torch import Tensor

from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.transition_matrix import transitions_from_anchors
from metalabelnet.methods.t_revision import TRevision, importance_weights
from metalabelnet.train.settings import Run
from small_runs import StepRunner, small_problem, small_run

GIVEN = torch.tensor([0, 3, 1, 2, 0, 1])


def random(seed: int = 0) -> Tensor:
    return 2 * torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make_T() -> Tensor:
    return (3 * torch.eye(4) + torch.rand(4, 4, generator=torch.Generator().manual_seed(1))).double().softmax(1)


def test_weights_equal_the_papers_formula_with_T_not_transposed() -> None:
    z, T = random(), make_T()
    expected = []
    for row, label in zip(z.tolist(), GIVEN.tolist(), strict=True):
        p = [math.exp(x) / sum(map(math.exp, row)) for x in row]
        expected.append(p[label] / sum(p[i] * float(T[i, label]) for i in range(4)))
    assert importance_weights(z, GIVEN, T).tolist() == pytest.approx(expected, rel=1e-12)
    assert importance_weights(z, GIVEN, T.T).tolist() != pytest.approx(expected, rel=1e-3)


def test_limits() -> None:
    z, T = random(), make_T()
    torch.testing.assert_close(importance_weights(z, GIVEN, torch.eye(4)), torch.ones(6, dtype=torch.float64))
    assert bool((importance_weights(z, GIVEN, T) <= 1 / T.diagonal()[GIVEN]).all())
    certain = 1e3 * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(importance_weights(certain, torch.arange(4), T), 1 / T.diagonal())


def test_expected_weighted_loss_is_the_loss_on_clean_labels() -> None:
    """For p the posterior of the true class and labels drawn from pT (risk consistency)."""
    z, T = random(), make_T()
    p, other = z.softmax(1), random(3)
    each = [torch.full((6,), label) for label in range(4)]
    noisy = sum((p @ T)[:, c] * importance_weights(z, each[c], T) * cross_entropy(other, each[c]) for c in range(4))
    clean = sum(p[:, c] * cross_entropy(other, each[c]) for c in range(4))
    torch.testing.assert_close(noisy, clean)


def test_gradient_of_the_revision_is_never_positive() -> None:
    """∂L/∂ΔT_ij = −w ℓ p_i/(pT)_j of a sample with label j, 0 for other columns."""
    z, T = random(), make_T().requires_grad_()
    losses = importance_weights(z, GIVEN, T) * cross_entropy(z, GIVEN)
    (gradient,) = torch.autograd.grad(losses.sum(), T)
    p, w = z.softmax(1), importance_weights(z, GIVEN, T.detach())
    expected = torch.zeros(4, 4, dtype=torch.float64)
    for n, j in enumerate(GIVEN.tolist()):
        noisy = float(p[n] @ T.detach()[:, j])
        for i in range(4):
            expected[i, j] -= float(w[n] * -p[n, j].log() * p[n, i]) / noisy
    torch.testing.assert_close(gradient, expected)
    assert bool((gradient <= 0).all())


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_extreme_logits_and_zeros_in_T_give_no_nan(size: float) -> None:
    z = torch.tensor([[size, -size, 0.0], [-size, -size, size], [size, 0.0, 0.0]], requires_grad=True)
    excluded = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], requires_grad=True)
    weights = importance_weights(z, torch.tensor([1, 1, 2]), excluded)
    weights.sum().backward()
    assert torch.isfinite(weights).all()
    assert torch.isfinite(z.grad).all()
    assert torch.isfinite(excluded.grad).all()


def revision_run(**changes: object) -> Run:
    """Stages of 2, 6 and 3 epochs of 4 steps."""
    return small_run("t-revision", settings={"estimate": 40.0, "revise": 60.0}, **changes)


@functools.cache
def finished_run() -> StepRunner:
    return StepRunner(revision_run(), small_problem()).advance()


def test_a_tenth_of_the_labeled_rows_is_held_out() -> None:
    method = StepRunner(revision_run(), small_problem(unlabeled=8)).method
    assert int(method.held_out.sum()) == 4
    assert not method.held_out[:8].any()
    other = StepRunner(revision_run(seed=1), small_problem(unlabeled=8)).method
    assert not torch.equal(method.held_out, other.held_out)


def test_held_out_labels_do_not_train() -> None:
    """Until they select an epoch."""
    problem, weights = small_problem(), []
    held_out = StepRunner(revision_run(), problem).method.held_out
    for given in (problem.train.given, torch.where(held_out, (problem.train.given + 1) % 3, problem.train.given)):
        changed = dataclasses.replace(problem, train=problem.train.with_given_labels(given))
        weights.append(StepRunner(revision_run(), changed).advance(8).method.net.state_dict())
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_first_stage_is_cross_entropy_on_the_other_rows() -> None:
    runner = StepRunner(revision_run(), small_problem())
    assert (runner.method.epochs, runner.method.candidates_from) == (11, 8)
    runner.method.begin_epoch(0)
    for batch in runner.batches.epoch(0, labeled_only=True):
        keep = ~runner.method.held_out[batch.index]
        expected = cross_entropy(runner.method.net(batch.x)[keep], batch.given[keep]).mean()
        torch.testing.assert_close(runner.method.step(batch), expected.detach())


def noisy_accuracy(method: TRevision) -> float:
    """The accuracy on the given labels of held-out rows."""
    rows = method.task.train.take(method.held_out.nonzero()[:, 0])
    p = method.logits(rows.x).softmax(1)
    noisy = p if method.transitions is None else p @ method.transitions().detach()
    return float((noisy.argmax(1) == rows.given).double().mean())


def test_stages_start_from_the_best_epoch() -> None:
    runner = StepRunner(revision_run(lr=0.02), small_problem())
    m = runner.method
    for first, last in ((0, 2), (2, 8)):
        epochs = []
        for epoch in range(first, last):
            m.begin_epoch(epoch)
            for batch in runner.batches.epoch(epoch, labeled_only=True):
                m.train_step(batch)
            m.end_epoch(epoch)
            epochs.append((noisy_accuracy(m), {key: tensor.clone() for key, tensor in m.net.state_dict().items()}))
        best = max(reversed(epochs), key=lambda entry: entry[0])[1]  # the last of the best
        m.begin_epoch(last)
        assert all(torch.equal(tensor, best[key]) for key, tensor in m.net.state_dict().items())
        if first == 0:
            assert m.phase() == "reweight"
            train = m.task.train
            p = m.logits(train.x[~m.held_out]).softmax(1)
            torch.testing.assert_close(m.transitions.T, transitions_from_anchors(p))
            assert not m.transitions.delta.any()
    assert m.phase() == "revise"


def test_schedule_restarts_with_the_second_stage() -> None:
    method = StepRunner(revision_run(lr_milestones=(3,)), small_problem()).method
    assert [method.lr_at(e) for e in (0, 2, 4, 5, 7)] == pytest.approx([0.05, 0.05, 0.05, 0.005, 0.005])
    assert method.lr_at(8) == method.lr_at(10) == pytest.approx(5e-7 * 200 / 3)


def second_stage(run: Run, steps: int = 9) -> tuple[StepRunner, object]:
    runner = StepRunner(run, small_problem()).advance(steps)
    return runner, list(runner.batches.epoch(runner.epoch, labeled_only=True))[runner.step]


def test_weights_are_constants_in_the_second_stage() -> None:
    runner, batch = second_stage(revision_run(momentum=0.0))
    net = runner.method.net
    weights, z = list(net.parameters()), net(batch.x)
    w = importance_weights(z, batch.given, runner.method.transitions.T).detach()
    loss = (w * cross_entropy(z, batch.given))[~runner.method.held_out[batch.index]].mean()
    expected = [
        p.detach() - 0.05 * (g + 1e-4 * p.detach())
        for p, g in zip(weights, torch.autograd.grad(loss, weights), strict=True)
    ]
    torch.testing.assert_close(runner.method.step(batch), loss.detach())
    torch.testing.assert_close([p.detach() for p in weights], expected)
    assert not runner.method.transitions.delta.any()


def test_last_stage_revises_T_and_the_network_by_adam() -> None:
    runner, batch = second_stage(revision_run(), steps=33)
    m = runner.method
    assert m.phase() == "revise"
    reference = [p.detach().clone().requires_grad_() for p in [*m.net.parameters(), m.transitions.delta]]
    adam = torch.optim.Adam(reference, lr=m.lr_at(8), weight_decay=1e-4)
    for k, p in enumerate(reference):
        state = m.adam.state_dict()
        adam.state[p] = {
            "step": state["count"].clone(),
            "exp_avg": state[f"first.{k}"].clone(),
            "exp_avg_sq": state[f"second.{k}"].clone(),
        }
    names = [name for name, _ in m.net.named_parameters()]
    z = torch.func.functional_call(m.net, dict(zip(names, reference, strict=False)), (batch.x,))
    losses = importance_weights(z, batch.given, m.transitions.T + reference[-1]) * cross_entropy(z, batch.given)
    loss = losses[~m.held_out[batch.index]].mean()
    loss.backward()
    adam.step()
    torch.testing.assert_close(m.step(batch), loss.detach())
    torch.testing.assert_close([*m.net.parameters(), m.transitions.delta], reference)
    assert bool((m.transitions.delta > 0).any())


def test_entries_grow_at_most_by_the_learning_rate() -> None:
    m = finished_run().method
    limit, delta = 12 * m.lr_at(8), m.transitions.delta.detach()
    assert bool((delta >= 0).all())
    assert 0.5 * limit < float(delta.max()) <= 1.01 * limit


@pytest.mark.parametrize("after", [4, 9, 34, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (8, 31, 32))])
def test_resume_in_every_stage_gives_same_bits(after: int) -> None:
    whole, half = finished_run(), StepRunner(revision_run(), small_problem()).advance(after)
    file = io.BytesIO()
    torch.save(half.method.state_dict(), file)
    file.seek(0)
    resumed = StepRunner(revision_run(), small_problem())
    resumed.method.load_state_dict(torch.load(file, weights_only=True))
    resumed.epoch, resumed.step = half.epoch, half.step
    assert half.losses + resumed.advance().losses == whole.losses
    expected = whole.method.model_state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in resumed.method.model_state_dict().items())


def test_unlabeled_rows_do_not_influence_T() -> None:
    problem = small_problem(unlabeled=24)
    x = problem.train.x.clone()
    x[:24] = 255 - x[:24]
    corrupted = type(problem)(**{**vars(problem), "train": type(problem.train)(**{**vars(problem.train), "x": x})})
    T = [StepRunner(revision_run(), p).advance(5).method.transitions.T for p in (problem, corrupted)]
    assert torch.equal(*T)
