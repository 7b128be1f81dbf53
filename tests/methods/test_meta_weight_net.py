"""Meta-Weight-Net: loss, weight net, meta-gradient and step."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from metalabelnet.core.forward_pass import forward, trainable_parameters
from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.meta_gradient import MetaGradient
from metalabelnet.core.weight_net import WeightNet
from metalabelnet.data.batches import Batch
from metalabelnet.errors import InputError
from metalabelnet.methods.meta_weight_net import MetaWeightNet, weighted_loss
from metalabelnet.train.settings import make_run
from small_runs import StepRunner, small_problem, small_run


def weight_net(hidden: int = 5, seed: int = 0) -> WeightNet:
    return WeightNet(hidden, torch.Generator().manual_seed(seed)).double()


def logits_and_labels(seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(7, 4, dtype=torch.float64, generator=g), torch.randint(4, (7,), generator=g)


def method_and_batch(steps: int = 9, **settings: object) -> tuple[MetaWeightNet, Batch]:
    runner = StepRunner(small_run("meta-weight-net", settings=settings), small_problem()).advance(steps)
    runner.method.begin_epoch(runner.epoch)
    return runner.method, next(runner.batches.epoch(runner.epoch, labeled_only=True, start=runner.step))


def test_loss_is_cross_entropy_for_weight_1_and_zero_for_weight_0() -> None:
    z, y = logits_and_labels()
    torch.testing.assert_close(weighted_loss(z, y, torch.ones_like), cross_entropy(z, y))
    assert torch.equal(weighted_loss(z, y, torch.zeros_like), torch.zeros(7, dtype=torch.float64))


def test_loss_equals_a_naive_loop() -> None:
    z, y = logits_and_labels()
    v = weight_net()
    expected = []
    for row, label in zip(z.tolist(), y.tolist(), strict=True):
        l = math.log(sum(math.exp(value) for value in row)) - row[label]
        total = float(v.bias.detach())
        for w1, b1, w2 in zip(
            v.hidden_weight[:, 0].tolist(), v.hidden_bias.tolist(), v.weight[0].tolist(), strict=True
        ):
            total += w2 * max(0.0, w1 * l + b1)
        expected.append(l / (1 + math.exp(-total)))
    torch.testing.assert_close(weighted_loss(z, y, v).detach(), torch.tensor(expected, dtype=torch.float64))


def test_no_gradient_passes_through_the_weight() -> None:
    """The derivative by the logits is V(l)(p − onehot), because V reads the detached loss."""
    z, y = logits_and_labels()
    z.requires_grad_()
    v = weight_net()
    (by_z,) = torch.autograd.grad(weighted_loss(z, y, v).sum(), z)
    onehot = nn.functional.one_hot(y, 4)
    expected = v(cross_entropy(z, y))[:, None] * (z.softmax(1) - onehot)
    torch.testing.assert_close(by_z, expected.detach())


def test_gradcheck_by_the_logits_and_by_the_weight_net() -> None:
    z, y = logits_and_labels()
    fixed = torch.rand(7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.autograd.gradcheck(lambda z: weighted_loss(z, y, lambda _l: fixed), z.requires_grad_())
    v = weight_net()
    names = [name for name, _ in v.named_parameters()]

    def loss(*weights: Tensor) -> Tensor:
        by_name = dict(zip(names, weights, strict=True))
        return weighted_loss(z.detach(), y, lambda l: functional_call(v, by_name, (l,)))

    assert torch.autograd.gradcheck(loss, tuple(w.detach().requires_grad_() for w in v.parameters()))


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_extreme_logits_are_finite(size: float) -> None:
    z = (size * torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 1.0]])).requires_grad_()
    v = WeightNet(100, torch.Generator().manual_seed(0))
    loss = weighted_loss(z, torch.tensor([1, 0]), v)
    assert torch.isfinite(loss).all()
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss.mean(), [z, *v.parameters()]))


def test_weight_net_shape_and_initialization() -> None:
    nets = [WeightNet(100, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert sum(w.numel() for w in nets[0].parameters()) == 301
    assert torch.equal(nets[0].weight, nets[1].weight)
    assert not torch.equal(nets[0].weight, nets[2].weight)
    assert 0.9 < nets[0].hidden_weight.abs().max() <= 1
    assert 0.09 < nets[0].weight.abs().max() <= 0.1
    weights = nets[0](torch.linspace(0, 20, 50))
    assert weights.shape == (50,)
    assert ((weights > 0) & (weights < 1)).all()


def meta_gradient(differentiation: str, method: MetaWeightNet, batch: Batch, lr: float) -> list[Tensor]:
    theta = trainable_parameters(method.net)
    return MetaGradient(differentiation)(
        theta=theta,
        phi=list(method.weight_net.parameters()),
        logits=forward(method.net, batch.x, theta, seed=1, update_statistics=False),
        logits_at=lambda t: forward(method.net, batch.x, t, seed=1, update_statistics=False),
        training_loss=lambda z: weighted_loss(z, batch.given, method.weight_net).mean(),
        meta_loss=lambda t: cross_entropy(
            forward(method.net, batch.clean_x, t, seed=2, update_statistics=False), batch.clean_y
        ).mean(),
        inner_step=lr,
    )


def look_ahead(method: MetaWeightNet, batch: Batch, lr: float) -> dict[str, Tensor]:
    """Return θ̂ with a graph to the weight net."""
    theta = trainable_parameters(method.net)
    l = cross_entropy(forward(method.net, batch.x, theta, seed=1, update_statistics=False), batch.given)
    d = torch.autograd.grad((method.weight_net(l.detach()) * l).mean(), list(theta.values()), create_graph=True)
    return {k: w - lr * dw for (k, w), dw in zip(theta.items(), d, strict=True)}


def naive_meta_gradient(method: MetaWeightNet, batch: Batch, lr: float) -> tuple[Tensor, ...]:
    z_m = forward(method.net, batch.clean_x, look_ahead(method, batch, lr), seed=2, update_statistics=False)
    return torch.autograd.grad(cross_entropy(z_m, batch.clean_y).mean(), list(method.weight_net.parameters()))


def test_exact_equals_double_backward_and_naive_meta_gradient() -> None:
    """With the loss and weight net of the method, on convolutions with BatchNorm in train mode."""
    method, batch = method_and_batch()
    assert method.net.training
    expected = torch.cat([d.flatten() for d in naive_meta_gradient(method, batch, 0.05)])
    assert expected.norm() > 1e-6
    for differentiation in ("exact", "double-backward"):
        result = torch.cat([d.flatten() for d in meta_gradient(differentiation, method, batch, 0.05)])
        assert float((result - expected).norm() / expected.norm()) < 1e-10


def test_meta_gradient_equals_its_formula() -> None:
    """∂L_meta/∂Θ = −(λ/N) Σ_i l̇_i ∂V(l_i)/∂Θ, with l̇ the derivative of the losses along the clean gradient."""
    method, batch = method_and_batch()
    for module in method.net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.track_running_stats = False
    theta_hat = {k: w.detach().requires_grad_() for k, w in look_ahead(method, batch, 0.05).items()}
    l_meta = cross_entropy(functional_call(method.net, theta_hat, (batch.clean_x,)), batch.clean_y).mean()
    g = dict(zip(theta_hat, torch.autograd.grad(l_meta, list(theta_hat.values())), strict=True))
    theta = {k: w.detach() for k, w in trainable_parameters(method.net).items()}
    l, l_dot = jvp(lambda t: cross_entropy(functional_call(method.net, t, (batch.x,)), batch.given), (theta,), (g,))
    expected = torch.autograd.grad(
        method.weight_net(l), list(method.weight_net.parameters()), grad_outputs=-0.05 / len(l) * l_dot
    )
    for mine, theirs in zip(meta_gradient("exact", method, batch, 0.05), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(("steps", "lr"), [(9, 0.05), (17, 0.005)])
def test_step_equals_the_algorithm_written_out(steps: int, lr: float) -> None:
    """Before and after the milestone: the look-ahead uses the learning rate of the epoch."""
    method, batch = method_and_batch(steps)
    other = copy.deepcopy(method)
    other.sgd.zero_grad()
    z_m = forward(other.net, batch.clean_x, look_ahead(other, batch, lr), seed=2, update_statistics=False)
    other.adam.zero_grad()
    cross_entropy(z_m, batch.clean_y).mean().backward(inputs=list(other.weight_net.parameters()))
    other.adam.step()
    l = cross_entropy(
        forward(other.net, batch.x, trainable_parameters(other.net), seed=1, update_statistics=False), batch.given
    )
    loss = (other.weight_net(l).detach() * l).mean()
    loss.backward(inputs=list(other.net.parameters()))
    other.sgd.step()

    torch.testing.assert_close(method.step(batch), loss.detach(), rtol=1e-9, atol=0)
    for mine, theirs in ((method.net, other.net), (method.weight_net, other.weight_net)):
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("updates", "passes"), [(False, 1), (True, 2)])
def test_clean_batch_updates_running_statistics_only_if_set(updates: bool, passes: int) -> None:
    method, batch = method_and_batch(clean_updates_statistics=updates)
    before = int(method.net[1].num_batches_tracked)
    method.step(batch)
    assert int(method.net[1].num_batches_tracked) == before + passes


def test_defaults_are_the_authors_and_zero_hidden_units_are_rejected() -> None:
    method, _ = method_and_batch()
    assert (method.adam.lr, method.adam.weight_decay) == (1e-3, 1e-4)
    run = make_run("digits", method="meta-weight-net", recipe="own")
    assert (run.epochs, run.lr, run.lr_milestones, run.batch_size) == (40, 0.1, (36, 38), 100)
    with pytest.raises(InputError, match="hidden=0"):
        make_run("digits", recipe="paper", method="meta-weight-net", settings={"hidden": "0"})
