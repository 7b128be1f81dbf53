"""CIFAR-10N: human labels of CIFAR-10's training images, by three annotators each.

References
----------
.. [1] J. Wei et al., "Learning with Noisy Labels Revisited: A Study Using Real-World Human Annotations", ICLR 2022,
   https://arxiv.org/abs/2110.12088
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.errors import InputError
from metalabelnet.input_files.regular_files import check_regular_file

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

# Names in this package, and keys in the published file CIFAR-10_human.pt.
LABEL_SETS = {
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "worst": "worse_label",
}


def read_human_labels(path: Path) -> dict[str, npt.NDArray[np.int64]]:
    """Return the label sets of the published file, in the order of CIFAR-10's training images.

    The file is a pickle of numpy arrays. Only the types that such arrays consist of are allowed; nothing is executed.
    """
    try:
        check_regular_file(path)
    except FileNotFoundError:
        raise InputError(f"human labels: there is no file {str(path)!r}; give CIFAR-10_human.pt of CIFAR-10N") from None
    reconstruct = np.empty(0).__reduce__()[0]
    allowed: list[Any] = [
        (reconstruct, "numpy.core.multiarray._reconstruct"),
        (reconstruct, "numpy._core.multiarray._reconstruct"),
        np.ndarray,
        np.dtype,
        type(np.dtype(np.int64)),
    ]
    try:
        # Some versions of NumPy warn about the way older ones pickled a dtype; the published file is what it is.
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings(action="ignore"):
            content = torch.load(path, weights_only=True)
    except Exception:  # a damaged or foreign file may raise anything; torch's message advises to execute it
        raise InputError(
            f"human labels {path}: this is not CIFAR-10_human.pt of CIFAR-10N, which contains only arrays of labels"
        ) from None
    labels = {}
    for name, key in LABEL_SETS.items():
        array = content.get(key) if isinstance(content, dict) else None
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(
                f"human labels {path}: it has no list of labels {key!r}; give CIFAR-10_human.pt of CIFAR-10N"
            )
        labels[name] = array.astype(np.int64)
    return labels
