"""LOO head refit: its logits, its side effects, and its use against memorization."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from metalabelnet.core.loo_ridge import RidgeMoments
from metalabelnet.data.batches import to_input
from metalabelnet.data.disk_tensor import DiskTensor
from metalabelnet.labels import loo_refit
from metalabelnet.labels.loo_refit import loo_logits
from metalabelnet.methods import METHODS
from metalabelnet.nets.head import FeatureExtractor, find_head
from metalabelnet.noise import Noise, corrupt
from metalabelnet.seeds import generator
from metalabelnet.train import train
from metalabelnet.train.build_method import build_method
from metalabelnet.train.prepare import prepare
from small_runs import TRAINED_METHODS, StepRunner, small_problem, small_run
from tiny_data import table_samples, tiny_run, write_npz


@pytest.mark.parametrize("chunk", [7, 1024])
def test_logits_are_the_ridge_fit_to_the_features(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metalabelnet.data.disk_tensor.MAX_CHUNK_SAMPLES", chunk)
    run = tiny_run(write_npz(tmp_path / "tiny.npz"))
    problem = prepare(run)
    method = build_method(run, problem, None)
    method.net.train()
    before = {name: tensor.clone() for name, tensor in method.net.state_dict().items()}
    found = loo_logits(method, problem.train, (problem.validation, problem.clean))
    assert found is not None
    assert method.net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.net.state_dict().items())
    assert not any(part._forward_pre_hooks for part in method.net.modules())
    x = to_input(problem.train.x, torch.float32)
    g = FeatureExtractor(method.net, find_head(method.net, x[:2], 3))
    moments = RidgeMoments(g.width, 3, x.device)
    moments.add(g(x), problem.train.given)
    head = moments.fit()
    torch.testing.assert_close(torch.cat(list(found[0])), head.logits(g(x), problem.train.given), rtol=1e-5, atol=1e-6)
    clean = torch.cat([problem.validation.x, problem.clean.x])
    torch.testing.assert_close(found[1], head.logits(g(to_input(clean, torch.float32))), rtol=1e-5, atol=1e-6)


def test_features_are_computed_once_if_they_fit_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(write_npz(tmp_path / "tiny.npz"))
    problem = prepare(run)
    method, n, m = build_method(run, problem, None), len(problem.train), len(problem.validation)
    passed: list[int] = []
    method.net.register_forward_pre_hook(lambda _net, inputs: passed.append(len(inputs[0])))
    once = loo_logits(method, problem.train, (problem.validation,))
    assert once is not None
    once_train = torch.cat(list(once[0]))
    to_find_head = passed[:-2]
    assert passed[-2:] == [n, m]
    stored = DiskTensor.empty(n, problem.shape, problem.train.x.dtype, tmp_path)
    stored[0] = problem.train.x
    on_disk = dataclasses.replace(problem.train, x=stored)  # where memory is short
    for train_rows, limit in ((on_disk, loo_refit.MAX_CACHED_FEATURE_VALUES), (problem.train, 0)):
        passed.clear()
        monkeypatch.setattr(loo_refit, "MAX_CACHED_FEATURE_VALUES", limit)
        twice = loo_logits(method, train_rows, (problem.validation,))
        assert twice is not None
        assert torch.equal(once_train, torch.cat(list(twice[0])))
        assert torch.equal(once[1], twice[1])
        assert passed == [*to_find_head, n, m, n]


@pytest.mark.parametrize("name", TRAINED_METHODS)
def test_methods_that_use_given_labels_have_a_refit(name: str, tmp_path: Path) -> None:
    run = tiny_run(write_npz(tmp_path / "tiny.npz"), name)
    problem = prepare(run)
    found = loo_logits(build_method(run, problem, None), problem.train, (problem.validation,))
    assert (found is not None) == METHODS[name].traits.reads_given
    if found is not None:
        train = torch.cat(list(found[0]))
        assert train.shape == (len(problem.train), 3)
        assert torch.isfinite(train).all()
        assert found[1].shape == (len(problem.validation), 3)


class NoHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def test_network_without_linear_head_has_no_refit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(write_npz(tmp_path / "tiny.npz"), "cross-entropy")
    problem = prepare(run)
    assert loo_logits(build_method(run, problem, NoHead()), problem.train, (problem.validation,)) is None
    assert train(run, net=NoHead()).labels.suspicion is not None
    monkeypatch.setattr(loo_refit, "MAX_FEATURES", 1)
    assert loo_logits(build_method(run, problem, None), problem.train, (problem.validation,)) is None


def test_wide_features_are_projected_without_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prediction of a row does not depend on its own label, and a projection onto all directions changes little."""
    problem, run = small_problem(wrong=0.3), small_run("cross-entropy")
    method = build_method(run, problem)
    exact = loo_logits(method, problem.train, (problem.validation,))
    monkeypatch.setattr(loo_refit, "MAX_FEATURES_OF_FIT", 8)
    monkeypatch.setattr(loo_refit, "PROJECTED_FEATURES", 12)
    found = loo_logits(method, problem.train, (problem.validation,))
    assert exact is not None
    assert found is not None
    true = problem.validation.true
    accuracies = [(logits[1].argmax(1) == true).double().mean() for logits in (exact, found)]
    assert accuracies[1] >= accuracies[0] - 0.2
    given = problem.train.given.clone()
    given[0] = (given[0] + 1) % 3
    other = loo_logits(method, problem.train.with_given_labels(given), (problem.validation,))
    assert other is not None
    first, second = (torch.cat(list(logits[0]))[0].softmax(0) for logits in (found, other))
    assert (first - second).abs().max() < 0.05  # λ and σ, which are chosen on all labels, change a little
    assert torch.equal(found[1], loo_logits(method, problem.train, (problem.validation,))[1])  # the same projection


