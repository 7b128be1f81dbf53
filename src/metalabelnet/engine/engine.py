"""Execution of a method's steps and predictions: eagerly, or traced once and replayed.

The eager path calls `method.train_step` and is the reference. The traced path runs the same code in another way:

    trace    The step runs once while every tensor operation it causes is listed: the selection and augmentation of
             samples, forward passes, autograd's backward passes, forward-mode tangents, both optimizers.
    compile  Common subexpressions are merged (the pass with tangents repeats parts of step 1) and the graph is compiled
             to fused kernels. Runs with the same trace signature share them.
    replay   The kernels are captured as one CUDA graph, so that a step costs the host a single launch.

A step that cannot be traced runs eagerly, with a warning that gives the reason. Such steps read values on the host,
have control flow that depends on data, or draw random numbers (dropout). docs/how-it-works/engine.md follows one block
of a network through these stages.
"""

from __future__ import annotations

import dataclasses
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metalabelnet.core.forward_pass import mixed_precision, mixed_precision_context
from metalabelnet.core.ranks import current_world
from metalabelnet.data.batches import Batch, BatchPlan
from metalabelnet.data.disk_tensor import chunk_size
from metalabelnet.engine import torch_private
from metalabelnet.engine.cuda import (
    capture_cuda_graph,
    device_name,
    exhaustive_cudnn_benchmark,
    without_cudnn_benchmark,
)
from metalabelnet.engine.kernel_selection import select_kernels
from metalabelnet.engine.step_inputs import input_tensors
from metalabelnet.engine.trace_signature import NoSignature, TraceSignature
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import fx

    from metalabelnet.engine.tracing import TracedStep
    from metalabelnet.methods import Method

MAX_REASON_CHARACTERS = 200


@dataclasses.dataclass(frozen=True)
class PredictionInput:
    """Samples to predict."""

    x: Tensor


StepInput = Batch | BatchPlan | PredictionInput


class EngineFallback(UserWarning):
    """A step runs in a slower way than requested; the message is the reason."""


