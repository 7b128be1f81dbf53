"""DMLP: purified labels on the features of warm-up, and the steps before and after."""

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.label_purifier import purify_labels, standardize
from metalabelnet.data.batches import to_input
from metalabelnet.data.rows import Rows
from metalabelnet.errors import InputError
from metalabelnet.methods.dmlp import DMLP
from small_runs import StepRunner, small_problem, small_run


def features(method: DMLP, rows: Rows) -> Tensor:
    """Return the input of the last layer of small-cnn, in eval mode."""
    net = copy.deepcopy(method.net).eval()
    values: list[Tensor] = []
    net.get_submodule(method.head).register_forward_pre_hook(lambda _module, inputs: values.append(inputs[0].detach()))
    net(to_input(rows.x, torch.float64))
    return values[0]


def test_labels_are_purified_once_on_the_features_of_warm_up() -> None:
    runner = StepRunner(small_run("dmlp"), small_problem(unlabeled=6, wrong=0.3)).advance(6)
    method, problem = runner.method, runner.problem
    assert method.soft_labels() is None
    train_features, clean_features = features(method, problem.train)[6:], features(method, problem.clean)
    expected = purify_labels(
        standardize(train_features, clean_features),
        problem.train.given[6:],
        problem.clean.true,
        classes=3,
        steps=30,
        period=20,
    )
    runner.advance(1)
    assert torch.equal(method.purified["labels"][6:], expected.argmax(1))
    assert (method.purified["labels"][:6] == -1).all()
    torch.testing.assert_close(method.soft_labels()[6:].argmax(1), expected.argmax(1))
    labels = method.purified["labels"].clone()
    runner.advance()
    assert torch.equal(method.purified["labels"], labels)


def test_step_is_cross_entropy_with_the_purified_labels() -> None:
    runner = StepRunner(small_run("dmlp", momentum=0.0, weight_decay=0.0), small_problem(wrong=0.3)).advance(9)
    method = runner.method
    batch = next(runner.batches.epoch(2, labeled_only=True, start=1))
    labels = method.purified["labels"][batch.index]
    before = copy.deepcopy(method.net)
    loss = functional.cross_entropy(before(batch.x), labels)
    gradient = torch.autograd.grad(loss, list(before.parameters()))
    lr = float(method.sgd.lr)
    torch.testing.assert_close(method.step(batch), loss.detach())
    for weight, d, new in zip(before.parameters(), gradient, method.net.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), weight.detach() - lr * d)


@pytest.mark.parametrize("setting", [{"steps": 0}, {"period": 0}])
def test_settings_out_of_range_are_rejected(setting: dict[str, int]) -> None:
    with pytest.raises(InputError, match="=0 is out of range"):
        StepRunner(small_run("dmlp", settings=setting), small_problem())


@pytest.mark.parametrize(("name", "table"), [("dmlp", "purified"), ("ssr", "selection")])
def test_labels_out_of_range_in_a_checkpoint_are_rejected(name: str, table: str) -> None:
    state = StepRunner(small_run(name), small_problem()).advance(9).method.state_dict()
    state[table] = state[table] | {"labels": state[table]["labels"] + 7}
    with pytest.raises(InputError, match="labels are 0 to 2"):
        StepRunner(small_run(name), small_problem()).method.load_state_dict(state)
