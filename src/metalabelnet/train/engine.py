"""How a method's steps are run: as they are written, or recorded once and replayed.

The eager path is `method.step`, and it is the truth. The recorded path is the same code run in another way:

    record   `method.step` runs once while every tensor operation it causes is written down — forward passes, the
             backward passes of autograd, the tangents of forward mode, both optimizers
    compile  the list is cleaned of what was computed twice (the pass that carries tangents repeats the one of
             step 1) and made into fused kernels
    replay   the kernels are captured as one CUDA graph, so that a step costs the host a single launch

What a recording cannot hold sends the run back to the eager path, with the reason: numbers read on the host, control
flow that depends on data, random numbers drawn within the step (dropout).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from metalabelnet.core.passes import low_precision
from metalabelnet.data.batches import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metalabelnet.methods import Method

INPUTS = ("x", "given", "index", "clean_x", "clean_y")
Step = Callable[..., Tensor]


class EngineFallback(UserWarning):
    """A method's step could not be recorded, and runs as it is written."""


class CannotRecord(Exception):  # noqa: N818
    """The step does something a recording does not hold."""


class Engine:
    """Runs the steps of one method.

    recorded   whether to record: one recording for each phase of the method and shape of batch
    compiled   whether to compile what was recorded (tests on a CPU replay it as it is)
    bf16       whether convolutions and linear layers compute in bfloat16; weights stay as they are
    """

    def __init__(self, method: Method, *, recorded: bool, compiled: bool = True, bf16: bool = False) -> None:
        self.method, self.recorded, self.compiled, self.bf16 = method, recorded, compiled, bf16
        self._replays: dict[Any, Callable[[Batch], Tensor]] = {}

    def step(self, batch: Batch) -> Tensor:
        """One step of the method; gives its loss, on the device."""
        if not self.recorded:
            return self._plain(batch)
        key = (self.method.phase(), tuple(getattr(batch, name).shape for name in INPUTS))
        if key not in self._replays:
            try:
                self._replays[key] = self._record(batch)
            except Exception as error:  # whatever it was, the eager path will do it, or say it properly
                self.recorded = False
                reason = " ".join(str(error).split())[:200]
                warnings.warn(
                    f"the step cannot be recorded ({reason}): running it as it is", EngineFallback, stacklevel=2
                )
                return self._plain(batch)
        return self._replays[key](batch)

    def _plain(self, batch: Batch) -> Tensor:
        with low_precision(on=self.bf16):
            return self.method.step(batch)

    def _record(self, batch: Batch) -> Callable[[Batch], Tensor]:
        static = Batch(**{name: _static(getattr(batch, name)) for name in INPUTS}, seed=batch.seed)
        with unchanged(self.method):
            recording = record(self._plain, static)

            def run() -> Tensor:
                with torch.no_grad():
                    return step(*(getattr(static, name) for name in INPUTS))

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what the compiler thinks of its own parts
                step: Step = compile_recording(recording) if self.compiled else recording
                loss = run()
            if batch.x.is_cuda:
                loss, run = capture(run)

        def replay(batch: Batch) -> Tensor:
            for name in INPUTS:
                getattr(static, name).copy_(getattr(batch, name))
            result = run()
            return loss.clone() if batch.x.is_cuda else result

        return replay


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


def record(step: Callable[[Batch], Tensor], batch: Batch) -> fx.GraphModule:
    """Every tensor operation of a step, as a graph over the batch's tensors and the method's own."""

    def on_tensors(*tensors: Tensor) -> Tensor:
        return step(Batch(**dict(zip(INPUTS, tensors, strict=True)), seed=batch.seed))

    graph = make_fx(on_tensors, tracing_mode="real")(*(getattr(batch, name) for name in INPUTS))
    graph.graph.eliminate_dead_code()
    graph.recompile()
    for node in graph.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            raise CannotRecord(f"it draws random numbers ({node.target})")
    return graph


def compile_recording(graph: fx.GraphModule) -> Step:
    """The recording as fused kernels."""
    from torch._functorch.compile_utils import fx_graph_cse
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def without_repeats(inner: fx.GraphModule, examples: Any, **options: Any) -> Any:
        # By now nothing in the graph works in place, so that equal expressions are equal values.
        merged = fx.GraphModule(inner, fx_graph_cse(inner.graph))
        merged.meta.update(inner.meta)
        return compile_fx_inner(merged, examples, **options)

    def backend(inner: fx.GraphModule, examples: Any) -> Any:
        return compile_fx(inner, examples, inner_compile=without_repeats)

    return torch.compile(graph, fullgraph=True, dynamic=False, backend=backend)


def capture(run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], Any]]:
    """One CUDA graph of all kernels of a run: where the loss will be, and how to replay."""
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):  # libraries allocate their workspaces on first use, which a capture does not allow
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = run()
    return loss, graph.replay
