"""Preparing rows: noise, removed labels, held-out clean rows, feature-dependent noise."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from metalabelnet.data import UNLABELED, Rows
from metalabelnet.data.problem import Problem
from metalabelnet.data.read_cache import ReadCache
from metalabelnet.errors import InputError, RunStopped
from metalabelnet.train import make_run, train
from metalabelnet.train import prepare as prepare_module
from metalabelnet.train.noise_probe import log_probabilities
from metalabelnet.train.prepare import prepare, select_device
from metalabelnet.train.settings import Run
from tiny_data import BASIC_METHODS, table_samples, tiny_run, write_npz


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_npz(tmp_path / "tiny.npz")


def same_rows(a: Rows, b: Rows) -> bool:
    tensors = all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("x", "given", "true", "index"))
    return tensors and a.classes == b.classes and a.ids == b.ids


def same_problem(a: Problem, b: Problem) -> bool:
    return all(same_rows(getattr(a, part), getattr(b, part)) for part in ("train", "clean", "validation", "test"))


def flipped_labels(rows: Rows) -> Tensor:
    """Return the given labels that are wrong."""
    return rows.given[(rows.given != rows.true) & (rows.given != UNLABELED)]


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.4, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("kind", ["uniform", "class"])
def test_noise_rate_is_exact(kind: str, rate: float, tmp_path: Path) -> None:
    x, y = table_samples(318, seed=0)
    file = write_npz(tmp_path / "more.npz", x_train=x, y_train=y)
    problem = prepare(tiny_run(file, noise=f"{kind}:{rate}", unlabeled=0))
    assert len(problem.train) == 300
    noisy = (problem.train, problem.clean, problem.validation)
    flips = sum(len(flipped_labels(rows)) for rows in noisy)
    assert flips == int(318 * rate + 1e-9) if kind == "uniform" else abs(flips - 318 * rate) <= 3  # 3 classes
    assert problem.noise_rate == pytest.approx(len(flipped_labels(problem.train)) / 300)


def test_problem_does_not_depend_on_method(data: Path) -> None:
    first, *others = (prepare(tiny_run(data, method, epochs=9, lr=0.7)) for method in BASIC_METHODS)
    assert all(same_problem(first, other) for other in others)
    assert same_problem(first, prepare(tiny_run(data)))
    assert not same_problem(first, prepare(tiny_run(data, seed=1)))


def test_unlabeled_removes_labels_and_keeps_samples(data: Path) -> None:
    all_labeled, some = prepare(tiny_run(data, unlabeled=0)), prepare(tiny_run(data, unlabeled=14))
    removed = some.train.given == UNLABELED
    assert int(removed.sum()) == 14
    assert not (all_labeled.train.given == UNLABELED).any()
    assert torch.equal(some.train.given[~removed], all_labeled.train.given[~removed])
    assert torch.equal(some.train.x, all_labeled.train.x)
    wrong = some.train.given[~removed] != some.train.true[~removed]
    assert some.noise_rate == pytest.approx(float(wrong.float().mean()))  # of the remaining labels
    assert some.noise_rate != all_labeled.noise_rate


def test_default_protocol_holds_out_a_fifth(data: Path) -> None:
    """Parts are disjoint, and both clean parts together are the clean set of the paper's protocol."""
    default, paper = prepare(tiny_run(data, clean=30)), prepare(tiny_run(data, clean=30, protocol="paper"))
    assert (len(default.clean), len(default.validation), len(default.train)) == (24, 6, 50)
    assert torch.bincount(default.validation.true).tolist() == [2, 2, 2]
    parts = [set(part.index.tolist()) for part in (default.train, default.clean, default.validation)]
    assert set.union(*parts) == set(range(80))
    assert sum(map(len, parts)) == 80
    assert default.holds_out
    assert not paper.holds_out
    assert paper.validation is paper.clean
    assert set(paper.clean.index.tolist()) == parts[1] | parts[2]
    assert same_rows(default.train, paper.train)