class Engine:
    """Run the steps and predictions of one method.

    Parameters
    ----------
    method : Method
        The method whose `step` and `logits` are executed.
    make_batch : callable
        Makes the batch from the inputs of a step. It is a part of the step and traced with it.
    traced : bool
        Trace steps and replay them, with one trace for each phase of the method and shape of batch.
    compile : bool
        Compile traced steps. Tests on a CPU replay the graph without compiling it.
    bf16 : bool
        Compute convolutions and linear layers in bfloat16. Weights keep their type.
    kernels : {"auto", "cudnn", "hopper"}
        Which convolution kernels traced steps use; see `select_kernels`.
    concurrent_runs : int
        How many runs share the device, this one included.
    on_fallback : callable, optional
        Called with `executed()` after each fallback.

    Raises
    ------
    InputError
        If `kernels` is "hopper" and these kernels cannot be used.
    """

    def __init__(
        self,
        method: Method,
        make_batch: Callable[[Any], Batch] = lambda batch: batch,
        *,
        traced: bool,
        compile: bool = True,  # noqa: A002 (the verb for it)
        bf16: bool = False,
        kernels: str = "auto",
        concurrent_runs: int = 1,
        on_fallback: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.method, self.make_batch = method, make_batch
        self.traced, self.compile, self.bf16, self.concurrent_runs = traced, compile, bf16, concurrent_runs
        self.device = next(state_tensors(method.state_dict())).device
        self.fallbacks: list[str] = []
        self.world = current_world()
        if traced and self.world is not None:  # collectives are not traced
            self.traced = traced = False
            self.fallbacks.append(f"{self.world.size} ranks: steps run eagerly")
            warnings.warn(self.fallbacks[0], EngineFallback, stacklevel=2)
        self.kernels = select_kernels(kernels if traced or kernels == "hopper" else "cudnn", self.device, bf16=bf16)
        if kernels == "hopper" and not traced:
            raise InputError("--kernels hopper cannot be used: steps run eagerly; choose --execution compiled")
        self._on_fallback = on_fallback
        self._uses_custom_kernels = False
        self._compiled = False  # since the last call of `stop_compile_workers`
        self._replays: dict[Any, Callable[[StepInput], Tensor]] = {}

    def step(self, inputs: StepInput) -> Tensor:
        """Run one step and return its loss, on the device; the next step overwrites it."""
        if not self.traced:
            return self._eager_step(inputs)
        key = (self.method.phase(), *(tensor.shape for tensor in input_tensors(inputs)))
        if key not in self._replays:
            try:
                self._replays[key] = self._make_replay(self._eager_step, inputs)
            except InputError:
                raise
            except Exception as error:
                self.traced = False
                self._fall_back(f"the step cannot be traced ({_shorten(error)}): running it eagerly")
                return self._eager_step(inputs)
        return self._replays[key](inputs)

    def logits(self, x: Tensor) -> Tensor:
        """Return the classifier's logits for samples as they are stored, in the precision of the steps.

        In bfloat16, full chunks are traced. A smaller last chunk runs eagerly: it cannot be padded, because a network
        may normalize by the statistics of its batch. In float32, choosing kernels for a chunk takes longer than it
        saves.
        """
        inputs, is_full = PredictionInput(x), len(x) == chunk_size(tuple(x.shape[1:]))
        if not (self.traced and self.bf16 and is_full):
            with without_cudnn_benchmark():
                return self._predict(inputs)
        key = ("logits", self.method.phase(), x.shape)
        if key not in self._replays:
            try:
                self._replays[key] = self._make_replay(self._predict, inputs)
            except InputError:
                raise
            except Exception as error:
                self._replays[key] = self._predict
                self._fall_back(f"predictions cannot be traced ({_shorten(error)}): running them eagerly")
        return self._replays[key](inputs).clone()

    def stop_compile_workers(self) -> None:
        """End PyTorch's compile processes if something was compiled: idle, they keep 1.5 GiB on 16 cores."""
        if self._compiled:
            self._compiled = False
            torch_private.stop_compile_workers()

    def executed(self) -> dict[str, Any]:
        """Return how steps were executed, for `run.json`.

        Returns
        -------
        dict
            execution: "compiled", "traced" (replayed without compiling) or "eager"; kernels: what computes
            convolutions, "hopper", "cudnn", or "none" on a CPU; fallbacks: the reason of each; device: its name;
            ranks: how many, if there are several.
        """
        custom = self.traced and self._uses_custom_kernels
        library = "cudnn" if self.device.type == "cuda" else "none"
        return {
            "execution": ("compiled" if self.compile else "traced") if self.traced else "eager",
            "kernels": self.kernels.name if custom else library,
            "fallbacks": list(self.fallbacks),
            "device": device_name(self.device),
            **({} if self.world is None else {"ranks": self.world.size}),
        }

    def _fall_back(self, reason: str) -> None:
        """Warn of a fallback, once for each reason."""
        if reason in self.fallbacks:
            return
        self.fallbacks.append(reason)
        warnings.warn(reason, EngineFallback, stacklevel=3)
        if self._on_fallback is not None:
            self._on_fallback(self.executed())

    def _eager_step(self, inputs: StepInput) -> Tensor:
        with mixed_precision(enabled=self.bf16):
            return self.method.train_step(self.make_batch(inputs))

    def _predict(self, inputs: StepInput) -> Tensor:
        assert isinstance(inputs, PredictionInput)
        with mixed_precision(enabled=self.bf16), mixed_precision_context():
            return self.method.logits(inputs.x)

    def _make_replay(self, eager: Callable[[StepInput], Tensor], inputs: StepInput) -> Callable[[StepInput], Tensor]:
        """Trace a function of the inputs, compile it, and return a function that replays it."""
        torch_private.require(compiler=self.compile)
        self._compiled |= self.compile
        from metalabelnet.engine.compiler import get_compiled

        static_inputs = [_allocate_static(tensor) for tensor in input_tensors(inputs)]
        with preserve_state(self.method):
            traced = self._trace(eager, inputs, static_inputs)
            arguments = [*traced.tensors, *static_inputs]
            step = get_compiled(traced.graph, arguments) if self.compile else traced.graph

            def run() -> Tensor:
                with torch.no_grad():
                    return step(*arguments)

            cuda = static_inputs[0].is_cuda
            if cuda:
                torch.cuda.synchronize()  # cuDNN benchmark mode times algorithms here: nothing else should run
            with exhaustive_cudnn_benchmark():
                result = run()
            if cuda:
                result, run = capture_cuda_graph(run)

        def replay(inputs: StepInput) -> Tensor:
            for static, tensor in zip(static_inputs, input_tensors(inputs), strict=True):
                static.copy_(tensor)
            output = run()
            return result if cuda else output

        return replay

    def _trace(
        self, eager: Callable[[StepInput], Tensor], inputs: StepInput, static_inputs: Sequence[Tensor]
    ) -> TracedStep:
        """Return the trace of an earlier run with the same signature, on this run's tensors, or a new trace."""
        from metalabelnet.engine.tracing import TracedStep, trace_step

        signature: TraceSignature | None = None
        with suppress(NoSignature):
            settings = self.bf16, self.kernels.name, self.concurrent_runs
            signature = TraceSignature(self.method, self.make_batch, *settings, type(inputs), list(static_inputs))
        if signature is not None and signature.key in _traces:
            graph, indices, failures = _traces[signature.key]
            traced = TracedStep(graph, [signature.tensors[index] for index in indices])
        else:
            traced = trace_step(eager, inputs, static_inputs, self.kernels, self.concurrent_runs)
            failures = list(self.kernels.failures)
            if signature is not None:
                index_of = {id(tensor): index for index, tensor in enumerate(signature.tensors)}
                if all(id(tensor) in index_of for tensor in traced.tensors):
                    indices = [index_of[id(tensor)] for tensor in traced.tensors]
                    _traces[signature.key] = traced.graph, indices, failures
        self._uses_custom_kernels |= self.kernels.used_in(traced.graph)
        for failure in failures:
            self._fall_back(f"{failure}: convolutions use cuDNN")
        return traced


_traces: dict[Any, tuple[fx.GraphModule, list[int], list[str]]] = {}  # by signature: graph, its tensors, failures


@contextmanager
def preserve_state(method: Method) -> Iterator[None]:
    """Restore every tensor of the method's state at the end: tracing runs the step for real."""
    tensors = list(state_tensors(method.state_dict()))
    before = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)


def state_tensors(state: Any) -> Iterator[Tensor]:
    """Yield all tensors of a nested state."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from state_tensors(value)


def _allocate_static(tensor: Tensor) -> Tensor:
    """Return memory for an input of a replayed step; a CUDA graph reads its inputs from fixed addresses."""
    is_cuda_image = tensor.is_cuda and tensor.ndim == 4
    return tensor.clone(memory_format=torch.channels_last if is_cuda_image else torch.preserve_format)


def _shorten(error: Exception) -> str:
    """Return an error's message on one line."""
    return " ".join(str(error).split())[:MAX_REASON_CHARACTERS]
