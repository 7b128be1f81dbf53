"""GLC: T is the mean prediction per clean class; the second stage starts anew and uses both sets."""

import torch
from torch.nn import functional

from metalabelnet.core.forward_pass import predict, trainable_parameters
from metalabelnet.data.batches import to_input
from metalabelnet.methods.glc import gold_transitions
from small_runs import StepRunner, small_problem, small_run


def test_transitions_are_means_by_class() -> None:
    p = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8]])
    T = gold_transitions(p, torch.tensor([0, 0, 2]))
    torch.testing.assert_close(T, torch.tensor([[0.4, 0.5, 0.1], [0.0, 1.0, 0.0], [0.1, 0.1, 0.8]]))


def test_second_stage() -> None:
    one = StepRunner(small_run("glc"), small_problem())
    one.advance(24)  # the first stage
    method, clean = one.method, one.problem.clean
    p = predict(method.net, to_input(clean.x, torch.float64)).softmax(1)
    method.begin_epoch(6)
    T = method.estimates.get_buffer("T")
    torch.testing.assert_close(T, gold_transitions(p, clean.true))
    fresh = method.task.make_net(1)
    assert all(torch.equal(a, b) for a, b in zip(method.net.parameters(), fresh.parameters(), strict=True))
    batch, net, sgd = next(iter(one.batches.epoch(6, labeled_only=True))), method.net, method.sgd
    theta = {name: w.detach().clone().requires_grad_() for name, w in trainable_parameters(net).items()}

    def log_p(x: torch.Tensor) -> torch.Tensor:
        buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
        return torch.func.functional_call(net, {**theta, **buffers}, (x,)).log_softmax(1)

    noisy = -(log_p(batch.x).exp() @ T).gather(1, batch.given[:, None]).log().mean()
    loss = noisy + functional.nll_loss(log_p(batch.clean_x), batch.clean_y)
    gradients = torch.autograd.grad(loss, list(theta.values()))
    torch.testing.assert_close(method.step(batch), loss.detach())
    for (name, w), gradient in zip(theta.items(), gradients, strict=True):
        moved = w - sgd.lr * (gradient + sgd.weight_decay * w)
        torch.testing.assert_close(trainable_parameters(net)[name].detach(), moved.detach())


def test_stages_and_learning_rates() -> None:
    run = small_run("glc", epochs=60, lr_milestones=(20, 40), select_from=2 / 3)
    method = StepRunner(run, small_problem()).method
    assert (method.epochs, method.candidates_from, method.first_candidate) == (120, 60, 100)
    assert [method.lr_at(epoch) for epoch in (0, 59, 60, 100)] == [method.lr_at(epoch) for epoch in (60, 119, 0, 40)]
