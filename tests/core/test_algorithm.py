"""Algorithm 1 against a plain implementation, and the side effects of each pass."""

import copy

import pytest
import torch
from torch import Tensor, nn

from metalabelnet.core.algorithm import Phase2, Phase2Settings
from metalabelnet.core.forward_pass import forward, trainable_parameters
from metalabelnet.core.label_net import LabelNet
from metalabelnet.core.meta_gradient import DIFFERENTIATIONS
from metalabelnet.core.optimizers import SGD, Adam
from metalabelnet.nets.head import FeatureExtractor, find_head
from networks import NETWORKS, make

N, C = 6, 3


def data(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x, x_m = (torch.randn(N, 2, 8, 8, dtype=torch.float64, generator=g) for _ in range(2))
    return x, x_m, torch.randint(C, (N,), generator=g)


def phase2(net: nn.Module, **settings: object) -> Phase2:
    net.train()
    g = FeatureExtractor(net, find_head(net, data()[0][:2], C))
    m = LabelNet(g.width, C, torch.Generator().manual_seed(1)).double()
    return Phase2(
        net,
        g,
        m,
        sgd=SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4),
        adam=Adam(m.parameters(), lr=1e-2, weight_decay=1e-4),
        settings=Phase2Settings(**settings),
    )


def plain_iteration(p: Phase2, x: Tensor, x_m: Tensor, y_m: Tensor, alpha: float, weight: float, scale: float) -> None:
    """The paper's three steps with separate passes and plain autograd through the look-ahead."""
    net, m, theta = p.f, p.m, trainable_parameters(p.f)
    v = p.g(x)
    prob = forward(net, x, theta, seed=5, update_statistics=False).softmax(1)
    l_c = scale * (prob * (prob.log() - m(v))).sum(1).mean()
    d = torch.autograd.grad(l_c, list(theta.values()), create_graph=True)
    theta_hat = {k: w - alpha * dw for (k, w), dw in zip(theta.items(), d, strict=True)}
    z_m = forward(net, x_m, theta_hat, seed=6, update_statistics=False)
    p.adam.zero_grad()
    nn.functional.cross_entropy(z_m, y_m).backward(inputs=list(m.parameters()))
    p.adam.step()
    prob = forward(net, x, theta, seed=5, update_statistics=False).softmax(1)
    l_c = scale * (prob * (prob.log() - m(v).detach())).sum(1).mean()
    l_e = scale * -(prob * prob.log()).sum(1).mean()
    p.sgd.zero_grad()
    (l_c + weight * l_e).backward()
    p.sgd.step()


