"""How a method's steps and predictions are run: as they are written, or recorded once and replayed.

The eager path is `method.step`, and it is the truth. The recorded path is the same code run in another way:

    record   the step runs once while every tensor operation it causes is written down — the samples picked and
             augmented, forward passes, the backward passes of autograd, the tangents of forward mode, both optimizers
    compile  the list is cleaned of what was computed twice (the pass that carries tangents repeats parts of the one
             of step 1) and made into fused kernels; runs that record the same share them (`forms`)
    replay   the kernels are captured as one CUDA graph, so that a step costs the host a single launch

What a recording cannot hold sends the run back to the eager path, with the reason: numbers read on the host, control
flow that depends on data, random numbers drawn within the step (dropout).
"""

from __future__ import annotations

import dataclasses
import gc
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from metalabelnet.core.forward_pass import low_precision, precision
from metalabelnet.data.batches import Batch, Picks
from metalabelnet.data.disk_tensor import chunk_size
from metalabelnet.engine import hopper
from metalabelnet.engine.compiler import compiled
from metalabelnet.engine.rewrites.batch_counters import count_together
from metalabelnet.engine.rewrites.operators import Operators
from metalabelnet.engine.trace_signature import Form, NoForm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from metalabelnet.methods import Method


@dataclasses.dataclass(frozen=True)
class Part:
    """Samples to predict."""

    x: Tensor


Given = Batch | Picks | Part


class EngineFallback(UserWarning):
    """A method's step could not be recorded, and runs as it is written."""


class CannotRecord(Exception):  # noqa: N818
    """The step does something a recording does not hold."""


class Engine:
    """Runs the steps of one method, and predicts by it.

    batch_of   makes the batch of what a step is given; a part of the step, and recorded with it
    recorded   whether to record: one recording for each phase of the method and shape of batch
    compiled   whether to compile what was recorded (tests on a CPU replay it as it is)
    bf16       whether convolutions and linear layers compute in bfloat16; weights stay as they are
    company    how many runs are on the card at the same time, this one among them
    """

    def __init__(
        self,
        method: Method,
        batch_of: Callable[[Any], Batch] = lambda batch: batch,
        *,
        recorded: bool,
        compiled: bool = True,
        bf16: bool = False,
        concurrent_runs: int = 1,
    ) -> None:
        self.method, self.batch_of = method, batch_of
        self.recorded, self.compiled, self.bf16, self.concurrent_runs = recorded, compiled, bf16, concurrent_runs
        self._replays: dict[Any, Callable[[Given], Tensor]] = {}

    def step(self, given: Given) -> Tensor:
        """One step of the method. Gives its loss, on the device, to be read before the next step."""
        if not self.recorded:
            return self._plain(given)
        key = (self.method.phase(), *(tensor.shape for tensor in _inputs(given)))
        if key not in self._replays:
            try:
                self._replays[key] = self._record(self._plain, given)
            except Exception as error:  # whatever it was, the eager path will do it, or say it properly
                self.recorded = False
                reason = " ".join(str(error).split())[:200]
                warnings.warn(
                    f"the step cannot be recorded ({reason}): running it as it is", EngineFallback, stacklevel=2
                )
                return self._plain(given)
        return self._replays[key](given)

    def logits(self, x: Tensor) -> Tensor:
        """The classifier's logits for samples as they are stored, in the precision of the steps.

        In bfloat16 whole chunks are recorded. The last one is not filled up: a network may normalise by what is in it.
        In single precision the library tries more kernels for a chunk than their choice gains.
        """
        part, whole = Part(x), len(x) == chunk_size(tuple(x.shape[1:]))
        if not (self.recorded and self.bf16 and whole):
            with untried():
                return self._predict(part)
        key = ("logits", self.method.phase(), x.shape)
        if key not in self._replays:
            try:
                self._replays[key] = self._record(self._predict, part)
            except Exception:  # whatever it was, it costs time alone
                self._replays[key] = self._predict
        return self._replays[key](part).clone()

    def _plain(self, given: Given) -> Tensor:
        with low_precision(on=self.bf16):
            return self.method.step(self.batch_of(given))

    def _predict(self, given: Given) -> Tensor:
        assert isinstance(given, Part)
        with low_precision(on=self.bf16), precision():
            return self.method.logits(given.x)

    def _record(self, as_written: Callable[[Given], Tensor], given: Given) -> Callable[[Given], Tensor]:
        static = [_static(tensor) for tensor in _inputs(given)]
        with unchanged(self.method):
            recording = self._recording(as_written, given, static)
            examples = [*recording.tensors, *static]
            step = compiled(recording.graph, examples) if self.compiled else recording.graph

            def run() -> Tensor:
                with torch.no_grad():
                    return step(*recording.tensors, *static)

            cuda = static[0].is_cuda
            if cuda:
                torch.cuda.synchronize()  # kernels are chosen by their speed here: nothing else should run
            with all_kernels():
                loss = run()
            if cuda:
                loss, run = capture(run)

        def replay(given: Given) -> Tensor:
            for place, tensor in zip(static, _inputs(given), strict=True):
                place.copy_(tensor)
            result = run()
            return loss if cuda else result

        return replay

    def _recording(self, as_written: Callable[[Given], Tensor], given: Given, static: Sequence[Tensor]) -> Recording:
        """That of a run of the same form, on this one's tensors, or one of its own."""
        form: Form | None = None
        with suppress(NoForm):
            form = Form(self.method, self.batch_of, self.bf16, self.concurrent_runs, type(given), list(static))
        if form is not None and form.form in _recorded:
            graph, places = _recorded[form.form]
            return Recording(graph, [form.tensors[place] for place in places])
        recording = record(as_written, given, static)
        hopper.in_company(recording.graph, self.concurrent_runs)
        if form is not None:
            numbers = {id(tensor): number for number, tensor in enumerate(form.tensors)}
            if all(id(tensor) in numbers for tensor in recording.tensors):
                _recorded[form.form] = recording.graph, [numbers[id(tensor)] for tensor in recording.tensors]
        return recording


