"""CIFAR-10N and CIFAR-100N: human labels of the training images of CIFAR-10 (three annotators each) and CIFAR-100.

References
----------
.. [1] J. Wei et al., "Learning with Noisy Labels Revisited: A Study Using Real-World Human Annotations", ICLR 2022,
   https://arxiv.org/abs/2110.12088
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metalabelnet.errors import InputError
from metalabelnet.input_files.regular_files import check_regular_file
from metalabelnet.noise.from_file import labels_from_file
from metalabelnet.noise.spec import CIFAR10N_SETS, Noise

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SOURCE = "https://github.com/UCSC-REAL/cifar-10-100n/tree/main/data"
CLEAN_LABELS = "clean_label"  # the key of CIFAR's own labels in both files


@dataclass(frozen=True, kw_only=True)
class HumanLabelFile:
    """A published file: its name, the name of the data set, and the key of each label set."""

    name: str
    data: str
    keys: Mapping[str | None, str]


FILES = {
    "cifar10n": HumanLabelFile(
        name="CIFAR-10_human.pt",
        data="CIFAR-10N",
        keys=dict(
            zip(
                CIFAR10N_SETS,
                ("worse_label", "aggre_label", "random_label1", "random_label2", "random_label3"),
                strict=True,
            )
        ),
    ),
    "cifar100n": HumanLabelFile(name="CIFAR-100_human.pt", data="CIFAR-100N", keys={None: "noisy_label"}),
}


def human_labels(
    noise: Noise, folder: Path, true: Tensor, index: Tensor, classes: int, samples: int | None = None
) -> Tensor:
    """Return the human label of every row, looked up by the sample's number in the original data.

    Raises
    ------
    InputError
        If the file is not in the folder, is another file, or its clean labels are not those of the data, in order.
    """
    published = FILES[noise.kind]
    path = folder / published.name
    key = published.keys[noise.label_set]
    try:
        arrays = read_human_labels(path, published, key)
    except FileNotFoundError:
        raise InputError(
            f"noise {noise}: there is no file {str(path)!r}; download {published.name} from {SOURCE} into that folder, "
            "or name the folder of the data with --data-dir"
        ) from None
    clean, labels = (torch.from_numpy(arrays[name]) for name in (CLEAN_LABELS, key))
    if not ((labels >= 0) & (labels < classes)).all():
        raise InputError(f"noise {noise}: {path} has labels outside 0 to {classes - 1}; download it again")
    stored = labels_from_file(true, clean, index, samples)
    if not torch.equal(stored, true):
        row = int((stored != true).nonzero()[0])
        raise InputError(
            f"noise {noise}: sample {int(index[row])} of the data has label {int(true[row])}, but its clean label in "
            f"{path} is {int(stored[row])}: the data must be the published training images in their order"
        )
    return labels_from_file(true, labels, index, samples)


def read_human_labels(path: Path, published: HumanLabelFile, key: str) -> dict[str, Any]:
    """Return the clean labels and one set of human labels, in the order of the training images.

    The file is a pickle of numpy arrays. Only the types that such arrays consist of are allowed; nothing is executed.
    """
    check_regular_file(path)
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
            f"human labels {path}: this is not {published.name} of {published.data}, which contains only arrays of "
            "labels"
        ) from None
    arrays = {}
    for name in (CLEAN_LABELS, key):
        array = content.get(name) if isinstance(content, dict) else None
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(
                f"human labels {path}: it has no list of labels {name!r}; give {published.name} of {published.data}"
            )
        arrays[name] = array.astype(np.int64)
    if len(arrays[CLEAN_LABELS]) != len(arrays[key]):
        raise InputError(f"human labels {path}: {CLEAN_LABELS!r} and {key!r} have different lengths; download it again")
    return arrays
