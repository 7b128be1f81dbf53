"""Exact duplicates: samples that are identical to one of another part of the data."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from metalabelnet.data.disk_tensor import chunks
from metalabelnet.data.files.listing import shorten_list
from metalabelnet.data.packed.packed_tensor import PackedTensor
from metalabelnet.data.sparse_tensor import SparseTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from metalabelnet.data.disk_tensor import Samples
    from metalabelnet.data.rows import DataSet


def digests(x: Samples) -> list[bytes]:
    """Return the SHA-256 digest of each sample; that of its file for packed image files."""
    if isinstance(x, SparseTensor):
        rows = (x.csr[k] for k in range(len(x)))
        return [hashlib.sha256(row.indices.tobytes() + row.data.tobytes()).digest() for row in rows]
    if isinstance(x, PackedTensor):
        return x.digests()
    return [hashlib.sha256(row.tobytes()).digest() for chunk in chunks(x) for row in chunk.numpy()]


def is_among(values: Sequence[bytes], others: Iterable[bytes]) -> Tensor:
    """Return a mask of the digests that are among the others."""
    known = {*others}
    return torch.tensor([value in known for value in values], dtype=torch.bool)


def select(values: Sequence[bytes], mask: Tensor) -> list[bytes]:
    """Return the digests where the mask is true."""
    return [values[k] for k in mask.nonzero()[:, 0].tolist()]


def duplicates_note(duplicates: Sequence[str], test_size: int, *, table: bool) -> list[str]:
    """Return the note about test samples (by id) that are identical to training or clean ones, if there are any.

    They stay, because the user chose the test set. Identical table rows may be different samples.
    """
    if not duplicates:
        return []
    count = f"{len(duplicates)} of {test_size} test samples are identical to training or clean ones and stay"
    effect = f"{'if these are copies, ' * table}they inflate the test accuracy"
    return [f"{count}: {shorten_list(duplicates)}; {effect}"]


def note_on_test_duplicates(data: DataSet) -> list[str]:
    """Return the note about duplicates in the test part of a data set, if there are any."""
    if data.test is None:
        return []
    others = [part.x for part in (data.train, data.clean) if part is not None]
    mask = is_among(digests(data.test.x), (digest for x in others for digest in digests(x)))
    ids = [data.test.ids[k] for k in mask.nonzero()[:, 0].tolist()]
    return duplicates_note(ids, len(data.test), table=not data.test.is_image)
