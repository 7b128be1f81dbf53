"""The losses along a step: what is drawn is what Algorithm 1 did."""

import pytest
import torch
from torch import Tensor

from metalabelnet.core.forward_pass import Theta, forward, generate, trainable
from metalabelnet.core.losses import classification_loss
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.reproduction.loss_figure import measure
from small import Walk, small_problem, small_run


@pytest.fixture(params=["metalabelnet", "metalabelnet:mlp-batchnorm-dropout"])
def walk(request: pytest.FixtureRequest) -> Walk:
    return Walk(small_run(request.param), small_problem()).go(14)


def test_the_curves_are_the_losses_along_the_gradient(walk: Walk) -> None:
    batch = next(walk.batches.epoch(walk.epoch, labeled_only=False, start=walk.step))
    phase2 = walk.method.phase2
    theta = {name: weight.detach().clone().requires_grad_() for name, weight in trainable(phase2.f).items()}
    labels = generate(phase2.m, phase2.g(batch.x), seed=batch.seed + 2, update_statistics=False).detach()

    def loss_at(weights: Theta) -> Tensor:
        logits = forward(phase2.f, batch.x, weights, seed=batch.seed, update_statistics=False)
        return classification_loss(logits, labels).mean() / 3

    by_theta = gradients(loss_at(theta), theta)

    found = measure(walk.method, batch)
    for tau, value in zip(found["tau"], found["train_before"], strict=True):
        there = {name: weight.detach() - tau * by_theta[name] for name, weight in theta.items()}
        assert value == pytest.approx(loss_at(there).item(), rel=1e-5)
    assert found["meta"][found["tau"].index(0.0)] == pytest.approx(found["meta_at_theta"])
    assert found["meta"][found["tau"].index(1.0)] == pytest.approx(found["meta_at_theta_hat"])
    assert found["train_after"] != found["train_before"]


def test_the_iteration_is_the_real_one(walk: Walk) -> None:
    batch = next(walk.batches.epoch(walk.epoch, labeled_only=False, start=walk.step))
    other = Walk(walk.run, small_problem()).go(14)
    measure(walk.method, batch)
    other.go(1)
    assert all(
        torch.equal(a, b) for a, b in zip(walk.method.model().values(), other.method.model().values(), strict=True)
    )
