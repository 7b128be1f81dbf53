"""Which epoch is the result: the clean rows to select on decide, never the test rows and never warm-up."""

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

SELECT, TEST = 10, 20  # rows; the first column says to which part a row belongs


class Scripted(Method):
    """Learns nothing. In each epoch it gets as many rows right as the script says, with the script's certainty."""

    traits = MethodTraits(summary="a script", reference="–")
    script: ClassVar[Sequence[tuple[int, int, float]]] = ()

    def __init__(self, task: Any, settings: Any) -> None:
        super().__init__(task, settings)
        self.net.register_buffer("now", torch.tensor(0))

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self.net.now.fill_(epoch)

    def step(self, batch: Batch) -> Tensor:
        return torch.tensor(0.5)

    def logits(self, x: Tensor) -> Tensor:
        on_select, on_test, certainty = self.script[int(self.net.now)]
        part, number, label = x[:, 0], x[:, 1], x[:, 2].long()
        right = number < torch.where(part == 1, on_select, torch.where(part == 2, on_test, 0))
        answer = torch.where(right, label, (label + 1) % 3)
        return certainty * torch.nn.functional.one_hot(answer, 3).float()


def part(number: int, count: int) -> Rows:
    labels = torch.arange(count) % 3
    x = torch.stack([torch.full((count,), number), torch.arange(count), labels], 1).float()
    return make_rows(x, labels, true=labels, classes=("a", "b", "c"), what="part")


def play(
    script: list[tuple[int, int, float]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    protocol: str = "default",
    has_warmup: bool = False,
    clean_from: int | None = None,
) -> Result:
    """Run a script of (right on the rows to select on, right on the test rows, certainty), an epoch each."""
    traits = dataclasses.replace(Scripted.traits, has_warmup=has_warmup)
    method = type("Scene", (Scripted,), {"script": script, "traits": traits, "clean_from": clean_from})
    monkeypatch.setitem(METHODS, "scripted", method)
    run = Run(data="digits", method="scripted", epochs=len(script), warmup=2, protocol=protocol, batch_size=4)
    clean, select = part(0, 12), part(1, SELECT)
    return train(
        run, problem=Problem(train=part(0, 12), clean=clean, validation=select, test=part(2, TEST), noise_rate=0.0)
    )


def test_the_rows_to_select_on_decide_and_not_the_test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    result = play([(5, 20, 1), (8, 4, 1), (7, 19, 1)], monkeypatch)
    assert result.summary["selected_epoch"] == 1
    assert result.summary["clean_accuracy"] == 80.0
    assert result.summary["test_accuracy"] == 20.0
    assert result.summary["test_accuracy_last"] == 95.0
    assert int(result.method.model_state_dict()["net.now"]) == 1  # and the networks are that epoch's


def test_a_tie_goes_to_the_lower_loss_and_then_to_the_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """With eight of ten right the loss is lowest near a certainty of two."""
    result = play([(8, 1, 0.5), (8, 2, 2.0), (8, 3, 9.0), (8, 4, 2.0)], monkeypatch)
    losses = [line["clean_loss"] for line in result.history]
    assert losses[1] == losses[3] == min(losses) < max(losses)
    assert result.summary["selected_epoch"] == 1


@pytest.mark.parametrize(("has_warmup", "selected"), [(True, 3), (False, 0)])
def test_warm_up_is_never_the_result(has_warmup: bool, selected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script = [(10, 20, 1), (9, 20, 1), (2, 5, 1), (3, 5, 1)]
    assert play(script, monkeypatch, has_warmup=has_warmup).summary["selected_epoch"] == selected


@pytest.mark.parametrize(
    ("protocol", "learns", "selected"),
    [("paper", True, 3), ("paper", False, 2), ("default", True, 2), ("default", False, 2)],
)
def test_under_the_papers_protocol_what_learns_from_the_clean_rows_reports_its_last_epoch(
    protocol: str, learns: bool, selected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [(3, 1, 1), (4, 1, 1), (9, 1, 1), (5, 1, 1)]
    result = play(script, monkeypatch, protocol=protocol, clean_from=0 if learns else None)
    assert result.summary["selected_epoch"] == selected


@pytest.mark.parametrize("method", BASIC_METHODS)
def test_the_papers_protocol_with_the_real_methods(method: str, tmp_path: Path) -> None:
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
def test_the_test_rows_decide_nothing(method: str, protocol: str, tmp_path: Path) -> None:
    """With the test labels shuffled, and without test rows that mean anything, the model is the same to the byte."""
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


def test_without_test_rows_there_is_still_a_result(tmp_path: Path) -> None:
    """Where no truth is known but that of the clean rows, nothing can be measured, and the rest comes out."""
    x_clean, y_clean = table_samples(18, seed=5)
    data = write_npz(tmp_path / "mine.npz", x_test=None, y_test=None, x_clean=x_clean, y_clean=y_clean)
    summary = train(tiny_run(data, noise="none")).summary
    assert summary["samples"]["test"] == 0
    unknown = ("noise_rate", "test_accuracy", "test_accuracy_last", "macro_f1", "ece", "label_accuracy")
    assert {summary[key] for key in unknown} == {None}
    assert summary["clean_accuracy"] > 50
