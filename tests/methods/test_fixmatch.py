"""FixMatch: the step equals the formula; given labels are not read."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.forward_pass import trainable_parameters
from metalabelnet.errors import InputError
from small_runs import StepRunner, small_problem, small_run


def train_logits(net: torch.nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    return torch.func.functional_call(net, {**weights, **buffers}, (x,))


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
def test_step_equals_the_formula(threshold: float) -> None:
    settings = {"threshold": threshold, "unlabeled_weight": 0.7}
    one = StepRunner(small_run("fixmatch", settings=settings), small_problem(unlabeled=6)).advance(4)
    one.method.begin_epoch(1)
    batch, net, sgd = next(iter(one.batches.epoch(1, labeled_only=False))), one.method.net, one.method.sgd
    theta = {name: w.detach().clone().requires_grad_() for name, w in trainable_parameters(net).items()}
    loss = functional.cross_entropy(train_logits(net, theta, batch.clean_x), batch.clean_y)
    q = train_logits(net, theta, batch.x).softmax(1).detach()
    strong = train_logits(net, theta, batch.views.strong).log_softmax(1)
    kept = 0
    for row in range(len(q)):
        confidence, label = float(q[row].max()), int(q[row].argmax())
        if confidence >= threshold:
            kept += 1
            loss = loss - 0.7 * strong[row, label] / len(q)
    assert {0.0: kept == len(q), 0.5: 0 < kept <= len(q), 1.0: kept == 0}[threshold]
    gradients = torch.autograd.grad(loss, list(theta.values()))
    buffers = [buffer.clone() for buffer in sgd.buffers]
    torch.testing.assert_close(one.method.step(batch), loss.detach())
    for (name, w), gradient, buffer in zip(theta.items(), gradients, buffers, strict=True):
        moved = w - sgd.lr * (sgd.momentum * buffer + gradient + sgd.weight_decay * w)
        torch.testing.assert_close(trainable_parameters(net)[name].detach(), moved.detach())


def test_given_labels_are_not_read() -> None:
    runs = [StepRunner(small_run("fixmatch"), small_problem(wrong=wrong)).advance() for wrong in (0.0, 0.5)]
    assert runs[0].losses == runs[1].losses


def test_threshold_out_of_range_is_rejected() -> None:
    with pytest.raises(InputError, match=r"threshold=1\.5 is out of range: give a probability from 0 to 1"):
        small_run("fixmatch", settings={"threshold": 1.5})