@pytest.mark.parametrize("method", ["cross-entropy", pytest.param("metalabelnet", marks=pytest.mark.slow)])
def test_refit_corrects_labels_that_the_network_memorizes(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 40 columns of noise for 160 rows, the network memorizes nearly every given label."""
    x, y = table_samples(260, seed=3)
    x = np.concatenate([x, np.random.default_rng(0).normal(size=(260, 40)).astype(np.float32)], 1)
    parts = {"x_train": x[:220], "x_test": x[220:], "y_test": y[220:]}
    changes = {"clean": 60, "unlabeled": 0, "epochs": 30, "warmup": 15, "lr_milestones": (15,), "clean_given": "drop"}
    file = write_npz(tmp_path / "wide.npz", y_train=y[:220], **parts)
    rows = prepare(tiny_run(file, method, **changes, noise="none")).train
    noise = generator(0, "noise")  # 30 % of the training rows, whichever rows are clean
    noisy = y[:220].copy()
    noisy[rows.index] = corrupt(Noise.parse("uniform:0.3"), rows.true, rows.classes, noise)
    file = write_npz(tmp_path / "noisy.npz", y_train=noisy, true_train=y[:220], **parts)
    run = tiny_run(file, method, **changes, noise="none")
    result = train(run, folder=tmp_path / "run")
    given = result.labels.rows.given
    assert (result.method.logits(result.labels.rows.x).argmax(1) == given).double().mean() > 0.9
    assert json.loads((tmp_path / "run" / "calibration.json").read_text())["labels"]["refitted"] is True
    monkeypatch.setattr(loo_refit, "MAX_FEATURES", 0)
    without = train(run).summary
    assert without["right_after"] <= without["right_before"] == pytest.approx(70)
    assert result.summary["right_after"] > 75
    assert result.summary["suspicion_ap"] > without["suspicion_ap"]


@pytest.mark.parametrize(("name", "settings"), [("co-teaching", {}), ("forward", {"transition": "estimated"})])
def test_refit_uses_a_cross_fit_network_while_there_is_one(name: str, settings: dict[str, str]) -> None:
    runner = StepRunner(small_run(name, settings=settings), small_problem()).advance(1)
    method, train = runner.method, runner.problem.train
    assert method.cross_fit is not None
    before = loo_logits(method, train, (runner.problem.validation,))
    with torch.no_grad():
        for weight in method.net.parameters():
            weight.fill_(0.0)
    after = loo_logits(method, train, (runner.problem.validation,))
    assert before is not None
    assert after is not None
    assert torch.equal(torch.cat(list(before[0])), torch.cat(list(after[0])))
