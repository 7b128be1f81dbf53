"""DivideMix: division against scikit-learn, the step written out in loops, ramp, labels and the clean set."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn

from metalabelnet.data.batches import Batch, to_input
from metalabelnet.errors import InputError
from metalabelnet.methods.dividemix import DivideMix, clean_probabilities, partners, refine_labels
from small_runs import StepRunner, small_problem, small_run


def after_warmup(steps: int = 13, **fields: object) -> tuple[DivideMix, Batch]:
    """Return a method without momentum, in the second epoch after warm-up, and its next batch."""
    run = small_run("dividemix", momentum=0.0, weight_decay=0.0, **fields)
    runner = StepRunner(run, small_problem(wrong=0.4)).advance(steps)
    runner.method.begin_epoch(runner.epoch)
    return runner.method, next(runner.batches.epoch(runner.epoch, labeled_only=False, start=runner.step))


def test_clean_probabilities_are_those_of_a_mixture_by_scikit_learn() -> None:
    random = np.random.default_rng(0)
    losses = np.concatenate([random.exponential(0.4, 600), random.normal(4.0, 0.8, 400)])
    scaled = ((losses - losses.min()) / (losses.max() - losses.min()))[:, None]
    mixture = GaussianMixture(2, max_iter=10, tol=0, reg_covar=5e-4, random_state=0)
    with pytest.warns(UserWarning, match="did not converge"):
        mixture.fit(scaled)
    expected = mixture.predict_proba(scaled)[:, mixture.means_.argmin()]
    np.testing.assert_allclose(clean_probabilities(torch.from_numpy(losses)), expected, atol=1e-6)


def test_refined_labels_lie_between_given_label_and_prediction() -> None:
    p = torch.tensor([[0.2, 0.8], [0.2, 0.8], [0.2, 0.8], [0.2, 0.8]])
    refined = refine_labels(torch.tensor([0, 0, 0, -1]), torch.tensor([1.0, 0.5, 0.0, 0.0]), p)
    torch.testing.assert_close(refined, torch.tensor([[1.0, 0.0], [0.6, 0.4], [0.2, 0.8], [0.2, 0.8]]))


@pytest.mark.parametrize("distance", [0.0, 0.4, 0.999999])
def test_partner_is_another_sample(distance: float) -> None:
    positions = partners(7, torch.tensor(distance)).tolist()
    assert sorted(positions) == list(range(7))
    assert all(i != j for i, j in enumerate(positions))


def train_probabilities(net: nn.Module, x: Tensor) -> Tensor:
    """Return predictions in train mode, without changing the network's statistics."""
    return copy.deepcopy(net).train()(x).softmax(1)


def expected_loss(method: DivideMix, batch: Batch, k: int) -> tuple[Tensor, nn.Module]:
    """Return the loss of network k on the batch, sample by sample, and the copy of the network that it depends on."""
    s, nets = method.settings, (method.net, method.peer)
    net, other = copy.deepcopy(nets[k]), copy.deepcopy(nets[1 - k]).eval()
    copies = [batch.x, batch.views.second]
    with torch.no_grad():
        p = sum(train_probabilities(net, x) for x in copies) / 2
        q = sum(other(x).softmax(1) for x in copies) / 2
    targets, labeled = [], []
    for i, row in enumerate(batch.index.tolist()):
        w = float(method.division["w"][1 - k, row])
        is_labeled = w > s.threshold
        t = (p[i] + q[i]) / 2
        if is_labeled:
            t = (1 - w) * p[i]
            t[batch.given[i]] += w
        targets.append(t**2 / (t**2).sum())
        labeled.append(is_labeled)
    x = torch.cat([*copies, batch.clean_x])
    targets = torch.stack([*targets, *targets, *nn.functional.one_hot(batch.clean_y, 3)])
    labeled = [*labeled, *labeled, *[None] * len(batch.clean_y)]
    share, distance = (float(value) for value in method.draws[:, int(batch.index[0])])
    places = 1 + int(distance * (len(x) - 1))
    partner = [(i + places) % len(x) for i in range(len(x))]
    log_p = net.train()(share * x + (1 - share) * x[partner]).log_softmax(1)
    targets = share * targets + (1 - share) * targets[partner]
    l_x = l_u = 0.0
    count_x, count_u = 0.0, 0
    for i, kind in enumerate(labeled):
        if kind is None or kind:
            weight = s.clean_weight if kind is None else 1.0
            l_x, count_x = l_x - weight * (targets[i] * log_p[i]).sum(), count_x + weight
        else:
            l_u, count_u = l_u + ((log_p[i].exp() - targets[i]) ** 2).sum() / 3, count_u + 1
    mean = log_p.exp().mean(0)
    l_reg = sum(1 / 3 * torch.log(1 / 3 / mean[c]) for c in range(3))
    assert count_x > 0
    assert count_u > 0
    return l_x / count_x + float(method.unlabeled_weight) * l_u / count_u + l_reg, net


