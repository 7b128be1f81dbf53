"""SOP and SOP+: the loss by its formula, the gradients of u and v against autograd, and what is learned."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional

from metalabelnet.core.losses import cross_entropy
from metalabelnet.methods.sop import label_noise, noise_gradients, normalize, sop_loss
from metalabelnet.train.settings import Run
from small_runs import StepRunner, small_problem, small_run

GIVEN = torch.tensor([0, 3, 1, 2, 0, 1])
Y = functional.one_hot(GIVEN, 4).double()


def random(*shape: int, seed: int = 0, scale: float = 1.5) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def parameters() -> tuple[Tensor, Tensor]:
    """u and v of six samples, so large that some sums are clipped."""
    return random(6, 1, seed=1, scale=0.5), random(6, 4, seed=2, scale=0.5)


def naive(z: Tensor, u: Tensor, v: Tensor, given: Tensor) -> list[float]:
    """−log φ(p + u² y − v² (1 − y))_y with φ(h) = max(h, 10⁻⁴)/Σ max(h, 10⁻⁴), computed with Python floats."""
    result = []
    for i, label in enumerate(given.tolist()):
        row = z[i].tolist()
        p = [math.exp(x) / sum(map(math.exp, row)) for x in row]
        s = [float(u[i, 0]) ** 2 if c == label else -(float(v[i, c]) ** 2) for c in range(len(p))]
        h = [max(pc + sc, 1e-4) for pc, sc in zip(p, s, strict=True)]
        result.append(-math.log(h[label] / sum(h)))
    return result


def test_loss_equals_the_papers_formula() -> None:
    z, (u, v) = random(6, 4), parameters()
    losses = sop_loss(z, Y, label_noise(u, v, Y))
    assert losses.tolist() == pytest.approx(naive(z, u, v, GIVEN), rel=1e-12)
    assert bool((z.softmax(1) + label_noise(u, v, Y) < 1e-4).any())  # the test covers clipping


def test_limits() -> None:
    z = random(6, 4)
    zero = torch.zeros_like(z)
    torch.testing.assert_close(sop_loss(z, Y, zero), cross_entropy(z, GIVEN))
    explained = sop_loss(z, Y, Y - z.softmax(1))
    torch.testing.assert_close(explained, torch.full((6,), math.log1p(3e-4), dtype=torch.float64))
    torch.testing.assert_close(normalize(zero), torch.full_like(z, 0.25))
    u, v = parameters()
    s = label_noise(u, v, Y)
    assert bool(((s >= 0) == (Y == 1)).all())


def test_gradients_of_u_and_v_are_those_of_autograd() -> None:
    z, (u, v) = random(6, 4), parameters()
    u.requires_grad_()
    v.requires_grad_()
    du, dv = noise_gradients(z, u.detach(), v.detach(), Y)
    (expected_u,) = torch.autograd.grad(sop_loss(z, Y, label_noise(u, v.detach(), Y)).sum(), u)
    torch.testing.assert_close(du, expected_u)
    prediction = functional.one_hot(z.argmax(1), 4).double()
    squared_error = (prediction + label_noise(u.detach(), v, Y) - Y).square().sum()
    (expected_v,) = torch.autograd.grad(squared_error, v)
    torch.testing.assert_close(dv, expected_v)


def test_clipped_sample_has_no_gradient() -> None:
    z = torch.tensor([[0.0, 20.0]], dtype=torch.float64, requires_grad=True)
    y, zero = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    sop_loss(z, y, zero).sum().backward()
    assert float(z.grad.abs().max()) < 1e-4
    du, _ = noise_gradients(z.detach(), torch.full((1, 1), 1e-8, dtype=torch.float64), zero, y)
    assert not du.any()


def test_gradcheck() -> None:
    noise = label_noise(*parameters(), Y)
    assert gradcheck(lambda z: sop_loss(z, Y, noise), (random(6, 4).requires_grad_(),))


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_extreme_logits_give_no_nan(size: float) -> None:
    z = torch.tensor([[size, -size, 0.0], [-size, -size, size]], requires_grad=True)
    y = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    losses = sop_loss(z, y, torch.zeros_like(y))
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(z.grad).all()
    assert all(torch.isfinite(d).all() for d in noise_gradients(z.detach(), torch.ones(2, 1), torch.ones(2, 3), y))


def test_v_grows_to_1_in_the_number_of_steps_of_the_docstring() -> None:
    """A confident prediction of another class; batch size 128, α_v = 10: 68 epochs."""
    z, y = torch.tensor([[0.0, 50.0]], dtype=torch.float64), torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    u, v = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 2), 1e-8, dtype=torch.float64)
    steps = 0
    while v[0, 1] < 0.9:
        v = (v - 10 / 128 * noise_gradients(z, u, v, y)[1]).clamp(-1, 1)
        steps += 1
    assert 66 <= steps <= 72
    assert v[0, 0] == 1e-8


def sop_run(method: str = "sop", **changes: object) -> Run:
    return small_run(method, **changes)


def first_step(run: Run) -> tuple[StepRunner, object, dict[str, Tensor]]:
    """A runner whose u and v are not small, its first batch, and the rows of u and v in it."""
    runner = StepRunner(run, small_problem())
    runner.method.begin_epoch(0)
    for name, tensor in runner.method.noise.state_dict().items():
        tensor.copy_(random(*tensor.shape, seed=len(name), scale=0.3))
    batch = next(iter(runner.batches.epoch(0, labeled_only=True)))
    return (
        runner,
        batch,
        {name: tensor[batch.index].clone() for name, tensor in runner.method.noise.state_dict().items()},
    )


def test_step_by_the_formulas() -> None:
    runner, batch, before = first_step(sop_run(settings={"u_step": 0.3, "v_step": 0.7}))
    method = runner.method
    y = functional.one_hot(batch.given, 3).double()
    u, v = (before[name].requires_grad_() for name in ("u", "v"))
    z = method.net(batch.x)
    ce = sop_loss(z, y, label_noise(u, v, y)).mean()
    mse = (functional.one_hot(z.argmax(1), 3) + label_noise(u, v, y) - y).square().sum(1).mean()
    weights = list(method.net.parameters())
    gradients = torch.autograd.grad(ce, [u, *weights], retain_graph=True)
    (dv,) = torch.autograd.grad(mse, v)
    expected = [w.detach() - 0.05 * (g + 1e-4 * w.detach()) for w, g in zip(weights, gradients[1:], strict=True)]
    torch.testing.assert_close(method.step(batch), ce.detach())
    torch.testing.assert_close(method.noise["u"][batch.index], (u - 0.3 * gradients[0]).detach().clamp(-1, 1))
    torch.testing.assert_close(method.noise["v"][batch.index], (v - 0.7 * dv).detach().clamp(-1, 1))
    for weight, value in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.detach(), value)


def test_first_steps_are_those_of_cross_entropy() -> None:
    """u and v start at 10⁻⁸."""
    runner = StepRunner(sop_run(settings={"u_step": 0.0, "v_step": 0.0}), small_problem()).advance(4)
    plain = StepRunner(small_run("cross-entropy"), small_problem()).advance(4)
    torch.testing.assert_close(runner.losses, plain.losses)
    u = runner.method.noise["u"]
    assert 0 < float(u.abs().max()) < 1e-7


def test_noise_of_wrong_labels_is_learned() -> None:
    """Large steps of u, because the run is short."""
    runner = StepRunner(sop_run(epochs=12, settings={"u_step": 100.0}), small_problem()).advance()
    train = runner.problem.train
    wrong = train.given != train.true
    u = runner.method.noise["u"][:, 0].abs()
    assert float(u[wrong].mean()) > float(u[~wrong].mean()) + 0.5


def test_soft_labels_are_given_labels_without_noise() -> None:
    method = StepRunner(sop_run(), small_problem(unlabeled=1)).method
    method.noise["u"].copy_(torch.full((48, 1), 0.5))
    method.noise["v"].copy_(torch.tensor([0.5, 0.0, -0.5]).expand(48, 3))
    method.noise["v"][0] = 0  # a row without a given label takes no steps
    given, soft = method.task.train.given, method.soft_labels()
    torch.testing.assert_close(soft[0], torch.full((3,), 1 / 3, dtype=torch.float64), atol=1e-4, rtol=0)
    rows = {0: [0.75, 1e-4, 0.25], 1: [0.25, 0.75, 0.25], 2: [0.25, 1e-4, 0.75]}
    expected = torch.tensor([rows[y] for y in given[1:].tolist()], dtype=torch.float64)
    torch.testing.assert_close(soft[1:], expected / expected.sum(1, keepdim=True))


def test_state_is_changed_in_place_and_not_part_of_a_model() -> None:
    runner = StepRunner(sop_run(), small_problem())
    u, v = runner.method.noise["u"], runner.method.noise["v"]
    runner.method.load_state_dict(runner.advance(9).method.state_dict())
    assert runner.method.noise["u"] is u
    assert runner.method.noise["v"] is v
    other = StepRunner(sop_run(), small_problem(wrong=0.5)).method
    other.load_model_state_dict(runner.method.model_state_dict())
    assert other.soft_labels() is None


def test_plus_adds_consistency_and_class_balance() -> None:
    settings = {"consistency": 0.9, "balance": 0.1}
    runner, batch, before = first_step(sop_run("sop-plus", settings=settings))
    net = runner.method.net
    y = functional.one_hot(batch.given, 3).double()
    log_p = net(batch.x).log_softmax(1)
    log_q = net(batch.views.strong).log_softmax(1)
    consistency = functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
    prior = torch.full((3,), 1 / 3, dtype=torch.float64)
    balance = functional.kl_div(log_p.exp().mean(0).log(), prior, reduction="sum")
    sop = sop_loss(log_p, y, label_noise(before["u"], before["v"], y)).mean()
    torch.testing.assert_close(runner.method.step(batch), (sop + 0.9 * consistency + 0.1 * balance).detach())


def test_consistency_has_no_gradient_through_the_weak_prediction() -> None:
    """λ_C alone: the gradient is that with constant p."""
    runner, batch, before = first_step(sop_run("sop-plus", momentum=0.0, weight_decay=0.0))
    net, weights = runner.method.net, list(runner.method.net.parameters())
    y = functional.one_hot(batch.given, 3).double()
    log_p, log_q = net(batch.x).log_softmax(1), net(batch.views.strong).log_softmax(1)
    loss = sop_loss(log_p, y, label_noise(before["u"], before["v"], y)).mean()
    loss = loss - 0.1 * log_p.exp().mean(0).log().mean()
    loss = loss - 0.9 * (log_p.exp().detach() * log_q).sum(1).mean()
    expected = [w.detach() - 0.05 * g for w, g in zip(weights, torch.autograd.grad(loss, weights), strict=True)]
    runner.method.step(batch)
    for weight, value in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.detach(), value)


def test_plus_without_its_terms_is_sop() -> None:
    plus = StepRunner(sop_run("sop-plus", settings={"consistency": 0.0, "balance": 0.0}), small_problem()).advance(5)
    assert plus.method.strong_augment_from is None
    torch.testing.assert_close(plus.losses, StepRunner(sop_run(), small_problem()).advance(5).losses)


def test_consistency_loss_replaces_the_recipes_loss_on_strong_augmentation() -> None:
    for method, same in (("sop-plus", True), ("sop", False)):
        plain, supervised = (
            StepRunner(sop_run(method, strong_augment=kind), small_problem()).advance(2).losses
            for kind in ("none", "supervised")
        )
        assert (plain == supervised) == same