def test_too_few_clean_rows_to_hold_out_are_rejected(data: Path) -> None:
    with pytest.raises(InputError, match=r"too small to hold out samples .* or use --protocol paper"):
        prepare(tiny_run(data, clean=3))
    assert len(prepare(tiny_run(data, clean=3, protocol="paper")).clean) == 3


def test_clean_rows_have_true_labels(data: Path) -> None:
    problem = prepare(tiny_run(data, noise="uniform:0.9"))
    true_label = torch.from_numpy(table_samples(80, seed=0)[1])
    for rows in (problem.clean, problem.validation):
        assert torch.equal(rows.true, true_label[rows.index])


class TestGivenLabelsOfCleanRows:
    """Clean rows drawn out of the noisy ones keep their given label, which shows the noise rate."""

    true_label = table_samples(80, seed=0)[1]
    noisy = (true_label + (np.arange(80) % 4 == 0)) % 3

    def test_generated_noise_is_added_before_clean_rows_are_drawn(self, data: Path) -> None:
        for noise in ("uniform:0.4", "class:0.4"):
            problem = prepare(tiny_run(data, noise=noise))
            given = torch.cat([problem.clean.given, problem.validation.given])
            assert (given != UNLABELED).all()
            assert (given != torch.cat([problem.clean.true, problem.validation.true])).any()
            dropped = prepare(tiny_run(data, noise=noise, clean_given="drop"))
            assert set(dropped.clean.given.tolist()) == set(dropped.validation.given.tolist()) == {UNLABELED}
            assert torch.equal(dropped.train.given, problem.train.given)

    def test_split_paper_has_none(self, data: Path) -> None:
        problem = prepare(tiny_run(data, noise="uniform:0.4", split="paper", clean=12))
        assert set(problem.clean.given.tolist()) == {UNLABELED}

    def test_labels_of_the_data_stay(self, tmp_path: Path) -> None:
        file = write_npz(tmp_path / "noisy.npz", y_train=self.noisy, true_train=self.true_label)
        problem = prepare(tiny_run(file, noise="none"))
        for rows in (problem.train, problem.clean, problem.validation):
            given = torch.from_numpy(self.noisy)[rows.index]
            assert torch.equal(rows.given, torch.where(rows.given == UNLABELED, UNLABELED, given))
            assert torch.equal(rows.true, torch.from_numpy(self.true_label)[rows.index])
        assert (problem.clean.given != UNLABELED).all()
        assert (problem.clean.given != problem.clean.true).any()

    def test_labels_from_a_noise_file(self, data: Path, tmp_path: Path) -> None:
        np.save(tmp_path / "people.npy", self.noisy)
        problem = prepare(tiny_run(data, noise=f"file:{tmp_path / 'people.npy'}", unlabeled=0))
        for rows in (problem.train, problem.clean, problem.validation):
            assert torch.equal(rows.given, torch.from_numpy(self.noisy)[rows.index])
        wrong = (self.noisy != self.true_label)[problem.train.index]
        assert problem.noise_rate == pytest.approx(wrong.mean())

    def test_separate_clean_part_has_none(self, tmp_path: Path) -> None:
        x, y = table_samples(30, seed=7)
        file = write_npz(tmp_path / "own.npz", x_clean=x, y_clean=y)
        problem = prepare(tiny_run(file, noise="none"))
        assert set(problem.clean.given.tolist()) == {UNLABELED}
        assert len(problem.train) == 80
        assert np.isnan(problem.noise_rate)


def test_noise_rate_of_labels_of_the_data(tmp_path: Path) -> None:
    true_label = table_samples(80, seed=0)[1]
    noisy = np.where(np.arange(80) % 5 == 0, (true_label + 1) % 3, true_label)
    file = write_npz(tmp_path / "noisy.npz", y_train=noisy, true_train=true_label)
    problem = prepare(tiny_run(file, noise="none", unlabeled=0))
    wrong = (noisy != true_label)[problem.train.index]
    assert problem.noise_rate == pytest.approx(wrong.mean())


