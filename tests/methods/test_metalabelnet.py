"""What MetaLabelNet promises beside the contract."""

import pytest
import torch
from torch import Tensor, nn

from metalabelnet.core.optimizers import Adam
from metalabelnet.errors import InputError
from metalabelnet.train.build_method import build
from small import Walk, small_problem, small_run


def weights(walk: Walk) -> dict[str, Tensor]:
    return {k: t.clone() for k, t in walk.method.model().items()}


def test_phase_2_never_reads_a_given_label() -> None:
    """All given labels replaced by garbage after warm-up: not a bit changes."""
    finished = []
    for spoil in (False, True):
        walk = Walk(small_run("metalabelnet"), small_problem()).go(8)
        assert walk.epoch == 1
        walk.go(1)  # the first step of phase 2
        if spoil:
            walk.problem.train.given.copy_((walk.problem.train.given + 1) % 3)
        finished.append(weights(walk.go()))
    assert all(torch.equal(finished[0][k], finished[1][k]) for k in finished[0])


def test_the_given_labels_do_matter_in_warm_up() -> None:
    finished = [weights(Walk(small_run("metalabelnet"), small_problem(wrong=w)).go()) for w in (0.0, 0.5)]
    assert any(not torch.equal(finished[0][k], finished[1][k]) for k in finished[0])


def test_extractor_is_the_network_at_the_end_of_warm_up_and_stays() -> None:
    walk = Walk(small_run("metalabelnet"), small_problem()).go(8)
    at_the_end = {k: t.clone() for k, t in walk.method.net.state_dict().items()}
    walk.go()
    extractor = walk.method.phase2.g.net
    assert all(torch.equal(at_the_end[k], t) for k, t in extractor.state_dict().items())
    assert not extractor.training
    assert any(not torch.equal(at_the_end[k], t) for k, t in walk.method.net.state_dict().items())


def test_momentum_is_carried_into_phase_2() -> None:
    walk = Walk(small_run("metalabelnet"), small_problem()).go(8)
    sgd = walk.method.sgd
    first = sgd.buffers[0].clone()
    assert first.abs().sum() > 0
    walk.method.begin_epoch(2)
    assert walk.method.phase2.sgd is sgd
    assert torch.equal(first, sgd.buffers[0])


def test_label_net_has_the_papers_optimizer() -> None:
    walk = Walk(small_run("metalabelnet"), small_problem()).go(9)
    adam = walk.method.phase2.adam
    assert isinstance(adam, Adam)
    assert adam.lr == 1e-2
    assert adam.weight_decay == 1e-4
    walk = Walk(small_run("metalabelnet", settings={"beta": "1e-3"}), small_problem()).go(9)
    assert walk.method.phase2.adam.lr == 1e-3


def test_rates_drop_as_scheduled() -> None:
    walk = Walk(small_run("metalabelnet", lr_milestones=(2, 4)), small_problem())
    rates = []
    for epoch in range(6):
        walk.method.begin_epoch(epoch)
        rates.append(float(walk.method.sgd.lr))
    assert rates == pytest.approx([0.05, 0.05, 0.005, 0.005, 0.0005, 0.0005])


def test_warm_up_may_be_left_out() -> None:
    walk = Walk(small_run("metalabelnet", warmup=0), small_problem()).go()
    assert walk.method.soft_labels() is not None


def test_a_network_without_a_linear_head_is_refused_before_training() -> None:
    class Headless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 3, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).flatten(1)

    with pytest.raises(InputError, match="no last linear layer"):
        build(small_run("metalabelnet"), small_problem(), Headless())


def test_ones_own_network_is_trained_in_place() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    before = net[1].weight.detach().clone().double()
    problem = small_problem()
    walk = Walk(small_run("metalabelnet"), problem)
    walk.method = build(walk.run, problem, net)
    walk.go()
    assert walk.method.net is net
    assert not torch.equal(before, net[1].weight)
