"""Traced steps equal eager ones on a GPU, in float32 without TF32, which alone would differ by 1e-3."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
import torch
from torch import Tensor, nn

from metalabelnet.core.forward_pass import predict
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import make_rows
from metalabelnet.engine import engine as engine_module
from metalabelnet.engine.engine import Engine, PredictionInput, state_tensors
from metalabelnet.methods import METHODS, Method
from metalabelnet.train import train
from metalabelnet.train.build_method import build_method
from metalabelnet.train.settings import Run
from small_runs import make_batches, small_problem, small_run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
PARTS = ("train", "clean", "validation", "test")


@pytest.fixture(autouse=True)
def without_tf32() -> Iterator[None]:
    backends = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = False
    yield
    for backend, allowed in zip(backends, before, strict=True):
        backend.allow_tf32 = allowed


def on_gpu(problem: Problem) -> Problem:
    return dataclasses.replace(problem, **{part: getattr(problem, part).to("cuda") for part in PARTS})


class EagerAndTraced:
    """One run executed both ways; the traced one starts every step from the state of the eager one."""

    def __init__(self, run: Run, problem: Problem) -> None:
        problem = on_gpu(problem)
        self.eager, self.other = build_method(run, problem), build_method(run, problem)
        self.batches = make_batches(run, problem, self.eager)
        self.engine = Engine(self.other, self.batches.make_batch, traced=True)
        self.stream = torch.cuda.Stream()
        self.steps = self._steps()

    def _steps(self) -> Iterator[None]:
        """Yield three times per step: after the eager step, the traced one on its own stream, and the comparison."""
        for epoch in range(self.eager.epochs):
            for method in (self.eager, self.other):
                method.begin_epoch(epoch)
            for plan in self.batches.plan_epoch(epoch, labeled_only=self.eager.labeled_only(epoch)):
                with torch.no_grad():
                    for target, source in zip(self.state(self.other), self.state(self.eager), strict=True):
                        target.copy_(source)
                expected = self.eager.step(self.batches.make_batch(plan))
                torch.cuda.synchronize()
                yield
                with torch.cuda.stream(self.stream):
                    actual = self.engine.step(plan)
                yield
                torch.cuda.synchronize()
                assert_close(actual, expected)
                for other, eager in zip(self.state(self.other), self.state(self.eager), strict=True):
                    assert_close(other, eager)
                yield
            for method in (self.eager, self.other):
                method.end_epoch(epoch)

    @staticmethod
    def state(method: Method) -> list[Tensor]:
        return list(state_tensors(method.state_dict()))


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-4, rounding: float = 1e-6) -> None:
    """Compare by norm. Some tensors are zero up to rounding (the momentum of a bias before BatchNorm)."""
    difference, norm = (actual.double() - expected.double()).norm(), expected.double().norm()
    assert difference <= tolerance * norm + rounding * expected.numel() ** 0.5


def compare_concurrently(pairs: list[EagerAndTraced]) -> int:
    """Interleave the runs and return the number of steps that were compared."""
    count = 0
    while all([next(pair.steps, 0) is None for pair in pairs]):  # noqa: C419 (every pair takes its turn)
        count += 1
    return count // 3


def random_images(seed: int) -> Problem:
    g = torch.Generator().manual_seed(seed)

    def rows(count: int) -> object:
        y = torch.randint(0, 10, (count,), generator=g)
        x = torch.randint(0, 256, (count, 3, 32, 32), generator=g).to(torch.uint8)
        return make_rows(x, y, true=y, classes=tuple("0123456789"), what="random images")

    sizes = {"train": 128 * 6, "clean": 256, "validation": 10, "test": 10}
    return Problem(**{part: rows(count) for part, count in sizes.items()}, noise_rate=0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.traits.traceable])
def test_traced_step_equals_eager_step(name: str) -> None:
    pair = EagerAndTraced(small_run(name, dtype="float32", device="cuda"), small_problem())
    assert compare_concurrently([pair]) >= 20
    assert pair.engine.traced


@pytest.mark.parametrize("method", ["metalabelnet", "metalabelnet-plus"])
def test_traced_step_is_as_close_to_float64_as_eager(method: str) -> None:
    """Rounding changes the maximum of some pooling windows; then a step differs by more than rounding, also eagerly."""
    runs = [
        Run(method=method, net="cnn8", epochs=4, warmup=0, batch_size=128, device="cuda", dtype=dtype)
        for dtype in ("float32", "float64")
    ]
    problem = random_images(0)
    pair, double = EagerAndTraced(runs[0], problem), EagerAndTraced(runs[1], problem)
    exact, exact_batches = double.eager, double.batches
    eager_distances, traced_distances = [], []
    for epoch in range(4):
        for m in (pair.eager, pair.other, exact):
            m.begin_epoch(epoch)
        plans = (batches.plan_epoch(epoch, labeled_only=False) for batches in (pair.batches, exact_batches))
        for plan, exact_plan in zip(*plans, strict=True):
            with torch.no_grad():
                for source, *targets in zip(*map(pair.state, (pair.eager, pair.other, exact)), strict=True):
                    for target in targets:
                        target.copy_(source)
            pair.eager.step(pair.batches.make_batch(plan))
            pair.engine.step(plan)
            exact.step(exact_batches.make_batch(exact_plan))
            eager_distances.append(max_distance(pair.state(pair.eager), pair.state(exact)))
            traced_distances.append(max_distance(pair.state(pair.other), pair.state(exact)))
    assert len(eager_distances) >= 20
    assert pair.engine.traced
    assert median(traced_distances) <= 2 * median(eager_distances) + 1e-5
    assert max(traced_distances) <= 10 * max(eager_distances)


def max_distance(actual: list[Tensor], expected: list[Tensor]) -> float:
    """The largest relative distance of these tensors."""
    pairs = [(a.double(), b.double()) for a, b in zip(actual, expected, strict=True)]
    return max(float((a - b).norm() / (b.norm() + 0.01 * b.numel() ** 0.5)) for a, b in pairs)


def test_concurrent_runs() -> None:
    """Three runs whose steps are on the GPU at the same time."""
    runs = [small_run("metalabelnet", dtype="float32", device="cuda", seed=seed) for seed in range(3)]
    assert compare_concurrently([EagerAndTraced(run, small_problem()) for run in runs]) >= 20


@pytest.mark.parametrize("kernels", ["auto", "cudnn"])
@pytest.mark.parametrize("concurrent_runs", [1, 8])
def test_traced_predictions_in_bfloat16(concurrent_runs: int, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With custom kernels and with cuDNN, alone and concurrent: close to eager predictions."""
    monkeypatch.setattr(engine_module, "chunk_size", lambda _: 512)
    run = Run(method="cross-entropy", net="cnn8", epochs=1, batch_size=128, device="cuda", dtype="bf16")
    problem = on_gpu(random_images(0))
    method = build_method(run, problem)
    batches, x = make_batches(run, problem, method), problem.train.x[:512]
    options = {"bf16": True, "kernels": kernels, "concurrent_runs": concurrent_runs}
    engine = Engine(method, batches.make_batch, traced=True, **options)
    method.begin_epoch(0)
    for plan in batches.plan_epoch(0, labeled_only=False):
        engine.step(plan)
        expected, actual = engine._predict(PredictionInput(x)), engine.logits(x)
        assert (actual - expected).norm() <= 0.02 * expected.norm()
    assert engine.traced
    assert engine._predict not in engine._replays.values()
    hopper = kernels == "auto" and torch.cuda.get_device_capability() == (9, 0)
    assert engine.executed()["kernels"] == ("hopper" if hopper else "cudnn")
    assert not engine.fallbacks


def test_run_json_reports_what_was_executed(tmp_path: Path) -> None:
    run = Run(method="cross-entropy", net="cnn8", epochs=1, batch_size=128, device="cuda", dtype="bf16")
    train(run, problem=on_gpu(random_images(0)), folder=tmp_path / "run")
    executed = json.loads((tmp_path / "run" / "run.json").read_text())["executed"]
    hopper = torch.cuda.get_device_capability() == (9, 0)
    assert executed["execution"] == "compiled"
    assert executed["kernels"] == ("hopper" if hopper else "cudnn")
    assert executed["device"] == torch.cuda.get_device_name()


def test_network_with_a_view_of_its_activations_predicts() -> None:
    """`view` rejects channels last, which activations would have if the images had it."""

    class Flat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(len(x), -1)

    net = nn.Sequential(nn.Conv2d(3, 8, 3), Flat(), nn.Linear(8 * 30 * 30, 10)).cuda()
    assert predict(net, random_images(0).test.x.float().cuda()).shape == (10, 10)