def test_fewer_than_two_labels_are_rejected(tmp_path: Path) -> None:
    x, y = table_samples(30, seed=7)
    file = write_npz(tmp_path / "bare.npz", y_train=np.full(80, -1), x_clean=x, y_clean=y)
    with pytest.raises(InputError, match="0 training samples have a label: training needs at least 2"):
        prepare(tiny_run(file, noise="none", unlabeled=0))
    few = np.where(np.arange(80) < 1, 0, -1)
    file = write_npz(tmp_path / "one.npz", y_train=few, x_clean=x, y_clean=y)
    with pytest.raises(InputError, match="1 training sample has a label: training needs at least 2"):
        prepare(tiny_run(file, noise="none", unlabeled=0))


def test_augmentation_of_a_table_is_rejected(data: Path) -> None:
    with pytest.raises(InputError, match="is for images"):
        prepare(tiny_run(data, augment="flip-crop"))


@pytest.mark.parametrize("device", ["meta", "nowhere", "cpu:x"])
def test_unusable_device_is_rejected(device: str) -> None:
    with pytest.raises(InputError, match=f"device '{device}' cannot be used") as error:
        select_device(Run(device=device))
    assert "\n" not in str(error.value)


def test_missing_gpu_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match="device 'cuda' cannot be used"):
        select_device(Run(device="cuda"))
    assert select_device(Run(device="auto")).type == "cpu"


# Feature-dependent noise


