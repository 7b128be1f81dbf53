"""Samples with their given and true labels, and the data sets made of them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metalabelnet.core.annotations import Annotations
from metalabelnet.data.packed.packed_tensor import PackedTensor
from metalabelnet.data.sparse_tensor import SparseTensor
from metalabelnet.data.unlabeled import UNLABELED as UNLABELED
from metalabelnet.data.unlabeled import UNLABELED_NAMES as UNLABELED_NAMES
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from metalabelnet.data.disk_tensor import Samples

MAX_ABS_VALUE = 2e18  # of a feature: squares are summed over a batch in float32, which overflows at 3e38


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Samples and their labels. All tensors are on one device; samples too large for memory are on disk.

    Attributes
    ----------
    x : Tensor, StreamedTensor or SparseTensor
        (N, channels, height, width) uint8 for images, (N, columns) floating point for tables. Floating-point samples of
        any other shape are passed to the network unchanged.
    given : Tensor
        (N,) int64, the given (possibly wrong) labels; −1: unlabeled.
    true : Tensor
        (N,) int64, the true labels; −1 where the true label is unknown.
    index : Tensor
        (N,) int64, the position of each sample in the data it came from.
    classes : tuple of str
        Class names; label k is the class `classes[k]`.
    ids : tuple of str
        The id of each sample in the data it came from.
    annotations : Annotations or None
        Labels by several annotators, where there are such.
    """

    x: Samples
    given: Tensor
    true: Tensor
    index: Tensor
    classes: tuple[str, ...]
    ids: tuple[str, ...]
    annotations: Annotations | None = None

    def __len__(self) -> int:
        return len(self.x)

    @property
    def is_image(self) -> bool:
        """Whether samples are images (4-dimensional)."""
        return self.x.ndim == 4

    def take(self, positions: Tensor) -> Rows:
        """Return the rows at these positions, in this order."""
        where = positions.to(self.x.device)
        return dataclasses.replace(
            self,
            x=self.x[where] if isinstance(self.x, Tensor) else self.x.take(where),
            given=self.given[where],
            true=self.true[where],
            index=self.index[where],
            ids=tuple(map(self.ids.__getitem__, positions.tolist())),
            annotations=None if self.annotations is None else self.annotations.take(positions.cpu().numpy()),
        )

    def concat(self, others: Rows) -> Rows:
        """Return these rows followed by the others, in memory."""
        both: dict[str, Any] = {
            name: torch.cat([getattr(self, name), getattr(others, name)]) for name in ("given", "true", "index")
        }
        return dataclasses.replace(
            self,
            **both,
            x=_concat_samples(self.x, others.x),
            ids=(*self.ids, *others.ids),
            annotations=(
                None
                if self.annotations is None or others.annotations is None
                else self.annotations.concat(others.annotations)
            ),
        )

    def with_given_labels(self, given: Tensor) -> Rows:
        """Return the same samples with other given labels."""
        check_labels(given, len(self.classes), "given labels")
        return dataclasses.replace(self, given=given.to(self.given.device))

    def without_annotations(self) -> Rows:
        """Return the same samples without the labels of annotators."""
        if self.annotations is None:
            return self
        return dataclasses.replace(self, annotations=Annotations.empty(len(self), self.annotations.names))

    def to(self, device: torch.device | str) -> Rows:
        """Return the same rows on another device."""
        moved = {name: getattr(self, name).to(device) for name in ("x", "given", "true", "index")}
        return dataclasses.replace(self, **moved)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Training rows, with test rows and a clean set where the source has them.

    Attributes
    ----------
    name : str
        The name of the data set.
    train : Rows
        Training rows.
    test : Rows or None
        Test rows; None if the source has no test part.
    clean : Rows or None
        Clean rows that are not among the training rows.
    clean_labels : Tensor or None
        (N,) int64, the clean labels of training rows that belong to the clean set, −1 elsewhere; None: no row does.
    encoder_config : dict or None
        JSON configuration of the encoder that made the samples; None if the source holds tensors already.
    cells_digest : str
        Digest of the table cells or texts the samples were encoded from; "" for other data.
    notes : tuple of str
        Messages for the user: what was guessed, left out or duplicated.
    total_samples : int or None
        The number of samples `train.index` refers to, including those that are clean or left out; None: `len(train)`.
    second_test : Rows or None
        Rows of a second test set, where the source has one.
    is_split : bool
        Whether clean and test rows are those of the split that was asked for (`ReadOptions.split`).
    """

    name: str
    train: Rows
    test: Rows | None = None
    clean: Rows | None = None
    clean_labels: Tensor | None = None
    encoder_config: dict[str, Any] | None = None
    cells_digest: str = ""
    notes: tuple[str, ...] = ()
    total_samples: int | None = None
    second_test: Rows | None = None
    is_split: bool = False

    @property
    def index_size(self) -> int:
        """The number of samples that `train.index` refers to."""
        return len(self.train) if self.total_samples is None else self.total_samples

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names."""
        return self.train.classes


