"""Private PyTorch APIs, imported in this module only and only when a step is traced.

PyTorch may rename or remove private names in any release. `API` lists all that the engine uses. If one of them is
missing, the engine runs steps eagerly and warns once with the name of what is missing.
"""

from __future__ import annotations

import importlib
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACE = {  # name here: module, attribute (none: the module itself)
    "make_fx": ("torch.fx.experimental.proxy_tensor", "make_fx"),
    "TorchDispatchMode": ("torch.utils._python_dispatch", "TorchDispatchMode"),
    "TracingContext": ("torch._guards", "TracingContext"),
    "tracing": ("torch._guards", "tracing"),
}
COMPILE = {
    "fx_graph_cse": ("torch._functorch.compile_utils", "fx_graph_cse"),
    "FakeTensorMode": ("torch._subclasses.fake_tensor", "FakeTensorMode"),
    "ShapeEnv": ("torch.fx.experimental.symbolic_shapes", "ShapeEnv"),
    "inductor_config": ("torch._inductor.config", None),
    "compile_fx": ("torch._inductor.compile_fx", "compile_fx"),
    "compile_fx_inner": ("torch._inductor.compile_fx", "compile_fx_inner"),
    "CustomGraphPass": ("torch._inductor.custom_graph_pass", "CustomGraphPass"),
    "get_hash_for_files": ("torch._inductor.custom_graph_pass", "get_hash_for_files"),
    "ExternKernel": ("torch._inductor.ir", "ExternKernel"),
    "get_stride_order": ("torch._inductor.ir", "get_stride_order"),
    "register_lowering": ("torch._inductor.lowering", "register_lowering"),
    "V": ("torch._inductor.virtualized", "V"),
}
NVRTC = {
    "nvrtc_compile": ("torch.cuda._utils", "_nvrtc_compile"),
}
MEMORY = {
    "shutdown_compile_workers": ("torch._inductor.async_compile", "shutdown_compile_workers"),
}
API = TRACE | COMPILE | NVRTC | MEMORY


class MissingTorchAPI(RuntimeError):  # noqa: N818
    """Private names that this PyTorch does not have."""


def load(name: str) -> Any:
    """Import one private name of `API`.

    Raises
    ------
    MissingTorchAPI
        If this PyTorch does not have it.
    """
    module, attribute = API[name]
    try:
        loaded = importlib.import_module(module)
        return loaded if attribute is None else getattr(loaded, attribute)
    except Exception as error:
        full_name = module if attribute is None else f"{module}.{attribute}"
        raise MissingTorchAPI(f"PyTorch {torch.__version__} has no {full_name}") from error


def require(*, compiler: bool) -> None:
    """Import all that tracing needs, and compiling if asked; raise `MissingTorchAPI` with all that is missing."""
    missing = []
    for name in (*TRACE, *(COMPILE if compiler else ())):
        try:
            load(name)
        except MissingTorchAPI as error:
            missing.append(str(error).partition(" has no ")[2])
    if missing:
        raise MissingTorchAPI(f"PyTorch {torch.__version__} has no {', '.join(missing)}")


def stop_compile_workers() -> None:
    """End the processes that compile kernels for PyTorch, which start again when something is compiled.

    If this PyTorch does not have the function, or it fails, they stay: they only need memory.
    """
    with suppress(Exception):
        load("shutdown_compile_workers")()


@contextmanager
def preload_compiler(*, on: bool) -> Iterator[None]:
    """Import PyTorch's compiler, which takes seconds, in a thread while the body runs."""
    thread = threading.Thread(target=_import_compiler, daemon=True)
    if on:
        thread.start()
    try:
        yield
    finally:
        if on:
            thread.join()


def _import_compiler() -> None:
    with suppress(MissingTorchAPI):  # the engine reports it when it traces a step
        load("compile_fx")
