"""Traced steps against eager ones, step by step from the same state; fallbacks; what `executed` reports."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from metalabelnet.engine import compiler
from metalabelnet.engine import engine as engine_module
from metalabelnet.engine.engine import Engine, EngineFallback, state_tensors
from metalabelnet.engine.kernels import NoKernels
from metalabelnet.engine.rewrites.operators import OperatorRewrites
from metalabelnet.engine.tracing import trace_step
from metalabelnet.errors import InputError
from metalabelnet.methods import METHODS, Method
from metalabelnet.nets.resnet import PreActResNet, ResNet
from metalabelnet.train.build_method import build_method
from small_runs import make_batches, small_problem, small_run

ONE_PHASE = (
    "cross-entropy",
    "clean-only",
    "fixmatch",
    "sce",
    "gce",
    "bootstrap",
    "meta-weight-net",
    "elr",
    "elr-plus",
    "sop",
    "sop-plus",
    "l2rw",
    "mlc",
    "ssr",
)
PHASES = {"t-revision": 3}
TRACEABLE = [name for name, method in METHODS.items() if method.traits.traceable]


def traced_cnn() -> nn.Module:
    """Return a network with the layers of `tiny_cnn` and a smaller pooling window: a quarter of its operators."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            *(nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32, 3)),
        )


PHASE_2 = {"epochs": 1, "warmup": 0}


def assert_same_state(method: Method, expected: Method, tolerance: float = 1e-9) -> None:
    pairs = zip(state_tensors(method.state_dict()), state_tensors(expected.state_dict()), strict=True)
    for actual, wanted in pairs:
        torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)


def compare_with_eager(
    name: str,
    net: Callable[[], nn.Module] = traced_cnn,
    tolerance: float = 1e-9,
    dtype: str = "float64",
    settings: dict[str, Any] | None = None,
    schedule: dict[str, Any] | None = None,
    **options: Any,
) -> Engine:
    """Run one step by each from every state along an eager run; every tensor of the state must be the same after it."""
    changes = {} if settings is None else {"settings": settings}
    schedule = schedule or {"epochs": 2, "warmup": 1, "lr_milestones": (1,)}
    run, problem = small_run(name, dtype=dtype, **changes, **schedule), small_problem()
    eager, other = (build_method(run, problem, net()) for _ in range(2))
    all_batches = make_batches(run, problem, eager)
    engine = Engine(other, all_batches.make_batch, traced=True, **{"compile": False, **options})
    steps = 0
    for epoch in range(eager.epochs):
        for method in (eager, other):
            method.begin_epoch(epoch)
        for plan in all_batches.plan_epoch(epoch, labeled_only=eager.labeled_only(epoch)):
            with torch.no_grad():
                pairs = zip(state_tensors(other.state_dict()), state_tensors(eager.state_dict()), strict=True)
                for target, source in pairs:
                    target.copy_(source)
            expected, actual = eager.step(all_batches.make_batch(plan)), engine.step(plan)
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
            assert_same_state(other, eager, tolerance)
            steps += 1
        for method in (eager, other):
            method.end_epoch(epoch)
    assert steps >= 3 * eager.epochs
    return engine


# One method for each way to build a step; the others are slow and run on the GPU as well.
FAST = ("cross-entropy", "fine-tune", "metalabelnet", "metalabelnet-plus", "co-teaching", "dividemix", "sop")
TRACED = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in TRACEABLE]


@pytest.mark.parametrize("name", TRACED)
def test_traced_step_equals_eager_step(name: str) -> None:
    engine = compare_with_eager(name)
    assert engine.traced
    assert len(engine._replays) == (1 if name in ONE_PHASE else PHASES.get(name, 2))


@pytest.mark.slow
def test_double_backward_can_be_traced() -> None:
    """benchmarks/step.py compares the closed form with it, both compiled."""
    assert compare_with_eager("metalabelnet", settings={"differentiation": "double-backward"}).traced


