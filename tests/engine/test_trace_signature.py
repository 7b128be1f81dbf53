"""Runs that record the same are known without recording: what was recorded of one serves the other."""

import pytest
import torch
from torch import Tensor, nn

from metalabelnet.data.batches import Batches
from metalabelnet.engine import engine as engine_module
from metalabelnet.engine.engine import Engine, Recording, _inputs, _static, record, unchanged
from metalabelnet.engine.trace_signature import Form, NoForm
from metalabelnet.methods import METHODS
from metalabelnet.train.build_method import build_method
from small_runs import make_batches, small_problem, small_run

RECORDABLE = [
    (name, phase)
    for name, method in METHODS.items()
    for phase in ((0, 1) if method.traits.has_warmup else (0,))
    if method.traits.traceable
]


@pytest.fixture(autouse=True)
def nothing_recorded_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_recorded", {})


def engine_of(name: str, **changes: object) -> tuple[Engine, Batches]:
    """An engine about to take its first step."""
    run, problem = small_run(name, **{"net": "mlp"} | changes), small_problem()
    method = build_method(run, problem)
    made = make_batches(run, problem, method)
    method.begin_epoch(0)
    return Engine(method, made.make_batch, recorded=True, compiled=False), made


def recorded(name: str, *, fresh: bool, **changes: object) -> tuple[Recording, list[Tensor]]:
    """What it records of that step, and the tensors the step may read."""
    engine, made = engine_of(name, **changes)
    picks = next(iter(made.plan_epoch(0, labeled_only=engine.method.labeled_only(0))))
    static = [_static(tensor) for tensor in _inputs(picks)]
    with unchanged(engine.method):
        recording = record(engine._plain, picks, static) if fresh else engine._recording(engine._plain, picks, static)
    return recording, Form(engine.method, made.make_batch).tensors


@pytest.mark.parametrize(("name", "phase"), RECORDABLE)
def test_another_seed_is_of_the_same_form(name: str, phase: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its own recording would say the same of the same tensors."""
    warmup = {"warmup": 0} if phase else {}
    recorded(name, fresh=False, seed=0, **warmup)
    monkeypatch.setattr(engine_module, "record", lambda *_: pytest.fail("recorded again"))
    shared, tensors = recorded(name, fresh=False, seed=1, **warmup)
    own, own_tensors = recorded(name, fresh=True, seed=1, **warmup)
    assert shared.graph.code == own.graph.code
    places = [{id(tensor): k for k, tensor in enumerate(all_of_one)} for all_of_one in (tensors, own_tensors)]
    assert [places[0][id(t)] for t in shared.tensors] == [places[1][id(t)] for t in own.tensors]


def test_what_plans_are_drawn_from_is_no_part_of_the_form() -> None:
    """A run that was resumed after its warm-up has never asked which rows are labeled."""
    _, made = engine_of("metalabelnet")
    before = Form(made.make_batch).form
    assert made.steps(labeled_only=True) == 4
    assert "_labeled" in vars(made)
    assert Form(made.make_batch).form == before


@pytest.mark.parametrize(
    "change", [{"net": "small-cnn"}, {"batch_size": 8}, {"settings": {"inner_step": 0.5}}, {"augment": "none"}]
)
def test_what_a_step_reads_makes_another_form(change: dict[str, object]) -> None:
    usual = {"warmup": 0, "augment": "flip-crop"}
    forms = []
    for changes in (usual, usual, usual | change):
        engine, made = engine_of("metalabelnet", **changes)
        forms.append(Form(engine.method, engine.make_batch, next(iter(made.plan_epoch(0, labeled_only=False)))).form)
    assert forms[0] == forms[1]
    assert forms[0] != forms[2]


def test_the_same_tensor_twice_is_not_two_tensors() -> None:
    a, b = torch.zeros(2), torch.zeros(2)
    assert Form([a, a]).form != Form([a, b]).form
    assert Form([a, a]).form == Form([b, b]).form


def test_a_function_is_its_code_and_what_it_closes_over() -> None:
    def times(factor: float) -> object:
        return lambda x: factor * x

    assert Form(times(2.0)).form == Form(times(2.0)).form
    assert Form(times(2.0)).form != Form(times(3.0)).form


def test_hooks_count_and_their_numbers_do_not() -> None:
    def hooked(count: int) -> nn.Module:
        net = nn.Linear(2, 2)
        for _ in range(count):
            net.register_forward_hook(print)
        return net

    assert Form(hooked(1)).form == Form(hooked(1)).form
    assert Form(hooked(1)).form != Form(hooked(2)).form


def test_what_is_of_no_known_kind_has_no_form() -> None:
    with pytest.raises(NoForm, match="Generator"):
        Form(torch.Generator())
