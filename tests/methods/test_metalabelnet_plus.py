"""What MetaLabelNet-plus promises beside the contract: each ingredient is its formula, and off it is nothing."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.forward_pass import predict, trainable
from metalabelnet.data.batches import to_input
from metalabelnet.data.rows import Rows
from metalabelnet.errors import InputError
from metalabelnet.methods import metalabelnet_plus as plus
from metalabelnet.methods.metalabelnet_plus import MetaLabelNetPlus
from metalabelnet.train.build_method import build
from small import Walk, small_problem, small_run

OFF: dict[str, Any] = {
    "clean_weight": 0.0,
    "warmup_share": 1.0,
    "ema": 0.0,
    "features": "warm-up",
    "prior": 0.0,
    "given": 0.0,
    "handover": 0.0,
    "consistency": 0.0,
    "step3": "paper",
    "lr_schedule": "milestones",
}
GOLDEN = Path(__file__).with_name("golden.json")


def walk(**settings: Any) -> Walk:
    return Walk(small_run("metalabelnet-plus", settings=settings), small_problem(unlabeled=6))


def weights(one: Walk) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in one.method.model().items()}


def test_all_off_it_is_metalabelnet_to_the_bit() -> None:
    theirs = Walk(small_run("metalabelnet"), small_problem(unlabeled=6)).go()
    ours = walk(**OFF).go()
    assert ours.losses == theirs.losses
    one, other = weights(ours), weights(theirs)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(ours.method.soft_labels(), theirs.method.soft_labels())
    assert ours.method.learns_from_clean is False


def test_all_off_it_has_the_golden_trace_of_metalabelnet() -> None:
    ours = Walk(small_run("metalabelnet-plus", settings=OFF), small_problem()).go()
    golden = json.loads(GOLDEN.read_text())["metalabelnet"]
    torch.testing.assert_close(ours.losses, golden, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", OFF)
def test_each_ingredient_alone_changes_something(name: str) -> None:
    theirs = Walk(small_run("metalabelnet"), small_problem(unlabeled=6)).go()
    ours = walk(**{key: value for key, value in OFF.items() if key != name}).go()
    x = ours.problem.test.x
    assert not torch.equal(ours.method.logits(x), theirs.method.logits(x))


def naive_evidence(method: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """What the label net reads, and what is added to its logits."""
    s = method.settings
    v, evidence = method.phase2.g(batch.x), torch.zeros(len(batch.x), 3, dtype=torch.float64)
    if method.ema is not None:
        evidence = evidence + s.prior * predict(method.ema.net, batch.x).log_softmax(1)
    if s.features == "ema":
        v = predict(torch.nn.Sequential(*list(method.ema.net)[:-1]), batch.x)
    if method.noise is not None:
        for row, y in enumerate(batch.given.tolist()):
            if y >= 0:
                evidence[row] += s.given * method.noise.T[:, y].log()
    if s.handover:  # phase 2 has not taken a step: the network is what the clean samples made of warm-up
        r = predict(method.net, to_input(method.task.train.x[batch.index], batch.x.dtype)).softmax(1)
        evidence = 0.3 * r.log() + 0.7 * evidence
    return v, evidence


def naive_step(one: Walk, batch: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """θ and φ after one iteration, by double backward through the look-ahead; Adam's first step."""
    method, s = one.method, one.method.settings
    theta, p2 = {k: w.detach().clone().requires_grad_() for k, w in trainable(method.net).items()}, method.phase2
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
    if s.step3 == "paper":
        soft = -scale * (log_p.exp() * log_y(new_phi)).sum(1).mean()  # L_c + L_e
    else:
        soft = -(log_y(new_phi).detach().exp() * log_p).sum(1).mean()
    if s.consistency:
        y_hat = log_y(new_phi).detach().exp()
        soft = soft - s.consistency * (y_hat * f(theta, batch.strong_x).log_softmax(1)).sum(1).mean()
    by_soft = torch.autograd.grad(soft, list(theta.values()))
    sgd, new = method.sgd, {}
    for (name, w), d, clean, b in zip(theta.items(), by_soft, g, sgd.buffers, strict=True):
        moved = sgd.momentum * b + d + s.clean_weight * clean + sgd.weight_decay * w
        new[name] = (w - sgd.lr * moved).detach()
    return new, new_phi


