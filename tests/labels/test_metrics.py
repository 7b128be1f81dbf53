"""Accuracy, macro-F1 and calibration error against loops that follow the definitions."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from metalabelnet import nets
from metalabelnet.labels import metrics
from metalabelnet.train import train
from metalabelnet.train.loop import TrainingLoop
from small_runs import small_problem, small_run


class Fixed:
    """Stands for a method whose samples are its logits."""

    def logits(self, x: Tensor) -> Tensor:
        return x


def naive_macro_f1(predicted: list[int], true: list[int]) -> float:
    scores = []
    for c in sorted(set(true)):
        tp = sum(p == c and t == c for p, t in zip(predicted, true, strict=True))
        fp = sum(p == c and t != c for p, t in zip(predicted, true, strict=True))
        fn = sum(p != c and t == c for p, t in zip(predicted, true, strict=True))
        scores.append(2 * tp / (2 * tp + fp + fn))
    return 100 * sum(scores) / len(scores)


def naive_calibration_error(probabilities: list[list[float]], true: list[int], bins: int) -> float:
    total = 0.0
    for k in range(bins):
        inside = []
        for p, t in zip(probabilities, true, strict=True):
            confidence = max(p)
            if k / bins <= confidence and (confidence < (k + 1) / bins or k == bins - 1):
                inside.append((confidence, p.index(confidence) == t))
        if inside:
            confidence = sum(c for c, _ in inside) / len(inside)
            accuracy = sum(right for _, right in inside) / len(inside)
            total += len(inside) / len(true) * abs(confidence - accuracy)
    return 100 * total


def test_score_by_hand() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 0.5]])
    labels = torch.tensor([0, 1, 1, 1])
    accuracy, loss = metrics.accuracy_and_loss(metrics.predict_logits(Fixed(), logits), labels)
    assert accuracy == 75.0
    margins = [2.0, 1.0, -3.0, 0.5]  # of the right class over the other
    assert loss == pytest.approx(sum(math.log(1 + math.exp(-m)) for m in margins) / 4, rel=1e-12)


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr("metalabelnet.data.disk_tensor.CHUNK", 7)
    assert torch.equal(metrics.predict_logits(Fixed(), x), x)


@given(st.integers(2, 6), st.integers(1, 40), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_macro_f1_is_the_definition(classes: int, count: int, seed: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    g = torch.Generator().manual_seed(seed)
    true = torch.randint(classes, (count,), generator=g)
    predicted = torch.where(torch.rand(count, generator=g) < 0.5, true, torch.randint(classes, (count,), generator=g))
    ours = metrics.macro_f1(predicted, true, classes)
    assert ours == pytest.approx(naive_macro_f1(predicted.tolist(), true.tolist()), abs=1e-10)
    theirs = metrics.f1_score(true, predicted, labels=sorted(set(true.tolist())), average="macro", zero_division=0)
    assert ours == pytest.approx(100 * theirs, abs=1e-10)


def test_macro_f1_by_hand() -> None:
    """Class 0: F1 = 2·2/(2·2 + 1 + 0) = 0.8; class 1: 2·1/(2 + 0 + 1) = 2/3."""
    predicted, true = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1])
    assert metrics.macro_f1(predicted, true, 2) == pytest.approx(100 * (0.8 + 2 / 3) / 2)


@given(st.integers(2, 5), st.integers(1, 60), st.integers(1, 20), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_calibration_error_is_the_definition(classes: int, count: int, bins: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    p = (3 * torch.randn(count, classes, generator=g, dtype=torch.float64)).softmax(1)
    true = torch.randint(classes, (count,), generator=g)
    assert metrics.expected_calibration_error(p, true, bins) == pytest.approx(
        naive_calibration_error(p.tolist(), true.tolist(), bins), abs=1e-9
    )


def test_calibration_error_at_its_ends() -> None:
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert metrics.expected_calibration_error(sure, torch.tensor([0, 0])) == 0
    assert metrics.expected_calibration_error(sure, torch.tensor([1, 1])) == 100
    assert metrics.expected_calibration_error(sure, torch.tensor([0, 1])) == 50


@pytest.mark.parametrize("shared", [False, True])
def test_an_epoch_that_is_looked_at_asks_about_no_row_twice(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is a pass through the network: of those held out, the evaluation and the look read the same."""
    run, problem = small_run("metalabelnet", snapshots=6), small_problem()
    if shared:  # as under the paper's protocol
        problem = dataclasses.replace(problem, clean=problem.validation)
    loop = TrainingLoop(run, problem, None, None)
    loop.losses, loop.snapshots.count = torch.zeros(4), 1  # not the first look, which fits a last layer
    asked: list[int] = []
    logits = loop.method.logits
    monkeypatch.setattr(loop.method, "logits", lambda x: asked.append(len(x)) or logits(x))
    loop.evaluate(loop.ask())
    parts = {id(rows): len(rows) for rows in (problem.validation, problem.clean, problem.test, problem.train)}
    assert sorted(asked) == sorted(parts.values())


def test_kernels_are_tried_for_steps_and_not_for_the_few_passes_between_them() -> None:
    problem = small_problem()
    net = nets.build("small-cnn", problem.shape, len(problem.train.classes), seed=0)
    tried: dict[bool, set[bool]] = {True: set(), False: set()}
    net.register_forward_pre_hook(lambda net, _: tried[net.training].add(torch.backends.cudnn.benchmark))
    before = torch.backends.cudnn.benchmark
    train(small_run("cross-entropy", snapshots=2), problem=problem, net=net)
    assert tried == {True: {True}, False: {False}}
    assert torch.backends.cudnn.benchmark == before
