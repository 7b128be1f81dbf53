"""Samples in memory: numpy arrays and the items of PyTorch data sets, as one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from metalabelnet.data.files.npz_arrays import CHANNEL_COUNTS
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError, unknown_name_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

CHANNEL_ORDERS = ("auto", "first", "last")
MAX_CLASSES_IN_MESSAGE = 10


def check_channel_order(channels: str) -> None:
    """Raise InputError unless this is an order of channels."""
    if not isinstance(channels, str) or channels not in CHANNEL_ORDERS:
        raise unknown_name_error("order of channels", str(channels), CHANNEL_ORDERS)


def channels_first(x: NDArray[Any], channels: str = "auto") -> NDArray[Any]:
    """Return images as (N, channels, height, width).

    `x` is (N, height, width), (N, height, width, channels) or (N, channels, height, width). With `auto`, the channels
    are the axis of length 1, 3 or 4.
    """
    check_channel_order(channels)
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        raise InputError(
            f"an array of shape {x.shape} is neither a table (N, features) nor images (N, height, width), "
            "(N, channels, height, width) or (N, height, width, channels)"
        )
    first, last = x.shape[1] in CHANNEL_COUNTS, x.shape[3] in CHANNEL_COUNTS
    if channels == "auto" and first == last:
        axes = "both the second and the last axis" if first else "neither the second nor the last axis"
        raise InputError(
            f"images of shape {x.shape}: {axes} can be the channels (1, 3 or 4); "
            "set channels='first' or channels='last'"
        )
    is_last = channels == "last" or (channels == "auto" and last)
    return x.transpose(0, 3, 1, 2) if is_last else x


def collect(items: Any, what: str, *, labeled: bool = True) -> tuple[Tensor, Tensor]:
    """Return all samples of a PyTorch data set, each read once, and their labels (−1: unlabeled).

    An item is a pair (sample, label), or with `labeled=False` a sample, alone or first in a tuple. Samples are tensors
    or arrays, which stay unchanged, or PIL images, whose channels are moved to the front.
    """
    samples, labels = [], []
    for i in range(_length(items, what)):
        item = items[i]
        pair = isinstance(item, tuple | list)
        if labeled and not (pair and len(item) >= 2):
            raise InputError(f"{what}: item {i} is not a pair (sample, label) but {type_name(item)}")
        samples.append(_sample(item[0] if pair else item, f"{what}: item {i}"))
        labels.append(_label(item[1], f"{what}: item {i}") if labeled else UNLABELED)
        if samples[i].shape != samples[0].shape or samples[i].dtype != samples[0].dtype:
            raise InputError(
                f"{what}: item {i} is {samples[i].dtype} of shape {tuple(samples[i].shape)}, but item 0 is "
                f"{samples[0].dtype} of shape {tuple(samples[0].shape)}; convert them to one type and shape in the "
                "transform"
            )
    if not samples:
        raise InputError(f"{what}: there are no samples")
    x = torch.stack(samples)
    return x.float() if x.is_floating_point() else x, torch.tensor(labels)


def class_names(datasets: Mapping[str, Any], labels: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the class names of the data sets (their attribute `classes`), or the numbers up to the largest label.

    Raises InputError if two data sets number their classes differently, as image folders do if one lacks a class.
    """
    count = 1 + max(int(part.max()) for part in labels if len(part))
    longest, owner = tuple(map(str, range(count))), ""
    for name, items in datasets.items():
        classes = getattr(items, "classes", None)
        names = tuple(map(str, classes)) if isinstance(classes, list | tuple) else ()
        if len(set(names)) < max(len(names), 1):
            continue
        if owner and any(one != other for one, other in zip(names, longest, strict=False)):
            raise InputError(
                f"{owner} has the classes {', '.join(longest[:MAX_CLASSES_IN_MESSAGE])}, and {name} has "
                f"{', '.join(names[:MAX_CLASSES_IN_MESSAGE])}: number the classes of both in the same order"
            )
        if not owner or len(names) > len(longest):
            longest, owner = names, name
    return longest if len(longest) >= count else tuple(map(str, range(count)))


def _length(items: Any, what: str) -> int:
    is_map_style = (
        hasattr(items, "__len__") and hasattr(items, "__getitem__") and not isinstance(items, IterableDataset)
    )
    if not is_map_style:
        raise InputError(
            f"{what} is {type_name(items)}; give a map-style data set (with __len__ and __getitem__), not a loader"
        )
    return len(items)


def _sample(sample: Any, what: str) -> Tensor:
    if isinstance(sample, Tensor):
        x = sample.detach().cpu()
    else:
        array = np.asarray(sample)
        if array.dtype.kind not in "biuf":
            raise InputError(f"{what} is {type_name(sample)}, not numeric: give the data set a transform to tensors")
        if not isinstance(sample, np.ndarray) and array.dtype == np.uint8 and array.ndim in (2, 3):
            array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)  # a PIL image: channels last
        x = torch.from_numpy(np.array(array))
    if not x.is_floating_point() and not (x.dtype == torch.uint8 and x.ndim == 3):
        raise InputError(
            f"{what} is {x.dtype} of shape {tuple(x.shape)}: samples must be floating point, or uint8 images of shape "
            "(channels, height, width)"
        )
    return x[None] if x.ndim == 0 else x


def _label(label: Any, what: str) -> int:
    try:
        number, is_integer = int(label), bool(int(label) == label)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number, is_integer = UNLABELED, False
    if not is_integer:
        raise InputError(f"{what} has the label {label!r}: a label is an integer, or -1 for unlabeled")
    return number


def type_name(value: Any) -> str:
    """Return the qualified name of the value's type, for error messages."""
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
