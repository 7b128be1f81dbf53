"""Samples that are in memory already: numpy arrays and the items of PyTorch data sets, as one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from metalabelnet.data.files.npz import CHANNELS
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

ORDERS = ("auto", "first", "last")


def channels_first(x: NDArray[Any], channels: str = "auto") -> NDArray[Any]:
    """Images (N, height, width), (N, height, width, channels) or (N, channels, height, width) in the last order.

    `auto` takes for channels the one of the two places that has 1, 3 or 4 of them.
    """
    if channels not in ORDERS:
        raise unknown("order of channels", str(channels), ORDERS)
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        raise InputError(
            f"an array of shape {x.shape} is neither a table (N, features) nor images (N, height, width), "
            "(N, channels, height, width) or (N, height, width, channels)"
        )
    first, last = x.shape[1] in CHANNELS, x.shape[3] in CHANNELS
    if channels == "auto" and first == last:
        both = "both the second and the last number" if first else "neither the second nor the last number"
        raise InputError(
            f"images of shape {x.shape}: {both} can be a number of channels (1, 3 or 4); "
            "say which is with channels='first' or channels='last'"
        )
    is_last = channels == "last" or (channels == "auto" and last)
    return x.transpose(0, 3, 1, 2) if is_last else x


def collect(items: Any, what: str, *, labeled: bool = True) -> tuple[Tensor, Tensor]:
    """All samples of a PyTorch data set, read once, and their labels (−1 where there is none).

    An item is a pair (sample, label), or with `labeled=False` a sample, alone or first of a tuple. Samples are tensors
    or arrays, taken as they are, or images as PIL opens them, whose channels come to the front.
    """
    samples, labels = [], []
    for i in range(_length(items, what)):
        item = items[i]
        pair = isinstance(item, tuple | list)
        if labeled and not (pair and len(item) >= 2):
            raise InputError(f"{what}: item {i} is not a pair (sample, label) but {kind_of(item)}")
        samples.append(_sample(item[0] if pair else item, f"{what}: item {i}"))
        labels.append(_label(item[1], f"{what}: item {i}") if labeled else UNLABELED)
        if samples[i].shape != samples[0].shape or samples[i].dtype != samples[0].dtype:
            raise InputError(
                f"{what}: item {i} is {samples[i].dtype} of shape {tuple(samples[i].shape)}, but item 0 "
                f"{samples[0].dtype} of shape {tuple(samples[0].shape)}; let the transform make them alike"
            )
    if not samples:
        raise InputError(f"{what}: there are no samples")
    x = torch.stack(samples)
    return x.float() if x.is_floating_point() else x, torch.tensor(labels)


def class_names(sets: Mapping[str, Any], labels: Sequence[Tensor]) -> tuple[str, ...]:
    """What the data sets that say so call their classes, or the numbers up to the largest label.

    Two that number their classes differently, such as folders of which one lacks a class, cannot be taken together.
    """
    count = 1 + max(int(part.max()) for part in labels if len(part))
    longest, said_by = tuple(map(str, range(count))), ""
    for name, items in sets.items():
        said = getattr(items, "classes", None)
        names = tuple(map(str, said)) if isinstance(said, list | tuple) else ()
        if len(set(names)) < max(len(names), 1):
            continue
        if said_by and any(one != other for one, other in zip(names, longest, strict=False)):
            raise InputError(
                f"{said_by} numbers its classes {', '.join(longest[:10])}, and {name} {', '.join(names[:10])}: "
                "let both number them alike"
            )
        if not said_by or len(names) > len(longest):
            longest, said_by = names, name
    return longest if len(longest) >= count else tuple(map(str, range(count)))


def _length(items: Any, what: str) -> int:
    by_number = hasattr(items, "__len__") and hasattr(items, "__getitem__") and not isinstance(items, IterableDataset)
    if not by_number:
        raise InputError(f"{what} is {kind_of(items)}; give a data set with len() and items by number, not a loader")
    return len(items)


def _sample(sample: Any, what: str) -> Tensor:
    if isinstance(sample, Tensor):
        x = sample.detach().cpu()
    else:
        array = np.asarray(sample)
        if array.dtype.kind not in "biuf":
            raise InputError(
                f"{what} is {kind_of(sample)}, not numbers: give the data set a transform that makes tensors"
            )
        if not isinstance(sample, np.ndarray) and array.dtype == np.uint8 and array.ndim in (2, 3):
            array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)  # as PIL gives them
        x = torch.from_numpy(np.array(array))
    if not x.is_floating_point() and not (x.dtype == torch.uint8 and x.ndim == 3):
        raise InputError(
            f"{what} is {x.dtype} of shape {tuple(x.shape)}: samples are floating-point numbers, or images of bytes "
            "(uint8) of shape (channels, height, width)"
        )
    return x[None] if x.ndim == 0 else x


def _label(label: Any, what: str) -> int:
    try:
        number, whole = int(label), bool(int(label) == label)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number, whole = UNLABELED, False
    if not whole:
        raise InputError(f"{what} has the label {label!r}: a label is a whole number, or -1 for none")
    return number


def kind_of(thing: Any) -> str:
    """The name of its class, for a sentence."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")
