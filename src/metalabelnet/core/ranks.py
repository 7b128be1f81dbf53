"""Ranks: processes that train one run together. Each computes the network's passes for its share of the rows.

    replicated  equal on every rank: weights, batches, logits, losses, random draws, decisions
    local       different on every rank: what a network computes between its input and its logits, rows of label tables

Four linear maps convert one into the other. Each is the transpose of another one, so that autograd differentiates them
any number of times, and the tangent of a map is the map of the tangent (forward mode):

    map                 from        to          sends             transpose
    `own_rows`          replicated  local       nothing           `all_rows`
    `all_rows`          local       replicated  all-gather        `own_rows`
    `local_copies`      replicated  local       nothing           `sum_over_ranks`
    `sum_over_ranks`    local       replicated  all-reduce (sum)  `local_copies`

A pass of a network (`metalabelnet.core.sharded_pass`) is then

    z = all_rows(f(own_rows(x), local_copies(θ)))

and everything after it is the code for one process: a loss of the logits z of the whole batch. Its backward pass
takes the own rows of ∂L/∂z through the network and sums the result over ranks, which is ∇θ L on every rank: that is
how the look-ahead gradient, the gradient g at the look-ahead and the gradient of SGD become those of the whole batch.
Soft labels and label nets depend on the logits and features of the whole batch, which every rank has: their gradients
and updates are computed on every rank, and nothing is sent for them. Of a label table each rank stores its share of the
rows, and the rows of a batch are sent to all ranks (`metalabelnet.core.sharded_table`).
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed
from torch.autograd import Function

from metalabelnet.errors import RankLostError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True, kw_only=True)
class World:
    """The ranks of a run, and the position of this process among them. They use the default process group.

    Attributes
    ----------
    rank : int
        The number of this process; rank 0 reads and writes the run folder.
    size : int
        The number of processes.
    """

    rank: int
    size: int

    def span(self, rows: int, rank: int | None = None) -> tuple[int, int]:
        """Return start and end of a rank's share of the rows; shares differ by one row at most."""
        rank = self.rank if rank is None else rank
        return rows * rank // self.size, rows * (rank + 1) // self.size

    def all_gather(self, local: Tensor, rows: int) -> Tensor:
        """Return all rows of a tensor of which each rank has its share."""
        spans = [self.span(rows, rank) for rank in range(self.size)]
        longest = max(end - start for start, end in spans)
        own = local.detach().contiguous()
        if len(own) < longest:  # collectives need equal shapes
            own = torch.cat([own, own.new_zeros(longest - len(own), *own.shape[1:])])
        parts = [torch.empty_like(own) for _ in spans]
        with _lost_rank_errors():
            distributed.all_gather([_bytes(part) for part in parts], _bytes(own))
        return torch.cat([part[: end - start] for part, (start, end) in zip(parts, spans, strict=True)])

    def all_reduce(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the sum over ranks of each tensor, sent as one message per type."""
        sums = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
            flat = torch.cat([tensors[i].detach().reshape(-1) for i in places])
            with _lost_rank_errors():
                distributed.all_reduce(flat)
            pieces = torch.split(flat, [tensors[i].numel() for i in places])
            for i, piece in zip(places, pieces, strict=True):
                sums[i] = piece.view(tensors[i].shape)
        return tuple(sums)

    def any(self, flag: bool) -> bool:  # noqa: FBT001 (as the built-in `any`)
        """Return whether the flag is set on any rank."""
        flags = torch.tensor([int(flag)])  # on the CPU: a GPU would have to finish its work first
        with _lost_rank_errors():
            distributed.all_reduce(flags)
        return bool(flags)

    def send(self, tensor: Tensor, *, to: int) -> None:
        """Send a contiguous tensor to a rank, which calls `receive`."""
        with _lost_rank_errors():
            distributed.send(_bytes(tensor.detach()), dst=to)

    def receive(self, tensor: Tensor, *, source: int) -> Tensor:
        """Overwrite a contiguous tensor by the one that a rank sends, and return it."""
        with _lost_rank_errors():
            distributed.recv(_bytes(tensor), src=source)
        return tensor

    def broadcast_bytes(self, content: bytes) -> bytes:
        """Return the bytes that rank 0 passes; the other ranks' are ignored."""
        length = torch.tensor([len(content)])
        self.broadcast_into([length])
        sent = torch.zeros(int(length), dtype=torch.uint8)
        if self.rank == 0 and content:
            sent = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self.broadcast_into([sent])
        return sent.numpy().tobytes()

    def broadcast_into(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of rank 0."""
        with torch.no_grad(), _lost_rank_errors():
            for tensor in tensors:
                value = tensor.detach().contiguous()
                distributed.broadcast(value, src=0)
                tensor.copy_(value)


_world: ContextVar[World | None] = ContextVar("world", default=None)


def current_world() -> World | None:
    """Return the ranks that train together; None: this process trains alone."""
    return _world.get()


@contextmanager
def several_ranks(world: World | None) -> Iterator[None]:
    """Let the passes of networks inside be computed by all ranks, each for its own rows. None: by this process."""
    before = _world.set(world)
    try:
        yield
    finally:
        _world.reset(before)


def own_rows(world: World, replicated: Tensor) -> Tensor:
    """Return this rank's share of the rows."""
    return _OwnRows.apply(world, replicated)  # type: ignore[no-any-return, no-untyped-call]


def all_rows(world: World, rows: int, local: Tensor) -> Tensor:
    """Return the rows of all ranks, in order; `rows` is their number."""
    return _AllRows.apply(world, rows, local)  # type: ignore[no-any-return, no-untyped-call]


def local_copies(world: World, *replicated: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors to be used with local values: their gradients are summed over ranks, in one message."""
    return _LocalCopies.apply(world, *replicated)  # type: ignore[no-any-return, no-untyped-call]


def sum_over_ranks(world: World, *local: Tensor) -> tuple[Tensor, ...]:
    """Return the sums of local tensors over ranks, in one message."""
    return _SumOverRanks.apply(world, *local)  # type: ignore[no-any-return, no-untyped-call]


def own_span(rows: int) -> slice:
    """Return the rows that this process reads: all, unless ranks share them."""
    world = current_world()
    return slice(0, rows) if world is None else slice(*world.span(rows))


def gather_rows(local: Tensor, rows: int) -> Tensor:
    """Return all rows of a tensor of which this process has `own_span(rows)`."""
    world = current_world()
    return local if world is None else world.all_gather(local, rows)


def sum_of_shares(local: Tensor) -> Tensor:
    """Return the sum of what each rank has computed from its own share of the rows."""
    world = current_world()
    return local if world is None else world.all_reduce([local])[0]


# Backward passes run in threads that do not see `_world`; each node keeps its own.
class _OwnRows(Function):
    @staticmethod
    def forward(ctx: Any, world: World, replicated: Tensor) -> Tensor:
        ctx.world, ctx.rows = world, len(replicated)
        start, end = world.span(ctx.rows)
        return replicated[start:end].clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        return None, all_rows(ctx.world, ctx.rows, upstream[0])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return own_rows(ctx.world, tangents[1])


class _AllRows(Function):
    @staticmethod
    def forward(ctx: Any, world: World, rows: int, local: Tensor) -> Tensor:
        ctx.world, ctx.rows = world, rows
        return world.all_gather(local, rows)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        return None, None, own_rows(ctx.world, upstream[0])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return all_rows(ctx.world, ctx.rows, tangents[2])


class _LocalCopies(Function):
    @staticmethod
    def forward(ctx: Any, world: World, *replicated: Tensor) -> tuple[Tensor, ...]:
        ctx.world = world
        return tuple(tensor.view_as(tensor) for tensor in replicated)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        return None, *sum_over_ranks(ctx.world, *upstream)

    @staticmethod
    def jvp(_ctx: Any, *tangents: Any) -> Any:
        return tuple(tangent.view_as(tangent) for tangent in tangents[1:])


class _SumOverRanks(Function):
    @staticmethod
    def forward(ctx: Any, world: World, *local: Tensor) -> tuple[Tensor, ...]:
        ctx.world = world
        return world.all_reduce(local)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        return None, *local_copies(ctx.world, *upstream)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return sum_over_ranks(ctx.world, *tangents[1:])


def _bytes(tensor: Tensor) -> Tensor:
    """Return the same memory as bytes: not every type can be sent by every backend."""
    return tensor.reshape(-1).view(torch.uint8)


@contextmanager
def _lost_rank_errors() -> Iterator[None]:
    """Raise RankLostError for the errors of a collective: another process has ended or cannot be reached."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).rpartition(".cc:")[2].partition("] ")[2] or str(error)  # without the place in the source
        raise RankLostError(" ".join(reason.partition(". ")[0].split())[:100]) from error