def test_step_equals_the_algorithm_written_out() -> None:
    method, batch = after_warmup(augment="crop", settings={"clean_weight": 0.5, "unlabeled_weight": 3.0})
    expected = [expected_loss(method, batch, k) for k in range(2)]
    lr = float(method.sgd.lr)
    loss = method.step(batch)
    torch.testing.assert_close(loss, sum(l.detach() for l, _ in expected) / 2, rtol=1e-9, atol=0)
    for (l, before), after in zip(expected, (method.net, method.peer), strict=True):
        gradients = torch.autograd.grad(l, list(before.parameters()))
        for weight, d, new in zip(before.parameters(), gradients, after.parameters(), strict=True):
            torch.testing.assert_close(new.detach(), weight.detach() - lr * d, rtol=1e-9, atol=1e-11)


def test_division_is_made_by_each_network_from_its_losses() -> None:
    runner = StepRunner(small_run("dividemix"), small_problem(unlabeled=6, wrong=0.4)).advance(16)
    method, train = runner.method, runner.problem.train
    runner.method.end_epoch(runner.epoch)
    x, labeled = to_input(train.x, torch.float64), torch.arange(48) >= 6
    for k, net in enumerate((method.net, method.peer)):
        losses = nn.functional.cross_entropy(copy.deepcopy(net).eval()(x), train.given.clamp_min(0), reduction="none")
        torch.testing.assert_close(method.division["w"][k, labeled], clean_probabilities(losses[labeled].detach()))
    assert (method.division["w"][:, :6] == 0).all()


def test_rows_with_wrong_labels_have_smaller_probabilities() -> None:
    runner = StepRunner(small_run("dividemix"), small_problem(wrong=0.3), net_of_run=True).advance()
    w, right = runner.method.division["w"].mean(0), runner.problem.train.given == runner.problem.train.true
    assert w[~right].mean() < 0.6 * w[right].mean()
    soft = runner.method.soft_labels()
    assert (soft.argmax(1) == runner.problem.train.true).double().mean() > 0.9


def test_unlabeled_weight_grows_linearly_after_warm_up() -> None:
    run = small_run("dividemix", epochs=30, warmup=3, lr_milestones=(20,), settings={"ramp": 4.0})
    method = StepRunner(run, small_problem()).method
    weights = []
    for epoch in (3, 4, 5, 7, 29):
        method.begin_epoch(epoch)
        weights.append(float(method.unlabeled_weight))
    assert weights == pytest.approx([0, 25 / 4, 25 / 2, 25, 25])


def test_strong_augmentation_is_trained_on_in_place_of_the_second_copy() -> None:
    method, batch = after_warmup(augment="crop", strong_augment="supervised")
    inputs = []
    method.net.register_forward_pre_hook(lambda _module, args: inputs.append(args[0]))
    method.draws[0] = 1.0  # the share of the sample itself: no mixing
    method.step(batch)
    views = [batch.x, batch.views.strong, batch.clean_x, batch.clean_views.strong]
    assert torch.equal(inputs[-1], torch.cat(views))
    assert any(torch.equal(x, batch.views.second) for x in inputs)


def test_confidence_penalty_of_warm_up() -> None:
    plain, penalized = (
        StepRunner(small_run("dividemix", settings={"confidence_penalty": weight}), small_problem())
        for weight in (0.0, 1.0)
    )
    batch = next(plain.batches.epoch(0, labeled_only=True))
    entropies = []
    for net in (plain.method.net, plain.method.peer):
        p = train_probabilities(net, batch.x)
        entropies.append(float(-(p * p.log()).sum(1).mean().detach()))
    losses = [float(runner.advance(1).losses[0]) for runner in (plain, penalized)]
    assert losses[0] - losses[1] == pytest.approx(sum(entropies) / 2)


def test_clean_set_can_be_left_for_selection() -> None:
    other = small_problem()
    other = dataclasses.replace(other, clean=dataclasses.replace(other.clean, true=(other.clean.true + 1) % 3))
    run = small_run("dividemix", settings={"clean_weight": 0.0})
    first, second = (StepRunner(run, problem).advance() for problem in (small_problem(), other))
    assert first.losses == second.losses
    assert not first.method.learns_from_clean


@pytest.mark.parametrize("setting", [{"threshold": 1.0}, {"temperature": 0.0}, {"alpha": 0.0}])
def test_settings_out_of_range_are_rejected(setting: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(setting))}=.*out of range"):
        StepRunner(small_run("dividemix", settings=setting), small_problem())
