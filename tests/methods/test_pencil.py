"""PENCIL: the loss by its formula, the limit of the labels, and what each stage changes."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from metalabelnet.core.losses import classification_loss, entropy_loss
from metalabelnet.data.problem import Problem
from metalabelnet.errors import InputError
from metalabelnet.methods.pencil import Pencil, PencilSettings, pencil_loss
from metalabelnet.train.prepare import prepare
from metalabelnet.train.settings import Run, make_run
from small_runs import StepRunner, small_problem, small_run

A, B = 0.3, 0.7


def random(rows: int = 5, classes: int = 4, seed: int = 0) -> Tensor:
    return 2 * torch.randn(rows, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


GIVEN = torch.tensor([0, 3, 1, 1, 2])


def naive(z: Tensor, y_tilde: Tensor, given: Tensor) -> list[float]:
    """The paper's three terms, computed with Python floats."""
    losses = []
    for row_z, row_y, label in zip(z.tolist(), y_tilde.tolist(), given.tolist(), strict=True):
        p = [math.exp(v) / sum(map(math.exp, row_z)) for v in row_z]
        y = [math.exp(v) / sum(map(math.exp, row_y)) for v in row_y]
        c = len(p)
        kl = sum(pj * math.log(pj / yj) for pj, yj in zip(p, y, strict=True))
        entropy = -sum(pj * math.log(pj) for pj in p)
        losses.append(kl / c - A * math.log(y[label]) + B / c * entropy)
    return losses


def test_loss_equals_the_papers_formula() -> None:
    loss = pencil_loss(random(), random(seed=1), GIVEN, a=A, b=B)
    assert loss.tolist() == pytest.approx(naive(random(), random(seed=1), GIVEN), rel=1e-12)


def test_loss_with_a_0_b_0_is_kl_over_classes() -> None:
    z, y = random(), random(seed=1)
    torch.testing.assert_close(pencil_loss(z, y, GIVEN, a=0, b=0), classification_loss(z, y.log_softmax(1)) / 4)
    torch.testing.assert_close(pencil_loss(z, z + 3, GIVEN, a=0, b=0), torch.zeros(5).double())


def test_loss_is_the_entropy_term_if_label_and_prediction_agree_with_the_given_label() -> None:
    z = 40.0 * torch.nn.functional.one_hot(GIVEN, 4).double()
    torch.testing.assert_close(pencil_loss(z, z, GIVEN, a=A, b=B), B / 4 * entropy_loss(z), atol=1e-12, rtol=0)


def test_compatibility_loss_applies_softmax_once() -> None:
    """Applied twice, −log ŷ_y could not fall below log(1 + (C − 1)/e), nor rise above log(C − 1 + e)."""
    z, confident = torch.zeros(1, 4).double(), torch.tensor([[50.0, 0, 0, 0]]).double()
    right, wrong = (pencil_loss(z, confident, torch.tensor([y]), a=1.0, b=0) for y in (0, 1))
    assert float(wrong - right) == pytest.approx(50.0)


def test_gradcheck() -> None:
    z, y = random().requires_grad_(), random(seed=1).requires_grad_()
    assert gradcheck(lambda z, y: pencil_loss(z, y, GIVEN, a=A, b=B), (z, y))


def test_label_gradient_equals_its_formula() -> None:
    """∂L/∂ỹ = (ŷ − p)/C + a(ŷ − y)."""
    z, y_tilde = random(), random(seed=1).requires_grad_()
    (label_gradient,) = torch.autograd.grad(pencil_loss(z, y_tilde, GIVEN, a=A, b=B).sum(), y_tilde)
    y_hat, y = y_tilde.softmax(1).detach(), torch.nn.functional.one_hot(GIVEN, 4)
    torch.testing.assert_close(label_gradient, (y_hat - z.softmax(1)) / 4 + A * (y_hat - y))


