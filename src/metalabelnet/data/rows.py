"""Rows: samples with the label each was given and, where known, the true one."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from metalabelnet.data.disk_tensor import DiskTensor, Samples
from metalabelnet.errors import InputError

UNLABELED = -1
NO_LABEL = ("", "-1")  # the same among names
LARGEST = 2e18  # of a sample's numbers: squares of a batch are summed in single precision, which ends at 3e38


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Samples and their labels, all tensors on one device (samples that memory does not hold: on disk).

    x        (N, channels, height, width) uint8 for images, (N, columns) floating point for tables; floating point of
             any other shape is what the network reads, as it is
    given    (N,) int64: the label nobody trusts; −1 where there is none
    true     (N,) int64: the right label where it is known; −1 elsewhere
    index    (N,) int64: the sample's number in the data it came from
    classes  the names of the classes
    ids      the sample's name in the data it came from
    """

    x: Samples
    given: Tensor
    true: Tensor
    index: Tensor
    classes: tuple[str, ...]
    ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.x)

    @property
    def is_image(self) -> bool:
        """Whether a sample is an image (otherwise a row of numbers)."""
        return self.x.ndim == 4

    def take(self, positions: Tensor) -> Rows:
        """The rows at these positions, in this order."""
        where = positions.to(self.x.device)
        return dataclasses.replace(
            self,
            x=self.x.take(where) if isinstance(self.x, DiskTensor) else self.x[where],
            given=self.given[where],
            true=self.true[where],
            index=self.index[where],
            ids=tuple(self.ids[i] for i in positions.tolist()),
        )

    def and_then(self, others: Rows) -> Rows:
        """These rows and then the others, all in memory."""
        both: dict[str, Any] = {
            name: torch.cat([getattr(self, name), getattr(others, name)]) for name in ("x", "given", "true", "index")
        }
        return dataclasses.replace(self, **both, ids=(*self.ids, *others.ids))

    def with_given(self, given: Tensor) -> Rows:
        """The same samples with other given labels."""
        check_labels(given, len(self.classes), "given labels")
        return dataclasses.replace(self, given=given.to(self.given.device))

    def to(self, device: torch.device | str) -> Rows:
        """The same rows on another device."""
        moved = {name: getattr(self, name).to(device) for name in ("x", "given", "true", "index")}
        return dataclasses.replace(self, **moved)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """What a reader gives: training rows, and test and clean rows where the source has them.

    checked  (N,) int64: the right labels of training rows that a person has checked, −1 elsewhere; None: of none
    inputs   how a sample becomes numbers, as JSON holds it; None where the source has numbers already
    cells    what stands for the cells or texts that numbers were made of; "" where none were
    notes    what the person should hear: what was guessed, left out, found twice
    listed   how many samples training rows are numbered among, with those that are clean or left out; 0: they are all
    """

    name: str
    train: Rows
    test: Rows | None = None
    clean: Rows | None = None
    checked: Tensor | None = None
    inputs: dict[str, Any] | None = None
    cells: str = ""
    notes: tuple[str, ...] = ()
    listed: int = 0

    @property
    def samples(self) -> int:
        """How many samples the index of the training rows counts."""
        return self.listed or len(self.train)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.train.classes


def check_labels(labels: Tensor, classes: int, what: str) -> None:
    """Refuse labels that are neither −1 (unlabeled) nor a class number."""
    wrong = (labels < UNLABELED) | (labels >= classes)
    if wrong.any():
        at = int(wrong.nonzero()[0, 0])
        raise InputError(
            f"{what}: row {at} has label {int(labels[at])}; labels are 0 to {classes - 1}, or -1 for unlabeled"
        )


def check_numbers(x: Tensor, what: str, start: int = 0) -> None:
    """Refuse what no network can compute with: NaN, infinite and very large numbers. Rows are counted from `start`."""
    if x.numel() == 0:
        return
    low, high = map(float, x.aminmax())  # NaN where there is one
    if low >= -LARGEST and high <= LARGEST:
        return
    wrong = ~(x.abs() <= LARGEST)
    at = int(wrong.flatten(1).any(1).nonzero()[0, 0])
    value = float(x[at][wrong[at]][0])
    told = "a value that is NaN or infinite; fill it in or leave the row out"
    if math.isfinite(value):
        told = f"{value:g}, and a network reads numbers up to {LARGEST:g}: scale them down, or leave the row out"
    raise InputError(f"{what}: row {start + at} has {told}")


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
    """Build checked rows, by default numbered from 0. `what` names them in errors (a file, a data set's part)."""
    if len(x) == 0:
        raise InputError(f"{what}: there are no samples")
    if not (x.ndim == 4 and x.dtype == torch.uint8) and not (x.ndim >= 2 and x.is_floating_point()):
        raise InputError(
            f"{what}: samples are uint8 images (N, channels, height, width) or floating-point numbers such as tables "
            f"(N, columns), not {x.dtype} of shape {tuple(x.shape)}"
        )
    if len(given) != len(x):
        raise InputError(f"{what}: {len(x)} samples but {len(given)} labels")
    if isinstance(x, Tensor):
        check_numbers(x, what)
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
