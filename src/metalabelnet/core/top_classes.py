"""Rows of class values that store the largest ones only, so that memory does not grow with the number of classes.

    K        values that are stored of a row, at most `TOP_CLASSES`
    v_ik     the stored values of row i: the largest ones and that of the given label
    c_ik     their classes
    r_i      the value of every other class: the mean of their probabilities, so that a row sums to 1

Up to `MAX_DENSE_CLASSES` classes a table is a plain tensor (N, C) with all values.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metalabelnet.core.state_check import check_int, check_keys, check_tensor
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

TOP_CLASSES = 32
MAX_DENSE_CLASSES = 128  # up to here tables are plain tensors
MAX_VALUES_PER_CHUNK = 1 << 20  # rows × classes that are held as a plain tensor at a time
# On a CPU they stay in its cache, and below the size for which each tensor takes new pages from the system.
MAX_VALUES_PER_CHUNK_ON_CPU = 1 << 16


@dataclass(frozen=True)
class TopClasses:
    """N rows of C values, of which K are stored and the others are equal.

    values   (N, K) v
    classes  (N, K) c, int32
    rest     (N,) r
    total    C
    """

    values: Tensor
    classes: Tensor
    rest: Tensor
    total: int

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        """N and C."""
        return len(self.values), self.total

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """The device of the values."""
        return self.values.device

    @property
    def others(self) -> int:
        """The number of classes that are not stored."""
        return self.total - self.values.shape[1]

    def numel(self) -> int:
        """Return the number of stored values."""
        return self.values.numel()

    def __getitem__(self, rows: slice | Tensor) -> TopClasses:
        """Return these rows."""
        return TopClasses(self.values[rows], self.classes[rows], self.rest[rows], self.total)

    def to(self, target: torch.dtype | torch.device | str) -> TopClasses:
        """Return the rows with another dtype of the values, or on another device."""
        classes = self.classes if isinstance(target, torch.dtype) else self.classes.to(target)
        return TopClasses(self.values.to(target), classes, self.rest.to(target), self.total)

    def double(self) -> TopClasses:
        """Return the rows in double precision."""
        return self.to(torch.float64)

    def with_values(self, values: Tensor, rest: Tensor) -> TopClasses:
        """Return rows of the same classes with other values."""
        return dataclasses.replace(self, values=values, rest=rest)

    def max(self, dim: int) -> tuple[Tensor, Tensor]:
        """Return the largest value of each row and its class, like `Tensor.max(1)`."""
        value, place = self.values.max(dim)
        return value, self.classes.gather(1, place[:, None])[:, 0].long()

    def argmax(self, dim: int) -> Tensor:
        """Return the class of the largest value of each row."""
        return self.max(dim)[1]

    def at(self, label: Tensor) -> Tensor:
        """Return the value of one class of each row."""
        hit = self.classes == label[:, None]
        return torch.where(hit.any(1), torch.where(hit, self.values, 0).sum(1), self.rest)

    def softmax(self, t: float = 1.0) -> TopClasses:
        """Return the probabilities p^(1/t), normalized, of log-probabilities."""
        values, rest = self.values / t, self.rest / t
        log_z = torch.logsumexp(torch.cat([values, rest[:, None] + math.log(self.others)], 1), 1)
        return self.with_values((values - log_z[:, None]).exp(), (rest - log_z).exp())

    def dense(self) -> Tensor:
        """Return the rows as a plain tensor (N, C)."""
        return self.rest[:, None].repeat(1, self.total).scatter_(1, self.classes.long(), self.values)


ClassTable = Tensor | TopClasses


class LogitChunks:
    """Logits of all rows, computed a chunk at a time whenever they are needed.

    chunks  returns an iterator over the logits of consecutive rows
    given   (N,) the given labels
    """

    def __init__(self, chunks: Callable[[], Iterator[Tensor]], given: Tensor) -> None:
        self._chunks, self._given = chunks, given

    def __iter__(self) -> Iterator[Tensor]:
        return self._chunks()

    def softmax(self, t: float, dtype: torch.dtype | None = None) -> ClassTable:
        """Return the probabilities of the logits divided by t. All that are stored are exact."""

        def parts() -> Iterator[ClassTable]:
            start = 0
            for logits in self:
                given = self._given[start : start + len(logits)]
                for rows in row_chunks(logits.shape, logits.device):
                    p = torch.softmax(logits[rows] / t, 1)
                    yield top_probabilities(p.to(dtype or p.dtype), given[rows])
                start += len(logits)

        return collect(parts(), len(self._given))


def top_probabilities(p: ClassTable, given: Tensor) -> ClassTable:
    """Return rows of probabilities with the stored values only; unchanged for few classes."""
    if isinstance(p, TopClasses) or p.shape[1] <= MAX_DENSE_CLASSES:
        return p
    return collect((_top_classes(p[rows], given[rows]) for rows in row_chunks(p.shape, p.device)), len(p))


def _top_classes(p: Tensor, given: Tensor) -> TopClasses:
    values, classes = _largest(p, given)
    rest = p.scatter(1, classes, 0.0).sum(1) / (p.shape[1] - TOP_CLASSES)
    return TopClasses(values, classes.int(), rest, p.shape[1])


def _largest(x: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest values of each row, that of the given label among them, and their classes."""
    keys = x.scatter(1, given.clamp_min(0)[:, None], torch.inf)
    classes = keys.topk(TOP_CLASSES, dim=1).indices
    return x.gather(1, classes), classes


