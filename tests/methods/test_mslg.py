"""MSLG: the iteration compared with one written out, and the table of label logits."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from metalabelnet.core.forward_pass import forward, trainable_parameters
from metalabelnet.core.losses import classification_loss
from metalabelnet.core.meta_gradient import MetaGradient
from metalabelnet.data.batches import Batch
from metalabelnet.methods import METHODS
from metalabelnet.methods.mslg import MSLG, MSLGSettings, soft_label_source
from metalabelnet.train.settings import make_run
from small_runs import StepRunner, small_problem, small_run


def in_phase_2(**settings: object) -> tuple[MSLG, Batch]:
    """Return a method in the middle of phase 2 and its next batch."""
    runner = StepRunner(small_run("mslg", settings=settings), small_problem()).advance(11)
    runner.method.begin_epoch(runner.epoch)
    return runner.method, next(runner.batches.epoch(runner.epoch, labeled_only=True, start=runner.step))


def mean_kl(logits: Tensor, log_y_hat: Tensor) -> Tensor:
    """KL(p ‖ ŷ) averaged over samples and classes, as the authors write it."""
    p = logits.softmax(1)
    return (p * (p.log() - log_y_hat)).mean()


def naive_meta_gradient(method: MSLG, batch: Batch, y_tilde: Tensor) -> Tensor:
    """Return ∂L_meta/∂ỹ by autograd through the look-ahead."""
    theta = trainable_parameters(method.net)
    z = forward(method.net, batch.x, theta, seed=batch.seed, update_statistics=False)
    d = torch.autograd.grad(mean_kl(z, y_tilde.log_softmax(1)), list(theta.values()), create_graph=True)
    ahead = {k: w - 0.5 * dw for (k, w), dw in zip(theta.items(), d, strict=True)}
    z_m = forward(method.net, batch.clean_x, ahead, seed=batch.seed + 1, update_statistics=False)
    return torch.autograd.grad(torch.nn.functional.cross_entropy(z_m, batch.clean_y), y_tilde)[0]


def test_exact_equals_double_backward_and_naive_meta_gradient() -> None:
    """With the loss and rows of the method, on convolutions with BatchNorm in train mode."""
    method, batch = in_phase_2()
    assert method.net.training
    theta, labels = trainable_parameters(method.net), soft_label_source(method.table, batch.index, 4000.0)
    results = []
    for differentiation in ("exact", "double-backward"):
        log_y_hat = labels.log_y_hat()
        (by_y,) = MetaGradient(differentiation)(
            theta=theta,
            phi=labels.phi,
            logits=forward(method.net, batch.x, theta, seed=batch.seed, update_statistics=False),
            logits_at=lambda t: forward(method.net, batch.x, t, seed=batch.seed, update_statistics=False),
            training_loss=lambda z, y=log_y_hat: classification_loss(z, y).mean() / 3,
            meta_loss=lambda t: torch.nn.functional.cross_entropy(
                forward(method.net, batch.clean_x, t, seed=batch.seed + 1, update_statistics=False), batch.clean_y
            ),
            inner_step=0.5,
        )
        results.append(by_y)
    expected = naive_meta_gradient(method, batch, labels.phi[0])
    for result in results:
        assert float((result - expected).norm() / expected.norm()) < 1e-10


@pytest.mark.parametrize("differentiation", ["exact", "double-backward"])
def test_step_equals_the_algorithm_written_out(differentiation: str) -> None:
    method, batch = in_phase_2(differentiation=differentiation)
    other = copy.deepcopy(method)
    y_tilde = method.table.logits[batch.index].clone().requires_grad_()
    new = (y_tilde - 4000 * naive_meta_gradient(other, batch, y_tilde)).detach()
    z = forward(other.net, batch.x, trainable_parameters(other.net), seed=batch.seed, update_statistics=False)
    p = z.softmax(1)
    loss = mean_kl(z, new.log_softmax(1)) - (p * p.log()).mean()
    other.sgd.zero_grad()
    loss.backward(inputs=list(other.net.parameters()))
    other.sgd.step()

    torch.testing.assert_close(method.step(batch), loss.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(method.table.logits[batch.index], new, rtol=1e-9, atol=1e-9)
    for mine, theirs in zip(method.net.parameters(), other.net.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_only_rows_of_the_batch_change_and_their_sums_are_constant() -> None:
    """∂L_meta/∂ỹ = (α/NC) ṗ, and Σ_j ṗ_j = 0, so Σ_j ỹ_j stays K."""
    method, batch = in_phase_2()
    before = method.table.logits.clone()
    method.step(batch)
    moved = (method.table.logits != before).any(1)
    assert moved.nonzero()[:, 0].tolist() == batch.index.sort().values.tolist()
    torch.testing.assert_close(method.table.logits.sum(1), torch.full((48,), 10.0, dtype=torch.float64))


def test_labels_are_addressed_by_row_not_by_position_in_the_batch() -> None:
    method, batch = in_phase_2()
    other = copy.deepcopy(method)
    other.iteration.f, other.iteration.sgd = other.net, other.sgd
    order = torch.randperm(len(batch.x), generator=torch.Generator().manual_seed(0))
    method.step(batch)
    views = replace(batch.views, weak=batch.x[order])
    other.step(replace(batch, views=views, given=batch.given[order], index=batch.index[order]))
    torch.testing.assert_close(method.table.logits, other.table.logits, rtol=1e-9, atol=1e-9)


def test_table_starts_from_the_given_labels_at_the_end_of_warm_up() -> None:
    runner = StepRunner(small_run("mslg"), small_problem(unlabeled=5))
    while runner.epoch < 2:
        runner.advance(1)
        if runner.epoch < 2:
            assert runner.method.soft_labels() is None
    runner.method.table = None
    runner.method.begin_epoch(2)
    given = runner.problem.train.given
    onehot = torch.nn.functional.one_hot(given[5:], 3).double()
    torch.testing.assert_close(runner.method.soft_labels()[5:], (10 * onehot).softmax(1))
    torch.testing.assert_close(runner.method.soft_labels()[:5], torch.full((5, 3), 1 / 3, dtype=torch.float64))


def test_begin_epoch_again_keeps_the_table() -> None:
    method, batch = in_phase_2()
    method.step(batch)
    before = method.table.logits.clone()
    method.begin_epoch(2)
    assert torch.equal(before, method.table.logits)


def test_unlabeled_rows_stay_uniform() -> None:
    runner = StepRunner(small_run("mslg"), small_problem(unlabeled=24)).advance()
    torch.testing.assert_close(runner.method.soft_labels()[:24], torch.full((24, 3), 1 / 3, dtype=torch.float64))


def test_phase_2_does_not_read_given_labels() -> None:
    finished = []
    for corrupt in (False, True):
        runner = StepRunner(small_run("mslg"), small_problem()).advance(9)
        if corrupt:
            runner.problem.train.given.copy_((runner.problem.train.given + 1) % 3)
        finished.append(runner.advance().method.model_state_dict())
    assert all(torch.equal(finished[0][k], finished[1][k]) for k in finished[0])


def test_labels_improve() -> None:
    """On an easy problem with a third of the labels wrong, with β for a batch size of 12 instead of 128."""
    problem = small_problem(wrong=0.35)
    run = small_run("mslg", epochs=14, lr_milestones=(12,), settings={"label_step": 400})
    soft = StepRunner(run, problem, net_of_run=True).advance().method.soft_labels()
    given, true = problem.train.given, problem.train.true
    assert (soft.argmax(1) == true).sum() > (given == true).sum() + 3


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_extreme_label_logits(size: float) -> None:
    y = (size * torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 1.0]])).requires_grad_()
    z = (size * torch.tensor([[-1.0, 1.0, 0.0], [1.0, 0.0, -1.0]])).requires_grad_()
    loss = classification_loss(z, y.log_softmax(1)).mean()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss, [z, y]))


def test_defaults_are_those_of_the_authors_code() -> None:
    s = MSLGSettings()
    assert (s.inner_step, s.label_step, s.k, s.entropy_weight, s.loss_scale) == (0.5, 4000, 10, 1, "per-class-mean")
    run = make_run("digits", method="mslg", recipe="own")
    assert (run.epochs, run.warmup, run.batch_size) == (120, 44, 128)
    assert not METHODS["mslg"].traits.uses_unlabeled
