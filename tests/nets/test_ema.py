"""EMA: the formula, its limit, features and logits, and its checkpoint."""

import pytest
import torch
from torch import nn

from metalabelnet.nets.ema import EMA


def build_net() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double()


def perturb(net: nn.Module, t: int) -> nn.Module:
    """Change every weight and statistic in place, and return the network."""
    with torch.no_grad():
        for k, tensor in enumerate((*net.parameters(), *net.buffers())):
            tensor.add_(k + t)
    return net


@pytest.mark.parametrize("max_decay", [0.0, 0.3, 0.999])
def test_update_equals_formula(max_decay: float) -> None:
    net = build_net()
    ema = EMA(net, max_decay)
    expected = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for t in range(1, 6):
        ema.update(perturb(net, t))
        decay = min(max_decay, (1 + t) / (10 + t))
        for name, tensor in net.state_dict().items():
            averaged = decay * expected[name] + (1 - decay) * tensor
            expected[name] = averaged if tensor.is_floating_point() else tensor.clone()
    for name, tensor in ema.net.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-12, atol=1e-12)


def test_zero_decay_copies_classifier() -> None:
    net = build_net()
    ema = EMA(net, 0.0)
    ema.update(perturb(net, 1))
    assert all(torch.equal(a, b) for a, b in zip(ema.net.state_dict().values(), net.state_dict().values(), strict=True))


def test_step_count_is_restored_from_checkpoint() -> None:
    net = build_net()
    ema, restored = EMA(net, 0.9), EMA(net, 0.9)
    for t in range(3):
        ema.update(perturb(net, t))
    restored.net.load_state_dict(ema.net.state_dict())
    restored.state.load_state_dict(ema.state.state_dict())
    for average in (ema, restored):
        average.update(net)
    assert all(torch.equal(a, b) for a, b in zip(ema.net.parameters(), restored.net.parameters(), strict=True))
