"""MetaLabelNet-plus: both kinds of step equal their formulas; the label net is taught with cross-fitted predictions."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.bayes_label_net import BayesLabelNet, margin
from metalabelnet.core.forward_pass import predict, trainable_parameters
from metalabelnet.data.batches import to_input
from metalabelnet.data.problem import Problem
from metalabelnet.errors import InputError
from metalabelnet.methods import metalabelnet_plus as plus
from metalabelnet.nets.head import FeatureExtractor
from metalabelnet.train.build_method import build_method
from sgd_step import check_step
from small_runs import StepRunner, column_images, small_problem, small_run, tiny_cnn

FIT = BayesLabelNet.fit
UNTAUGHT = small_run("metalabelnet-plus", settings={"learn": False})
STRONG = {"ema": 0.9, "strong_augment": "supervised"}


def problem_with_given_labels(unlabeled: int = 6) -> Problem:
    """Return the small problem with given labels of the clean images, a third of them wrong."""
    return dataclasses.replace(small_problem(unlabeled=unlabeled), clean=column_images(12, seed=1, wrong=0.3))


def runner(*, recipe: dict[str, Any] | None = None, problem: Problem | None = None, **settings: Any) -> StepRunner:
    run = small_run("metalabelnet-plus", settings={"warmup_share": 1.0, **settings}, **(recipe or STRONG))
    return StepRunner(run, problem or problem_with_given_labels())


def warmed_up(**options: Any) -> StepRunner:
    """Return a run at the end of warm-up."""
    one = runner(**options)
    return one.advance(one.method.warmup * one.batches.steps(labeled_only=True))


def test_warm_up_counts_each_clean_sample_as_a_training_sample() -> None:
    problem = problem_with_given_labels()
    given = problem.clean.given.clone()
    given[:2] = -1
    problem = dataclasses.replace(problem, clean=problem.clean.with_given_labels(given))
    one = runner(problem=problem).advance(2)
    batch = next(iter(one.batches.epoch(0, labeled_only=True)))
    assert (batch.clean_given < 0).any()

    def loss_at(log_p: Any) -> Tensor:
        loss = torch.zeros((), dtype=torch.float64)
        for view in (batch.views.weak, batch.views.strong):
            loss = loss + functional.nll_loss(log_p(view), batch.given)
        for view in (batch.clean_views.weak, batch.clean_views.strong):
            known = batch.clean_given >= 0
            picked = log_p(view)[known].gather(1, batch.clean_given[known][:, None])
            loss = loss - 12 / 48 * picked.sum() / len(known)
        return loss

    check_step(one, batch, loss_at)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("sharpening", [1.0, 3.0])
def test_step_equals_the_formula(weighted: bool, sharpening: float) -> None:
    one = runner(weighted=weighted, sharpening=sharpening, clean_weight=0.6).advance(9)
    batch = next(iter(one.batches.epoch(2, labeled_only=False)))
    assert (batch.given < 0).any()
    label_net, rates = one.method.label_net, one.method.rates["rate"]
    q = predict(one.method.averages["net"].net, batch.x).log_softmax(1)
    y_hat = label_net(q, rates[batch.index], batch.given).exp()
    e = rates[batch.index]
    assert (e[batch.given < 0] == 1).all()
    assert e.min() < 0.9
    sharpened = y_hat ** (1 + (sharpening - 1) * e[:, None])
    targets = sharpened / sharpened.sum(1, keepdim=True)
    c = y_hat.max(1).values
    below = torch.minimum(c - c.mean(), torch.zeros(()))
    u = torch.exp(-2 * below**2 / ((c - c.mean()) ** 2).mean()) ** e if weighted else torch.ones_like(c)
    assert (u < 0.9).any() == weighted

    def loss_at(log_p: Any) -> Tensor:
        loss = torch.zeros((), dtype=torch.float64)
        for view in (batch.views.weak, batch.views.strong):
            loss = loss - (u[:, None] * targets * log_p(view)).sum() / len(u)
        for view in (batch.clean_views.weak, batch.clean_views.strong):
            loss = loss + 0.6 * rates.mean() * functional.nll_loss(log_p(view), batch.clean_y)
        return loss

    check_step(one, batch, loss_at)


def test_equal_confidences_have_weight_one() -> None:
    torch.testing.assert_close(plus.confidence_weight(torch.full((4, 3), 1 / 3).log()), torch.ones(4))


def taught(monkeypatch: pytest.MonkeyPatch, one: StepRunner) -> dict[str, Tensor]:
    """Begin phase 2 and return what the label net was taught with."""
    seen: dict[str, Any] = {}

    def spy(self: BayesLabelNet, log_r: Tensor, given: Tensor, true: Tensor, **options: bool) -> None:
        seen.update(log_r=log_r, given=given, true=true, **options)
        FIT(self, log_r, given, true, **options)

    monkeypatch.setattr(BayesLabelNet, "fit", spy)
    one.method.begin_epoch(one.method.warmup)
    return seen


def test_label_net_is_taught_with_predictions_that_did_not_see_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean sample with another true label changes others' predictions, and its own by the temperature only."""
    problem = problem_with_given_labels()
    true = problem.clean.true.clone()
    true[4] = (true[4] + 1) % 3
    other = dataclasses.replace(problem, clean=dataclasses.replace(problem.clean, true=true))
    plain, changed = (taught(monkeypatch, runner(problem=each)) for each in (problem, other))
    own, rest = (torch.stack([seen["log_r"][rows] for seen in (plain, changed)]) for rows in (4, slice(4)))
    relative = (own - own[:, :1])[:, 1:]
    torch.testing.assert_close(relative[0] / relative[0, 0], relative[1] / relative[1, 0])
    assert not torch.allclose(rest[0], rest[1])


