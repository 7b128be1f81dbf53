"""The estimate of noise by two networks: no label is evidence about itself, and the noise rate comes out right."""

import pytest
import torch

from metalabelnet.core.transition_matrix import noise_rate
from metalabelnet.data.batches import Batches
from metalabelnet.data.rows import UNLABELED
from metalabelnet.methods.cross_fit import Halves
from metalabelnet.train.build_method import build
from metalabelnet.train.prepare import prepare
from metalabelnet.train.settings import Run
from small import Walk, small_problem, small_run


def stage(walk: Walk) -> Halves:
    assert walk.method.halves is not None
    return walk.method.halves


def small_walk(**changes: object) -> Walk:
    return Walk(small_run("co-teaching", epochs=12), small_problem(**changes))


def test_rows_are_halved() -> None:
    assert int(stage(small_walk()).half.sum()) == 24
    other = stage(Walk(small_run("co-teaching", seed=1), small_problem())).half
    assert not torch.equal(stage(small_walk()).half, other)


@pytest.mark.parametrize("taught", [0, 1])
def test_a_network_is_taught_the_labels_of_its_half_alone(taught: int) -> None:
    walks = [small_walk(), small_walk()]
    spoilt = walks[1]
    given = spoilt.problem.train.given
    given = torch.where(stage(spoilt).half != taught, (given + 1) % 3, given)
    spoilt.batches = type(spoilt.batches)(**{**vars(spoilt.batches), "train": spoilt.problem.train.with_given(given)})
    nets = [stage(walk.go(6)).nets for walk in walks]
    same = [
        all(torch.equal(a, b) for a, b in zip(x.state_dict().values(), y.state_dict().values(), strict=True))
        for x, y in zip(*nets, strict=True)
    ]
    assert same == [taught == 0, taught == 1]


def test_what_is_remembered_is_the_other_networks_word() -> None:
    walk = small_walk(unlabeled=6).go(3)
    halves, train, clean = stage(walk), walk.problem.train, walk.problem.clean
    halves.end_epoch()
    halves.end_epoch()
    for net in halves.nets:
        net.eval()
    with torch.no_grad():
        noisy, trusted = (
            torch.stack([net(rows.x.double() / 127.5 - 1).softmax(1) for net in halves.nets]) for rows in (train, clean)
        )
    expected = torch.stack([2 * noisy[1 - int(h), row] for row, h in enumerate(halves.half)])
    expected[train.given == UNLABELED] = 0
    torch.testing.assert_close(halves.memory["noisy"], expected)
    torch.testing.assert_close(halves.memory["clean"], 2 * trusted)


def test_its_logits_are_of_the_mean_probabilities() -> None:
    halves = stage(small_walk().go(3))
    x = small_problem().test.x
    for net in halves.nets:
        net.eval()
    mean = torch.stack([net(x.double() / 127.5 - 1).softmax(1) for net in halves.nets]).mean(0)
    torch.testing.assert_close(halves.logits(x).exp(), mean.detach())


def error_on_digits(noise: str, seed: int) -> float:
    """The estimated noise rate less the true one, as co-teaching finds it: 1,197 noisy and 80 clean rows."""
    run = Run(data="digits", method="co-teaching", noise=noise, seed=seed, device="cpu")
    problem = prepare(run)
    method = build(run, problem)
    batches = Batches(
        train=problem.train,
        clean=problem.clean,
        size=run.batch_size,
        augment="none",
        augment_clean=False,
        dtype=torch.float32,
        seed=seed,
    )
    for epoch in range(method.candidates_from):
        method.begin_epoch(epoch)
        for batch in batches.epoch(epoch, labeled_only=True):
            method.step(batch)
        method.end_epoch(epoch)
    return noise_rate(*method.halves.estimate()) - problem.noise_rate


def test_the_noise_rate_of_digits_is_found() -> None:
    assert abs(error_on_digits("uniform:0.4", seed=0)) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "most"), [("uniform:0.2", 0.05), ("uniform:0.4", 0.05), ("uniform:0.6", 0.05), ("class:0.4", 0.06)]
)
def test_the_noise_rate_of_digits_is_found_at_every_rate(noise: str, most: float) -> None:
    """Uniform, 10 seeds: mean error +0.02, standard deviation 0.014, largest 0.045. To the next class: +0.03, 0.053."""
    errors = torch.tensor([error_on_digits(noise, seed) for seed in range(4)])
    assert float(errors.abs().max()) < most, errors


@pytest.mark.slow
def test_noise_that_depends_on_the_sample_is_underestimated() -> None:
    """A known limit, held here so that whoever lifts it notices: −0.1 at 40 %."""
    errors = torch.tensor([error_on_digits("feature:0.4", seed) for seed in range(3)])
    assert -0.2 < float(errors.mean()) < -0.03
