"""MLC: the meta-gradient against double backward written out, the step, and the corrected labels."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from metalabelnet.core.forward_pass import forward, trainable_parameters
from metalabelnet.data import disk_tensor
from metalabelnet.data.batches import Batch, to_input
from metalabelnet.errors import InputError
from metalabelnet.methods.mlc import MLC
from small_runs import StepRunner, small_problem, small_run


def method_and_batch(steps: int = 9, **settings: object) -> tuple[MLC, Batch]:
    run = small_run("mlc", settings=settings)
    runner = StepRunner(run, small_problem(wrong=0.4)).advance(steps)
    runner.method.begin_epoch(runner.epoch)
    return runner.method, next(runner.batches.epoch(runner.epoch, labeled_only=True, start=runner.step))


@contextmanager
def record_features(method: MLC) -> Iterator[list[Tensor]]:
    features: list[Tensor] = []
    layer = method.net.get_submodule(method.head)
    hook = layer.register_forward_pre_hook(lambda _module, inputs: features.append(inputs[0]))
    yield features
    hook.remove()


def training_loss(method: MLC, batch: Batch) -> Tensor:
    """Return L(θ, ŷ) with a graph to θ and φ, from the formula: 12 training samples and 6 clean ones."""
    theta, features = trainable_parameters(method.net), []
    hook = method.net.get_submodule(method.head).register_forward_pre_hook(
        lambda _m, inputs: features.append(inputs[0])
    )
    log_p = forward(method.net, batch.x, theta, seed=1, update_statistics=False).log_softmax(1)
    hook.remove()
    log_p_c = forward(method.net, batch.clean_x[6:], theta, seed=1, update_statistics=False).log_softmax(1)
    y_hat = method.corrector(features[0].detach(), batch.given).exp()
    loss = sum(-(y_hat[i] * log_p[i]).sum() for i in range(12))
    loss = loss + sum(-log_p_c[i, int(batch.clean_y[6 + i])] for i in range(6))
    return loss / 18


@pytest.mark.parametrize("differentiation", ["exact", "double-backward"])
def test_step_equals_the_algorithm_written_out(differentiation: str) -> None:
    method, batch = method_and_batch(differentiation=differentiation)
    other = copy.deepcopy(method)
    theta, lr = trainable_parameters(other.net), float(other.sgd.lr)
    d = torch.autograd.grad(training_loss(other, batch), list(theta.values()), create_graph=True)
    ahead = {name: w - lr * dw for (name, w), dw in zip(theta.items(), d, strict=True)}
    log_p = forward(other.net, batch.clean_x[:6], ahead, seed=2, update_statistics=False).log_softmax(1)
    l_meta = -log_p[torch.arange(6), batch.clean_y[:6]].mean()
    phi = list(other.corrector.parameters())
    for weight, gradient in zip(phi, torch.autograd.grad(l_meta, phi), strict=True):
        weight.grad = gradient
    assert sum(float(weight.grad.norm()) for weight in phi) > 1e-6
    other.adam.step()
    loss = training_loss(other, batch)
    loss.backward(inputs=list(other.net.parameters()))
    other.sgd.step()

    torch.testing.assert_close(method.step(batch), loss.detach(), rtol=1e-9, atol=0)
    for mine, theirs in ((method.net, other.net), (method.corrector, other.corrector)):
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_without_clean_training_the_whole_clean_batch_is_meta() -> None:
    """The classifier is then trained on corrected labels only."""
    method, batch = method_and_batch(train_on_clean=False)
    assert not method.learns_from_clean
    theta, features = trainable_parameters(method.net), []
    hook = method.net.get_submodule(method.head).register_forward_pre_hook(
        lambda _m, inputs: features.append(inputs[0])
    )
    before = forward(method.net, batch.x, theta, seed=1, update_statistics=False).log_softmax(1).detach()
    hook.remove()
    loss = method.step(batch)
    y_hat = method.corrector(features[0].detach(), batch.given).exp()
    torch.testing.assert_close(loss, -(y_hat * before).sum(1).mean().detach())


@pytest.mark.parametrize("chunk", [7, 1000])
def test_soft_labels_are_those_of_the_corrector(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tensor, "chunk_size", lambda _shape: chunk)
    runner = StepRunner(small_run("mlc"), small_problem(unlabeled=5)).advance(8)
    method, train = runner.method, runner.problem.train
    method.net.eval()
    features = []
    hook = method.net.get_submodule(method.head).register_forward_pre_hook(
        lambda _m, inputs: features.append(inputs[0])
    )
    method.net(to_input(train.x, torch.float64))
    hook.remove()
    expected = method.corrector(features[0], train.given.clamp_min(0)).exp()
    soft = method.soft_labels()
    torch.testing.assert_close(soft[5:], expected[5:].detach())
    assert torch.equal(soft[:5], torch.full((5, 3), 1 / 3, dtype=torch.float64))


def test_wrong_sizes_are_rejected() -> None:
    with pytest.raises(InputError, match="hidden=0"):
        StepRunner(small_run("mlc", settings={"hidden": 0}), small_problem())
