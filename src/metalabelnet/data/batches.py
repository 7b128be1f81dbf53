"""Batches made on the device: shuffled, augmented, scaled, each with a clean batch beside it."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metalabelnet.data.augment import AUGMENTS, draw
from metalabelnet.data.disk_tensor import DiskTensor
from metalabelnet.data.prefetch import ahead
from metalabelnet.data.rows import UNLABELED
from metalabelnet.data.strong_augment import draw_strong, strong
from metalabelnet.seeds import generator, stream_seed

if TYPE_CHECKING:
    from collections.abc import Generator

    from metalabelnet.data.disk_tensor import Samples
    from metalabelnet.data.rows import Rows


ORDERS = ("shuffled", "given")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a method is given for one step.

    x, given, index   training samples, their untrusted labels (−1: none), and their row numbers
    clean_x, clean_y  clean samples with labels to trust
    seed              for whatever the step draws at random (dropout masks)
    strong_x          the same training samples, strongly augmented, where the method asks for it
    """

    x: Tensor
    given: Tensor
    index: Tensor
    clean_x: Tensor
    clean_y: Tensor
    seed: int
    strong_x: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Picks:
    """Which samples a batch has and how they are augmented: all that is random in it, in a few numbers a sample.

    train, clean  (5, N) int64: the row of each sample, then what `augment.draw` drew for it
    seed          for whatever the step draws at random
    strong        (15, N) int64: what `strong.draw_strong` drew for each training sample, where there is a strong view
    """

    train: Tensor
    clean: Tensor
    seed: int
    strong: Tensor | None = None

    def to(self, device: torch.device) -> Picks:
        """The same on another device, without waiting for it."""
        moved = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        moved |= {k: v.to(device, non_blocking=True) for k, v in moved.items() if isinstance(v, Tensor)}
        return Picks(**moved)