def test_unknown_given_labels_of_clean_samples_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_with_given_labels()
    given = problem.clean.given.clone()
    given[3:] = -1
    one = warmed_up(problem=dataclasses.replace(problem, clean=problem.clean.with_given_labels(given)))
    before = [p.clone() for p in one.method.averages["net"].net.parameters()]
    seen = taught(monkeypatch, one)
    net = tiny_cnn().double()
    net.load_state_dict(one.method.net.state_dict())
    with torch.no_grad():
        for new, old in zip(net.parameters(), before, strict=True):
            new.copy_(old)  # the head before it was refit
    predicted = predict(net, to_input(problem.clean.x, torch.float64)).softmax(1)
    torch.testing.assert_close(seen["given"][:3], functional.one_hot(given[:3], 3).double())
    torch.testing.assert_close(seen["given"][3:], predicted[3:])


def test_a_label_net_that_does_not_learn_keeps_its_initial_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    one = runner(learn=False)
    assert taught(monkeypatch, one) == {}
    for name, tensor in BayesLabelNet(3, 0.7).double().named_buffers():
        assert torch.equal(one.method.label_net.get_buffer(name), tensor)
    labeled = one.problem.train.given >= 0
    assert (one.method.rates["rate"][labeled] == 0.5).all()


def test_mean_prediction_is_aligned_when_phase_2_starts_and_after_each_epoch() -> None:
    one = warmed_up()
    one.method.begin_epoch(one.method.warmup)
    for _ in range(2):
        expected = BayesLabelNet(len(one.problem.train.classes)).double()
        expected.align(one.method.logits(one.problem.train.x).log_softmax(1), one.problem.clean.true)
        assert one.method.label_net.shift.abs().max() > 0
        torch.testing.assert_close(one.method.label_net.shift, expected.shift)
        one.advance(one.batches.steps(labeled_only=False) - 1)
        one.method.end_epoch(one.method.warmup)
    off = warmed_up(align=False)
    off.method.begin_epoch(off.method.warmup)
    off.method.end_epoch(off.method.warmup)
    assert not off.method.label_net.shift.any()


def test_a_clean_set_that_was_drawn_otherwise_is_not_aligned_with() -> None:
    problem = small_problem()
    given = torch.zeros_like(problem.clean.given)  # all of one class, a third of the training samples
    problem = dataclasses.replace(problem, clean=problem.clean.with_given_labels(given))
    one = warmed_up(problem=problem)
    one.method.begin_epoch(one.method.warmup)
    assert not one.method.label_net.shift.any()