@pytest.mark.parametrize("name", TRACED)
def test_traced_predictions_follow_the_method(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every epoch they are those of the current classifier, in bfloat16 like the steps."""
    monkeypatch.setattr(engine_module, "chunk_size", lambda _: 13)
    run, problem = small_run(name, epochs=3, warmup=1, lr_milestones=(2,), dtype="float32"), small_problem()
    method = build_method(run, problem, traced_cnn())
    all_batches, x = make_batches(run, problem, method), problem.test.x[:13]
    engine = Engine(method, all_batches.make_batch, traced=True, compile=False, bf16=True)
    before = torch.zeros(())
    for epoch in range(method.epochs):
        method.begin_epoch(epoch)
        for plan in all_batches.plan_epoch(epoch, labeled_only=method.labeled_only(epoch)):
            method.train_step(all_batches.make_batch(plan))
        method.end_epoch(epoch)
        expected, logits = method.logits(x), engine.logits(x)
        assert logits.dtype == torch.float32
        assert 0 < (logits - expected).norm() < 0.02 * expected.norm()
        assert (logits - before).norm() > 0.02 * expected.norm()
        before = logits
        assert any(key[0] == "logits" for key in engine._replays)


def test_partial_chunk_is_predicted_eagerly() -> None:
    """It is neither compiled nor padded: BatchNorm without running statistics would read the padding."""
    torch.manual_seed(0)
    problem = small_problem()
    width = problem.test.x[0].numel()
    norm = nn.BatchNorm1d(width, track_running_stats=False)
    net = nn.Sequential(nn.Flatten(), norm, nn.Linear(width, len(problem.test.classes)))
    method = build_method(small_run("cross-entropy", dtype="float32"), problem, net)
    engine = Engine(method, traced=True, compile=False, bf16=True)
    x = problem.test.x[:5]
    assert (engine.logits(x) - method.logits(x)).norm() < 0.02 * method.logits(x).norm()
    assert not engine._replays


def test_prediction_that_cannot_be_traced_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one warning; steps are still traced."""
    monkeypatch.setattr(engine_module, "chunk_size", lambda _: 13)

    class ScaledByNorm(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * float(self.weight.norm()) if not self.training else super().forward(x)

    torch.manual_seed(0)
    problem = small_problem()
    net = nn.Sequential(nn.Flatten(), ScaledByNorm(problem.test.x[0].numel(), len(problem.test.classes)))
    method = build_method(small_run("cross-entropy", dtype="float32"), problem, net)
    engine = Engine(method, traced=True, compile=False, bf16=True)
    x = problem.test.x[:13]
    with pytest.warns(EngineFallback, match="predictions cannot be traced"):
        logits = engine.logits(x)
    engine.logits(x)  # no second warning, which would be an error
    assert len(engine.fallbacks) == 1
    assert list(engine._replays.values()) == [engine._predict]
    assert engine.traced
    assert (logits - method.logits(x)).norm() < 0.02 * logits.norm()


def test_tracing_frees_the_activations() -> None:
    """Tracing leaves reference cycles with every activation, which only a collection frees."""
    run, problem = small_run("metalabelnet", warmup=0), small_problem()
    method = build_method(run, problem, traced_cnn())
    all_batches = make_batches(run, problem, method)
    method.begin_epoch(0)
    gc.collect()
    gc.disable()
    try:
        engine = Engine(method, all_batches.make_batch, traced=True, compile=False)
        engine.step(next(all_batches.plan_epoch(0, labeled_only=False)))
        assert OperatorRewrites not in {type(item) for item in gc.get_objects()}
    finally:
        gc.enable()


def test_nodes_are_not_described() -> None:
    """A fake tensor for each node took a third of the time of tracing phase 2 of PreAct ResNet-18."""
    run, problem = small_run("metalabelnet", warmup=0), small_problem()
    method = build_method(run, problem, traced_cnn())
    all_batches = make_batches(run, problem, method)
    method.begin_epoch(0)
    plan = next(all_batches.plan_epoch(0, labeled_only=False))
    made = []
    step = lambda inputs: method.train_step(all_batches.make_batch(inputs))  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeTensor, "__new__", lambda *_, **__: made.append(1))
        graph = trace_step(step, plan, [plan.train, plan.clean], NoKernels()).graph.graph
    assert len(graph.nodes) > 100
    assert not made
    assert not any(node.meta for node in graph.nodes)


def test_runs_share_a_compiled_graph_on_their_own_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, compilations = small_problem(), []
    monkeypatch.setattr(compiler, "compile_graph", lambda graph, _: compilations.append(1) or graph)
    for seed in (0, 1):
        run = small_run("metalabelnet", seed=seed, warmup=0)
        eager, other = (build_method(run, problem, traced_cnn()) for _ in range(2))
        all_batches = make_batches(run, problem, eager)
        engine = Engine(other, all_batches.make_batch, traced=True)
        for method in (eager, other):
            method.begin_epoch(0)
        for plan in all_batches.plan_epoch(0, labeled_only=False):
            eager.step(all_batches.make_batch(plan))
            engine.step(plan)
        assert_same_state(other, eager)
    assert compilations == [1]


@pytest.mark.parametrize("kind", [pytest.param("mlp", marks=pytest.mark.slow), "mlp-batchnorm"])
def test_label_nets_with_a_hidden_layer_are_traced(kind: str) -> None:
    assert compare_with_eager(f"metalabelnet:{kind}", schedule=PHASE_2).traced


def test_label_net_with_dropout_runs_eagerly() -> None:
    """A trace holds no random numbers."""
    with pytest.warns(EngineFallback, match="draws random numbers"):
        engine = compare_with_eager("metalabelnet:mlp-batchnorm-dropout", schedule=PHASE_2)
    assert not engine.traced


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["metalabelnet", "metalabelnet-plus"])
def test_compiled_step_equals_eager_step(name: str) -> None:
    engine = compare_with_eager(name, compile=True)
    assert engine.traced
    assert engine.executed()["execution"] == "compiled"


