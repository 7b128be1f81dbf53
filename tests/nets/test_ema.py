"""The averaged network: the formula, its limit, and what it reads on the way."""

import copy

import pytest
import torch
from torch import nn

from metalabelnet.core.forward_pass import predict
from metalabelnet.nets.ema import EMA


def net() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double()


def walked(one: nn.Module, t: int) -> nn.Module:
    """Another place for every weight and statistic."""
    with torch.no_grad():
        for k, tensor in enumerate((*one.parameters(), *one.buffers())):
            tensor.add_(k + t)
    return one


@pytest.mark.parametrize("most", [0.0, 0.3, 0.999])
def test_it_is_the_formula(most: float) -> None:
    one = net()
    average = EMA(one, "3", most)
    expected = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    for t in range(1, 6):
        average.follow(walked(one, t))
        keep = min(most, (1 + t) / (10 + t))
        for name, tensor in one.state_dict().items():
            slow = keep * expected[name] + (1 - keep) * tensor
            expected[name] = slow if tensor.is_floating_point() else tensor.clone()
    for name, tensor in average.net.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-12, atol=1e-12)


def test_keeping_nothing_it_is_the_classifier() -> None:
    one = net()
    average = EMA(one, "3", 0.0)
    average.follow(walked(one, 1))
    assert all(
        torch.equal(a, b) for a, b in zip(average.net.state_dict().values(), one.state_dict().values(), strict=True)
    )


def test_it_gives_features_and_logits_and_keeps_nothing() -> None:
    one, x = net(), torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    average = EMA(copy.deepcopy(one), "3", 0.9)
    average.net.train()  # whatever others do to it
    v, logits = average.ask(x)
    assert torch.equal(logits, predict(one, x))
    assert torch.equal(one[3](v), logits)
    assert not average.net[3]._forward_pre_hooks
    assert not logits.requires_grad


def test_its_steps_are_a_part_of_a_checkpoint() -> None:
    one = net()
    average, again = EMA(one, "3", 0.9), EMA(one, "3", 0.9)
    for t in range(3):
        average.follow(walked(one, t))
    again.net.load_state_dict(average.net.state_dict())
    again.memory.load_state_dict(average.memory.state_dict())
    for each in (average, again):
        each.follow(one)
    assert all(torch.equal(a, b) for a, b in zip(average.net.parameters(), again.net.parameters(), strict=True))