def add_probabilities(a: ClassTable, b: ClassTable, given: Tensor) -> ClassTable:
    """Return the sum of two tables of probabilities."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        assert isinstance(a, Tensor)
        assert isinstance(b, Tensor)
        return a + b
    chunks = row_chunks(a.shape, a.device)
    return collect((top_probabilities(a[rows].dense() + b[rows].dense(), given[rows]) for rows in chunks), len(a))


def mean_abs_difference(a: ClassTable, b: ClassTable) -> Tensor:
    """Return the mean over classes of |a − b|, of each row."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (a - b).abs().double().mean(1)
    chunks = row_chunks(a.shape, a.device)
    return torch.cat([(dense(a[rows]) - dense(b[rows])).abs().double().mean(1) for rows in chunks])


def dense(table: ClassTable) -> Tensor:
    """Return a table as a plain tensor (N, C)."""
    return table if isinstance(table, Tensor) else table.dense()


def collect(parts: Iterable[ClassTable], rows: int) -> ClassTable:
    """Return the rows of all parts. A part is copied and freed before the next is computed, as in `map_chunks`."""
    tables, start = None, 0
    for part in parts:
        if len(part) == rows:
            return part
        columns = (part,) if isinstance(part, Tensor) else (part.values, part.classes, part.rest)
        if tables is None:
            tables = [column.new_empty((rows, *column.shape[1:])) for column in columns]
        for table, column in zip(tables, columns, strict=True):
            table[start : start + len(part)] = column
        start += len(part)
    assert tables is not None
    if isinstance(part, Tensor):
        return tables[0]
    values, classes, rest = tables
    return TopClasses(values, classes, rest, part.total)


def value_at(table: ClassTable, label: Tensor) -> Tensor:
    """Return the value of one class of each row; of class 0 where the label is −1."""
    label = label.clamp_min(0)
    return table.gather(1, label[:, None])[:, 0] if isinstance(table, Tensor) else table.at(label)


def row_chunks(shape: Sequence[int], device: torch.device) -> Iterator[slice]:
    """Yield slices of rows, each of which is small as a plain tensor on this device."""
    values = MAX_VALUES_PER_CHUNK_ON_CPU if device.type == "cpu" else MAX_VALUES_PER_CHUNK
    rows, size = shape[0], max(1, values // shape[1])
    yield from (slice(start, start + size) for start in range(0, max(rows, 1), size))


def table_state(table: Any) -> Any:
    """Return a table for a checkpoint; other values are returned unchanged."""
    if not isinstance(table, TopClasses):
        return table
    return {"values": table.values, "classes": table.classes, "rest": table.rest, "total": table.total}


def table_from_state(state: Any) -> Any:
    """Return the table of a checkpoint; other values are returned unchanged."""
    return TopClasses(**state) if isinstance(state, dict) else state


def check_table(state: Any, shape: tuple[int, int], what: str) -> None:
    """Raise InputError for a state that is not that of a table of this shape."""
    rows, classes = shape
    if classes <= MAX_DENSE_CLASSES:
        check_tensor(state, shape, None, what)
        return
    check_keys(state, ("values", "classes", "rest", "total"), what)
    check_tensor(state["values"], (rows, TOP_CLASSES), None, f"{what}.values")
    check_tensor(state["classes"], (rows, TOP_CLASSES), torch.int32, f"{what}.classes")
    check_tensor(state["rest"], (rows,), None, f"{what}.rest")
    check_int(state["total"], classes, classes, f"{what}.total")
    if rows and not 0 <= int(state["classes"].min()) <= int(state["classes"].max()) < classes:
        raise InputError(f"{what}.classes has numbers that are not from 0 to {classes - 1}")
