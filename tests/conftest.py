"""What every test shares: one torch thread, because tests run beside each other, and no card where there is none."""

import importlib.util
import sys
from types import ModuleType

import pytest
import torch

from browser import chromium

__all__ = ["chromium"]

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Whatever a test before has left: on some processors two threads add up in another order than one."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def torchvision() -> ModuleType:
    """torchvision, also where it was built for another torch: it fails on import for want of its compiled operators."""
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
    _kept.append(operators)
    return importlib.import_module("torchvision")


_kept: list[object] = []  # what a library defines is gone with it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a card, what needs one is skipped and says so."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA card"))
