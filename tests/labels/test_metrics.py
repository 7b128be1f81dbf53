"""Metrics compared with naive loops from the definitions; and how often the loop predicts each part."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from metalabelnet import nets
from metalabelnet.data.problem import Problem
from metalabelnet.labels import metrics
from metalabelnet.train import RunFolder, train
from metalabelnet.train.loop import TrainingLoop
from small_runs import small_problem, small_run


class IdentityMethod:
    """A method whose logits are its samples."""

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


def test_accuracy_and_loss_by_hand() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 0.5]])
    labels = torch.tensor([0, 1, 1, 1])
    accuracy, loss = metrics.accuracy_and_loss(metrics.predict_logits(IdentityMethod(), logits), labels)
    assert accuracy == 75.0
    margins = [2.0, 1.0, -3.0, 0.5]  # logit of the true class minus that of the other
    assert loss == pytest.approx(sum(math.log(1 + math.exp(-m)) for m in margins) / 4, rel=1e-12)


def test_logits_do_not_depend_on_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr("metalabelnet.data.disk_tensor.MAX_CHUNK_SAMPLES", 7)
    assert torch.equal(metrics.predict_logits(IdentityMethod(), x), x)


@given(st.integers(2, 6), st.integers(1, 40), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_macro_f1_equals_naive_loop(classes: int, count: int, seed: int) -> None:
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    g = torch.Generator().manual_seed(seed)
    true = torch.randint(classes, (count,), generator=g)
    predicted = torch.where(torch.rand(count, generator=g) < 0.5, true, torch.randint(classes, (count,), generator=g))
    value = metrics.macro_f1(predicted, true, classes)
    assert value == pytest.approx(naive_macro_f1(predicted.tolist(), true.tolist()), abs=1e-10)
    present = sorted(set(true.tolist()))
    reference = sklearn_metrics.f1_score(true, predicted, labels=present, average="macro", zero_division=0)
    assert value == pytest.approx(100 * reference, abs=1e-10)


def test_macro_f1_by_hand() -> None:
    """Class 0: F1 = 2·2/(2·2 + 1 + 0) = 0.8; class 1: 2·1/(2 + 0 + 1) = 2/3."""
    predicted, true = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1])
    assert metrics.macro_f1(predicted, true, 2) == pytest.approx(100 * (0.8 + 2 / 3) / 2)


@given(st.integers(2, 5), st.integers(1, 60), st.integers(1, 20), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_calibration_error_equals_naive_loop(classes: int, count: int, bins: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    p = (3 * torch.randn(count, classes, generator=g, dtype=torch.float64)).softmax(1)
    true = torch.randint(classes, (count,), generator=g)
    assert metrics.expected_calibration_error(p, true, bins) == pytest.approx(
        naive_calibration_error(p.tolist(), true.tolist(), bins), abs=1e-9
    )


def test_calibration_error_limits() -> None:
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert metrics.expected_calibration_error(sure, torch.tensor([0, 0])) == 0
    assert metrics.expected_calibration_error(sure, torch.tensor([1, 1])) == 100
    assert metrics.expected_calibration_error(sure, torch.tensor([0, 1])) == 50


def test_confusion_counts_are_the_nonzero_cells() -> None:
    predicted, true = torch.tensor([0, 2, 2, 1, 0]), torch.tensor([0, 1, 1, 1, 2])
    assert metrics.confusion_counts(predicted, true) == [[0, 0, 1], [1, 1, 1], [1, 2, 2], [2, 0, 1]]


def count_predictions(loop: TrainingLoop, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of samples of every prediction."""
    sizes: list[int] = []
    logits = loop.method.logits
    monkeypatch.setattr(loop.method, "logits", lambda x: sizes.append(len(x)) or logits(x))
    return sizes


def shared_problem() -> Problem:
    """A problem whose validation rows are its clean rows, as under the paper's protocol."""
    problem = small_problem()
    return dataclasses.replace(problem, clean=problem.validation, holds_out=False)


