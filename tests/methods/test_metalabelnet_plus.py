"""MetaLabelNet-plus: every extension equals its formula and can be turned off."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.forward_pass import predict, trainable_parameters
from metalabelnet.data.batches import to_input
from metalabelnet.errors import InputError
from metalabelnet.methods import metalabelnet_plus as plus
from metalabelnet.train.build_method import build_method
from small_runs import StepRunner, small_problem, small_run, tiny_cnn

OFF: dict[str, Any] = {"clean_weight": 0.0, "prior": 0.0, "given": 0.0, "handover": 0.0}


def runner(*, warmup: int = 2, recipe: dict[str, Any] | None = None, **settings: Any) -> StepRunner:
    recipe = {"ema": 0.999, "strong_augment": "supervised", **(recipe or {})}
    run = small_run("metalabelnet-plus", settings=settings, warmup=warmup, **recipe)
    return StepRunner(run, small_problem(unlabeled=6))


@pytest.mark.parametrize("name", OFF)
def test_each_extension_alone_changes_the_result(name: str) -> None:
    plain, one = runner(**OFF).advance(), runner(**{key: value for key, value in OFF.items() if key != name}).advance()
    x = plain.problem.test.x
    assert not torch.equal(plain.method.logits(x), one.method.logits(x))


def naive_evidence(method: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Return the features of the label net and the terms added to its logits."""
    s = method.settings
    net = method.averages["net"].net if method.averages else method.net
    v = predict(torch.nn.Sequential(*list(net)[:-1]), batch.x)
    evidence = s.prior * predict(net, batch.x).log_softmax(1)
    if method.transition is not None:
        for row, y in enumerate(batch.given.tolist()):
            if y >= 0:
                evidence[row] += s.given * method.transition.T[:, y].log()
    if s.handover:  # before the first step of phase 2 the network is the one with the refit head
        r = predict(method.net, to_input(method.task.train.x[batch.index], batch.x.dtype)).softmax(1)
        evidence = 0.3 * r.log() + 0.7 * evidence
    return v, evidence


