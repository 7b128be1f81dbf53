"""Runs with the same signature share a trace, and the signature covers all that a trace depends on."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metalabelnet.data.batches import Batches
from metalabelnet.engine import engine as engine_module
from metalabelnet.engine import tracing
from metalabelnet.engine.engine import Engine, _allocate_static, input_tensors, preserve_state
from metalabelnet.engine.trace_signature import NoSignature, TraceSignature
from metalabelnet.engine.tracing import TracedStep, trace_step
from metalabelnet.methods import METHODS
from metalabelnet.train.build_method import build_method
from small_runs import make_batches, small_problem, small_run

# One method for each way to build a step, as in test_engine.py; the others are slow.
FAST = ("cross-entropy", "metalabelnet", "co-teaching", "sop")
TRACEABLE = [
    pytest.param(name, phase, marks=() if name in FAST else pytest.mark.slow)
    for name, method in METHODS.items()
    for phase in ((0, 1) if method.traits.has_warmup else (0,))
    if method.traits.traceable
]


@pytest.fixture(autouse=True)
def no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_traces", {})


def make_engine(name: str, **changes: object) -> tuple[Engine, Batches]:
    """An engine before its first step, and its batches."""
    run, problem = small_run(name, **{"net": "mlp"} | changes), small_problem()
    method = build_method(run, problem)
    batches = make_batches(run, problem, method)
    method.begin_epoch(0)
    return Engine(method, batches.make_batch, traced=True, compile=False), batches


def trace(name: str, *, share: bool, **changes: Any) -> tuple[TracedStep, list[Tensor]]:
    """The trace of the first step, shared with other runs or not, and the tensors of the signature."""
    engine, batches = make_engine(name, **changes)
    plan = next(iter(batches.plan_epoch(0, labeled_only=engine.method.labeled_only(0))))
    static = [_allocate_static(tensor) for tensor in input_tensors(plan)]
    with preserve_state(engine.method):
        if share:
            traced = engine._trace(engine._eager_step, plan, static)
        else:
            traced = trace_step(engine._eager_step, plan, static, engine.kernels)
    return traced, TraceSignature(engine.method, batches.make_batch).tensors


@pytest.mark.parametrize(("name", "phase"), TRACEABLE)
def test_runs_with_other_seeds_share_a_trace(name: str, phase: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of their own would have the same code and the same tensors."""
    warmup = {"warmup": 0} if phase else {}
    trace(name, share=True, seed=0, **warmup)
    with monkeypatch.context() as patch:
        patch.setattr(tracing, "trace_step", lambda *_: pytest.fail("traced again"))
        shared, shared_tensors = trace(name, share=True, seed=1, **warmup)
    own, own_tensors = trace(name, share=False, seed=1, **warmup)
    assert shared.graph.code == own.graph.code
    indices = [{id(tensor): k for k, tensor in enumerate(tensors)} for tensors in (shared_tensors, own_tensors)]
    assert [indices[0][id(t)] for t in shared.tensors] == [indices[1][id(t)] for t in own.tensors]


def test_cached_labeled_rows_are_not_in_the_signature() -> None:
    """A run that is resumed after its warm-up has not computed which rows are labeled."""
    _, batches = make_engine("metalabelnet")
    before = TraceSignature(batches.make_batch).key
    assert batches.steps(labeled_only=True) == 4
    assert "_labeled" in vars(batches)
    assert TraceSignature(batches.make_batch).key == before


@pytest.mark.parametrize(
    "change", [{"net": "small-cnn"}, {"batch_size": 8}, {"settings": {"inner_step": 0.5}}, {"augment": "none"}]
)
def test_settings_that_a_step_reads_change_the_signature(change: dict[str, object]) -> None:
    default = {"warmup": 0, "augment": "flip-crop"}
    keys = []
    for changes in (default, default, default | change):
        engine, batches = make_engine("metalabelnet", **changes)
        plan = next(iter(batches.plan_epoch(0, labeled_only=False)))
        keys.append(TraceSignature(engine.method, engine.make_batch, plan).key)
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]


def test_shared_tensor_differs_from_two_tensors() -> None:
    a, b = torch.zeros(2), torch.zeros(2)
    assert TraceSignature([a, a]).key != TraceSignature([a, b]).key
    assert TraceSignature([a, a]).key == TraceSignature([b, b]).key


def test_function_is_described_by_code_and_closure() -> None:
    def times(factor: float) -> object:
        return lambda x: factor * x

    assert TraceSignature(times(2.0)).key == TraceSignature(times(2.0)).key
    assert TraceSignature(times(2.0)).key != TraceSignature(times(3.0)).key


def test_hooks_are_in_the_signature_without_their_ids() -> None:
    def net_with_hooks(count: int) -> nn.Module:
        net = nn.Linear(2, 2)
        for _ in range(count):
            net.register_forward_hook(print)
        return net

    assert TraceSignature(net_with_hooks(1)).key == TraceSignature(net_with_hooks(1)).key
    assert TraceSignature(net_with_hooks(1)).key != TraceSignature(net_with_hooks(2)).key


def test_unknown_object_has_no_signature() -> None:
    with pytest.raises(NoSignature, match="Generator"):
        TraceSignature(torch.Generator())
