"""GCE: limits, a naive loop, gradients, extreme logits; truncation: which samples are kept, when, and their loss."""

import dataclasses
import io
import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from metalabelnet.core.losses import cross_entropy
from metalabelnet.errors import InputError
from metalabelnet.methods.gce import GCESettings, generalized_cross_entropy, truncated_loss
from small_runs import StepRunner, small_problem, small_run

Y = torch.tensor([0, 3, 1, 2, 0, 1])


def logits(seed: int = 0) -> Tensor:
    return 2 * torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def naive(z: Tensor, y: Tensor, q: float) -> list[float]:
    p = [math.exp(r[k]) / sum(map(math.exp, r)) for r, k in zip(z.tolist(), y.tolist(), strict=True)]
    return [(1 - pk**q) / q for pk in p]


@pytest.mark.parametrize("q", [0.1, 0.7, 1.0])
def test_loss_equals_the_papers_formula(q: float) -> None:
    expected = torch.tensor(naive(logits(), Y, q), dtype=torch.float64)
    torch.testing.assert_close(generalized_cross_entropy(logits(), Y, q), expected)


def test_limits() -> None:
    z = logits()
    p_y = z.softmax(1).gather(1, Y[:, None])[:, 0]
    torch.testing.assert_close(generalized_cross_entropy(z, Y, 1), 1 - p_y)
    torch.testing.assert_close(generalized_cross_entropy(z, Y, 1e-9), cross_entropy(z, Y), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(generalized_cross_entropy(z, Y, 0), cross_entropy(z, Y))


def test_gradient_is_p_y_to_the_q_times_that_of_cross_entropy() -> None:
    z = logits().requires_grad_()
    p_y = z.softmax(1).gather(1, Y[:, None]).detach()
    ours, plain = (
        torch.autograd.grad(loss.sum(), z)[0] for loss in (generalized_cross_entropy(z, Y, 0.7), cross_entropy(z, Y))
    )
    torch.testing.assert_close(ours, p_y**0.7 * plain)
    assert gradcheck(lambda z: generalized_cross_entropy(z, Y, 0.7), (z,))


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_extreme_logits_give_no_nan(size: float) -> None:
    z = torch.tensor([[size, -size, 0.0], [-size, -size, size]], requires_grad=True)
    losses = generalized_cross_entropy(z, torch.tensor([1, 2]), 0.7)
    torch.testing.assert_close(losses, torch.tensor([1 / 0.7, 0.0]))
    truncated_loss(losses, torch.tensor([True, False]), 0.7, 0.5).sum().backward()
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("q", [0.0, 0.7])
def test_dropped_sample_has_the_loss_at_k_and_no_gradient(q: float) -> None:
    at_k = torch.tensor([[math.log(0.3), math.log(0.7)]], dtype=torch.float64)
    z = logits().requires_grad_()
    keep = torch.tensor([True, False, True, False, True, False])
    losses = truncated_loss(generalized_cross_entropy(z, Y, q), keep, q, 0.3)
    torch.testing.assert_close(losses[1:2], generalized_cross_entropy(at_k, torch.tensor([0]), q))
    losses.sum().backward()
    assert bool((z.grad[~keep] == 0).all())
    assert bool((z.grad[keep].abs().sum(1) > 0).all())


def runner(**settings: object) -> StepRunner:
    return StepRunner(small_run("gce", epochs=12, settings={"truncated": True, **settings}), small_problem())


def test_samples_are_selected_from_a_third_of_the_epochs_every_twelfth() -> None:
    """Epochs 40, 50, … of 120 are 4, 5, … of 12: samples are selected at the end of epochs 3, 4, 5, …"""
    w = runner()
    changed = []
    for _ in range(12):
        w.advance(4)
        before = w.method.selection["keep"].clone()
        w.method.end_epoch(w.epoch)
        changed.append(not torch.equal(before, w.method.selection["keep"]))
        w.epoch, w.step = w.epoch + 1, 0
    assert changed.index(True) == 3
    assert w.method.first_selection == 4
    assert w.method.selection_interval == 1
    long = StepRunner(small_run("gce", epochs=240, settings={"truncated": True}), small_problem()).method
    assert (long.first_selection, long.selection_interval) == (80, 20)


def test_samples_with_p_y_above_k_are_kept() -> None:
    w = runner(k=0.6).advance()
    w.method.end_epoch(11)
    p = w.method.logits(w.problem.train.x).softmax(1).gather(1, w.problem.train.given[:, None])[:, 0]
    assert torch.equal(w.method.selection["keep"], p > 0.6)
    assert 0 < int((p > 0.6).sum()) < 48


def test_labels_of_dropped_samples_have_no_effect() -> None:
    runs = []
    for change in (False, True):
        w = runner().advance(16)
        w.method.end_epoch(3)
        w.epoch, w.step = 4, 0
        w.method.selection["keep"].copy_(torch.arange(48) % 2 == 0)
        if change:
            given = w.problem.train.given.clone()
            given[1::2] = (given[1::2] + 1) % 3
            w.batches = dataclasses.replace(w.batches, train=w.problem.train.with_given_labels(given))
        w.advance(4)
        runs.append(w.method.model_state_dict())
    assert all(torch.equal(runs[0][key], runs[1][key]) for key in runs[0])


@pytest.mark.parametrize("after", [15, 18, 33])
def test_truncated_resume_gives_same_bits(after: int) -> None:
    whole, half = runner().advance(), runner().advance(after)
    file = io.BytesIO()
    torch.save(half.method.state_dict(), file)
    file.seek(0)
    resumed = runner()
    resumed.method.load_state_dict(torch.load(file, weights_only=True))
    resumed.epoch, resumed.step = half.epoch, half.step
    assert half.losses + resumed.advance().losses == whole.losses


def test_selection_is_changed_in_place() -> None:
    """A traced step reads the tensor at its address."""
    w = runner()
    selection = w.method.selection["keep"]
    w.method.load_state_dict(w.advance().method.state_dict())
    assert w.method.selection["keep"] is selection
    assert not selection.all()


def test_settings_out_of_range_are_rejected() -> None:
    with pytest.raises(InputError, match="q=2"):
        GCESettings(q=2.0)
    with pytest.raises(InputError, match="k=1"):
        GCESettings(k=1.0)