_recorded: dict[Any, tuple[fx.GraphModule, list[int]]] = {}


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Let single-precision products on CUDA run as TF32, and cuDNN choose its kernels by trying, for a while."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = cudnn.benchmark = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


@contextmanager
def all_kernels() -> Iterator[None]:
    """Let cuDNN try every kernel it has for a convolution, not the ten it thinks best of."""
    cudnn = torch.backends.cudnn
    before, cudnn.benchmark_limit = cudnn.benchmark_limit, 0
    try:
        yield
    finally:
        cudnn.benchmark_limit = before


@contextmanager
def untried() -> Iterator[None]:
    """Let cuDNN take the kernels it thinks best: a few passes are done before all would have been tried."""
    cudnn = torch.backends.cudnn
    before, cudnn.benchmark = cudnn.benchmark, False
    try:
        yield
    finally:
        cudnn.benchmark = before


@contextmanager
def unchanged(method: Method) -> Iterator[None]:
    """Give every tensor of the method's state its value back at the end: recording runs the step for real."""
    tensors = list(_tensors(method.state()))
    before = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)


def _inputs(given: Given) -> list[Tensor]:
    """The tensors a step is given."""
    return [value for value in vars(given).values() if isinstance(value, Tensor)]


def _static(tensor: Tensor) -> Tensor:
    """A place of its own for an input of the recording."""
    images = tensor.is_cuda and tensor.ndim == 4
    return tensor.clone(memory_format=torch.channels_last if images else torch.preserve_format)


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _tensors(value)


@dataclasses.dataclass(frozen=True)
class Recording:
    """Every tensor operation of a step, as a graph over the method's own tensors and what the step is given."""

    graph: fx.GraphModule
    tensors: list[Tensor]


def record(step: Callable[[Given], Tensor], given: Given, inputs: Sequence[Tensor]) -> Recording:
    """Run a step and write down what it does."""
    names = [name for name, value in vars(given).items() if isinstance(value, Tensor)]

    def on_tensors(*tensors: Tensor) -> Tensor:
        changed: dict[str, Any] = dict(zip(names, tensors, strict=True))
        return step(dataclasses.replace(given, **changed))

    gc.freeze()  # what was there before need not be looked through
    try:
        module = _traced(on_tensors, inputs)
        gc.collect()  # what tracing leaves in circles holds every activation of the step, and the whole run
    finally:
        gc.unfreeze()
    module.graph.eliminate_dead_code()
    for node in module.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            raise CannotRecord(f"it draws random numbers ({node.target})")
    return _lifted(module)


def _traced(step: Callable[..., Tensor], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """The step on these inputs as a graph, in our own operators."""
    table = Operators(tensor_cores=inputs[0].is_cuda).table
    # Every node notes the form of its result as a fake tensor. Without one mode for all, each makes its own.
    with tracing(TracingContext(FakeTensorMode())):
        return make_fx(step, decomposition_table=table, tracing_mode="real")(*inputs)


def _lifted(module: fx.GraphModule) -> Recording:
    """Make the tensors a graph has come to hold its first arguments: nothing of one run stays in it."""
    found: dict[int, tuple[fx.Node, Tensor]] = {}
    first = next(iter(module.graph.nodes))
    for node in list(module.graph.nodes):
        if node.op == "get_attr":
            tensor = getattr(module, node.target)
            if id(tensor) not in found:
                with module.graph.inserting_before(first):
                    found[id(tensor)] = module.graph.placeholder(f"own_{len(found)}"), tensor
            node.replace_all_uses_with(found[id(tensor)][0])
            module.graph.erase_node(node)
    count_together(module.graph)
    hopper.without_idle_totals(module.graph)
    return Recording(fx.GraphModule(torch.nn.Module(), module.graph), [tensor for _, tensor in found.values()])


def capture(run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], Any]]:
    """One CUDA graph of all kernels of a run: where the loss will be, and how to replay."""
    # A stream of its own: what libraries use as workspace belongs to the stream of the capture, and two graphs replayed
    # at the same time must not share it.
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):  # libraries allocate their workspaces on first use, which a capture does not allow
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=beside):
        loss = run()
    return loss, graph.replay


def drained(device: torch.device) -> Iterator[None]:
    """Wait until the card has done what it was given, in turns, so that others can go on giving it work."""
    if device.type == "cuda":
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        while not done.query():  # type: ignore[no-untyped-call]
            yield