def test_noise_rates_follow_the_margins_of_the_heads_of_the_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The margins of clean samples come from these heads, too."""
    one, heads = warmed_up(), []

    def spy(*args: Any) -> Any:
        heads.append(refit_by_fold(*args))
        return heads[-1]

    refit_by_fold = plus.refit_head_by_fold
    monkeypatch.setattr(plus, "refit_head_by_fold", spy)
    one.method.begin_epoch(2)
    (of_folds, _) = heads[0]
    v = FeatureExtractor(one.method.net, one.method.head)(to_input(one.problem.train.x, torch.float64))
    by_fold = [one.method.label_net.noise_rate(margin(functional.linear(v, *head).log_softmax(1))) for head in of_folds]
    labeled = one.problem.train.given >= 0
    rates = one.method.rates["rate"]
    torch.testing.assert_close(rates[labeled], torch.stack(by_fold).mean(0)[labeled])
    assert rates[labeled].std() > 0
    assert (rates[~labeled] == 1).all()
    constant = runner(by_margin=False).advance(9)
    assert constant.method.rates["rate"][labeled].std() < 1e-12


def test_training_samples_take_part_in_the_noise_rate_if_all_clean_given_labels_are_known() -> None:
    problem = problem_with_given_labels()
    given = problem.clean.given.clone()
    given[3] = -1
    unknown = dataclasses.replace(problem, clean=problem.clean.with_given_labels(given))
    for each, differs in ((problem, True), (unknown, False)):
        intercepts = []
        for on in (True, False):
            one = warmed_up(problem=each, rate_from_training=on)
            one.method.begin_epoch(one.method.warmup)
            intercepts.append(float(one.method.label_net.b))
        assert (intercepts[0] != intercepts[1]) is differs


def test_the_noise_rate_is_limited_by_that_of_labeled_training_samples() -> None:
    one = warmed_up()
    one.method.begin_epoch(one.method.warmup)
    net, labeled = one.method.label_net, one.problem.train.given >= 0
    assert not labeled.all()
    mean = float(one.method.rates["rate"][labeled].mean())
    expected = copy.deepcopy(net)
    expected.limit_rate(mean, 0.5)
    assert float(net.limit) == float(expected.limit) == 0.5
    expected.limit_rate(float(one.method.rates["mean"]) + 1, 0.5)
    assert float(expected.limit) == 1
    off = warmed_up(trust_floor=0.0)
    off.method.begin_epoch(off.method.warmup)
    assert float(off.method.label_net.limit) == 1
    assert torch.equal(off.method.rates["rate"], one.method.rates["rate"])


def test_the_noise_rate_is_not_limited_if_given_labels_of_clean_samples_are_unknown() -> None:
    """Predicted ones cannot show whether wrong labels follow the prediction."""
    problem = problem_with_given_labels()
    unknown = problem.clean.with_given_labels(torch.full_like(problem.clean.given, -1))
    one = warmed_up(problem=dataclasses.replace(problem, clean=unknown))
    one.method.begin_epoch(one.method.warmup)
    assert float(one.method.label_net.limit) == 1


def test_by_prediction_reaches_the_label_net(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (True, False):
        one = warmed_up(by_prediction=value)
        assert taught(monkeypatch, one)["by_prediction"] is value
        assert (float(one.method.label_net.share) > 0) is value


def test_wrong_labels_are_corrected() -> None:
    run = small_run("metalabelnet-plus")
    one = StepRunner(run, problem_with_given_labels(unlabeled=0), net_of_run=True).advance()
    rows = one.problem.train
    wrong = rows.given != rows.true
    assert wrong.sum() == 5
    assert (one.method.soft_labels().argmax(1) == rows.true).double().mean() > 0.95


def test_warm_up_is_a_share_of_that_of_the_recipe() -> None:
    for share, warmup in ((0.4, 4), (1.0, 10), (0.01, 1)):
        run = small_run("metalabelnet-plus", warmup=10, epochs=12, settings={"warmup_share": share})
        method = build_method(run, small_problem())
        assert method.warmup == method.candidates_from == warmup
        assert method.labeled_only(warmup - 1)
        assert not method.labeled_only(warmup)


def test_a_run_of_one_epoch_has_no_warm_up() -> None:
    one = StepRunner(
        small_run("metalabelnet-plus", epochs=1, warmup=0, settings={"learn": False}), problem_with_given_labels()
    ).advance()
    assert one.method.warmup == one.method.first_candidate == 0
    assert one.method.soft_labels() is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exponent": 0.0}, r"exponent=0\.0 is out of range: give a number above 0"),
        ({"sharpening": 0.0}, r"sharpening=0\.0 is out of range: give a number above 0"),
        ({"trust_floor": 1.5}, r"trust_floor=1\.5 is out of range: give a number from 0 to 1"),
        ({"warmup_share": 0.0}, r"warmup_share=0\.0 is out of range: give a number above 0, at most 1"),
    ],
)
def test_settings_out_of_range_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_run("metalabelnet-plus", settings=settings)


def test_ema_predicts_and_phase_2_starts_from_it() -> None:
    one = runner(recipe={"ema": 0.999}, learn=False)
    ema = {name: weight.detach().clone() for name, weight in trainable_parameters(one.method.net).items()}
    for t in range(1, 1 + one.method.warmup * one.batches.steps(labeled_only=True)):
        one.advance(1)
        decay = min(0.999, (1 + t) / (10 + t))
        last = {name: weight.detach().clone() for name, weight in trainable_parameters(one.method.net).items()}
        ema = {name: decay * ema[name] + (1 - decay) * weight for name, weight in last.items()}
    one.method.begin_epoch(one.method.warmup)
    for name, weight in trainable_parameters(one.method.net).items():
        if not name.startswith(one.method.head):  # the head is refit
            torch.testing.assert_close(weight.detach(), ema[name])
            assert not torch.allclose(weight.detach(), last[name])
    x = to_input(one.problem.test.x, torch.float64)
    one.advance()
    assert torch.equal(one.method.logits(one.problem.test.x), predict(one.method.averages["net"].net, x))
    assert not torch.equal(predict(one.method.net, x), predict(one.method.averages["net"].net, x))


def test_phase_2_starts_with_recomputed_batchnorm_statistics() -> None:
    """After a few steps running averages still depend on their initial values."""
    one = warmed_up(learn=False)
    lagging = {name: b.clone() for name, b in one.method.averages["net"].net.named_buffers() if "running_mean" in name}
    one.method.begin_epoch(2)
    net, x = one.method.averages["net"].net, to_input(one.problem.train.x, torch.float64)
    name = next(iter(lagging))
    at = next(place for place, layer in enumerate(net) if isinstance(layer, torch.nn.BatchNorm2d))
    seen = predict(torch.nn.Sequential(*list(net)[:at]), x)
    torch.testing.assert_close(net[at].running_mean, seen.mean((0, 2, 3)))
    torch.testing.assert_close(net[at].running_var, seen.var((0, 2, 3)))
    assert not torch.allclose(net[at].running_mean, lagging[name], rtol=0.1)
    for (_, a), (_, b) in zip(net.named_buffers(), one.method.net.named_buffers(), strict=True):
        assert torch.equal(a, b)


def test_head_is_refit_to_the_clean_set_when_phase_2_starts() -> None:
    one = runner(learn=False)
    x, y = to_input(one.problem.clean.x, torch.float64), one.problem.clean.true
    before = functional.cross_entropy(predict(one.method.net, x), y)
    one.method.begin_epoch(one.method.warmup)
    head, averaged = (net.get_submodule(one.method.head) for net in (one.method.net, one.method.averages["net"].net))
    assert torch.equal(head.weight, averaged.weight)
    assert functional.cross_entropy(predict(one.method.net, x), y) < before


def test_head_refit_uses_a_limited_number_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    one, calls = runner(learn=False), []
    monkeypatch.setattr(plus, "MAX_FIT_SAMPLES", 5)
    monkeypatch.setattr(plus, "refit_head", lambda v, y, weight, bias, _: (calls.append((v, y)), (weight, bias))[1])
    one.method.begin_epoch(one.method.warmup)
    ((v, y),) = calls
    clean = one.problem.clean
    assert torch.equal(y, clean.true[torch.arange(5) * len(clean) // 5])
    assert len(v) == 5


def net_with_small_features(*, bias: bool) -> torch.nn.Module:
    """Return a network without normalization whose features are a hundred times too small."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU())
    with torch.no_grad():
        net[1].weight.mul_(0.01)
        net[1].bias.zero_()
    return net.append(torch.nn.Linear(16, 3, bias=bias))