def to_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What a network reads: bytes scaled to [−1, 1]; tables as they are."""
    return x.to(dtype).div_(127.5).sub_(1) if x.dtype == torch.uint8 else x.to(dtype)


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The batches of a run, each a function of the seed, the epoch and the step alone.

    Every batch is full. The rows left over at the end of an epoch wait for the next one's shuffle; where
    there are fewer rows than one batch holds, the batch is all of them. The same goes for the clean rows,
    which are gone through again and again within an epoch. With the order `given` nothing is shuffled, and the rows
    left over are never seen.

    strong_from  the first epoch whose batches have a strong view; None: none has
    """

    train: Rows
    clean: Rows
    size: int
    augment: str
    augment_clean: bool
    dtype: torch.dtype
    seed: int
    order: str = ORDERS[0]
    strong_from: int | None = None

    def steps(self, *, labeled_only: bool) -> int:
        """How many batches an epoch has."""
        return max(1, len(self._labeled if labeled_only else self.train) // self.size)

    @property
    def streamed(self) -> bool:
        """Whether samples are read from disk."""
        return isinstance(self.train.x, DiskTensor) or isinstance(self.clean.x, DiskTensor)

    def epoch(self, epoch: int, *, labeled_only: bool, start: int = 0) -> Generator[Batch, None, None]:
        """The batches of an epoch from step `start` on. Samples on disk are read ahead."""
        plan = self.plan(epoch, labeled_only=labeled_only, start=start)
        if not self.streamed:
            yield from map(self.batch, plan)
            return
        with closing(ahead(self._read, plan)) as read:
            for here, x, clean_x in read:
                picks = here.to(self.train.x.device)
                x, clean_x = _arrived(self.train.x, picks.train[0], x), _arrived(self.clean.x, picks.clean[0], clean_x)
                yield self._made(picks, x, clean_x)

    def plan(self, epoch: int, *, labeled_only: bool, start: int = 0) -> Generator[Picks, None, None]:
        """What the batches of an epoch will be: drawn here and now for the whole epoch, and sent to the device at once.

        Where samples are read from disk it stays here: to ask the device which they are would be to wait for it.
        """
        steps = self.steps(labeled_only=labeled_only)
        rows = self._labeled if labeled_only else torch.arange(len(self.train))
        in_a_round = max(1, len(self.clean) // self.size)
        rounds = [
            self._in_batches(self._shuffled(len(self.clean), "clean", epoch, number), in_a_round)
            for number in range(-(-steps // in_a_round))
        ]
        train = self._augmented(
            self._in_batches(rows[self._shuffled(len(rows), "train", epoch)], steps), "train", epoch
        )
        clean = self._augmented(torch.cat(rounds)[:steps], "clean", epoch)
        views = self._strong_views(epoch, steps, train.shape[2])

        def picks(step: int) -> Picks:
            strong = None if views is None else views[step]
            seed = stream_seed(self.seed, "step", epoch, step)
            return Picks(train=train[step], clean=clean[step], seed=seed, strong=strong)

        return (picks(step) for step in range(start, steps))

    def batch(self, picks: Picks) -> Batch:
        """The samples themselves, cut, turned and scaled. Nothing in it is random."""
        return self._made(picks, self.train.x[picks.train[0]], self.clean.x[picks.clean[0]])

    def _read(self, picks: Picks) -> tuple[Picks, Tensor | None, Tensor | None]:
        """The samples that are on disk."""
        return picks, _read(self.train.x, picks.train[0]), _read(self.clean.x, picks.clean[0])

    def _made(self, picks: Picks, x: Tensor, clean_x: Tensor) -> Batch:
        index, clean = picks.train[0], picks.clean[0]
        augment_clean = self.augment if self.augment_clean else "none"
        strong_x = None
        if picks.strong is not None:
            strong_x = strong(x, picks.strong, flips="flip" in self.augment, dtype=self.dtype)
        return Batch(
            x=to_input(AUGMENTS[self.augment](x, picks.train[1:]), self.dtype),
            given=self.train.given[index],
            index=index,
            clean_x=to_input(AUGMENTS[augment_clean](clean_x, picks.clean[1:]), self.dtype),
            clean_y=self.clean.true[clean],
            seed=picks.seed,
            strong_x=strong_x,
        )

    def _shuffled(self, count: int, *name: str | int) -> Tensor:
        if self.order == "given":
            return torch.arange(count)
        return torch.randperm(count, generator=generator(self.seed, "shuffle", *name))

    def _in_batches(self, order: Tensor, count: int) -> Tensor:
        """(count, size): the first so many full batches, or the one that there is."""
        size = min(self.size, len(order))
        return order[: count * size].view(count, size)

    def _augmented(self, rows: Tensor, name: str, epoch: int) -> Tensor:
        """(steps, 5, size), on the device: every pick of an epoch."""
        how = draw(rows.numel(), generator(self.seed, "augment", name, epoch))
        return self._sent(torch.cat([rows[:, None], how.view(4, *rows.shape).transpose(0, 1)], 1))

    def _strong_views(self, epoch: int, steps: int, size: int) -> Tensor | None:
        """(steps, 15, size), on the device: how the strong views of an epoch are made, if it has some."""
        if self.strong_from is None or epoch < self.strong_from:
            return None
        how = draw_strong(steps * size, generator(self.seed, "augment", "strong", epoch))
        return self._sent(how.view(-1, steps, size).transpose(0, 1).contiguous())

    def _sent(self, plan: Tensor) -> Tensor:
        """The plan where it is read. A card takes it from pinned memory, in its turn, and the host need not wait."""
        if self.streamed:
            return plan
        device = self.train.x.device
        return (plan.pin_memory() if device.type == "cuda" else plan).to(device, non_blocking=True)

    @cached_property
    def _labeled(self) -> Tensor:
        """The rows with a label, on the host: to ask a card that is at work would be to wait for it."""
        return (self.train.given != UNLABELED).nonzero()[:, 0].cpu()


def _read(x: Samples, rows: Tensor) -> Tensor | None:
    return x.read(rows) if isinstance(x, DiskTensor) else None


def _arrived(x: Samples, rows: Tensor, read: Tensor | None) -> Tensor:
    """Samples that were read, or those that are on the device already."""
    return x[rows] if read is None or isinstance(x, Tensor) else x.arrive(read)
