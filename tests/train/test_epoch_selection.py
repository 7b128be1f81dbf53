"""Epoch selection: by the validation rows, never by the test rows, never a warm-up epoch."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from metalabelnet.data.batches import Batch
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import Rows, make_rows
from metalabelnet.methods import METHODS, Method, MethodTraits
from metalabelnet.train import Result, Run, RunFolder, train
from tiny_data import BASIC_METHODS, table_samples, tiny_run, write_npz

VALIDATION_ROWS, TEST_ROWS = 10, 20  # the first column of a sample is its part


class Scripted(Method):
    """Is not trained. In each epoch it predicts as many rows correctly as the script says, with that margin."""

    traits = MethodTraits(summary="a script", reference="–")
    script: ClassVar[Sequence[tuple[int, int, float]]] = ()

    def __init__(self, task: Any, settings: Any) -> None:
        super().__init__(task, settings)
        self.net.register_buffer("current_epoch", torch.tensor(0))

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self.net.current_epoch.fill_(epoch)

    def step(self, batch: Batch) -> Tensor:
        return torch.tensor(0.5)

    def logits(self, x: Tensor) -> Tensor:
        on_validation, on_test, margin = self.script[int(self.net.current_epoch)]
        part, number, label = x[:, 0], x[:, 1], x[:, 2].long()
        correct = number < torch.where(part == 1, on_validation, torch.where(part == 2, on_test, 0))
        predicted = torch.where(correct, label, (label + 1) % 3)
        return margin * torch.nn.functional.one_hot(predicted, 3).float()


def part(number: int, count: int) -> Rows:
    labels = torch.arange(count) % 3
    x = torch.stack([torch.full((count,), number), torch.arange(count), labels], 1).float()
    return make_rows(x, labels, true=labels, classes=("a", "b", "c"), what="part")


def run_script(
    script: list[tuple[int, int, float]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    protocol: str = "default",
    has_warmup: bool = False,
    clean_from: int | None = None,
) -> Result:
    """Run a script of (correct validation rows, correct test rows, margin), one entry per epoch."""
    traits = dataclasses.replace(Scripted.traits, has_warmup=has_warmup)
    method = type("ScriptedRun", (Scripted,), {"script": script, "traits": traits, "clean_from": clean_from})
    monkeypatch.setitem(METHODS, "scripted", method)
    run = Run(data="digits", method="scripted", epochs=len(script), warmup=2, protocol=protocol, batch_size=4)
    problem = Problem(
        train=part(0, 12),
        clean=part(0, 12),
        validation=part(1, VALIDATION_ROWS),
        test=part(2, TEST_ROWS),
        noise_rate=0.0,
    )
    return train(run, problem=problem)


def test_validation_rows_select_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_script([(5, 20, 1), (8, 4, 1), (7, 19, 1)], monkeypatch)
    assert result.summary["selected_epoch"] == 1
    assert result.summary["clean_accuracy"] == 80.0
    assert result.summary["test_accuracy"] == 20.0
    assert result.summary["test_accuracy_last"] == 95.0
    assert int(result.method.model_state_dict()["net.current_epoch"]) == 1  # weights of that epoch


def test_ties_are_broken_by_loss_and_then_by_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With eight of ten correct, the loss is lowest near a margin of two."""
    result = run_script([(8, 1, 0.5), (8, 2, 2.0), (8, 3, 9.0), (8, 4, 2.0)], monkeypatch)
    losses = [line["clean_loss"] for line in result.history]
    assert losses[1] == losses[3] == min(losses) < max(losses)
    assert result.summary["selected_epoch"] == 1


@pytest.mark.parametrize(("has_warmup", "selected"), [(True, 3), (False, 0)])
def test_warmup_is_never_selected(has_warmup: bool, selected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script = [(10, 20, 1), (9, 20, 1), (2, 5, 1), (3, 5, 1)]
    assert run_script(script, monkeypatch, has_warmup=has_warmup).summary["selected_epoch"] == selected


@pytest.mark.parametrize(
    ("protocol", "learns", "selected"),
    [("paper", True, 3), ("paper", False, 2), ("default", True, 2), ("default", False, 2)],
)
def test_paper_protocol_selects_the_last_epoch_if_trained_on_clean_rows(
    protocol: str, learns: bool, selected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [(3, 1, 1), (4, 1, 1), (9, 1, 1), (5, 1, 1)]
    result = run_script(script, monkeypatch, protocol=protocol, clean_from=0 if learns else None)
    assert result.summary["selected_epoch"] == selected


@pytest.mark.parametrize("method", BASIC_METHODS)
def test_paper_protocol_with_real_methods(method: str, tmp_path: Path) -> None:
    run = tiny_run(write_npz(tmp_path / "tiny.npz"), method, protocol="paper", epochs=7, lr=0.3, lr_milestones=())
    result = train(run)
    if method in ("clean-only", "fine-tune"):
        expected = 6
    else:
        first = 2 if method == "metalabelnet" else 0
        candidates = result.history[first:]
        expected = max(candidates, key=lambda line: (line["clean_accuracy"], -line["clean_loss"]))["epoch"]
    assert result.summary["selected_epoch"] == expected
    assert result.summary["samples"]["validation"] == result.summary["samples"]["clean"] == 18  # the whole clean set


@pytest.mark.parametrize("protocol", ["default", "paper"])
@pytest.mark.parametrize("method", BASIC_METHODS)
def test_test_rows_do_not_change_the_model(method: str, protocol: str, tmp_path: Path) -> None:
    """The model has the same bytes with shuffled test labels and with zeros as test samples."""
    x_test, y_test = table_samples(30, seed=1)
    shuffled = np.random.default_rng(3).permutation(y_test)
    models, accuracies = [], []
    for name, x, y in (("as-it-is", x_test, y_test), ("shuffled", x_test, shuffled), ("zeros", 0 * x_test, y_test)):
        data = write_npz(tmp_path / f"{name}.npz", x_test=x, y_test=y)
        run = tiny_run(data, method, protocol=protocol)
        train(run, folder=tmp_path / name)
        models.append((tmp_path / name / "model.safetensors").read_bytes())
        accuracies.append([line["test_accuracy"] for line in RunFolder(tmp_path / name).metrics()])
    assert models[0] == models[1] == models[2]
    assert accuracies[0] != accuracies[1]


def test_summary_without_test_rows(tmp_path: Path) -> None:
    """Without true labels other than the clean ones, test metrics are None."""
    x_clean, y_clean = table_samples(18, seed=5)
    data = write_npz(tmp_path / "mine.npz", x_test=None, y_test=None, x_clean=x_clean, y_clean=y_clean)
    summary = train(tiny_run(data, noise="none")).summary
    assert summary["samples"]["test"] == 0
    unknown = ("noise_rate", "test_accuracy", "test_accuracy_last", "macro_f1", "ece", "label_accuracy")
    assert {summary[key] for key in unknown} == {None}
    assert summary["clean_accuracy"] > 50
