"""Contract tests, run for every method in the table that is trained in epochs."""

import dataclasses
import functools
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metalabelnet.core.forward_pass import predict
from metalabelnet.data.batches import to_input
from metalabelnet.data.problem import Problem
from metalabelnet.labels.metrics import accuracy_and_loss, predict_logits
from metalabelnet.methods import METHODS
from small_runs import (
    FAST_SETTINGS,
    METHOD_VARIANTS,
    TRAINED_METHODS,
    StepRunner,
    column_images,
    short_run,
    small_problem,
    small_run,
)

# Settings with which a method does not read the clean set.
WITHOUT_CLEAN_SET = {"co-teaching": {"noise_rate": 0.2}, "dividemix": {"clean_weight": 0.0}}
GOLDEN = Path(__file__).with_name("golden.json")
pytestmark = pytest.mark.parametrize("name", [*TRAINED_METHODS, *METHOD_VARIANTS])


def weights(runner: StepRunner) -> dict[str, Tensor]:
    return {key: tensor.clone() for key, tensor in runner.method.model_state_dict().items()}


@functools.cache
def finished(name: str) -> StepRunner:
    """Return the runner of a whole run, which is shared by tests and must not be changed."""
    return StepRunner(small_run(name), small_problem(), net_of_run=True).advance()


def start_short(name: str, problem: Problem | None = None, **changes: Any) -> StepRunner:
    """Return the runner of a short run with a tiny network, before its first step."""
    return StepRunner(short_run(name, **changes), problem or small_problem())


@functools.cache
def finished_short(name: str, unlabeled: int = 0) -> StepRunner:
    """Return the runner of a short run at its end, which is shared by tests and must not be changed."""
    torch.manual_seed(0)
    return start_short(name, small_problem(unlabeled)).advance()


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_training_lowers_the_test_loss(name: str) -> None:
    runner = StepRunner(small_run(name), small_problem(), net_of_run=True)
    test = runner.problem.test
    before = accuracy_and_loss(predict_logits(runner.method, test.x), test.true)[1]
    assert accuracy_and_loss(predict_logits(finished(name).method, test.x), test.true)[1] < 0.8 * before


def test_every_trainable_weight_changes(name: str) -> None:
    runner = start_short(name).advance(1)
    runner.advance(1)  # components of later phases are compared with their own initial values
    seen: dict[str, Tensor] = {}
    changed: set[str] = set()
    while runner.epoch < runner.method.epochs:
        for component_name, component in runner.method.components().items():
            if isinstance(component, nn.Module):
                for key, weight in component.named_parameters():
                    full = f"{component_name}.{key}"
                    if weight.requires_grad:
                        if full in seen and not torch.equal(seen[full], weight):
                            changed.add(full)
                        seen.setdefault(full, weight.detach().clone())
        runner.advance(1)
    assert seen.keys() == changed


def test_other_seed_gives_other_losses(name: str) -> None:
    other = start_short(name, seed=1).advance(2)
    assert finished_short(name).losses[:2] != other.losses


@pytest.mark.parametrize("after", [10, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (3, 8, 14))])
def test_same_seed_and_resume_give_same_bits(name: str, after: int) -> None:
    """A second run, stopped and resumed through a saved checkpoint: within warm-up, at its end and after it.

    The global random state has no effect, and is unchanged.
    """
    whole = finished_short(name)
    torch.manual_seed(1)
    random_state = torch.get_rng_state()
    half = start_short(name).advance(after)
    file = io.BytesIO()
    torch.save(half.method.state_dict(), file)
    file.seek(0)
    resumed = start_short(name)
    resumed.method.load_state_dict(torch.load(file, weights_only=True))
    resumed.epoch, resumed.step = half.epoch, half.step
    resumed.advance()
    assert torch.equal(random_state, torch.get_rng_state())
    assert half.losses + resumed.losses == whole.losses
    assert equal(weights(resumed), weights(whole))
    soft = resumed.method.soft_labels()
    assert soft is None or torch.equal(soft, whole.method.soft_labels())


