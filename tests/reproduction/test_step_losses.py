"""The losses along a step match Algorithm 1."""

import pytest
import torch
from torch import Tensor

from metalabelnet.core.forward_pass import Theta, forward, label_net_forward, trainable_parameters
from metalabelnet.core.losses import classification_loss
from metalabelnet.core.meta_gradient import gradients
from metalabelnet.reproduction.step_losses import measure_losses
from small_runs import StepRunner, small_problem, small_run


@pytest.fixture(params=["metalabelnet", "metalabelnet:mlp-batchnorm-dropout"])
def walk(request: pytest.FixtureRequest) -> StepRunner:
    return StepRunner(small_run(request.param), small_problem()).advance(14)


def test_losses_follow_the_gradient_step(walk: StepRunner) -> None:
    batch = next(walk.batches.epoch(walk.epoch, labeled_only=False, start=walk.step))
    phase2 = walk.method.phase2
    theta = {name: weight.detach().clone().requires_grad_() for name, weight in trainable_parameters(phase2.f).items()}
    labels = label_net_forward(phase2.m, phase2.g(batch.x), seed=batch.seed + 2, update_statistics=False).detach()

    def loss_at(weights: Theta) -> Tensor:
        logits = forward(phase2.f, batch.x, weights, seed=batch.seed, update_statistics=False)
        return classification_loss(logits, labels).mean() / 3

    by_theta = gradients(loss_at(theta), theta)

    losses = measure_losses(walk.method, batch)
    for tau, value in zip(losses["tau"], losses["train_before"], strict=True):
        at_tau = {name: weight.detach() - tau * by_theta[name] for name, weight in theta.items()}
        assert value == pytest.approx(loss_at(at_tau).item(), rel=1e-5)
    assert losses["meta"][losses["tau"].index(0.0)] == pytest.approx(losses["meta_at_theta"])
    assert losses["meta"][losses["tau"].index(1.0)] == pytest.approx(losses["meta_at_theta_hat"])
    assert losses["train_after"] != losses["train_before"]


def test_measuring_does_the_same_iteration(walk: StepRunner) -> None:
    batch = next(walk.batches.epoch(walk.epoch, labeled_only=False, start=walk.step))
    other = StepRunner(walk.run, small_problem()).advance(14)
    measure_losses(walk.method, batch)
    other.advance(1)
    assert all(
        torch.equal(a, b)
        for a, b in zip(walk.method.model_state_dict().values(), other.method.model_state_dict().values(), strict=True)
    )
