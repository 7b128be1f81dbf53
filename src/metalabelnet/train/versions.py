"""The versions, device and commit that results depend on."""

from __future__ import annotations

import functools
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import torch

import metalabelnet
from metalabelnet.engine.cuda import device_name


def versions(device: torch.device | None = None) -> dict[str, str]:
    """Return the versions and the name of the device that results depend on; by default a GPU if there is one."""
    if device is None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return {
        "metalabelnet": metalabelnet.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": device_name(device),
    }


@functools.cache
def commit() -> str | None:
    """Return the commit of the git checkout that this package runs from, with `-dirty` for local changes; else None.

    Computed once per process, because imported code does not change.
    """
    package = Path(__file__).parent
    git = shutil.which("git")
    if git is None or not any((folder / ".git").exists() for folder in package.parents):
        return None
    try:
        command = [git, "-C", str(package), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