@pytest.mark.parametrize("shared", [False, True])
def test_snapshot_epoch_predicts_each_part_once(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = shared_problem() if shared else small_problem()
    loop = TrainingLoop(small_run("metalabelnet", snapshots=6), problem, None, None)
    loop.losses, loop.snapshots.count = torch.zeros(4), 1  # not the first snapshot, which has a head refit
    sizes = count_predictions(loop, monkeypatch)
    loop.evaluate(loop.predict())
    parts = {id(rows): len(rows) for rows in (problem.validation, problem.clean, problem.test, problem.train)}
    assert sorted(sizes) == sorted(parts.values())


@pytest.mark.parametrize("has_test", [False, True])
@pytest.mark.parametrize(
    ("name", "shared", "parts"),
    [
        ("metalabelnet", False, ("train", "clean", "validation")),
        ("metalabelnet", True, ("train", "validation")),
        ("fine-tune", False, ("train", "validation")),  # trained on the other clean rows, which evaluate nothing then
    ],
)
def test_finish_predicts_each_part_once(
    name: str, shared: bool, parts: tuple[str, ...], has_test: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Summary, calibration, label table and confusion matrix share the logits."""
    problem = shared_problem() if shared else small_problem()
    if not has_test:
        problem = dataclasses.replace(problem, test=problem.test.take(torch.arange(0)))
    files = RunFolder(tmp_path / "run")
    run = small_run(name, snapshots=0)
    files.create(run, classes=problem.train.classes, shape=problem.shape, bytes=True, own_net=None, data_digest="")
    loop = TrainingLoop(run, problem, None, files)
    loop.best = {"epoch": 0, "accuracy": 0.0, "loss": 0.0, "model": loop.method.model_state_dict(), "soft_labels": None}
    loop.history = [{"test_accuracy": None}]
    sizes = count_predictions(loop, monkeypatch)
    loop.finish()
    expected = [len(getattr(problem, part)) for part in (*parts, *(["test"] if has_test else []))]
    assert sorted(sizes) == sorted(expected)
    confusion = json.loads((tmp_path / "run" / "confusion.json").read_text())
    part = "test" if has_test else "validation"
    assert confusion["part"] == part
    assert sum(count for _, _, count in confusion["counts"]) == len(getattr(problem, part))


def soft_labels_sequence(loop: TrainingLoop, monkeypatch: pytest.MonkeyPatch, *tables: Tensor | None) -> None:
    """Evaluate one epoch for each table of soft labels."""
    for epoch, table in enumerate(tables):
        monkeypatch.setattr(loop.method, "soft_labels", lambda table=table: table)
        loop.epoch, loop.losses = epoch, torch.zeros(4)
        loop.evaluate(loop.predict())


def test_label_change_is_the_mean_absolute_change_of_soft_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a naive loop: mean over samples, and its standard deviation, of the mean |change| over classes."""
    problem = small_problem()
    loop = TrainingLoop(small_run("metalabelnet", snapshots=0), problem, None, None)
    g = torch.Generator().manual_seed(0)
    n, classes = len(problem.train), len(problem.train.classes)
    first, second, third = (torch.randn(n, classes, generator=g).softmax(1) for _ in range(3))
    soft_labels_sequence(loop, monkeypatch, None, first, second, second, third)
    assert not any("label_change" in metrics for metrics in loop.history[:2])  # nothing to compare with
    steps = ((first, second), (second, second), (second, third))
    for epoch_metrics, (before, after) in zip(loop.history[2:], steps, strict=True):
        changes = [
            sum(abs(float(after[i, c]) - float(before[i, c])) for c in range(classes)) / classes for i in range(n)
        ]
        mean = sum(changes) / n
        std = math.sqrt(sum((change - mean) ** 2 for change in changes) / (n - 1))
        assert epoch_metrics["label_change"] == pytest.approx(mean, rel=1e-5)
        assert epoch_metrics["label_change_std"] == pytest.approx(std, rel=1e-5)
    assert loop.history[3]["label_change"] == 0
    assert loop.history[2]["label_change"] > 0.05


def test_label_change_of_a_swap_between_two_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One hot label that moves to another class changes by 2 in L1, and by 2/3 in the mean over three classes."""
    problem = small_problem()
    loop = TrainingLoop(small_run("metalabelnet", snapshots=0), problem, None, None)
    n = len(problem.train)
    before = torch.eye(3)[torch.zeros(n, dtype=torch.long)]
    after = torch.eye(3)[(torch.arange(n) < n // 2).long()]
    soft_labels_sequence(loop, monkeypatch, before, after)
    assert loop.history[1]["label_change"] == pytest.approx((n // 2) / n * 2 / 3)


def test_cudnn_benchmark_is_on_for_steps_only() -> None:
    problem = small_problem()
    net = nets.build("small-cnn", problem.shape, len(problem.train.classes), seed=0)
    benchmark: dict[bool, set[bool]] = {True: set(), False: set()}
    net.register_forward_pre_hook(lambda net, _: benchmark[net.training].add(torch.backends.cudnn.benchmark))
    before = torch.backends.cudnn.benchmark
    train(small_run("cross-entropy", snapshots=2), problem=problem, net=net)
    assert benchmark == {True: {True}, False: {False}}
    assert torch.backends.cudnn.benchmark == before
