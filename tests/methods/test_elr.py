"""ELR: the regularizer by its formula, its gradient in closed form, extreme logits, and the targets."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.sharded_table import ShardedTable
from metalabelnet.errors import InputError
from metalabelnet.methods.elr import ELRSettings, early_learning_regularizer, targets_to_labels, update_targets
from small_runs import StepRunner, small_problem, small_run

GIVEN = torch.tensor([0, 3, 1, 2, 0, 1])


def random(seed: int = 0, scale: float = 1.5) -> Tensor:
    return scale * torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def naive(z: Tensor, t: Tensor) -> list[float]:
    """log(1 − Σ_c p_c t_c), computed with Python floats."""
    result = []
    for row_z, row_t in zip(z.tolist(), t.tolist(), strict=True):
        p = [math.exp(x) / sum(map(math.exp, row_z)) for x in row_z]
        result.append(math.log(1 - sum(pc * tc for pc, tc in zip(p, row_t, strict=True))))
    return result


def test_regularizer_equals_the_papers_formula() -> None:
    t = 0.9 * random(1).softmax(1)
    assert early_learning_regularizer(random(), t).tolist() == pytest.approx(naive(random(), t), rel=1e-12)


def test_gradient_of_the_loss_is_that_of_lemma_2() -> None:
    """p − y + λg with g_c = p_c/(1 − ⟨p, t⟩) Σ_k (t_k − t_c) p_k."""
    z, t = random().requires_grad_(), 0.8 * random(1).softmax(1)
    loss = cross_entropy(z, GIVEN) + 3 * early_learning_regularizer(z, t)
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    p = z.detach().softmax(1)
    for i in range(6):
        inner = float((p[i] * t[i]).sum())
        for c in range(4):
            g = p[i, c] / (1 - inner) * sum((t[i, k] - t[i, c]) * p[i, k] for k in range(4))
            assert float(gradient[i, c]) == pytest.approx(float(p[i, c] - int(c == GIVEN[i]) + 3 * g), rel=1e-10)
    assert gradcheck(lambda z: early_learning_regularizer(z, t), (z,))


def test_limits() -> None:
    z = random()
    assert early_learning_regularizer(z, torch.zeros_like(z)).tolist() == [0.0] * 6
    one_hot = torch.eye(4, dtype=torch.float64)
    agree, differ = (
        early_learning_regularizer(1e3 * one_hot, one_hot),
        early_learning_regularizer(1e3 * one_hot, one_hot.roll(1, 1)),
    )
    torch.testing.assert_close(agree, torch.full((4,), math.log(1e-4), dtype=torch.float64))
    torch.testing.assert_close(differ, torch.full((4,), math.log1p(-1e-4), dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_give_no_nan(dtype: torch.dtype) -> None:
    z = torch.tensor([[1e30, -1e30, 0.0], [-1e3, 1e3, 0.0]], dtype=dtype, requires_grad=True)
    t = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=dtype)
    losses = early_learning_regularizer(z, t)
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(z.grad).all()


def test_target_is_the_average_with_falling_weights() -> None:
    """After predictions p_1, …, p_k it is (1 − β) Σ_j β^(k−j) p_j; other rows are unchanged, and it has no gradient."""
    values, index = torch.zeros(9, 4, dtype=torch.float64), torch.tensor([7, 1, 0, 4, 2, 8])
    predictions = [random(seed).requires_grad_() for seed in range(5)]
    for logits in predictions:
        t = update_targets(ShardedTable(values, 9), index, logits, 0.7)
    expected = sum(0.3 * 0.7 ** (4 - j) * logits.detach().softmax(1) for j, logits in enumerate(predictions))
    torch.testing.assert_close(t, expected)
    torch.testing.assert_close(values[index], expected)
    assert not t.requires_grad
    assert not values[[3, 5, 6]].any()


def test_targets_become_soft_labels() -> None:
    targets = torch.tensor([[0.0, 0.0, 0.0], [0.1, 0.2, 0.4], [0.0, 0.0, 0.0], [0.2, 0.2, 0.6]], dtype=torch.float64)
    labels = targets_to_labels(targets, torch.tensor([1, 0, -1, 2]))
    expected = [[0.0, 1.0, 0.0], [0.4, 0.2, 0.4], [1 / 3, 1 / 3, 1 / 3], [0.2, 0.2, 0.6]]
    torch.testing.assert_close(labels, torch.tensor(expected, dtype=torch.float64))


def elr_run(**settings: float) -> object:
    return small_run("elr", settings=settings)


def test_without_regularization_it_is_cross_entropy() -> None:
    plain = StepRunner(small_run("cross-entropy"), small_problem()).advance(9)
    torch.testing.assert_close(StepRunner(elr_run(regularization=0.0), small_problem()).advance(9).losses, plain.losses)


def test_first_step_by_the_formula() -> None:
    """The targets are updated before the loss is computed: t = (1 − β) p."""
    runner = StepRunner(elr_run(beta=0.6, regularization=2.0), small_problem())
    runner.method.begin_epoch(0)
    batch = next(iter(runner.batches.epoch(0, labeled_only=True)))
    p = runner.method.net(batch.x).softmax(1).detach()
    loss = runner.method.step(batch)
    p_y = p.gather(1, batch.given[:, None])[:, 0]
    expected = (-p_y.log() + 2 * (1 - 0.4 * (p * p).sum(1)).log()).mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(runner.method.targets["t"][batch.index], 0.4 * p)


def test_targets_are_changed_in_place() -> None:
    """A traced step reads the tensor at its address."""
    runner = StepRunner(elr_run(), small_problem())
    targets = runner.method.targets["t"]
    runner.method.load_state_dict(runner.advance(9).method.state_dict())
    assert runner.method.targets["t"] is targets
    assert targets.any()


def test_loaded_model_has_no_soft_labels() -> None:
    one = StepRunner(elr_run(), small_problem()).advance()
    assert one.method.soft_labels() is not None
    other = StepRunner(elr_run(), small_problem(wrong=0.5)).method
    other.load_model_state_dict(one.method.model_state_dict())
    assert other.soft_labels() is None


def test_targets_ignore_mixup_and_strong_augmentation() -> None:
    """The recipe changes the loss; in the first step the targets are those of the plain recipe."""
    tables = []
    for changes in ({}, {"mixup": 1.0, "strong_augment": "supervised", "label_smoothing": 0.1}):
        runner = StepRunner(small_run("elr", **changes), small_problem()).advance(1)
        tables.append(runner.method.targets["t"])
    torch.testing.assert_close(*tables)


def test_beta_out_of_range_is_rejected() -> None:
    with pytest.raises(InputError, match=r"beta=1\.5"):
        ELRSettings(beta=1.5)
    assert dataclasses.asdict(ELRSettings()) == {"beta": 0.7, "regularization": 3.0}