@pytest.mark.parametrize("a", [0.0, 0.05, 0.25, 1.0])
def test_labels_converge_to_the_weighted_mean_of_prediction_and_given_label(a: float) -> None:
    z, y_tilde = random(), 10.0 * torch.nn.functional.one_hot(GIVEN, 4).double()
    for _ in range(2500):
        y_tilde = y_tilde.requires_grad_()
        (label_gradient,) = torch.autograd.grad(pencil_loss(z, y_tilde, GIVEN, a=a, b=B).sum(), y_tilde)
        y_tilde = (y_tilde - 5 / (1 + 4 * a) * label_gradient).detach()
    limit = (z.softmax(1) + 4 * a * torch.nn.functional.one_hot(GIVEN, 4)) / (1 + 4 * a)
    torch.testing.assert_close(y_tilde.softmax(1), limit, atol=1e-4, rtol=0)
    if 4 * a >= 1:
        assert torch.equal(y_tilde.argmax(1), GIVEN)


@pytest.mark.parametrize("size", [1e3, 1e10, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_are_finite(size: float, dtype: torch.dtype) -> None:
    z, y = (size * random(seed=seed).sign().to(dtype) for seed in (0, 1))
    z[0], y[1] = 0, 0
    z, y = z.requires_grad_(), y.requires_grad_()
    loss = pencil_loss(z, y, GIVEN, a=A, b=B)
    by_z, by_y = torch.autograd.grad(loss.sum(), (z, y))
    assert torch.isfinite(loss).all()
    assert torch.isfinite(by_z).all()
    assert torch.isfinite(by_y).all()


# Of 6 epochs, stage 1 is epoch 0, stage 2 (labels are learned) epochs 1 to 3, stage 3 (labels are fixed) 4 and 5.


def labels_by_epoch(problem: Problem, run: Run) -> tuple[StepRunner, list[Tensor]]:
    """Return the runner and the soft labels at the start and after each epoch."""
    runner = StepRunner(run, problem)
    steps = runner.batches.steps(labeled_only=True)
    table = [runner.method.soft_labels()]
    for _ in range(run.epochs):
        runner.advance(steps)
        table.append(runner.method.soft_labels())
    return runner, table


def test_labels_change_in_stage_2_only() -> None:
    _, table = labels_by_epoch(small_problem(unlabeled=5), small_run("pencil"))
    moved = [not torch.equal(before, after) for before, after in itertools.pairwise(table)]
    assert moved == [False, True, True, True, False, False]
    torch.testing.assert_close(table[0][5:].max(1).values, torch.full((43,), 1 / (1 + 2 * math.exp(-10))).double())


def test_unlabeled_rows_stay_uniform() -> None:
    _, table = labels_by_epoch(small_problem(unlabeled=5), small_run("pencil"))
    torch.testing.assert_close(table[-1][:5], torch.full((5, 3), 1 / 3).double())
    assert (table[-1][5:] != table[0][5:]).any(1).all()


def test_step_changes_the_labels_of_the_batch_by_lambda_times_the_gradient() -> None:
    """Labels are addressed by row number, and no other row changes."""
    runner = StepRunner(small_run("pencil", settings={"label_step": 7}), small_problem()).advance(4)
    method = runner.method
    assert isinstance(method, Pencil)
    method.end_epoch(0)
    before = method.labels.logits.clone()
    method.begin_epoch(1)
    batch = next(runner.batches.epoch(1, labeled_only=True))
    weights = {k: w.clone() for k, w in method.net.state_dict().items()}
    method.step(batch)
    after = method.labels.logits.clone()
    method.net.load_state_dict(weights)
    p, y_hat = method.net.train()(batch.x).softmax(1), before[batch.index].softmax(1)
    y = torch.nn.functional.one_hot(batch.given, 3)
    expected = before.clone()
    expected[batch.index] -= 7 / 12 * ((y_hat - p) / 3 + 0.05 * (y_hat - y)).detach()
    torch.testing.assert_close(after, expected)
    others = torch.ones(48, dtype=torch.bool)
    others[batch.index] = False
    assert torch.equal(after[others], before[others])


def test_label_step_0_keeps_the_labels() -> None:
    _, table = labels_by_epoch(small_problem(), small_run("pencil", settings={"label_step": 0}))
    assert torch.equal(table[0], table[-1])


def test_stages_and_learning_rates_of_both_recipes() -> None:
    common = StepRunner(small_run("pencil", epochs=120, lr=0.01, lr_milestones=(40, 80)), small_problem()).method
    assert (common.correct_from, common.fix_from, common.candidates_from) == (21, 80, 21)
    assert [common.lr_at(e) for e in (0, 21, 40, 79, 80, 119)] == pytest.approx([1e-2, 1e-2, 1e-3, 1e-3, 1e-4, 1e-4])
    own = StepRunner(
        make_run("digits", method="pencil", recipe="own", device="cpu", dtype="float64"), small_problem()
    ).method
    assert (own.epochs, own.correct_from, own.fix_from) == (320, 70, 200)
    rates = [own.lr_at(e) for e in (0, 199, 200, 239, 240, 280, 319)]
    assert rates == pytest.approx([0.06, 0.06, 0.2, 0.2, 0.02, 0.002, 0.002])


def test_last_epoch_is_a_candidate_if_labels_are_never_learned() -> None:
    method = StepRunner(small_run("pencil", settings={"correct_from": 120, "fix_from": 120}), small_problem()).method
    assert method.candidates_from == 5


@pytest.mark.parametrize("settings", [{"correct_from": 90.0}, {"fix_from": 121.0}])
def test_stages_out_of_order_are_rejected(settings: dict[str, float]) -> None:
    with pytest.raises(InputError, match="give epochs up to 120"):
        PencilSettings(**settings)


def accuracy_of(table: Tensor, problem: Problem) -> float:
    return float((table.argmax(1) == problem.train.true).double().mean())


def labels_before_and_after(**settings: float) -> tuple[Tensor, Tensor, Problem]:
    """Return the soft labels of digits before and after 16 epochs, half the default, with twice the label step."""
    pytest.importorskip("sklearn")
    settings = {"label_step": 800, **settings}
    fields = {"noise": "uniform:0.4", "epochs": 16, "lr_milestones": (), "dtype": "float64", "device": "cpu"}
    run = make_run("digits", recipe="paper", method="pencil", settings=settings, **fields)
    runner = StepRunner(run, prepare(run))
    return runner.method.soft_labels(), runner.advance().method.soft_labels(), runner.problem


@pytest.mark.slow
def test_labels_improve_on_digits() -> None:
    """From 60 % correct labels to over 75 % at the default a, where aC = 0.5."""
    before, after, problem = labels_before_and_after()
    assert accuracy_of(before, problem) == pytest.approx(0.6, abs=0.01)
    assert accuracy_of(after, problem) > 0.75


@pytest.mark.slow
def test_labels_keep_their_class_at_the_published_a() -> None:
    """At aC = 1 the true class gets about half of a wrong label, and only step size effects change its class."""
    before, after, problem = labels_before_and_after(a=0.1)
    rows = torch.arange(len(after))
    assert accuracy_of(after, problem) < accuracy_of(before, problem) + 0.05
    assert 0.7 < after[rows, problem.train.true].mean() < 0.8


@pytest.mark.parametrize("name", ["pencil", "joint-optimization"])
def test_loaded_model_has_no_soft_labels(name: str) -> None:
    """The table would hold the given labels of new rows, which were not trained on."""
    one = StepRunner(small_run(name), small_problem()).advance()
    assert one.method.soft_labels() is not None
    other = StepRunner(small_run(name), small_problem(wrong=0.5)).method
    other.load_model_state_dict(one.method.model_state_dict())
    assert other.soft_labels() is None
