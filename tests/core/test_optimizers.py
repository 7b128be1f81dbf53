"""The optimizers against `torch.optim`, and in-place state for CUDA graphs."""

import copy

import pytest
import torch
from torch import nn

from metalabelnet.core.optimizers import SGD, Adam


def pair(kind: str) -> tuple:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ours = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).double()
    theirs = copy.deepcopy(ours)
    if kind == "sgd":
        a = SGD(ours.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
        b = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    else:
        a = Adam(ours.parameters(), lr=0.1, weight_decay=1e-2)
        b = torch.optim.Adam(theirs.parameters(), lr=0.1, weight_decay=1e-2)
    return ours, theirs, a, b


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_equals_torch_optim_with_changing_lr(kind: str) -> None:
    ours, theirs, a, b = pair(kind)
    g = torch.Generator().manual_seed(1)
    for step in range(20):
        if step == 10:
            a.set_lr(0.01)
            b.param_groups[0]["lr"] = 0.01
        x = torch.randn(7, 5, dtype=torch.float64, generator=g)
        for net, optimizer in ((ours, a), (theirs, b)):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    for weight, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_load_state_dict_copies_in_place(kind: str) -> None:
    ours, _, a, _ = pair(kind)
    ours(torch.ones(2, 5).double()).sum().backward()
    a.step()
    saved = {k: t.clone() for k, t in a.state_dict().items()}
    addresses = {k: t.data_ptr() for k, t in a.state_dict().items()}
    a.set_lr(7.0)
    a.step()
    a.load_state_dict(saved)
    assert all(torch.equal(saved[k], t) for k, t in a.state_dict().items())
    assert addresses == {k: t.data_ptr() for k, t in a.state_dict().items()}


def test_weights_without_gradient_are_unchanged() -> None:
    ours, _, a, _ = pair("sgd")
    before = ours[0].weight.clone()
    a.step()
    assert torch.equal(before, ours[0].weight)
