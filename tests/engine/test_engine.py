"""The recorded path against the eager one: step by step from the same state, not trace by trace."""

import gc

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from metalabelnet.engine import compiler as compiled_module
from metalabelnet.engine import engine as engine_module
from metalabelnet.engine.engine import Engine, EngineFallback, _tensors, record
from metalabelnet.engine.rewrites.operators import Operators
from metalabelnet.methods import METHODS
from metalabelnet.train.build_method import build
from small import batches, small_problem, small_run

ONE_PHASE = ("cross-entropy", "clean-only", "sce", "gce", "bootstrap", "meta-weight-net")
RECORDABLE = [name for name, method in METHODS.items() if method.traceable]


def along(name: str, engine_for: object, dtype: str = "float64", tolerance: float = 1e-9, net: object = None) -> Engine:
    """One step by each from every state along an eager run: every tensor of the state must come out the same."""
    run, problem = small_run(name, dtype=dtype), small_problem()
    eager, other = build(run, problem, net and net()), build(run, problem, net and net())
    made = batches(run, problem, eager)
    engine = engine_for(other, made.batch)
    steps = 0
    for epoch in range(eager.epochs):
        for method in (eager, other):
            method.begin_epoch(epoch)
        for picks in made.plan(epoch, labeled_only=eager.labeled_only(epoch)):
            with torch.no_grad():
                for theirs, ours in zip(_tensors(eager.state()), _tensors(other.state()), strict=True):
                    ours.copy_(theirs)
            expected, got = eager.step(made.batch(picks)), engine.step(picks)
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
            for theirs, ours in zip(_tensors(eager.state()), _tensors(other.state()), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
            steps += 1
        for method in (eager, other):
            method.end_epoch(epoch)
    assert steps >= 20
    return engine


@pytest.mark.parametrize("name", RECORDABLE)
def test_a_recorded_step_equals_the_eager_one(name: str) -> None:
    engine = along(name, lambda method, batch_of: Engine(method, batch_of, recorded=True, compiled=False))
    assert engine.recorded
    assert len(engine._replays) == (1 if name in ONE_PHASE else 2)


@pytest.mark.parametrize("name", RECORDABLE)
def test_recorded_predictions_follow_the_method(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every epoch those of the classifier as it is then, whichever that is; in bfloat16, as the steps are."""
    monkeypatch.setattr(engine_module, "chunk_size", lambda _: 13)
    run, problem = small_run(name, dtype="float32"), small_problem()
    method = build(run, problem)
    made, x = batches(run, problem, method), problem.test.x[:13]
    engine = Engine(method, made.batch, recorded=True, compiled=False, bf16=True)
    before = torch.zeros(())
    for epoch in range(method.epochs):
        method.begin_epoch(epoch)
        for picks in made.plan(epoch, labeled_only=method.labeled_only(epoch)):
            method.step(made.batch(picks))
        method.end_epoch(epoch)
        expected, found = method.logits(x), engine.logits(x)
        assert found.dtype == torch.float32
        assert 0 < (found - expected).norm() < 0.02 * expected.norm()
        assert (found - before).norm() > 0.02 * expected.norm()
        before = found
        assert any(key[0] == "logits" for key in engine._replays)


def test_few_samples_are_predicted_as_it_is_written() -> None:
    """Nothing is compiled for them, and nothing put behind them: BatchNorm without statistics would see it."""
    torch.manual_seed(0)
    problem = small_problem()
    width = problem.test.x[0].numel()
    norm = nn.BatchNorm1d(width, track_running_stats=False)
    net = nn.Sequential(nn.Flatten(), norm, nn.Linear(width, len(problem.test.classes)))
    method = build(small_run("cross-entropy", dtype="float32"), problem, net)
    engine = Engine(method, recorded=True, compiled=False, bf16=True)
    x = problem.test.x[:5]
    assert (engine.logits(x) - method.logits(x)).norm() < 0.02 * method.logits(x).norm()
    assert not engine._replays


def test_what_cannot_be_recorded_is_predicted_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word: it costs nothing but time."""
    monkeypatch.setattr(engine_module, "chunk_size", lambda _: 13)

    class Sized(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * float(self.weight.norm()) if not self.training else super().forward(x)

    torch.manual_seed(0)
    problem = small_problem()
    net = nn.Sequential(nn.Flatten(), Sized(problem.test.x[0].numel(), len(problem.test.classes)))
    method = build(small_run("cross-entropy", dtype="float32"), problem, net)
    engine = Engine(method, recorded=True, compiled=False, bf16=True)
    x = problem.test.x[:13]
    found = engine.logits(x)
    assert list(engine._replays.values()) == [engine._predict]
    assert engine.recorded
    assert (found - method.logits(x)).norm() < 0.02 * found.norm()


def test_the_activations_of_the_recorded_step_are_gone() -> None:
    """What tracing remembers is large. It lies in circles, which only a collection frees."""
    run, problem = small_run("metalabelnet", warmup=0), small_problem()
    method = build(run, problem)
    made = batches(run, problem, method)
    method.begin_epoch(0)
    gc.collect()
    gc.disable()
    try:
        Engine(method, made.batch, recorded=True, compiled=False).step(next(made.plan(0, labeled_only=False)))
        assert Operators not in {type(thing) for thing in gc.get_objects()}
    finally:
        gc.enable()


def test_one_fake_mode_serves_all_nodes() -> None:
    """To make one for each took two fifths of the time of recording phase 2 of the 8-layer CNN."""
    run, problem = small_run("metalabelnet", warmup=0), small_problem()
    method = build(run, problem)
    made = batches(run, problem, method)
    method.begin_epoch(0)
    picks = next(made.plan(0, labeled_only=False))
    graph = record(lambda given: method.step(made.batch(given)), picks, [picks.train, picks.clean]).graph.graph
    noted = tree_leaves([node.meta.get("val") for node in graph.nodes])
    fakes = [value for value in noted if isinstance(value, FakeTensor)]
    assert len(fakes) > 100
    assert len({id(fake.fake_mode) for fake in fakes}) == 1


def test_nothing_of_one_run_stays_in_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one form share what was compiled, and each works on its own tensors."""
    problem, made = small_problem(), []
    monkeypatch.setattr(compiled_module, "compile_graph", lambda graph, _: made.append(1) or graph)
    for seed in (0, 1):
        run = small_run("metalabelnet", seed=seed, warmup=0)
        eager, other = build(run, problem), build(run, problem)
        all_batches = batches(run, problem, eager)
        engine = Engine(other, all_batches.batch, recorded=True)
        for method in (eager, other):
            method.begin_epoch(0)
        for picks in all_batches.plan(0, labeled_only=False):
            eager.step(all_batches.batch(picks))
            engine.step(picks)
        for theirs, ours in zip(_tensors(eager.state()), _tensors(other.state()), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    assert made == [1]


@pytest.mark.parametrize("kind", ["mlp", "mlp-batchnorm"])
def test_label_nets_with_a_hidden_layer_are_recorded_too(kind: str) -> None:
    assert along(
        f"metalabelnet:{kind}", lambda method, batch_of: Engine(method, batch_of, recorded=True, compiled=False)
    ).recorded


def test_a_label_net_with_dropout_runs_as_it_is_written() -> None:
    """A recording holds no random numbers; the warning says so once."""
    with pytest.warns(EngineFallback, match="draws random numbers"):
        engine = along(
            "metalabelnet:mlp-batchnorm-dropout",
            lambda method, batch_of: Engine(method, batch_of, recorded=True, compiled=False),
        )
    assert not engine.recorded


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["metalabelnet", "metalabelnet-plus"])
def test_a_compiled_step_equals_the_eager_one(name: str) -> None:
    assert along(name, lambda method, batch_of: Engine(method, batch_of, recorded=True)).recorded


class Block(nn.Module):
    """A residual block of ResNet: two convolutions, half the pixels, and a shortcut that follows."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 6, 3, 2, 1, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
            nn.Conv2d(6, 6, 3, 1, 1, bias=False),
            nn.BatchNorm2d(6),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(4, 6, 1, 2, bias=False), nn.BatchNorm2d(6))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += self.shortcut(x)
        out: Tensor = self.relu(y)
        return out


class Residual(nn.Sequential):
    """ResNet's parts in small: a wide first kernel, windows that overlap, a block, the mean over pixels."""

    def __init__(self) -> None:
        first = nn.Conv2d(1, 4, 5, 1, 2, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        super().__init__(*first, Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


@pytest.mark.parametrize("name", ["metalabelnet", "metalabelnet-plus"])
def test_a_residual_network_is_recorded(name: str) -> None:
    def seeded() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Residual()

    assert along(
        name, lambda method, batch_of: Engine(method, batch_of, recorded=True, compiled=False), net=seeded
    ).recorded


class Dropping(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 3))


class Choosing(nn.Sequential):
    """Goes one way or another depending on what it sees."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.mean() > 0 else -x)


@pytest.mark.parametrize(
    ("net", "reason"), [(Dropping, "draws random numbers"), (Choosing, "data-dependent|value out")]
)
def test_what_cannot_be_recorded_runs_as_it_is_and_says_why(net: type, reason: str) -> None:
    def seeded() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return net()

    with pytest.warns(EngineFallback, match=reason) as said:
        engine = along(
            "metalabelnet", lambda method, batch_of: Engine(method, batch_of, recorded=True, compiled=False), net=seeded
        )
    assert len(said) == 1
    assert not engine.recorded


def test_bfloat16_is_near_and_leaves_the_weights_in_single_precision() -> None:
    run, problem = small_run("metalabelnet", dtype="float32"), small_problem()
    method, low = build(run, problem), build(run, problem)
    engine = Engine(low, recorded=False, bf16=True)
    for m in (method, low):
        m.begin_epoch(0)
    batch = next(batches(run, problem, method).epoch(0, labeled_only=True))
    exact, near = method.step(batch), engine.step(batch)
    assert exact != near
    torch.testing.assert_close(near, exact, rtol=0.05, atol=0.05)
    assert all(weight.dtype == torch.float32 for weight in low.net.parameters())