@pytest.mark.parametrize(
    "settings",
    [
        {**OFF, "loss_scale": "sum"},
        {**OFF, "loss_scale": "sum", "clean_weight": 0.5},
        {**OFF, "loss_scale": "sum", "features": "ema", "ema": 0.9},
        {**OFF, "loss_scale": "sum", "prior": 0.7},
        {**OFF, "loss_scale": "sum", "given": 0.6},
        {**OFF, "loss_scale": "sum", "handover": 0.5, "ema": 0.9},
        {**OFF, "loss_scale": "sum", "consistency": 0.8},
        {**OFF, "step3": "cross-entropy"},
        {},
        {"given": 0.0, "step3": "paper"},
    ],
)
def test_the_step_is_the_formula(settings: dict[str, Any]) -> None:
    one = walk(**{**settings, "warmup_share": 0.5}).go(3)
    one.method.begin_epoch(1)
    if one.method.first is not None:
        one.method.first["weight"].fill_(0.3)
    batch = next(iter(one.batches.epoch(1, labeled_only=False)))
    theta, phi = naive_step(one, batch)
    one.method.step(batch)
    for name, weight in trainable(one.method.net).items():
        torch.testing.assert_close(weight.detach(), theta[name], rtol=1e-9, atol=1e-11)
    for name, weight in one.method.phase2.m.named_parameters():
        torch.testing.assert_close(weight.detach(), phi[name], rtol=1e-6, atol=1e-8)


def test_the_noise_matrix_is_what_warm_up_expects_of_each_class() -> None:
    """Of the clean rows, class by class; a class without a clean row may be anything."""
    one = walk(given=1.0, matrix="expected", handover=0.0, warmup_share=0.5).go(3)
    kept = one.problem.clean.take((one.problem.clean.true != 1).nonzero()[:, 0])
    one.method.task = dataclasses.replace(one.method.task, clean=kept)
    one.method.begin_epoch(1)
    for c in range(3):
        rows = kept.x[kept.true == c]
        p = predict(one.method.net, to_input(rows, torch.float64)).softmax(1)
        expected = p.mean(0) if len(rows) else torch.full((3,), 1 / 3, dtype=torch.float64)
        torch.testing.assert_close(one.method.noise.T[c], expected)


