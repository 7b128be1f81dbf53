"""What MetaLabelNet-plus promises beside the contract: each ingredient is its formula, and off it is nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.passes import trainable
from metalabelnet.errors import InputError
from metalabelnet.methods.metalabelnet_plus import MetaLabelNetPlus
from small import Walk, batches, small_problem, small_run

OFF: dict[str, Any] = {
    "loss_scale": "per-class-mean",
    "clean_weight": 0.0,
    "warmup_share": 1.0,
    "average": 0.0,
    "features": "warm-up",
    "prior": 0.0,
    "given": 0.0,
    "consistency": 0.0,
}
GOLDEN = Path(__file__).with_name("golden.json")


def walk(**settings: Any) -> Walk:
    return Walk(small_run("metalabelnet-plus", settings=settings), small_problem(unlabeled=6))


def weights(one: Walk) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in one.method.model().items()}


def test_all_off_it_is_metalabelnet_to_the_bit() -> None:
    theirs = Walk(small_run("metalabelnet"), small_problem(unlabeled=6)).go()
    ours = walk(**OFF).go()
    assert ours.losses == theirs.losses
    one, other = weights(ours), weights(theirs)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(ours.method.soft_labels(), theirs.method.soft_labels())
    assert ours.method.learns_from_clean is False


def test_all_off_it_has_the_golden_trace_of_metalabelnet() -> None:
    ours = Walk(small_run("metalabelnet-plus", settings=OFF), small_problem()).go()
    golden = json.loads(GOLDEN.read_text())["metalabelnet"]
    torch.testing.assert_close(ours.losses, golden, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", OFF)
def test_each_ingredient_alone_changes_something(name: str) -> None:
    theirs = Walk(small_run("metalabelnet"), small_problem(unlabeled=6)).go()
    ours = walk(**{key: value for key, value in OFF.items() if key != name}).go()
    x = ours.problem.test.x
    assert not torch.equal(ours.method.logits(x), theirs.method.logits(x))


def naive_step(one: Walk, batch: Any, gamma: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """θ and φ after one iteration with plain SGD's first step, by double backward through the look-ahead."""
    method = one.method
    theta, p2 = {k: w.detach().clone().requires_grad_() for k, w in trainable(method.net).items()}, method.phase2
    buffers = dict(method.net.named_buffers())

    def f(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        copies = {k: b.clone() for k, b in buffers.items()}
        return torch.func.functional_call(method.net, {**weights, **copies}, (x,))

    v = p2.g(batch.x)
    phi = {k: w.detach().clone().requires_grad_() for k, w in p2.m.named_parameters()}

    def log_y(of: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(p2.m, of, (v,))

    log_p = f(theta, batch.x).log_softmax(1)
    l_c = (log_p.exp() * (log_p - log_y(phi))).sum(1).mean()
    by_theta = torch.autograd.grad(l_c, list(theta.values()), create_graph=True)
    theta_hat = {k: w - d for (k, w), d in zip(theta.items(), by_theta, strict=True)}
    l_meta = functional.cross_entropy(f(theta_hat, batch.clean_x), batch.clean_y)
    g = torch.autograd.grad(l_meta, list(theta_hat.values()), retain_graph=True)
    by_phi = torch.autograd.grad(l_meta, list(phi.values()))
    s = method.settings
    new_phi = {}
    for (name, w), d in zip(phi.items(), by_phi, strict=True):
        d = d + s.label_net_decay * w
        new_phi[name] = (w - s.beta * d / (d.abs() + 1e-8)).detach()  # Adam's first step
    log_p = f(theta, batch.x).log_softmax(1)
    soft = -(log_p.exp() * log_y(new_phi)).sum(1).mean()  # L_c + L_e
    by_soft = torch.autograd.grad(soft, list(theta.values()))
    sgd, new = method.sgd, {}
    for (name, w), d, clean, b in zip(theta.items(), by_soft, g, sgd.buffers, strict=True):
        moved = sgd.momentum * b + d + gamma * clean + sgd.weight_decay * w
        new[name] = (w - sgd.rate * moved).detach()
    return new, new_phi


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_the_step_is_the_formula(gamma: float) -> None:
    one = walk(**{**OFF, "clean_weight": gamma, "loss_scale": "sum", "warmup_share": 0.5}).go(3)
    one.method.begin_epoch(1)
    run, problem = one.run, one.problem
    batch = next(iter(batches(run, problem, one.method).epoch(1, labeled_only=False)))
    theta, phi = naive_step(one, batch, gamma)
    one.method.step(batch)
    for name, weight in trainable(one.method.net).items():
        torch.testing.assert_close(weight.detach(), theta[name], rtol=1e-9, atol=1e-11)
    for name, weight in one.method.phase2.m.named_parameters():
        torch.testing.assert_close(weight.detach(), phi[name], rtol=1e-6, atol=1e-8)


def test_warm_up_takes_its_share() -> None:
    for share, warmup, taken in (
        (0.0, 11, 0),
        (0.35, 0, 0),
        (0.35, 1, 1),
        (0.35, 11, 4),
        (0.35, 44, 16),
        (1.0, 11, 11),
    ):
        run = small_run("metalabelnet-plus", settings={"warmup_share": share}, epochs=60, warmup=warmup)
        method = Walk(run, small_problem()).method
        assert isinstance(method, MetaLabelNetPlus)
        assert method.candidates_from == taken
        assert method.labeled_only(taken - 1) is True
        assert method.labeled_only(taken) is False


def test_a_share_is_a_share() -> None:
    with pytest.raises(InputError, match=r"warmup_share=1.5 is not a share in \[0, 1\]"):
        small_run("metalabelnet-plus", settings={"warmup_share": 1.5})