class ResidualBlock(nn.Module):
    """A residual block of ResNet: two convolutions with stride 2, and a shortcut."""

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


class TinyResNet(nn.Sequential):
    """The layers of ResNet: a wide first convolution, overlapping max pooling, a block, average pooling."""

    def __init__(self) -> None:
        first = nn.Conv2d(1, 4, 5, 1, 2, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        super().__init__(*first, ResidualBlock(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


class DropoutNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 3))


class DataDependentNet(nn.Sequential):
    """A network with control flow that depends on its input."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.mean() > 0 else -x)


def seeded(net: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return net()

    return make


@pytest.mark.parametrize("name", ["metalabelnet", pytest.param("metalabelnet-plus", marks=pytest.mark.slow)])
def test_residual_network_is_traced(name: str) -> None:
    assert compare_with_eager(name, seeded(TinyResNet)).traced


def small_preact_resnet() -> nn.Module:
    """The blocks of preact-resnet18: one without a projection, one with a projection."""
    return PreActResNet((1, 8, 8), 3, stem=4, widths=(4, 6), depths=(1, 1), final_norm=False)


def small_wide_resnet() -> nn.Module:
    """The same blocks with BatchNorm behind the last one, as in wide-resnet-28-2."""
    return PreActResNet((1, 8, 8), 3, stem=4, widths=(4, 6), depths=(1, 1), final_norm=True)


def small_resnet() -> nn.Module:
    """The blocks of resnet34."""
    return ResNet((1, 8, 8), 3, widths=(4, 6), depths=(1, 1))


def test_preactivation_network_is_traced() -> None:
    assert compare_with_eager("metalabelnet", seeded(small_preact_resnet), schedule=PHASE_2).traced


@pytest.mark.slow
@pytest.mark.parametrize("net", [small_preact_resnet, small_wide_resnet, small_resnet])
@pytest.mark.parametrize("name", ["cross-entropy", "metalabelnet", "metalabelnet-plus"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_residual_networks_of_the_package_are_traced(
    name: str, net: Callable[[], nn.Module], dtype: str, tolerance: float
) -> None:
    assert compare_with_eager(name, seeded(net), tolerance, dtype).traced


@pytest.mark.parametrize(
    ("net", "reason"), [(DropoutNet, "draws random numbers"), (DataDependentNet, "data-dependent|value out")]
)
def test_step_that_cannot_be_traced_runs_eagerly_with_one_warning(net: type[nn.Module], reason: str) -> None:
    reports: list[dict[str, Any]] = []
    with pytest.warns(EngineFallback, match=reason) as caught:
        engine = compare_with_eager("metalabelnet", seeded(net), on_fallback=reports.append)
    assert len(caught) == 1
    assert not engine.traced
    assert reports == [engine.executed()]
    assert reports[0]["execution"] == "eager"
    assert reports[0]["fallbacks"] == [str(caught[0].message)]


def test_bfloat16_is_close_and_keeps_weights_in_float32() -> None:
    run, problem = small_run("metalabelnet", dtype="float32"), small_problem()
    method, low = build_method(run, problem), build_method(run, problem)
    engine = Engine(low, traced=False, bf16=True)
    for m in (method, low):
        m.begin_epoch(0)
    batch = next(make_batches(run, problem, method).epoch(0, labeled_only=True))
    exact, approximate = method.train_step(batch), engine.step(batch)
    assert exact != approximate
    torch.testing.assert_close(approximate, exact, rtol=0.05, atol=0.05)
    assert all(weight.dtype == torch.float32 for weight in low.net.parameters())


def test_executed_reports_execution_kernels_and_device() -> None:
    method = build_method(small_run("cross-entropy"), small_problem())
    for traced, compiled, expected in [(False, True, "eager"), (True, False, "traced"), (True, True, "compiled")]:
        executed = Engine(method, traced=traced, compile=compiled).executed()
        assert (executed["execution"], executed["kernels"], executed["fallbacks"]) == (expected, "none", [])
        assert executed["device"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"traced": True, "bf16": True}, "compute capability 9.0"),
        ({"traced": True, "bf16": False}, "dtype bf16"),
        ({"traced": False, "bf16": True}, "compute capability 9.0"),
    ],
)
def test_hopper_kernels_raise_where_they_cannot_be_used(options: dict[str, bool], reason: str) -> None:
    method = build_method(small_run("cross-entropy", dtype="float32"), small_problem())
    with pytest.raises(InputError, match=reason):
        Engine(method, kernels="hopper", **options)


def test_hopper_kernels_raise_for_eager_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "select_kernels", lambda *_, **__: NoKernels())
    method = build_method(small_run("cross-entropy", dtype="float32"), small_problem())
    with pytest.raises(InputError, match="steps run eagerly; choose --execution compiled"):
        Engine(method, kernels="hopper", traced=False, bf16=True)
