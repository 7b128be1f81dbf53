"""Shared by all tests: one torch thread, because tests run in parallel, and no GPU tests without a GPU."""

import gc
import importlib.util
import sys
from types import ModuleType

import pytest
import torch

from browser import chromium
from metalabelnet.train import noise_probe_cache

__all__ = ["chromium"]

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Reset the number of threads, which an earlier test may have changed: it affects the order of summation."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_stored_noise_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train each noise probe: those of other tests are not read, and none is stored in the user's folder."""
    monkeypatch.setattr(noise_probe_cache, "MAX_FILE_BYTES", 0)


@pytest.fixture(scope="session")
def torchvision() -> ModuleType:
    """torchvision, also if it was built for another torch and its import fails without the compiled operators."""
    if not (importlib.util.find_spec("torchvision") and importlib.util.find_spec("timm")):
        pytest.skip("timm and torchvision are not installed")
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(operators)
    return importlib.import_module("torchvision")


@pytest.fixture
def working_torchvision(request: pytest.FixtureRequest) -> None:
    """Make torchvision importable, where it is installed, for packages that import it if they can."""
    if importlib.util.find_spec("torchvision"):
        request.getfixturevalue("torchvision")


_libraries: list[object] = []  # operators are removed when their library is deleted


def pytest_collection_finish() -> None:
    """Exclude what is imported and collected from garbage collection, which takes a twentieth of the time with it."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests without a GPU, and run files with browser tests first.

    A process runs whole files in this order. These take longest, and at the end one process would wait for the other.
    """
    browser = {item.path for item in items if item.get_closest_marker("browser")}
    items.sort(key=lambda item: item.path not in browser)  # stable
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
