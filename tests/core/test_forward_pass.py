"""Forward passes with explicit statistics."""

import pytest
import torch
from torch import nn

from metalabelnet.core.forward_pass import forward, recompute_running_statistics, trainable_parameters

NORMS = [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)]


def samples() -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return 2 + 3 * torch.randn(12, 4, 5, dtype=torch.float64, generator=g)


@pytest.mark.parametrize("norm", NORMS)
def test_statistics_are_updated_only_on_request(norm: nn.Module) -> None:
    net = nn.Sequential(norm, nn.Flatten(), nn.Linear(20, 3)).double().train()
    mean = norm.running_mean.clone()
    logits = [
        forward(net, samples(), trainable_parameters(net), seed=0, update_statistics=update) for update in (False, True)
    ]
    assert torch.equal(*logits)
    assert not torch.equal(norm.running_mean, mean)
    mean = norm.running_mean.clone()
    forward(net, samples(), trainable_parameters(net), seed=0, update_statistics=False)
    assert torch.equal(norm.running_mean, mean)


@pytest.mark.parametrize("norm", NORMS)
def test_recomputed_statistics_are_averages_over_batches(norm: nn.Module) -> None:
    net = nn.Sequential(norm, nn.Flatten(), nn.Linear(20, 3)).double()
    recompute_running_statistics(net, samples().split(4), seed=0)
    torch.testing.assert_close(norm.running_mean, samples().mean((0, 2)))
    assert norm.momentum == 0.1
