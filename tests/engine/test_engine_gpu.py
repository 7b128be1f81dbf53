"""On a card, in single precision without TF32, which alone would differ by 1e-3: recorded steps equal eager ones."""

import dataclasses
from collections.abc import Iterator
from statistics import median

import pytest
import torch
from torch import Tensor, nn

from metalabelnet.core.forward_pass import predict
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import make_rows
from metalabelnet.engine import engine as engine_module
from metalabelnet.engine.engine import Engine, Part, state_tensors
from metalabelnet.methods import METHODS, Method
from metalabelnet.train.build_method import build_method
from metalabelnet.train.settings import Run
from small_runs import make_batches, small_problem, small_run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
PARTS = ("train", "clean", "validation", "test")


@pytest.fixture(autouse=True)
def single_precision() -> Iterator[None]:
    parts = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [part.allow_tf32 for part in parts]
    for part in parts:
        part.allow_tf32 = False
    yield
    for part, allowed in zip(parts, before, strict=True):
        part.allow_tf32 = allowed


class Pair:
    """One run by both engines, the recorded one set back to the eager one's state before every step."""

    def __init__(self, run: Run, problem: Problem) -> None:
        problem = dataclasses.replace(problem, **{part: getattr(problem, part).to("cuda") for part in PARTS})
        self.eager, self.other = build_method(run, problem), build_method(run, problem)
        self.batches = make_batches(run, problem, self.eager)
        self.engine = Engine(self.other, self.batches.make_batch, recorded=True)
        self.stream = torch.cuda.Stream()
        self.steps = self._steps()

    def _steps(self) -> Iterator[None]:
        """Each in three parts: the eager step, the recorded one on a stream of its own, and the comparison."""
        for epoch in range(self.eager.epochs):
            for method in (self.eager, self.other):
                method.begin_epoch(epoch)
            for picks in self.batches.plan_epoch(epoch, labeled_only=self.eager.labeled_only(epoch)):
                with torch.no_grad():
                    for theirs, ours in zip(self.state(self.eager), self.state(self.other), strict=True):
                        ours.copy_(theirs)
                expected = self.eager.step(self.batches.make_batch(picks))
                torch.cuda.synchronize()
                yield
                with torch.cuda.stream(self.stream):
                    got = self.engine.step(picks)
                yield
                torch.cuda.synchronize()
                near(got, expected)
                for theirs, ours in zip(self.state(self.eager), self.state(self.other), strict=True):
                    near(ours, theirs)
                yield
            for method in (self.eager, self.other):
                method.end_epoch(epoch)

    @staticmethod
    def state(method: Method) -> list[Tensor]:
        return list(state_tensors(method.state_dict()))


def near(ours: Tensor, theirs: Tensor, tolerance: float = 1e-4, rounding: float = 1e-6) -> None:
    """Within a share of the tensor's length. Some are zero but for rounding (a bias's momentum before BatchNorm)."""
    difference, length = (ours.double() - theirs.double()).norm(), theirs.double().norm()
    assert difference <= tolerance * length + rounding * theirs.numel() ** 0.5


def at_once(pairs: list[Pair]) -> int:
    """Go through the runs together; gives the number of steps that were compared."""
    count = 0
    while all([next(pair.steps, 0) is None for pair in pairs]):  # noqa: C419 (every pair takes its turn)
        count += 1
    return count // 3


def images(seed: int) -> Problem:
    g = torch.Generator().manual_seed(seed)

    def rows(count: int) -> object:
        y = torch.randint(0, 10, (count,), generator=g)
        x = torch.randint(0, 256, (count, 3, 32, 32), generator=g).to(torch.uint8)
        return make_rows(x, y, true=y, classes=tuple("0123456789"), what="random images")

    sizes = {"train": 128 * 6, "clean": 256, "validation": 10, "test": 10}
    return Problem(**{part: rows(count) for part, count in sizes.items()}, noise_rate=0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.traits.traceable])
