"""Passes with everything explicit: statistics move when they are asked to, and not otherwise."""

import pytest
import torch
from torch import nn

from metalabelnet.core.forward_pass import forward, measure_statistics, trainable

NORMS = [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)]


def samples() -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return 2 + 3 * torch.randn(12, 4, 5, dtype=torch.float64, generator=g)


@pytest.mark.parametrize("norm", NORMS)
def test_statistics_move_when_asked_alone(norm: nn.Module) -> None:
    net = nn.Sequential(norm, nn.Flatten(), nn.Linear(20, 3)).double().train()
    mean = norm.running_mean.clone()
    said = [forward(net, samples(), trainable(net), seed=0, update_statistics=update) for update in (False, True)]
    assert torch.equal(*said)
    assert not torch.equal(norm.running_mean, mean)
    mean = norm.running_mean.clone()
    forward(net, samples(), trainable(net), seed=0, update_statistics=False)
    assert torch.equal(norm.running_mean, mean)


@pytest.mark.parametrize("norm", NORMS)
def test_measured_statistics_are_the_mean_over_all_passes(norm: nn.Module) -> None:
    net = nn.Sequential(norm, nn.Flatten(), nn.Linear(20, 3)).double()
    measure_statistics(net, samples().split(4), seed=0)
    torch.testing.assert_close(norm.running_mean, samples().mean((0, 2)))
    assert norm.momentum == 0.1
