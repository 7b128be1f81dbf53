"""MetaLabelNet: phases, feature extractor, optimizers and user-supplied networks."""

import pytest
import torch
from torch import Tensor, nn

from metalabelnet.core.optimizers import Adam
from metalabelnet.errors import InputError
from metalabelnet.train.build_method import build_method
from small_runs import StepRunner, small_problem, small_run


def weights(runner: StepRunner) -> dict[str, Tensor]:
    return {k: t.clone() for k, t in runner.method.model_state_dict().items()}


def test_phase_2_does_not_read_given_labels() -> None:
    """Replacing all given labels after warm-up changes nothing."""
    finished = []
    for corrupt in (False, True):
        runner = StepRunner(small_run("metalabelnet"), small_problem()).advance(8)
        assert runner.epoch == 1
        runner.advance(1)  # the first step of phase 2
        if corrupt:
            runner.problem.train.given.copy_((runner.problem.train.given + 1) % 3)
        finished.append(weights(runner.advance()))
    assert all(torch.equal(finished[0][k], finished[1][k]) for k in finished[0])


def test_given_labels_matter_in_warm_up() -> None:
    finished = [weights(StepRunner(small_run("metalabelnet"), small_problem(wrong=w)).advance()) for w in (0.0, 0.5)]
    assert any(not torch.equal(finished[0][k], finished[1][k]) for k in finished[0])


def test_extractor_is_the_network_end_of_warmup_of_warm_up() -> None:
    runner = StepRunner(small_run("metalabelnet"), small_problem()).advance(8)
    end_of_warmup = {k: t.clone() for k, t in runner.method.net.state_dict().items()}
    runner.advance()
    extractor = runner.method.phase2.g.net
    assert all(torch.equal(end_of_warmup[k], t) for k, t in extractor.state_dict().items())
    assert not extractor.training
    assert any(not torch.equal(end_of_warmup[k], t) for k, t in runner.method.net.state_dict().items())


def test_momentum_is_carried_into_phase_2() -> None:
    runner = StepRunner(small_run("metalabelnet"), small_problem()).advance(8)
    sgd = runner.method.sgd
    first = sgd.buffers[0].clone()
    assert first.abs().sum() > 0
    runner.method.begin_epoch(2)
    assert runner.method.phase2.sgd is sgd
    assert torch.equal(first, sgd.buffers[0])


def test_label_net_optimizer_has_the_papers_settings() -> None:
    runner = StepRunner(small_run("metalabelnet"), small_problem()).advance(9)
    adam = runner.method.phase2.adam
    assert isinstance(adam, Adam)
    assert adam.lr == 1e-2
    assert adam.weight_decay == 1e-4
    runner = StepRunner(small_run("metalabelnet", settings={"beta": "1e-3"}), small_problem()).advance(9)
    assert runner.method.phase2.adam.lr == 1e-3


def test_learning_rate_drops_at_the_milestones() -> None:
    runner = StepRunner(small_run("metalabelnet", lr_milestones=(2, 4)), small_problem())
    lrs = []
    for epoch in range(6):
        runner.method.begin_epoch(epoch)
        lrs.append(float(runner.method.sgd.lr))
    assert lrs == pytest.approx([0.05, 0.05, 0.005, 0.005, 0.0005, 0.0005])


def test_warm_up_can_be_0() -> None:
    runner = StepRunner(small_run("metalabelnet", warmup=0), small_problem()).advance()
    assert runner.method.soft_labels() is not None


def test_network_without_a_linear_head_is_rejected_before_training() -> None:
    class Headless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 3, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).flatten(1)

    with pytest.raises(InputError, match="no last linear layer"):
        build_method(small_run("metalabelnet"), small_problem(), Headless())


def test_user_network_is_trained_in_place() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    before = net[1].weight.detach().clone().double()
    problem = small_problem()
    runner = StepRunner(small_run("metalabelnet"), problem)
    runner.method = build_method(runner.run, problem, net)
    runner.advance()
    assert runner.method.net is net
    assert not torch.equal(before, net[1].weight)
