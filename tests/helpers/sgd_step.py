"""Comparison of a method's step with one SGD step on a loss that the test computes from the formula."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from metalabelnet.core.forward_pass import trainable_parameters
from small_runs import StepRunner


def train_logits(net: torch.nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    return torch.func.functional_call(net, {**weights, **buffers}, (x,))


def check_step(one: StepRunner, batch: Any, loss_at: Callable[[Callable[[Tensor], Tensor]], Tensor]) -> None:
    """Assert that a step returns the loss and takes one SGD step on it.

    `loss_at` gets a function that returns log-probabilities, and returns the loss.
    """
    net, sgd = one.method.net, one.method.sgd
    theta = {name: w.detach().clone().requires_grad_() for name, w in trainable_parameters(net).items()}
    loss = loss_at(lambda x: train_logits(net, theta, x).log_softmax(1))
    gradients = torch.autograd.grad(loss, list(theta.values()))
    buffers = [buffer.clone() for buffer in sgd.buffers]
    torch.testing.assert_close(one.method.step(batch), loss.detach())
    for (name, w), gradient, buffer in zip(theta.items(), gradients, buffers, strict=True):
        moved = w - sgd.lr * (sgd.momentum * buffer + gradient + sgd.weight_decay * w)
        torch.testing.assert_close(trainable_parameters(net)[name].detach(), moved.detach())
