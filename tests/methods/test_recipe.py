"""The recipe: learning rates, EMA, strong augmentation, MixUp, label smoothing, selection, for every method."""

import dataclasses
import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.forward_pass import predict, trainable_parameters
from metalabelnet.data.batches import Views, to_input
from metalabelnet.data.rows import Rows
from metalabelnet.methods import Recipe
from small_runs import TRAINED_METHODS, StepRunner, short_run, small_problem, small_run

BASE = {"epochs": 60, "warmup": 8, "lr": 0.1, "lr_milestones": (20, 40), "momentum": 0.9, "weight_decay": 1e-4}


def test_cosine_annealing_and_warm_up_of_the_learning_rate() -> None:
    recipe = Recipe(**BASE, lr_schedule="cosine", lr_warmup=4)
    rates = [recipe.lr_at(epoch) for epoch in (0, 3, 4, 20, 30, 40, 60)]
    cosine = [(1 + math.cos(math.pi * epoch / 60)) / 2 for epoch in (0, 3, 4, 20, 30, 40, 60)]
    assert rates == pytest.approx([0.1 * c * ramp for c, ramp in zip(cosine, (0.2, 0.8, 1, 1, 1, 1, 1), strict=True)])
    assert Recipe(**BASE).lr_at(59) == pytest.approx(1e-3)


def net_and_views(**recipe: Any) -> tuple[Any, Views, Tensor, Recipe]:
    runner = StepRunner(small_run("cross-entropy", mixup=recipe.get("mixup", 0.0)), small_problem())
    runner.method.begin_epoch(0)
    batch = next(iter(runner.batches.epoch(0, labeled_only=True)))
    strong = torch.rand_like(batch.x)
    return runner.method.net, dataclasses.replace(batch.views, strong=strong), batch.given, Recipe(**BASE, **recipe)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels)


def train_logits(net: torch.nn.Module, x: Tensor) -> Tensor:
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    return torch.func.functional_call(net, buffers, (x,))