def naive_step(one: StepRunner, batch: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return θ and φ after one iteration, by double backward through the look-ahead."""
    method, s = one.method, one.method.settings
    theta, p2 = (
        {k: w.detach().clone().requires_grad_() for k, w in trainable_parameters(method.net).items()},
        method.phase2,
    )
    buffers = dict(method.net.named_buffers())

    def f(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        copies = {k: b.clone() for k, b in buffers.items()}
        return torch.func.functional_call(method.net, {**weights, **copies}, (x,))

    v, evidence = naive_evidence(method, batch)
    phi = {k: w.detach().clone().requires_grad_() for k, w in p2.m.named_parameters()}

    def log_y(of: dict[str, Tensor]) -> Tensor:
        return (torch.func.functional_call(p2.m, of, (v,)) + evidence).log_softmax(1)

    log_p = f(theta, batch.x).log_softmax(1)
    scale = 1.0 if s.loss_scale == "sum" else 1 / 3
    l_c = scale * (log_p.exp() * (log_p - log_y(phi))).sum(1).mean()
    by_theta = torch.autograd.grad(l_c, list(theta.values()), create_graph=True)
    theta_hat = {k: w - d for (k, w), d in zip(theta.items(), by_theta, strict=True)}
    l_meta = functional.cross_entropy(f(theta_hat, batch.clean_x), batch.clean_y)
    g = torch.autograd.grad(l_meta, list(theta_hat.values()), retain_graph=True)
    by_phi = torch.autograd.grad(l_meta, list(phi.values()))
    new_phi = {}
    for (name, w), d in zip(phi.items(), by_phi, strict=True):
        d = d + s.label_net_decay * w
        new_phi[name] = (w - s.beta * d / (d.abs() + 1e-8)).detach()  # Adam's first step
    log_p = f(theta, batch.x).log_softmax(1)
    y_hat = log_y(new_phi).detach().exp()
    soft = -(y_hat * log_p).sum(1).mean()
    if batch.views.strong is not None:
        w = method.task.recipe.strong_weight
        soft = soft - w * (y_hat * f(theta, batch.views.strong).log_softmax(1)).sum(1).mean()
    by_soft = torch.autograd.grad(soft, list(theta.values()))
    sgd, new = method.sgd, {}
    for (name, w), d, clean, b in zip(theta.items(), by_soft, g, sgd.buffers, strict=True):
        moved = sgd.momentum * b + d + s.clean_weight * clean + sgd.weight_decay * w
        new[name] = (w - sgd.lr * moved).detach()
    return new, new_phi


NO_RECIPE = {"ema": 0.0, "strong_augment": "none"}


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        (NO_RECIPE, {**OFF, "loss_scale": "sum"}),
        (NO_RECIPE, {**OFF, "loss_scale": "sum", "clean_weight": 0.5}),
        (NO_RECIPE, {**OFF, "loss_scale": "sum", "prior": 0.7}),
        ({"ema": 0.9, "strong_augment": "none"}, {**OFF, "loss_scale": "sum", "prior": 0.7}),
        (NO_RECIPE, {**OFF, "loss_scale": "sum", "given": 0.6}),
        ({"ema": 0.9, "strong_augment": "none"}, {**OFF, "loss_scale": "sum", "handover": 0.5}),
        ({"ema": 0.0, "strong_weight": 0.8}, {**OFF, "loss_scale": "sum"}),
        ({}, {}),
        ({}, {"given": 0.0}),
    ],
)
def test_step_equals_the_formula(recipe: dict[str, Any], settings: dict[str, Any]) -> None:
    one = runner(warmup=1, recipe=recipe, **settings).advance(3)
    one.method.begin_epoch(1)
    if one.method.refit_predictions is not None:
        one.method.refit_predictions["rho"].fill_(0.3)
    batch = next(iter(one.batches.epoch(1, labeled_only=False)))
    theta, phi = naive_step(one, batch)
    one.method.step(batch)
    for name, weight in trainable_parameters(one.method.net).items():
        torch.testing.assert_close(weight.detach(), theta[name], rtol=1e-9, atol=1e-11)
    for name, weight in one.method.phase2.m.named_parameters():
        torch.testing.assert_close(weight.detach(), phi[name], rtol=1e-6, atol=1e-8)


def test_transition_matrix_is_the_mean_prediction_per_class() -> None:
    """On the clean set; a row of T is uniform for a class without clean samples."""
    one = runner(given=1.0, matrix="expected", handover=0.0, warmup=1).advance(3)
    clean = one.problem.clean.take((one.problem.clean.true != 1).nonzero()[:, 0])
    one.method.task = dataclasses.replace(one.method.task, clean=clean)
    one.method.begin_epoch(1)
    for c in range(3):
        rows = clean.x[clean.true == c]
        p = predict(one.method.net, to_input(rows, torch.float64)).softmax(1)
        expected = p.mean(0) if len(rows) else torch.full((3,), 1 / 3, dtype=torch.float64)
        torch.testing.assert_close(one.method.transition.T[c], expected)


def test_deconfounded_matrix_is_used_if_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called with T, the predictions on the clean set and the true classes."""
    calls = {}

    def fake(T: Tensor, expected: Tensor, true: Tensor) -> Tensor:
        calls.update(T=T, expected=expected, true=true)
        return torch.eye(3, dtype=T.dtype)

    monkeypatch.setattr(plus, "deconfounded", fake)
    plain, one = (
        runner(given=1.0, handover=0.0, warmup=1, matrix=matrix).advance(3) for matrix in ("expected", "deconfounded")
    )
    for each in (plain, one):
        each.method.begin_epoch(1)
    clean = one.problem.clean
    assert torch.equal(one.method.transition.T, torch.eye(3, dtype=torch.float64))
    assert torch.equal(calls["T"], plain.method.transition.T)
    assert torch.equal(calls["true"], clean.true)
    torch.testing.assert_close(calls["expected"], predict(one.method.net, to_input(clean.x, torch.float64)).softmax(1))


def test_given_label_has_no_effect_with_a_uniform_matrix() -> None:
    """Nor for unlabeled rows."""
    one = runner(given=1.0, prior=0.1, handover=0.0).advance(10)
    estimated = one.method.soft_labels()
    one.method.transition.T.fill_(1 / 3)
    plain = one.method.soft_labels()
    unlabeled = one.problem.train.given < 0
    torch.testing.assert_close(estimated[unlabeled], plain[unlabeled])
    assert not torch.allclose(estimated[~unlabeled], plain[~unlabeled])
    one.method.settings = dataclasses.replace(one.method.settings, given=0.0)
    torch.testing.assert_close(one.method.soft_labels(), plain)


def test_ema_predicts() -> None:
    one = runner().advance()
    x = to_input(one.problem.test.x, torch.float64)
    assert torch.equal(one.method.logits(one.problem.test.x), predict(one.method.averages["net"].net, x))
    assert not torch.equal(predict(one.method.net, x), predict(one.method.averages["net"].net, x))


def test_ema_includes_warm_up_and_phase_2_starts_from_it() -> None:
    one = runner(handover=0.0)
    ema = {name: weight.detach().clone() for name, weight in trainable_parameters(one.method.net).items()}
    for t in range(1, 1 + one.method.warmup * one.batches.steps(labeled_only=True)):
        one.advance(1)
        decay = min(0.999, (1 + t) / (10 + t))
        last = {name: weight.detach().clone() for name, weight in trainable_parameters(one.method.net).items()}
        ema = {name: decay * ema[name] + (1 - decay) * weight for name, weight in last.items()}
    assert one.method.phase2 is None
    one.method.begin_epoch(one.method.warmup)
    for name, weight in trainable_parameters(one.method.net).items():
        torch.testing.assert_close(weight.detach(), ema[name])
        assert not torch.allclose(weight.detach(), last[name])


def test_phase_2_starts_with_recomputed_batchnorm_statistics() -> None:
    """After a few steps running averages still depend on their initial values."""
    one = runner(warmup=1).advance(3)
    lagging = {name: b.clone() for name, b in one.method.averages["net"].net.named_buffers() if "running_mean" in name}
    one.method.begin_epoch(1)
    net, x = one.method.averages["net"].net, to_input(one.problem.train.x, torch.float64)
    name = next(iter(lagging))
    at = next(place for place, layer in enumerate(net) if isinstance(layer, torch.nn.BatchNorm2d))
    seen = predict(torch.nn.Sequential(*list(net)[:at]), x)
    torch.testing.assert_close(net[at].running_mean, seen.mean((0, 2, 3)))
    torch.testing.assert_close(net[at].running_var, seen.var((0, 2, 3)))
    assert not torch.allclose(net[at].running_mean, lagging[name], rtol=0.1)
    assert net[at].momentum == one.method.net[at].momentum == 0.1
    for (_, a), (_, b) in zip(net.named_buffers(), one.method.net.named_buffers(), strict=True):
        assert torch.equal(a, b)


def test_handover_out_of_range_is_rejected() -> None:
    with pytest.raises(InputError, match=r"handover=1\.5 is out of range: give a number from 0 to 1"):
        small_run("metalabelnet-plus", settings={"handover": 1.5})


def test_head_is_refit_to_the_clean_set_when_phase_2_starts() -> None:
    one, other = runner(handover=0.5), runner(handover=0.0)
    for each in (one, other):
        each.method.begin_epoch(each.method.warmup)
    method, x = one.method, one.problem.clean.x
    head = method.net.get_submodule(method.head)
    assert torch.equal(head.weight, method.averages["net"].net.get_submodule(method.head).weight)
    refit_loss, plain_loss = (
        float(functional.cross_entropy(predict(each.method.net, to_input(x, torch.float64)), one.problem.clean.true))
        for each in (one, other)
    )
    assert refit_loss < plain_loss


def test_soft_labels_move_from_refit_predictions_to_current_ones() -> None:
    one = runner(handover=0.5)
    method, rows = one.method, one.problem.train
    first, length = method.warmup, 0.5 * (method.epochs - method.warmup)
    index = rows.given.ge(0).nonzero()[[3, 0, 5], 0]
    x, given = to_input(rows.x[index], torch.float64), rows.given[index]
    method.begin_epoch(first)
    log_r = predict(method.net, x).log_softmax(1)
    q = predict(method.averages["net"].net, x)
    s, log_t = method.settings, method.transition.get_buffer("T").clamp_min(1e-6).log()
    own = s.prior * q.log_softmax(1) + s.given * log_t.T[given]
    for epoch in range(first, method.epochs):
        method.begin_epoch(epoch)
        rho = max(0.0, 1 - (epoch - first) / length)
        _, evidence = method._features_and_evidence(x, given, index)
        torch.testing.assert_close(evidence, rho * log_r + (1 - rho) * own)
    assert rho == 0


def test_resume_during_handover_gives_same_losses() -> None:
    whole, half = runner(handover=1.0).advance(), runner(handover=1.0)
    half.advance(len(whole.losses) - 2)
    rest = runner(handover=1.0)
    rest.method.load_state_dict(half.method.state_dict())
    rest.epoch, rest.step = half.epoch, half.step
    assert half.losses + rest.advance().losses == whole.losses


def test_head_refit_uses_a_limited_number_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    one, calls = runner(), []
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


@pytest.mark.parametrize(("bias", "max_ratio"), [(True, 1e-9), (True, 1e9), (False, 1e9)])
def test_refit_head_is_used_for_r_even_if_it_is_not_copied(
    bias: bool, max_ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not copied if its norm is too large or the last layer of the network has no bias."""
    monkeypatch.setattr(plus, "MAX_HEAD_NORM_RATIO", max_ratio)
    run, problem = small_run("metalabelnet-plus"), small_problem()
    method = build_method(run, problem, net_with_small_features(bias=bias))
    before = {name: weight.detach().clone() for name, weight in trainable_parameters(method.net).items()}
    method.begin_epoch(method.warmup)
    same = all(torch.equal(weight, before[name]) for name, weight in trainable_parameters(method.net).items())
    assert same == (not bias or max_ratio < 1)
    rows = problem.train
    accuracy = (method.refit_predictions["log_r"].argmax(1) == rows.true).double().mean()
    assert accuracy > 0.9  # the clean samples suffice to separate the blobs
    if bias and max_ratio > 1:
        x = to_input(rows.x, torch.float64)
        torch.testing.assert_close(method.refit_predictions["log_r"], predict(method.net, x).log_softmax(1))


def test_small_features_give_a_refit_head_that_is_not_copied() -> None:
    method = build_method(small_run("metalabelnet-plus"), small_problem(), net_with_small_features(bias=True))
    before = method.net[-1].weight.detach().clone()
    method.begin_epoch(method.warmup)
    assert torch.equal(method.net[-1].weight, before)


def test_model_is_loaded_with_rows_without_true_labels() -> None:
    one = runner().advance()
    problem = small_problem()
    unknown = dataclasses.replace(problem.train, true=torch.full_like(problem.train.true, -1))
    parts = {"train": unknown, "clean": unknown, "validation": unknown, "test": unknown}
    other = build_method(one.run, dataclasses.replace(problem, **parts), tiny_cnn())
    other.load_model_state_dict(one.method.model_state_dict())
    assert torch.equal(other.transition.T, one.method.transition.T)
    assert torch.isfinite(other.soft_labels()).all()
