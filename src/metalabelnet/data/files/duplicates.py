"""Copies: samples that hold the same numbers as one of another part of the data."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from metalabelnet.data.disk_tensor import chunks
from metalabelnet.data.files.listing import some

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from metalabelnet.data.disk_tensor import Samples
    from metalabelnet.data.rows import DataSet


def digests(x: Samples) -> list[bytes]:
    """What stands for the numbers of each sample."""
    return [hashlib.sha256(row.tobytes()).digest() for chunk in chunks(x) for row in chunk.numpy()]


def among(which: Sequence[bytes], others: Iterable[bytes]) -> Tensor:
    """Which of these are among the others."""
    known = {*others}
    return torch.tensor([one in known for one in which], dtype=torch.bool)


def pick(values: Sequence[bytes], mask: Tensor) -> list[bytes]:
    """Those that the mask has."""
    return [values[k] for k in mask.nonzero()[:, 0].tolist()]


def in_test(names: Sequence[str], tests: int, *, table: bool) -> list[str]:
    """What is to be said of test samples with these names that are copies, if there are some.

    They stay, because a person has chosen what is tested on. Two rows of a table may well be alike and no copies.
    """
    if not names:
        return []
    found = f"{len(names)} of {tests} test samples are identical to training or clean ones and stay: {some(names)}"
    return [f"{found}; {'where these are copies, ' * table}they flatter the test accuracy"]


def noted(data: DataSet) -> list[str]:
    """The same of data whose parts are separate from the start."""
    if data.test is None:
        return []
    learned = [part.x for part in (data.train, data.clean) if part is not None]
    found = among(digests(data.test.x), (digest for x in learned for digest in digests(x)))
    names = [data.test.ids[k] for k in found.nonzero()[:, 0].tolist()]
    return in_test(names, len(data.test), table=not data.test.is_image)
