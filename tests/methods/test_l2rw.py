"""L2RW: weights against per-sample gradients and double backward, and the step written out."""

import copy

import pytest
import torch
from torch import Tensor

from metalabelnet.core.forward_pass import forward, trainable_parameters
from metalabelnet.core.losses import cross_entropy
from metalabelnet.data.batches import Batch
from metalabelnet.methods.l2rw import L2RW, sample_weights
from small_runs import StepRunner, small_problem, small_run


def method_and_batch(steps: int = 9, **settings: object) -> tuple[L2RW, Batch]:
    run = small_run("l2rw", settings=settings, momentum=0.0, weight_decay=0.0)
    runner = StepRunner(run, small_problem(wrong=0.4)).advance(steps)
    runner.method.begin_epoch(runner.epoch)
    return runner.method, next(runner.batches.epoch(runner.epoch, labeled_only=True, start=runner.step))


def agreement(method: L2RW, batch: Batch) -> Tensor:
    """Return ⟨∇θ L_meta, ∇θ l_i⟩ of every sample, from one backward pass each."""
    theta = trainable_parameters(method.net)
    weights = list(theta.values())
    clean = forward(method.net, batch.clean_x, theta, seed=2, update_statistics=False)
    g = torch.autograd.grad(cross_entropy(clean, batch.clean_y).mean(), weights)
    losses = cross_entropy(forward(method.net, batch.x, theta, seed=1, update_statistics=False), batch.given)
    products = []
    for loss in losses:
        of_sample = torch.autograd.grad(loss, weights, retain_graph=True)
        products.append(sum((a * b).sum() for a, b in zip(g, of_sample, strict=True)))
    return torch.stack(products)


def naive_meta_gradient(method: L2RW, batch: Batch) -> Tensor:
    """Return ∂L_meta/∂ε at ε = 0 by autograd through a look-ahead of step size 0.3."""
    theta, epsilon = trainable_parameters(method.net), torch.zeros(len(batch.x), dtype=torch.float64)
    epsilon.requires_grad_()
    losses = cross_entropy(forward(method.net, batch.x, theta, seed=1, update_statistics=False), batch.given)
    d = torch.autograd.grad((epsilon * losses).sum(), list(theta.values()), create_graph=True)
    ahead = {name: w - 0.3 * dw for (name, w), dw in zip(theta.items(), d, strict=True)}
    clean = forward(method.net, batch.clean_x, ahead, seed=2, update_statistics=False)
    return torch.autograd.grad(cross_entropy(clean, batch.clean_y).mean(), epsilon)[0]


def test_weights_equal_gradient_agreement_and_double_backward() -> None:
    method, batch = method_and_batch()
    products = agreement(method, batch)
    assert products.min() < 0 < products.max()
    expected = products.clamp_min(0) / products.clamp_min(0).sum()
    torch.testing.assert_close(sample_weights(naive_meta_gradient(method, batch)), expected)


@pytest.mark.parametrize("differentiation", ["exact", "double-backward"])
def test_step_equals_the_algorithm_written_out(differentiation: str) -> None:
    method, batch = method_and_batch(differentiation=differentiation)
    w = sample_weights(naive_meta_gradient(copy.deepcopy(method), batch))
    theta = trainable_parameters(method.net)
    losses = cross_entropy(forward(method.net, batch.x, theta, seed=1, update_statistics=False), batch.given)
    loss = sum(w_i * l_i for w_i, l_i in zip(w, losses, strict=True))
    gradient = torch.autograd.grad(loss, list(theta.values()))
    lr = float(method.sgd.lr)
    expected = [weight.detach() - lr * d for weight, d in zip(theta.values(), gradient, strict=True)]
    torch.testing.assert_close(method.step(batch), loss.detach(), rtol=1e-9, atol=0)
    for weight, value in zip(theta.values(), expected, strict=True):
        torch.testing.assert_close(weight.detach(), value, rtol=1e-9, atol=1e-12)


def test_weights_sum_to_one_or_are_all_zero() -> None:
    assert sample_weights(torch.tensor([-1.0, 2.0, -3.0])).tolist() == [0.25, 0.0, 0.75]
    assert sample_weights(torch.tensor([1.0, 0.0])).tolist() == [0.0, 0.0]


def test_wrong_labels_get_smaller_weights() -> None:
    """After a few epochs, on batches in which a fifth of the labels is wrong."""
    runner = StepRunner(small_run("l2rw"), small_problem(), net_of_run=True).advance(12)
    true, right, wrong = runner.problem.train.true, [], []
    for batch in runner.batches.epoch(runner.epoch, labeled_only=True):
        w = sample_weights(-agreement(runner.method, batch))
        is_right = batch.given == true[batch.index]
        right.append(w[is_right])
        wrong.append(w[~is_right])
    assert torch.cat(wrong).mean() < 0.3 * torch.cat(right).mean()


@pytest.mark.parametrize(("updates", "passes"), [(False, 1), (True, 2)])
def test_clean_batch_updates_running_statistics_only_if_set(updates: bool, passes: int) -> None:
    method, batch = method_and_batch(clean_updates_statistics=updates)
    before = int(method.net[1].num_batches_tracked)
    method.step(batch)
    assert int(method.net[1].num_batches_tracked) == before + passes