def test_class_missing_from_the_training_rows(name: str) -> None:
    problem = small_problem()
    only = (problem.train.true != 2).nonzero()[:, 0]
    runner = start_short(name, dataclasses.replace(problem, train=problem.train.take(only)))
    assert all(torch.isfinite(torch.tensor(runner.advance().losses)))


def test_unlabeled_rows_are_used_as_the_traits_say(name: str) -> None:
    """If they are left out, changing their samples has no effect."""
    first = finished_short(name, 24)
    problem = first.problem
    corrupted_x = problem.train.x.clone()
    corrupted_x[:24] = 255 - corrupted_x[:24]
    corrupted = dataclasses.replace(problem, train=dataclasses.replace(problem.train, x=corrupted_x))
    second = start_short(name, corrupted).advance()
    assert equal(weights(first), weights(second)) != METHODS[name.partition(":")[0]].traits.uses_unlabeled


def test_soft_labels_are_probabilities_of_all_rows(name: str) -> None:
    soft = finished_short(name, 24).method.soft_labels()
    if soft is not None:
        assert soft.shape == (48, 3)
        torch.testing.assert_close(soft.sum(1), torch.ones(48, dtype=soft.dtype))
        assert (soft >= 0).all()


def test_loaded_model_predicts_the_same(name: str) -> None:
    runner = finished(name)
    again = StepRunner(small_run(name, seed=3), small_problem(), net_of_run=True)
    again.method.load_model_state_dict(weights(runner))
    x = column_images(6, seed=9).x
    assert torch.equal(runner.method.logits(x), again.method.logits(x))


def test_all_networks_are_copies_of_the_users_network(name: str) -> None:
    """A second network, a peer or a teacher has the architecture of the user's network."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))
    runner = StepRunner(short_run(name), small_problem(), net).advance()
    nets = [c for c in runner.method.components().values() if isinstance(c, nn.Sequential)]
    assert nets
    assert all(str(other) == str(net) for other in nets)


def test_golden_trace(name: str) -> None:
    """The losses are those stored in golden.json.

    Change them only on purpose, and explain why: python tests/methods/golden.py rewrites the file.
    """
    golden = json.loads(GOLDEN.read_text())
    assert name in golden, "add the trace of the new method: python tests/methods/golden.py METHOD"
    torch.testing.assert_close(finished(name).losses, golden[name], rtol=1e-8, atol=1e-12)


def test_logits_are_those_of_the_classifier(name: str) -> None:
    runner = finished(name)
    x = runner.problem.test.x
    assert torch.equal(predict(runner.method.classifier(), to_input(x, torch.float64)), runner.method.logits(x))


def test_reads_clean_is_correct(name: str) -> None:
    """A clean set of other images with other labels changes the model if and only if the method reads it."""
    problem = small_problem()
    others = column_images(12, seed=9).with_given_labels(torch.full((12,), -1))
    others = dataclasses.replace(others, true=(others.true + 1) % 3)
    own = METHOD_VARIANTS.get(name) or FAST_SETTINGS.get(name, {})
    settings = own | WITHOUT_CLEAN_SET.get(name, {})
    first = start_short(name, settings=settings).advance() if name in WITHOUT_CLEAN_SET else finished_short(name)
    second = start_short(name, dataclasses.replace(problem, clean=others), settings=settings).advance()
    run = first.run
    assert METHODS[run.method].reads_clean(run.method_settings()) != equal(weights(first), weights(second))


def test_reads_given_is_correct(name: str) -> None:
    """Other given labels change the model if and only if the method reads them."""
    problem = small_problem()
    other = dataclasses.replace(problem, train=problem.train.with_given_labels((problem.train.given + 1) % 3))
    first, second = finished_short(name), start_short(name, other).advance()
    assert METHODS[first.run.method].traits.reads_given != equal(weights(first), weights(second))
