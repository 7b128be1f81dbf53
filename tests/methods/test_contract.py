"""What every method promises, tested from the table: a new row is tested by being there."""

import dataclasses
import io
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from metalabelnet.core.forward_pass import predict
from metalabelnet.data.batches import to_input
from metalabelnet.labels.metrics import accuracy_and_loss, predict_logits
from metalabelnet.methods import METHODS
from metalabelnet.train.build_method import build_method
from small_runs import FAST_SETTINGS, METHOD_VARIANTS, StepRunner, column_images, small_problem, small_run

NOT_FROM_CLEAN = {"co-teaching": {"noise_rate": 0.2}}
GOLDEN = Path(__file__).with_name("golden.json")
pytestmark = pytest.mark.parametrize("name", [*METHODS, *METHOD_VARIANTS])


def weights(walk: StepRunner) -> dict[str, Tensor]:
    return {key: tensor.clone() for key, tensor in walk.method.model_state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_lowers_the_loss_on_the_truth(name: str) -> None:
    walk = StepRunner(small_run(name), small_problem())
    test = walk.problem.test
    before = accuracy_and_loss(predict_logits(walk.method, test.x), test.true)[1]
    assert accuracy_and_loss(predict_logits(walk.advance().method, test.x), test.true)[1] < 0.8 * before


def test_moves_every_trainable_weight(name: str) -> None:
    walk = StepRunner(small_run(name), small_problem()).advance(1)
    walk.advance(1)  # at the start every part of the first phase exists; a later part is compared with its own start
    seen: dict[str, Tensor] = {}
    moved: set[str] = set()
    while walk.epoch < walk.method.epochs:
        for part_name, part in walk.method.components().items():
            if isinstance(part, nn.Module):
                for key, weight in part.named_parameters():
                    full = f"{part_name}.{key}"
                    if weight.requires_grad:
                        if full in seen and not torch.equal(seen[full], weight):
                            moved.add(full)
                        seen.setdefault(full, weight.detach().clone())
        walk.advance(1)
    assert seen.keys() == moved


def test_same_seed_same_trace(name: str) -> None:
    first, second = (StepRunner(small_run(name), small_problem()).advance() for _ in range(2))
    other = StepRunner(small_run(name, seed=1), small_problem()).advance()
    assert first.losses == second.losses
    assert same(weights(first), weights(second))
    assert first.losses != other.losses


@pytest.mark.parametrize("after", [3, 8, 10, 17])
def test_saved_and_resumed_it_goes_on_to_the_bit(name: str, after: int) -> None:
    """Within warm-up, at its end, within what follows; through the bytes of a checkpoint."""
    whole = StepRunner(small_run(name), small_problem()).advance()
    half = StepRunner(small_run(name), small_problem()).advance(after)
    file = io.BytesIO()
    torch.save(half.method.state_dict(), file)
    file.seek(0)
    resumed = StepRunner(small_run(name), small_problem())
    resumed.method.load_state_dict(torch.load(file, weights_only=True))
    resumed.epoch, resumed.step = half.epoch, half.step
    resumed.advance()
    assert half.losses + resumed.losses == whole.losses
    assert same(weights(resumed), weights(whole))
    soft = resumed.method.soft_labels()
    assert soft is None or torch.equal(soft, whole.method.soft_labels())


def test_a_class_may_be_missing_from_a_batch(name: str) -> None:
    problem = small_problem()
    only = (problem.train.true != 2).nonzero()[:, 0]
    walk = StepRunner(small_run(name), type(problem)(**{**vars(problem), "train": problem.train.take(only)}))
    assert all(torch.isfinite(torch.tensor(walk.advance().losses)))


def test_unlabeled_rows_are_used_or_left_out_as_it_says(name: str) -> None:
    """Left out means that their samples could be anything."""
    problem = small_problem(unlabeled=24)
    spoilt_x = problem.train.x.clone()
    spoilt_x[:24] = 255 - spoilt_x[:24]
    spoilt = type(problem)(**{**vars(problem), "train": type(problem.train)(**{**vars(problem.train), "x": spoilt_x})})
    walks = [StepRunner(small_run(name), p).advance() for p in (problem, spoilt)]
    assert same(*map(weights, walks)) != METHODS[name.partition(":")[0]].traits.uses_unlabeled


def test_the_global_random_state_is_left_alone(name: str) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    StepRunner(small_run(name), small_problem()).advance()
    assert torch.equal(before, torch.get_rng_state())


def test_the_state_of_the_global_generator_does_not_matter(name: str) -> None:
    traces = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        traces.append(StepRunner(small_run(name), small_problem()).advance().losses)
    assert traces[0] == traces[1]


def test_soft_labels_are_probabilities_for_every_row(name: str) -> None:
    walk = StepRunner(small_run(name), small_problem(unlabeled=5)).advance()
    soft = walk.method.soft_labels()
    if soft is not None:
        assert soft.shape == (48, 3)
        torch.testing.assert_close(soft.sum(1), torch.ones(48, dtype=soft.dtype))
        assert (soft >= 0).all()


def test_the_model_alone_predicts_the_same(name: str) -> None:
    walk = StepRunner(small_run(name), small_problem()).advance()
    again = StepRunner(small_run(name, seed=3), small_problem())
    again.method.load_model_state_dict(weights(walk))
    x = column_images(6, seed=9).x
    assert torch.equal(walk.method.logits(x), again.method.logits(x))


def test_ones_own_network_is_what_all_its_networks_are_like(name: str) -> None:
    """A second network, a peer or a teacher is of the kind that was given."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))
    walk = StepRunner(small_run(name), small_problem())
    walk.method = build_method(walk.run, walk.problem, net)
    walk.advance()
    like = [part for part in walk.method.components().values() if isinstance(part, nn.Sequential)]
    assert like
    assert all(str(part) == str(net) for part in like)


def test_golden_trace(name: str) -> None:
    """The losses as they were when this was written: whoever changes them should know, and say why.

    To write them anew: python tests/methods/golden.py
    """
    golden = json.loads(GOLDEN.read_text())
    assert name in golden, "write the trace of the new method with python tests/methods/golden.py"
    torch.testing.assert_close(StepRunner(small_run(name), small_problem()).advance().losses, golden[name], rtol=1e-8, atol=1e-12)


def test_its_classifier_is_what_predicts(name: str) -> None:
    walk = StepRunner(small_run(name), small_problem()).advance()
    x = walk.problem.test.x
    assert torch.equal(predict(walk.method.classifier(), to_input(x, torch.float64)), walk.method.logits(x))


def test_says_whether_it_reads_clean_rows(name: str) -> None:
    """With other clean rows, a method that needs none learns the same."""
    problem = small_problem()
    others = column_images(12, seed=9).with_given_labels(torch.full((12,), -1))
    own = METHOD_VARIANTS.get(name) or FAST_SETTINGS.get(name, {})
    run = small_run(name, settings=own | NOT_FROM_CLEAN.get(name, {}))
    first, second = (StepRunner(run, dataclasses.replace(problem, clean=rows)).advance() for rows in (problem.clean, others))
    assert METHODS[run.method].reads_clean(run.method_settings()) != same(weights(first), weights(second))


def test_says_whether_it_reads_given_labels(name: str) -> None:
    """With other given labels, a method that reads none learns the same."""
    problem = small_problem()
    other = dataclasses.replace(problem, train=problem.train.with_given_labels((problem.train.given + 1) % 3))
    run = small_run(name)
    first, second = (StepRunner(run, one).advance() for one in (problem, other))
    assert METHODS[run.method].traits.reads_given != same(weights(first), weights(second))
