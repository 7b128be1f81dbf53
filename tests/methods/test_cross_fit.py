"""Cross-fitting: no row is predicted by the network trained on its label, and the noise rate is right."""

import pytest
import torch

from metalabelnet.core.transition_matrix import noise_rate
from metalabelnet.data.batches import Batches
from metalabelnet.data.rows import UNLABELED
from metalabelnet.methods.cross_fit import CrossFit
from metalabelnet.train.build_method import build_method
from metalabelnet.train.prepare import prepare
from metalabelnet.train.settings import Run
from small_runs import StepRunner, small_problem, small_run


def stage(runner: StepRunner) -> CrossFit:
    assert runner.method.cross_fit is not None
    return runner.method.cross_fit


def small_runner(**changes: object) -> StepRunner:
    return StepRunner(small_run("co-teaching", epochs=12), small_problem(**changes))


def test_folds_have_equal_size_and_depend_on_the_seed() -> None:
    assert int(stage(small_runner()).fold.sum()) == 24
    other = stage(StepRunner(small_run("co-teaching", seed=1), small_problem())).fold
    assert not torch.equal(stage(small_runner()).fold, other)


@pytest.mark.parametrize("trained", [0, 1])
def test_network_is_trained_on_the_labels_of_its_fold_only(trained: int) -> None:
    runners = [small_runner(), small_runner()]
    corrupted = runners[1]
    given = corrupted.problem.train.given
    given = torch.where(stage(corrupted).fold != trained, (given + 1) % 3, given)
    corrupted.batches = type(corrupted.batches)(
        **{**vars(corrupted.batches), "train": corrupted.problem.train.with_given_labels(given)}
    )
    nets = [stage(runner.advance(6)).nets for runner in runners]
    same = [
        all(torch.equal(a, b) for a, b in zip(x.state_dict().values(), y.state_dict().values(), strict=True))
        for x, y in zip(*nets, strict=True)
    ]
    assert same == [trained == 0, trained == 1]


def test_sums_hold_the_predictions_of_the_other_network() -> None:
    runner = small_runner(unlabeled=6).advance(3)
    cross_fit, train, clean = stage(runner), runner.problem.train, runner.problem.clean
    cross_fit.end_epoch()
    cross_fit.end_epoch()
    for net in cross_fit.nets:
        net.eval()
    with torch.no_grad():
        noisy_p, clean_p = (
            torch.stack([net(rows.x.double() / 127.5 - 1).softmax(1) for net in cross_fit.nets])
            for rows in (train, clean)
        )
    expected = torch.stack([2 * noisy_p[1 - int(h), row] for row, h in enumerate(cross_fit.fold)])
    expected[train.given == UNLABELED] = 0
    torch.testing.assert_close(cross_fit.sums["noisy"], expected)
    torch.testing.assert_close(cross_fit.sums["clean"], 2 * clean_p)


def test_logits_are_the_log_of_the_mean_probabilities() -> None:
    cross_fit = stage(small_runner().advance(3))
    x = small_problem().test.x
    for net in cross_fit.nets:
        net.eval()
    mean = torch.stack([net(x.double() / 127.5 - 1).softmax(1) for net in cross_fit.nets]).mean(0)
    torch.testing.assert_close(cross_fit.logits(x).exp(), mean.detach())


def error_on_digits(noise: str, seed: int) -> float:
    """Return the noise rate estimated by co-teaching minus the true one, with 1,197 noisy and 80 clean rows."""
    run = Run(data="digits", method="co-teaching", noise=noise, seed=seed, device="cpu")
    problem = prepare(run)
    method = build_method(run, problem)
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
    return noise_rate(*method.cross_fit.estimate()) - problem.noise_rate


@pytest.mark.slow
def test_noise_rate_of_digits() -> None:
    assert abs(error_on_digits("uniform:0.4", seed=0)) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "tolerance"), [("uniform:0.2", 0.05), ("uniform:0.4", 0.05), ("uniform:0.6", 0.05), ("class:0.4", 0.06)]
)
def test_noise_rate_of_digits_for_several_noises(noise: str, tolerance: float) -> None:
    """Uniform, 10 seeds: mean error +0.02, standard deviation 0.014, largest 0.045. To the next class: +0.03, 0.053."""
    errors = torch.tensor([error_on_digits(noise, seed) for seed in range(4)])
    assert float(errors.abs().max()) < tolerance, errors


@pytest.mark.slow
def test_feature_dependent_noise_is_underestimated() -> None:
    """A known limitation: about −0.1 at 40 %. Update the documentation if this changes."""
    errors = torch.tensor([error_on_digits("feature:0.4", seed) for seed in range(3)])
    assert -0.2 < float(errors.mean()) < -0.03