@pytest.mark.parametrize("strong", ["none", "supervised", "consistency"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("mixup", [0.0, 4.0])
def test_loss_equals_the_formula(strong: str, smoothing: float, mixup: float) -> None:
    net, views, given, recipe = net_and_views(
        strong_augment=strong, strong_weight=0.7, label_smoothing=smoothing, mixup=mixup
    )
    classes = 3
    y = functional.one_hot(given, classes) * (1 - smoothing) + smoothing / classes
    weak, x_s = train_logits(net, views.weak), train_logits(net, views.strong)
    if mixup:
        share = float(views.share)
        mixed = train_logits(net, share * views.weak + (1 - share) * views.weak[views.partner])
        target = share * y + (1 - share) * y[views.partner]
        expected = -(target * mixed.log_softmax(1)).sum(1).mean()
        assert 0 < share < 1
        assert sorted(views.partner.tolist()) == list(range(len(given)))
    else:
        expected = -(y * weak.log_softmax(1)).sum(1).mean()
    if strong == "supervised":
        expected = expected - 0.7 * (y * x_s.log_softmax(1)).sum(1).mean()
    if strong == "consistency":
        expected = expected - 0.7 * (weak.softmax(1) * x_s.log_softmax(1)).sum(1).mean()
    loss = recipe.loss(net, trainable_parameters(net), cross_entropy, views, (given,), seed=0)
    torch.testing.assert_close(loss, expected)


INGREDIENTS: dict[str, dict[str, Any]] = {
    "EMA": {"ema": 0.9},
    "strong augmentation": {"strong_augment": "supervised"},
    "consistency": {"strong_augment": "consistency"},
    "MixUp": {"mixup": 0.5},
    "label smoothing": {"label_smoothing": 0.1},
    "cosine annealing": {"lr_schedule": "cosine"},
    "learning rate warm-up": {"lr_warmup": 2},
}
# An ingredient of the method's own replaces that of the recipe: MLNT's teacher, the MixUp of ELR+, the consistency loss
# of SOP+, mixing and strong augmentation of SSR.
NO_EFFECT = {
    ("mlnt", "EMA"),
    ("elr-plus", "MixUp"),
    ("sop-plus", "strong augmentation"),
    ("sop-plus", "consistency"),
    ("ssr", "strong augmentation"),
    ("ssr", "consistency"),
    ("ssr", "MixUp"),
}


@cache
def trained_logits(name: str, **fields: Any) -> Tensor:
    """Return the logits of a short run: an epoch of warm-up, one after it, of two steps each."""
    run = small_run(name, epochs=2, warmup=1, lr_milestones=(1,), batch_size=24, **fields)
    runner = StepRunner(run, small_problem()).advance()
    return runner.method.logits(runner.problem.test.x)


@pytest.mark.parametrize("name", TRAINED_METHODS)
@pytest.mark.parametrize("ingredient", INGREDIENTS)
def test_every_method_takes_every_ingredient(name: str, ingredient: str) -> None:
    changed = trained_logits(name, **INGREDIENTS[ingredient])
    assert torch.equal(trained_logits(name), changed) == ((name, ingredient) in NO_EFFECT)
    assert torch.isfinite(changed).all()


@pytest.mark.parametrize("name", ["cross-entropy", "co-teaching", "joint-optimization", "metalabelnet", "forward"])
def test_recipe_state_survives_a_checkpoint(name: str) -> None:
    fields = {"ema": 0.9, "strong_augment": "supervised", "mixup": 0.5}
    whole, half, rest = (StepRunner(short_run(name, **fields), small_problem()) for _ in range(3))
    whole.advance()
    half.advance(len(whole.losses) - 3)
    rest.method.load_state_dict(half.method.state_dict())
    rest.epoch, rest.step = half.epoch, half.step
    assert half.losses + rest.advance().losses == whole.losses
    x = whole.problem.test.x
    assert torch.equal(rest.method.logits(x), whole.method.logits(x))


def test_ema_predicts_and_follows_its_formula() -> None:
    one = StepRunner(small_run("cross-entropy", ema=0.5), small_problem())
    average = {name: weight.detach().clone() for name, weight in trainable_parameters(one.method.net).items()}
    for step in range(1, 9):
        one.advance(1)
        decay = min(0.5, (1 + step) / (10 + step))
        for name, weight in trainable_parameters(one.method.net).items():
            average[name] = decay * average[name] + (1 - decay) * weight.detach()
    for name, weight in one.method.classifier().named_parameters():
        torch.testing.assert_close(weight, average[name])
    x = one.problem.test.x
    assert torch.equal(one.method.logits(x), predict(one.method.classifier(), to_input(x, torch.float64)))


def test_strong_augmentation_is_for_images() -> None:
    problem = small_problem()
    numbers = {
        part: dataclasses.replace(rows, x=to_input(rows.x, torch.float64))
        for part, rows in vars(problem).items()
        if isinstance(rows, Rows)
    }
    tables = dataclasses.replace(problem, **numbers)
    plain, strong = (
        StepRunner(small_run("cross-entropy", strong_augment=value), tables) for value in ("none", "supervised")
    )
    assert strong.method.strong_augment_from is None
    assert plain.advance().losses == strong.advance().losses


def test_first_candidate_is_the_later_of_method_and_recipe() -> None:
    for name, warmup, select_from, first in (
        ("fine-tune", 22, 2 / 3, 40),
        ("fine-tune", 50, 2 / 3, 50),
        ("cross-entropy", 22, 0.0, 0),
        ("cross-entropy", 22, 0.5, 30),
        ("fixmatch", 22, 0.0, 48),  # the method's own window
        ("fixmatch", 22, 0.9, 54),
        ("metalabelnet-plus", 22, 0.0, 48),
        ("metalabelnet-plus", 59, 0.0, 48),  # its warm-up is shorter
    ):
        run = small_run(name, epochs=60, warmup=warmup, select_from=select_from)
        assert StepRunner(run, small_problem()).method.first_candidate == first


def test_clean_samples_have_strong_augmentation_if_the_classifier_trains_on_them() -> None:
    for name, expected in (("fine-tune", True), ("clean-only", True), ("metalabelnet", False)):
        runner = StepRunner(small_run(name, strong_augment="supervised"), small_problem())
        batch = next(iter(runner.batches.epoch(0, labeled_only=True)))
        assert (batch.clean_views.strong is not None) == expected
        assert batch.views.strong is not None
