"""What every test shares: one torch thread, because tests run beside each other, and no card where there is none."""

import importlib.util

import pytest
import torch

torch.set_num_threads(1)

if importlib.util.find_spec("torchvision"):
    # A torchvision built for another torch lacks its compiled operators, and then fails on import for want of this one.
    _nms = torch.library.Library("torchvision", "FRAGMENT")
    if not hasattr(torch.ops.torchvision, "nms"):
        _nms.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a card, what needs one is skipped and says so."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA card"))
