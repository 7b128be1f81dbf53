"""What every test shares: one torch thread (tests run beside each other), and small data."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


def data_folder() -> Path:
    """The folder with files too large, or not free enough, to come along."""
    folder = os.environ.get("METALABELNET_DATA")
    if not folder:
        pytest.skip("needs METALABELNET_DATA, a folder with cifar10.npz and feature_noise_probs_cifar10.npy")
    return Path(folder)


@pytest.fixture
def real_data() -> Path:
    return data_folder()