def test_the_network_s_own_doubt_is_taken_out_of_it_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked with T, what warm-up expects of the clean rows, and their classes."""
    asked = {}

    def instead(T: Tensor, expected: Tensor, true: Tensor) -> Tensor:
        asked.update(T=T, expected=expected, true=true)
        return torch.eye(3, dtype=T.dtype)

    monkeypatch.setattr(plus, "deconfounded", instead)
    plain, one = (
        walk(given=1.0, handover=0.0, warmup_share=0.5, matrix=matrix).go(3) for matrix in ("expected", "deconfounded")
    )
    for each in (plain, one):
        each.method.begin_epoch(1)
    clean = one.problem.clean
    assert torch.equal(one.method.noise.T, torch.eye(3, dtype=torch.float64))
    assert torch.equal(asked["T"], plain.method.noise.T)
    assert torch.equal(asked["true"], clean.true)
    torch.testing.assert_close(asked["expected"], predict(one.method.net, to_input(clean.x, torch.float64)).softmax(1))


def test_a_given_label_that_says_nothing_changes_nothing() -> None:
    """With rows alike in T, or without a label, ŷ is what it is without."""
    one = walk(given=1.0, prior=0.1).go(10)
    without = one.method.soft_labels()
    one.method.noise.T.fill_(1 / 3)
    plain = one.method.soft_labels()
    unlabeled = one.problem.train.given < 0
    torch.testing.assert_close(without[unlabeled], plain[unlabeled])
    assert not torch.allclose(without[~unlabeled], plain[~unlabeled])
    one.method.settings = dataclasses.replace(one.method.settings, given=0.0)
    torch.testing.assert_close(one.method.soft_labels(), plain)


def test_the_average_is_what_predicts() -> None:
    one = walk().go()
    x = to_input(one.problem.test.x, torch.float64)
    assert torch.equal(one.method.logits(one.problem.test.x), predict(one.method.ema.net, x))
    assert not torch.equal(predict(one.method.net, x), predict(one.method.ema.net, x))


def test_the_average_goes_over_warm_up_too_and_phase_2_begins_from_it() -> None:
    one = walk(warmup_share=1.0, handover=0.0)
    ema = {name: weight.detach().clone() for name, weight in trainable(one.method.net).items()}
    for t in range(1, 1 + one.method.warmup * one.batches.steps(labeled_only=True)):
        one.go(1)
        keep = min(0.999, (1 + t) / (10 + t))
        ended = {name: weight.detach().clone() for name, weight in trainable(one.method.net).items()}
        ema = {name: keep * ema[name] + (1 - keep) * weight for name, weight in ended.items()}
    assert one.method.phase2 is None
    one.method.begin_epoch(one.method.warmup)
    for name, weight in trainable(one.method.net).items():
        torch.testing.assert_close(weight.detach(), ema[name])
        assert not torch.allclose(weight.detach(), ended[name])


def test_phase_2_begins_with_statistics_that_are_measured() -> None:
    """After a few steps the running ones still remember where they began."""
    one = walk(warmup_share=0.5).go(3)
    lagging = {name: b.clone() for name, b in one.method.ema.net.named_buffers() if "running_mean" in name}
    one.method.begin_epoch(1)
    net, x = one.method.ema.net, to_input(one.problem.train.x, torch.float64)
    name = next(iter(lagging))
    at = next(place for place, layer in enumerate(net) if isinstance(layer, torch.nn.BatchNorm2d))
    seen = predict(torch.nn.Sequential(*list(net)[:at]), x)
    torch.testing.assert_close(net[at].running_mean, seen.mean((0, 2, 3)))
    torch.testing.assert_close(net[at].running_var, seen.var((0, 2, 3)))
    assert not torch.allclose(net[at].running_mean, lagging[name], rtol=0.1)
    assert net[at].momentum == one.method.net[at].momentum == 0.1
    for (_, a), (_, b) in zip(net.named_buffers(), one.method.net.named_buffers(), strict=True):
        assert torch.equal(a, b)


def test_the_rate_falls_along_a_cosine_after_warm_up() -> None:
    method = Walk(small_run("metalabelnet-plus", epochs=60, warmup=22, lr_milestones=(20, 40)), small_problem()).method
    lr = method.task.schedule.lr
    assert [method.lr_at(epoch) for epoch in (0, 7)] == [lr, lr]
    for epoch, share in ((8, 0.9567727), (20, 0.75), (30, 0.5), (40, 0.25), (59, 0.0006852)):
        assert method.lr_at(epoch) == pytest.approx(4 * lr * share, rel=1e-4)
    own = {"lr_schedule": "milestones"}
    drops = small_run("metalabelnet-plus", settings=own, epochs=60, warmup=22, lr_milestones=(20, 40))
    assert Walk(drops, small_problem()).method.lr_at(20) == pytest.approx(lr / 10)


def test_the_result_is_an_epoch_of_the_last_third() -> None:
    for epochs, warmup, first in ((60, 22, 40), (2, 1, 1), (4, 3, 2), (3, 2, 2), (10, 0, 6)):
        method = Walk(small_run("metalabelnet-plus", epochs=epochs, warmup=warmup), small_problem()).method
        assert (method.candidates_from, method.candidates_from < epochs) == (first, True)
    own = {"lr_schedule": "milestones"}
    method = Walk(small_run("metalabelnet-plus", settings=own, epochs=60, warmup=22), small_problem()).method
    assert method.candidates_from == method.warmup == 8


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="lr_scale=0 leaves nothing to learn with"):
        small_run("metalabelnet-plus", settings={"lr_scale": 0.0})


def test_tables_and_numbers_have_no_strong_view_and_do_without() -> None:
    problem = small_problem()
    assert Walk(small_run("metalabelnet-plus"), problem).method.strong_from == 1
    numbers = {
        part: dataclasses.replace(rows, x=to_input(rows.x, torch.float64))
        for part, rows in vars(problem).items()
        if isinstance(rows, Rows)
    }
    one = Walk(small_run("metalabelnet-plus", settings={"warmup_share": 0.5}), dataclasses.replace(problem, **numbers))
    assert one.method.strong_from is None
    off = {"consistency": 0.0, "warmup_share": 0.5}
    images = Walk(small_run("metalabelnet-plus", settings=off), problem)
    assert one.go().losses == images.go().losses


def test_warm_up_takes_its_share() -> None:
    for share, warmup, taken in (
        (0.0, 11, 0),
        (0.35, 0, 0),
        (0.35, 1, 1),
        (0.35, 11, 4),
        (0.35, 44, 16),
        (1.0, 11, 11),
    ):
        run = small_run("metalabelnet-plus", settings={"warmup_share": share}, epochs=60, warmup=warmup)
        method = Walk(run, small_problem()).method
        assert isinstance(method, MetaLabelNetPlus)
        assert method.warmup == taken
        assert method.labeled_only(taken - 1) is True
        assert method.labeled_only(taken) is False


@pytest.mark.parametrize("name", ["warmup_share", "ema", "handover"])
def test_a_share_is_a_share(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name}=1.5 is not a share in \[0, 1\]"):
        small_run("metalabelnet-plus", settings={name: 1.5})


def test_the_clean_samples_fit_the_last_layer_anew_where_phase_2_begins() -> None:
    one, other = walk(handover=0.5), walk(handover=0.0)
    for each in (one, other):
        each.method.begin_epoch(each.method.warmup)
    method, x = one.method, one.problem.clean.x
    head = method.net.get_submodule(method.head)
    assert torch.equal(head.weight, method.ema.net.get_submodule(method.head).weight)
    fitted, before = (
        float(functional.cross_entropy(predict(each.method.net, to_input(x, torch.float64)), one.problem.clean.true))
        for each in (one, other)
    )
    assert fitted < before


def test_soft_labels_are_handed_over_from_what_was_known_at_first() -> None:
    one = walk(handover=0.5)
    method, rows = one.method, one.problem.train
    first, length = method.warmup, 0.5 * (method.epochs - method.warmup)
    index = rows.given.ge(0).nonzero()[[3, 0, 5], 0]
    x, given = to_input(rows.x[index], torch.float64), rows.given[index]
    method.begin_epoch(first)
    log_r = predict(method.net, x).log_softmax(1)
    _, q = method.ema.ask(x)
    s, log_t = method.settings, method.noise.get_buffer("T").clamp_min(1e-6).log()
    own = s.prior * q.log_softmax(1) + s.given * log_t.T[given]
    for epoch in range(first, method.epochs):
        method.begin_epoch(epoch)
        rho = max(0.0, 1 - (epoch - first) / length)
        _, evidence = method._known(x, given, index)
        torch.testing.assert_close(evidence, rho * log_r + (1 - rho) * own)
    assert rho == 0


def test_a_run_that_is_handed_over_goes_on_where_it_was() -> None:
    whole, half = walk(handover=1.0).go(), walk(handover=1.0)
    half.go(len(whole.losses) - 2)
    rest = walk(handover=1.0)
    rest.method.load_state(half.method.state())
    rest.epoch, rest.step = half.epoch, half.step
    assert half.losses + rest.go().losses == whole.losses


def test_of_many_clean_samples_some_are_enough_to_fit_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    one, asked = walk(), []
    monkeypatch.setattr(plus, "MEASURED", 5)
    monkeypatch.setattr(plus, "fit_near", lambda v, y, weight, bias, _: (asked.append((v, y)), (weight, bias))[1])
    one.method.begin_epoch(one.method.warmup)
    ((v, y),) = asked
    clean = one.problem.clean
    assert torch.equal(y, clean.true[torch.arange(5) * len(clean) // 5])
    assert len(v) == 5


def steep_net(*, bias: bool) -> torch.nn.Module:
    """Features that nothing normalises, a hundred times too small."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU())
    with torch.no_grad():
        net[1].weight.mul_(0.01)
        net[1].bias.zero_()
    return net.append(torch.nn.Linear(16, 3, bias=bias))