def assert_close(a: nn.Module, b: nn.Module) -> None:
    for (name, weight), expected in zip(a.named_parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(
            weight, expected, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("alpha", "weight", "loss_scale"), [(1.0, 1.0, "per-class-mean"), (0.5, 0.3, "sum")])
def test_three_iterations_equal_plain_algorithm(name: str, alpha: float, weight: float, loss_scale: str) -> None:
    ours = phase2(make(name), inner_step=alpha, entropy_weight=weight, loss_scale=loss_scale)
    reference = phase2(make(name))
    for seed in range(3):
        ours.step(*data(seed), seed=5)
        plain_iteration(reference, *data(seed), alpha, weight, 1.0 if loss_scale == "sum" else 1 / C)
    assert_close(ours.f, reference.f)
    assert_close(ours.m, reference.m)


def test_defaults_are_from_paper() -> None:
    assert Phase2Settings() == Phase2Settings(
        inner_step=1.0,
        entropy_weight=1.0,
        loss_scale="per-class-mean",
        differentiation="exact",
        clean_updates_statistics=True,
    )


def test_loss_scale_rescales_inner_step() -> None:
    """A sum over C classes with α equals a mean with αC: θ̂ and the update of φ are the same."""
    a = phase2(make("conv"), inner_step=0.2, loss_scale="sum")
    b = phase2(make("conv"), inner_step=0.2 * C, loss_scale="per-class-mean")
    for p in (a, b):
        p.step(*data(), seed=0)
    assert_close(a.m, b.m)


@pytest.mark.parametrize("differentiation", DIFFERENTIATIONS)
def test_steps_1_and_3_share_one_forward_pass(differentiation: str) -> None:
    p = phase2(make("mlp"), differentiation=differentiation)
    x, x_m, y_m = data()
    passes = []
    p.f.register_forward_pre_hook(lambda _module, inputs: passes.append("clean" if inputs[0] is x_m else "train"))
    p.step(x, x_m, y_m, seed=0)
    more = {"exact": 1, "double-backward": 0, "finite-difference": 2}[differentiation]
    assert passes == ["train", "clean", *["train"] * more]


class MaskNet(nn.Module):
    """A network that stores its dropout masks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last, self.seen = nn.Linear(128, 16), nn.Linear(16, C), []

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.functional.dropout(torch.ones(len(x), 16, dtype=x.dtype), 0.5, training=self.training)
        self.seen.append(mask)
        return self.last(self.linear(x.flatten(1)) * mask)


@pytest.mark.parametrize("differentiation", DIFFERENTIATIONS)
def test_passes_over_a_batch_share_dropout_mask(differentiation: str) -> None:
    p = phase2(MaskNet().double(), differentiation=differentiation)
    p.f.seen.clear()
    p.step(*data(), seed=0)
    train, clean, *again = p.f.seen
    assert all(torch.equal(train, mask) for mask in again)
    assert not torch.equal(train, clean)
    p.f.seen.clear()
    p.step(*data(), seed=9)
    assert not torch.equal(train, p.f.seen[0])


@pytest.mark.parametrize("differentiation", DIFFERENTIATIONS)
@pytest.mark.parametrize("updates", [True, False])
def test_running_statistics_are_updated_once_per_batch(differentiation: str, updates: bool) -> None:
    """First by the pass over the training batch, then, optionally, by the pass over the clean batch."""
    p = phase2(make("conv"), differentiation=differentiation, clean_updates_statistics=updates)
    x, x_m, y_m = data()
    before = copy.deepcopy(p.f)
    seen = []
    p.f[1].register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].detach()))
    p.step(x, x_m, y_m, seed=0)
    norm = nn.BatchNorm2d(4).double()
    for inputs in seen[: 2 if updates else 1]:
        norm(inputs)
    torch.testing.assert_close(p.f[1].running_mean, norm.running_mean)
    torch.testing.assert_close(p.f[1].running_var, norm.running_var)
    assert p.f[1].num_batches_tracked == before[1].num_batches_tracked + (2 if updates else 1)
    assert p.f[1].track_running_stats


def test_feature_extractor_is_frozen() -> None:
    p = phase2(make("conv"))
    before = {k: t.clone() for k, t in p.g.state_dict().items()}
    p.g.train()
    for seed in range(4):
        p.step(*data(seed), seed=seed)
    assert all(torch.equal(before[k], t) for k, t in p.g.state_dict().items())
    assert not any(module.training for module in p.g.net.modules())
    assert any(not torch.equal(before[f"net.{k}"], t) for k, t in p.f.state_dict().items())


def test_forward_restores_global_generator() -> None:
    net = make("dropout").train()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    a, b = (forward(net, data()[0], trainable_parameters(net), seed=1, update_statistics=False) for _ in range(2))
    other = forward(net, data()[0], trainable_parameters(net), seed=2, update_statistics=False)
    assert torch.equal(a, b)
    assert not torch.equal(a, other)
    assert torch.equal(state, torch.get_rng_state())


def test_statistics_are_restored_after_error() -> None:
    net = make("conv").train()
    with pytest.raises(RuntimeError):
        forward(net, torch.zeros(2, 7, 8, 8), trainable_parameters(net), seed=0, update_statistics=False)
    assert net[1].track_running_stats


def test_label_net_initialization() -> None:
    nets = [LabelNet(25, 4, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(nets[0].weight, nets[1].weight)
    assert not torch.equal(nets[0].weight, nets[2].weight)
    for weights in (nets[0].weight, nets[0].bias):
        assert weights.abs().max() <= 1 / 5
    assert nets[0].weight.abs().max() > 0.19
    v = torch.randn(7, 25)
    torch.testing.assert_close(nets[0](v), (v @ nets[0].weight.T + nets[0].bias).softmax(1).log())
