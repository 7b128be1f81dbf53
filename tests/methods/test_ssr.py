"""SSR+: relabelling and selection against loops, the step written out, and its heads."""

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

from metalabelnet.core.neighbors import balanced_votes
from metalabelnet.data.batches import Batch, to_input
from metalabelnet.data.rows import Rows
from metalabelnet.errors import InputError
from metalabelnet.methods.ssr import SSR, balanced_weights, relabel, select, selected_partners
from small_runs import StepRunner, small_problem, small_run


def method_and_batch(steps: int = 9, **settings: object) -> tuple[SSR, Batch]:
    """Return a method without momentum in its third epoch, and its next batch."""
    run = small_run("ssr", momentum=0.0, weight_decay=0.0, settings=settings)
    runner = StepRunner(run, small_problem(wrong=0.4), net_of_run=True).advance(steps)
    runner.method.begin_epoch(runner.epoch)
    return runner.method, next(runner.batches.epoch(runner.epoch, labeled_only=False, start=runner.step))


def test_relabelling_and_selection() -> None:
    p = torch.tensor([[0.95, 0.05], [0.85, 0.15], [0.05, 0.95], [0.5, 0.5]])
    labels = relabel(p, torch.tensor([1, 1, 1, -1]), 0.9)
    assert labels.tolist() == [0, 1, 1, -1]
    votes = torch.tensor([[0.6, 0.4], [0.6, 0.4], [0.5, 0.5], [0.9, 0.1]])
    assert select(labels, votes, 1.0).tolist() == [True, False, True, False]
    assert select(labels, votes, 0.6).tolist() == [True, True, True, False]


def test_each_class_has_the_same_total_weight() -> None:
    weights = balanced_weights(torch.tensor([0, 0, 0, 1, 2, -1]), torch.tensor([1, 1, 0, 1, 0, 0]).bool(), 3)
    torch.testing.assert_close(weights, torch.tensor([0.5, 0.5, 0.0, 1.0, 0.0, 0.0]))


def test_partners_are_selected_samples_in_turn() -> None:
    selected, keys = torch.tensor([True, False, True, True, False]), torch.tensor([0.9, 0.1, 0.2, 0.5, 0.0])
    assert selected_partners(selected, keys).tolist() == [2, 3, 0, 2, 3]
    assert len(selected_partners(torch.zeros(3).bool(), torch.rand(3))) == 3


def features_and_probabilities(net: nn.Module, head: str, x: Tensor) -> tuple[Tensor, Tensor]:
    features: list[Tensor] = []
    hook = net.get_submodule(head).register_forward_pre_hook(lambda _module, inputs: features.append(inputs[0]))
    p = net(x).softmax(1)
    hook.remove()
    return features[0], p


@pytest.mark.parametrize("threshold", [0.6, 1.0])
def test_selection_equals_a_loop_over_rows(threshold: float) -> None:
    """With relabelling and, at 1, without it."""
    run = small_run("ssr", settings={"relabel_threshold": threshold})
    runner = StepRunner(run, small_problem(unlabeled=4, wrong=0.4))
    method, train = runner.advance(8).method, runner.problem.train
    method.end_epoch(1)
    with torch.no_grad():
        v, p = features_and_probabilities(
            copy.deepcopy(method.net).eval(), method.head, to_input(train.x, torch.float64)
        )
    labels = [int(p[i].argmax()) if float(p[i].max()) > threshold else int(train.given[i]) for i in range(48)]
    assert method.selection["labels"].tolist() == labels
    assert (labels == train.given.tolist()) == (threshold == 1)
    assert method.neighbors == 8
    similarity = torch.stack([torch.cosine_similarity(v[i], v, dim=1) for i in range(48)]).fill_diagonal_(-2)
    votes = balanced_votes(similarity.argsort(descending=True)[:, :8], torch.tensor(labels), 3)
    selected = [labels[i] >= 0 and bool(votes[i, labels[i]] == votes[i].max()) for i in range(48)]
    assert (method.selection["weights"] > 0).tolist() == selected
    assert threshold < 1 or 0 < sum(selected) < 48


def test_step_equals_the_algorithm_written_out() -> None:
    method, batch = method_and_batch(consistency=0.7)
    net, heads, strong = copy.deepcopy(method.net), copy.deepcopy(method.heads), batch.views.strong
    selected = [i for i, row in enumerate(batch.index.tolist()) if method.selection["weights"][row] > 0]
    order = sorted(selected, key=lambda i: float(method.draws[1, batch.index[i]]))
    partner = [order[i % len(order)] for i in range(12)]
    assert 0 < len(order) < 12
    share = float(method.draws[0, batch.index[0]])
    log_p = net(share * strong + (1 - share) * strong[partner]).log_softmax(1)
    labels, total, weight_sum = method.selection["labels"][batch.index].tolist(), 0.0, 0.0
    for i in selected:
        same_class = (method.selection["labels"] == labels[i]) & (method.selection["weights"] > 0)
        weight = 1 / int(same_class.sum())
        total -= weight * (share * log_p[i, labels[i]] + (1 - share) * log_p[i, labels[partner[i]]])
        weight_sum += weight
    weak_features, _ = features_and_probabilities(net, method.head, batch.x)
    strong_features, _ = features_and_probabilities(net, method.head, strong)
    z_w = heads(weak_features)[0].detach()
    h_s = heads(strong_features)[1]
    cosine = sum((h_s[i] * z_w[i]).sum() / (h_s[i].norm() * z_w[i].norm()) for i in range(12)) / 12
    loss = total / weight_sum - 0.7 * cosine
    lr = float(method.sgd.lr)
    torch.testing.assert_close(method.step(batch), loss.detach(), rtol=1e-9, atol=0)
    for before, after in ((net, method.net), (heads, method.heads)):
        d = torch.autograd.grad(loss, list(before.parameters()), retain_graph=True)
        for weight, dw, new in zip(before.parameters(), d, after.parameters(), strict=True):
            torch.testing.assert_close(new.detach(), weight.detach() - lr * dw, rtol=1e-8, atol=1e-10)


def test_without_consistency_there_are_no_heads() -> None:
    method, batch = method_and_batch(consistency=0.0)
    assert "heads" not in method.components()
    assert torch.isfinite(method.step(batch))


def test_tables_are_mixed_without_strong_augmentation() -> None:
    problem = small_problem()
    tables = {
        part: dataclasses.replace(rows, x=to_input(rows.x, torch.float64))
        for part, rows in vars(problem).items()
        if isinstance(rows, Rows)
    }
    runner = StepRunner(small_run("ssr"), dataclasses.replace(problem, **tables)).advance(5)
    assert runner.method.heads is None
    assert runner.method.strong_augment_from is None
    assert all(torch.isfinite(torch.tensor(runner.losses)))


@pytest.mark.parametrize("setting", [{"relabel_threshold": 1.5}, {"neighbors": 0}, {"alpha": 0.0}])
def test_settings_out_of_range_are_rejected(setting: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(setting))}=.*out of range"):
        StepRunner(small_run("ssr", settings=setting), small_problem())


def test_labels_out_of_range_in_a_checkpoint_are_rejected() -> None:
    state = StepRunner(small_run("ssr"), small_problem()).advance(3).method.state_dict()
    state["selection"] = state["selection"] | {"labels": state["selection"]["labels"] + 7}
    with pytest.raises(InputError, match="labels are 0 to 2"):
        StepRunner(small_run("ssr"), small_problem()).method.load_state_dict(state)