def _concat_samples(first: Samples, second: Samples) -> Samples:
    """Return the samples of both, in memory; sparse samples stay sparse, and packed images on disk."""
    if isinstance(first, SparseTensor) and isinstance(second, SparseTensor):
        return first.concat(second)
    if isinstance(first, PackedTensor) and isinstance(second, PackedTensor) and first.is_same_pack(second):
        return first.concat(second)
    parts = [x if isinstance(x, Tensor) else x[torch.arange(len(x))] for x in (first, second)]
    return torch.cat(parts)


def check_labels(labels: Tensor, classes: int, what: str) -> None:
    """Raise InputError for labels that are neither −1 (unlabeled) nor a class number."""
    wrong = (labels < UNLABELED) | (labels >= classes)
    if wrong.any():
        row = int(wrong.nonzero()[0, 0])
        raise InputError(
            f"{what}: row {row} has label {int(labels[row])}; labels are 0 to {classes - 1}, or -1 for unlabeled"
        )


def check_values(x: Tensor, what: str, start: int = 0) -> None:
    """Raise InputError for NaN, infinite and very large features. Row numbers in the message count from `start`."""
    if x.numel() == 0:
        return
    low, high = map(float, x.aminmax())  # NaN if any value is NaN
    if low >= -MAX_ABS_VALUE and high <= MAX_ABS_VALUE:
        return
    wrong = ~(x.abs() <= MAX_ABS_VALUE)
    row = int(wrong.flatten(1).any(1).nonzero()[0, 0])
    value = float(x[row][wrong[row]][0])
    problem = "a value that is NaN or infinite; fill it in or leave the row out"
    if math.isfinite(value):
        problem = f"the value {value:g}; values up to {MAX_ABS_VALUE:g} are allowed: rescale them, or leave the row out"
    raise InputError(f"{what}: row {start + row} has {problem}")


def make_rows(
    x: Samples,
    given: Tensor,
    *,
    classes: tuple[str, ...],
    what: str,
    true: Tensor | None = None,
    ids: tuple[str, ...] | None = None,
    index: Tensor | None = None,
) -> Rows:
    """Return validated rows.

    Parameters
    ----------
    x : Tensor, StreamedTensor or SparseTensor
        (N, …) samples: uint8 images (N, channels, height, width), or floating-point numbers.
    given : Tensor
        (N,) given labels; −1: unlabeled.
    classes : tuple of str
        Class names.
    what : str
        Name of the rows in error messages.
    true : Tensor, optional
        (N,) true labels; −1: unknown. Default: all unknown.
    ids : tuple of str, optional
        Names of the samples. Default: their numbers from 0.
    index : Tensor, optional
        (N,) numbers of the samples in the original data. Default: from 0.

    Returns
    -------
    Rows

    Raises
    ------
    InputError
        If there are no samples, shapes or dtypes are not supported, or a label or a value is out of range.

    Examples
    --------
    >>> import torch
    >>> from metalabelnet.data.rows import make_rows
    >>> rows = make_rows(torch.zeros(3, 2), torch.tensor([0, 1, -1]), classes=("cat", "dog"), what="samples")
    >>> len(rows), rows.is_image, rows.take(torch.tensor([2, 0])).given.tolist()
    (3, False, [-1, 0])
    """
    if len(x) == 0:
        raise InputError(f"{what}: there are no samples")
    if not (x.ndim == 4 and x.dtype == torch.uint8) and not (x.ndim >= 2 and x.is_floating_point()):
        raise InputError(
            f"{what}: samples must be uint8 images (N, channels, height, width) or floating-point arrays such as "
            f"tables (N, columns), not {x.dtype} of shape {tuple(x.shape)}"
        )
    if len(given) != len(x):
        raise InputError(f"{what}: {len(x)} samples but {len(given)} labels")
    if isinstance(x, Tensor):
        check_values(x, what)
    true = torch.full_like(given, UNLABELED) if true is None else true
    check_labels(given, len(classes), f"{what}, labels")
    check_labels(true, len(classes), f"{what}, true labels")
    return Rows(
        x=x.contiguous() if isinstance(x, Tensor) else x,
        given=given.long(),
        true=true.long(),
        index=torch.arange(len(x)) if index is None else index.long(),
        classes=classes,
        ids=tuple(map(str, range(len(x)))) if ids is None else ids,
    )