@pytest.fixture(scope="module")
def probe() -> dict[str, Any]:
    """Log-probabilities of the probe on digits, computed once: they depend on the data and the seed only."""
    pytest.importorskip("sklearn")
    cached: dict[str, Any] = {}

    def probe_once(net: Any, rows: Rows, **options: Any) -> Tensor:
        if "scores" not in cached:
            cached["scores"] = log_probabilities(net, rows, **options)
            cached["true"] = rows.true
        return cached["scores"]

    cached["probe_once"] = probe_once
    return cached


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.6, 0.8])
def test_feature_noise_by_the_probe(rate: float, probe: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate is exact, and no class receives most flips, as truck does in the published array."""
    monkeypatch.setattr(prepare_module, "log_probabilities", probe["probe_once"])
    problem = prepare(make_run("digits", recipe="paper", noise=f"feature:{rate}", clean=100, device="cpu"))
    noisy = (problem.train, problem.clean, problem.validation)
    assert [len(rows) for rows in noisy] == [1197, 80, 20]
    assert sum(len(flipped_labels(rows)) for rows in noisy) == int(1297 * rate + 1e-9)
    received = torch.bincount(flipped_labels(problem.train), minlength=10)
    assert int(received.max()) <= received.sum() / 3
    assert int((received > 0).sum()) == 10


def test_probe_is_accurate_and_has_no_ties(probe: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "log_probabilities", probe["probe_once"])
    prepare(make_run("digits", recipe="paper", noise="feature:0.2", clean=100, device="cpu"))
    scores, true = probe["scores"], probe["true"]
    assert scores.dtype == torch.float64
    assert (scores.argmax(1) == true).double().mean() > 0.97
    second = scores.sort(1).values[:, -2]
    assert len(second.unique()) > 0.99 * len(second)


def test_runs_with_one_read_cache_share_the_probe(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods and noise rates share a probe; another seed or other data has its own."""
    calls = []

    def probe_once(*args: Any, **options: Any) -> Tensor:
        calls.append(options["seed"])
        return log_probabilities(*args, **options)

    monkeypatch.setattr(prepare_module, "log_probabilities", probe_once)
    read_cache = ReadCache()
    changes = ({"noise": "feature:0.4"}, {"noise": "feature:0.2", "method": "fine-tune"}, {"seed": 1})
    runs = [tiny_run(data, **{"noise": "feature:0.4", **change}) for change in changes]
    shared = [prepare(run, read_cache=read_cache) for run in runs]
    assert calls == [0, 1]
    assert all(same_problem(one, prepare(run)) for one, run in zip(shared, runs, strict=True))
    other = data.with_name("other.npz")
    other.write_bytes(data.read_bytes())
    calls.clear()
    prepare(tiny_run(other, noise="feature:0.4"), read_cache=read_cache)
    assert calls == [0]


def test_probe_reports_progress_and_can_be_stopped(data: Path, tmp_path: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    run = tiny_run(data, noise="feature:0.4")
    prepare(run, on_samples=lambda *report: reports.append(report))
    steps = [report for report in reports if report[0] == "network for feature-dependent noise"]
    assert len(steps) == 12
    assert steps[0][1:] == (64, 768)
    assert steps[-1][1:] == (768, 768)
    calls: list[None] = []

    def stop() -> bool:
        calls.append(None)
        return len(calls) == 3

    with pytest.raises(RunStopped, match="the network for feature-dependent noise is trained again on resume"):
        train(run, folder=tmp_path / "run", stop=stop)
    assert len(calls) == 3
    assert not (tmp_path / "run").exists()
    train(run, folder=tmp_path / "run", resume=True)


@pytest.mark.gpu
def test_probe_is_deterministic_on_gpu(data: Path) -> None:
    first, second = (prepare(tiny_run(data, noise="feature:0.4", device="cuda")) for _ in range(2))
    assert torch.equal(first.train.given, second.train.given)


def test_probe_is_deterministic(data: Path) -> None:
    again = ({}, {}, {"method": "fine-tune"})
    runs = [prepare(tiny_run(data, noise="feature:0.4", unlabeled=0, **changes)) for changes in again]
    assert same_problem(runs[0], runs[1])
    assert same_problem(runs[0], runs[2])
    assert runs[0].noise_rate == int(62 * 0.4) / 62


def test_noise_probabilities_are_looked_up_by_index(data: Path, tmp_path: Path) -> None:
    """The file favors a wrong class for the first rows, and the true class for all others."""
    true_label = table_samples(80, seed=0)[1]
    p = np.full((80, 3), 0.01)
    p[np.arange(80), true_label] = 0.9
    p[:20] = 0.01
    p[np.arange(20), (true_label[:20] + 2) % 3] = 0.9
    np.save(tmp_path / "p.npy", p)
    run = tiny_run(data, noise="feature:0.1", noise_probs=str(tmp_path / "p.npy"), unlabeled=0)
    problem = prepare(run)
    train = problem.train.concat(problem.clean).concat(problem.validation)
    wrong = train.given != train.true
    assert int(wrong.sum()) == 8
    assert (train.index[wrong] < 20).all()
    assert torch.equal(train.given[wrong], (train.true[wrong] + 2) % 3)


def test_noise_probabilities_of_another_shape_are_rejected(data: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", np.ones((62, 3)))
    run = tiny_run(data, noise="feature:0.1", noise_probs=str(tmp_path / "p.npy"))
    with pytest.raises(InputError, match="the data has 80 samples"):
        prepare(run)
    with pytest.raises(InputError, match="there is no file"):
        prepare(dataclasses.replace(run, noise_probs=str(tmp_path / "q.npy")))


def test_named_gpu_becomes_the_current_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA graphs are captured on the current device."""
    current: list[torch.device] = []
    monkeypatch.setattr("torch.zeros", lambda *_, **__: torch.tensor(0.0))
    monkeypatch.setattr("torch.cuda.set_device", current.append)
    for name in ("cpu", "cuda", "cuda:1"):
        assert select_device(Run(device=name)) == torch.device(name)
    assert current == [torch.device("cuda:1")]