def test_refit_head_is_not_copied_into_a_layer_without_bias() -> None:
    method = build_method(UNTAUGHT, small_problem(), net_with_small_features(bias=False))
    before = {name: weight.detach().clone() for name, weight in trainable_parameters(method.net).items()}
    method.begin_epoch(method.warmup)
    assert all(torch.equal(weight, before[name]) for name, weight in trainable_parameters(method.net).items())


def test_refit_head_of_small_features_is_scaled_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its norm is limited, its predicted classes are those of the refit layer."""
    heads = []
    for limit in (plus.MAX_HEAD_NORM_RATIO, 1e9):
        monkeypatch.setattr(plus, "MAX_HEAD_NORM_RATIO", limit)
        method = build_method(UNTAUGHT, small_problem(), net_with_small_features(bias=True))
        before = method.net[-1].weight.detach().norm()
        method.begin_epoch(method.warmup)
        heads.append(method.net)
    scaled, refit = heads
    ratio = scaled[-1].weight.norm() / refit[-1].weight.norm()
    assert ratio < 0.1
    torch.testing.assert_close(scaled[-1].weight.norm(), 4 * before)
    torch.testing.assert_close(scaled[-1].weight, ratio * refit[-1].weight)
    torch.testing.assert_close(scaled[-1].bias, ratio * refit[-1].bias)


def test_constant_features_give_finite_weights() -> None:
    net = net_with_small_features(bias=True)
    with torch.no_grad():
        for weight in net.parameters():
            weight.zero_()
    method = build_method(UNTAUGHT, small_problem(), net)
    method.begin_epoch(method.warmup)
    assert all(weight.isfinite().all() for weight in method.net.parameters())


def test_model_is_loaded_with_rows_without_true_labels() -> None:
    one = runner().advance()
    problem = small_problem()
    unknown = dataclasses.replace(problem.train, true=torch.full_like(problem.train.true, -1))
    parts = {"train": unknown, "clean": unknown, "validation": unknown, "test": unknown}
    other = build_method(one.run, dataclasses.replace(problem, **parts), tiny_cnn())
    other.load_model_state_dict(one.method.model_state_dict())
    assert torch.equal(other.label_net.O, one.method.label_net.O)
    assert torch.isfinite(other.soft_labels()).all()