@pytest.mark.parametrize(("bias", "steep"), [(True, 1e-9), (True, 1e9), (False, 1e9)])
def test_a_layer_that_the_network_cannot_take_over_is_asked_all_the_same(
    bias: bool, steep: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too steep to learn on from, or with a bias where the network has none: then r alone is of it."""
    monkeypatch.setattr(plus, "STEEP", steep)
    run, problem = small_run("metalabelnet-plus"), small_problem()
    method = build(run, problem, steep_net(bias=bias))
    before = {name: weight.detach().clone() for name, weight in trainable(method.net).items()}
    method.begin_epoch(method.warmup)
    same = all(torch.equal(weight, before[name]) for name, weight in trainable(method.net).items())
    assert same == (not bias or steep < 1)
    rows = problem.train
    right = (method.first["log_r"].argmax(1) == rows.true).double().mean()
    assert right > 0.9  # the clean samples tell the blobs apart
    if bias and steep > 1:
        x = to_input(rows.x, torch.float64)
        torch.testing.assert_close(method.first["log_r"], predict(method.net, x).log_softmax(1))


def test_features_of_no_scale_make_a_layer_too_steep() -> None:
    method = build(small_run("metalabelnet-plus"), small_problem(), steep_net(bias=True))
    before = method.net[-1].weight.detach().clone()
    method.begin_epoch(method.warmup)
    assert torch.equal(method.net[-1].weight, before)


def test_a_model_is_loaded_among_rows_whose_truth_nobody_knows() -> None:
    one = walk().go()
    problem = small_problem()
    unknown = dataclasses.replace(problem.train, true=torch.full_like(problem.train.true, -1))
    parts = {"train": unknown, "clean": unknown, "validation": unknown, "test": unknown}
    other = build(one.run, dataclasses.replace(problem, **parts))
    other.load_model(one.method.model())
    assert torch.equal(other.noise.T, one.method.noise.T)
    assert torch.isfinite(other.soft_labels()).all()