def test_every_method(name: str) -> None:
    pair = Pair(small_run(name, dtype="float32", device="cuda"), small_problem())
    assert at_once([pair]) >= 20
    assert pair.engine.recorded


@pytest.mark.parametrize("method", ["metalabelnet", "metalabelnet-plus"])
def test_the_papers_network_is_as_near_to_double_precision_as_eager(method: str) -> None:
    """Rounding turns a maximum here and there, and a step then differs by far more than rounding, eager's too."""
    runs = [
        Run(method=method, net="cnn8", epochs=4, warmup=0, batch_size=128, device="cuda", dtype=dtype)
        for dtype in ("float32", "float64")
    ]
    problem = images(0)
    pair, truth = Pair(runs[0], problem), Pair(runs[1], problem)
    exact, wholes = truth.eager, truth.batches
    by_eager, by_recorded = [], []
    for epoch in range(4):
        for m in (pair.eager, pair.other, exact):
            m.begin_epoch(epoch)
        for picks, same in zip(
            pair.batches.plan_epoch(epoch, labeled_only=False), wholes.plan_epoch(epoch, labeled_only=False), strict=True
        ):
            with torch.no_grad():
                for from_, *to in zip(*map(pair.state, (pair.eager, pair.other, exact)), strict=True):
                    for tensor in to:
                        tensor.copy_(from_)
            pair.eager.step(pair.batches.make_batch(picks))
            pair.engine.step(picks)
            exact.step(wholes.make_batch(same))
            by_eager.append(distance(pair.state(pair.eager), pair.state(exact)))
            by_recorded.append(distance(pair.state(pair.other), pair.state(exact)))
    assert len(by_eager) >= 20
    assert pair.engine.recorded
    assert median(by_recorded) <= 2 * median(by_eager) + 1e-5
    assert max(by_recorded) <= 10 * max(by_eager)


def distance(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Of the worst of these tensors, as a share of its length."""
    pairs = [(a.double(), b.double()) for a, b in zip(ours, theirs, strict=True)]
    return max(float((a - b).norm() / (b.norm() + 0.01 * b.numel() ** 0.5)) for a, b in pairs)


def test_in_company() -> None:
    """Three runs whose steps are on the card at the same time."""
    pairs = [Pair(small_run("metalabelnet", dtype="float32", device="cuda", seed=s), small_problem()) for s in range(3)]
    assert at_once(pairs) >= 20


@pytest.mark.parametrize("company", [1, 8])
def test_predictions_in_bfloat16_follow_the_steps(concurrent_runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded, by kernels of our own where they take a layer, alone and in company: near to those as written."""
    monkeypatch.setattr(engine_module, "chunk_size", lambda _: 512)
    run = Run(method="cross-entropy", net="cnn8", epochs=1, batch_size=128, device="cuda", dtype="bf16")
    problem = images(0)
    problem = dataclasses.replace(problem, **{part: getattr(problem, part).to("cuda") for part in PARTS})
    method = build_method(run, problem)
    made, x = make_batches(run, problem, method), problem.train.x[:512]
    engine = Engine(method, made.make_batch, recorded=True, bf16=True, concurrent_runs=concurrent_runs)
    method.begin_epoch(0)
    for picks in made.plan_epoch(0, labeled_only=False):
        engine.step(picks)
        expected, found = engine._predict(Part(x)), engine.logits(x)
        assert (found - expected).norm() <= 0.02 * expected.norm()
    assert engine.recorded
    assert engine._predict not in engine._replays.values()


def test_a_network_that_reads_its_activations_in_a_row_predicts() -> None:
    """`view` refuses channels last, which a network would make of images given so."""

    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(len(x), -1)

    net = nn.Sequential(nn.Conv2d(3, 8, 3), Rows(), nn.Linear(8 * 30 * 30, 10)).cuda()
    assert predict(net, images(0).test.x.float().cuda()).shape == (10, 10)
