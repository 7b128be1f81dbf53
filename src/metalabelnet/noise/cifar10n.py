"""CIFAR-10N (Wei et al. 2022): labels that three people gave to each of CIFAR-10's training images."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

# Our names, and those of the published file CIFAR-10_human.pt.
HUMAN = {
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "worst": "worse_label",
}


def read_human_labels(path: Path) -> dict[str, npt.NDArray[np.int64]]:
    """The label sets of the published file, in the order of CIFAR-10's training images.

    The file is a pickle of numpy arrays. Only what such arrays are made of is allowed in it: nothing is executed.
    """
    if not path.is_file():
        raise InputError(f"human labels: there is no file {str(path)!r}; it is CIFAR-10_human.pt of CIFAR-10N")
    reconstruct = np.empty(0).__reduce__()[0]
    allowed: list[Any] = [
        (reconstruct, "numpy.core.multiarray._reconstruct"),
        (reconstruct, "numpy._core.multiarray._reconstruct"),
        np.ndarray,
        np.dtype,
        type(np.dtype(np.int64)),
    ]
    try:
        # Some versions of NumPy warn of the way older ones pickled a dtype; nobody can change this file.
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings(action="ignore"):
            content = torch.load(path, weights_only=True)
    except Exception:  # whatever a damaged or foreign file brings up; torch's own words advise to trust it
        raise InputError(
            f"human labels {path}: this is not CIFAR-10_human.pt of CIFAR-10N, which holds arrays of labels alone"
        ) from None
    labels = {}
    for name, key in HUMAN.items():
        array = content.get(key) if isinstance(content, dict) else None
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(f"human labels {path}: there is no list of labels {key!r} in it")
        labels[name] = array.astype(np.int64)
    return labels
