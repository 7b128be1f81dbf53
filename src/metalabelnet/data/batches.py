"""Batches assembled on the device: shuffled, augmented and scaled, each with a clean batch."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metalabelnet.core.ranks import gather_rows, own_span
from metalabelnet.data.augment import AUGMENTATIONS, draw_augmentation
from metalabelnet.data.mixup import draw_mixup, mixup_share
from metalabelnet.data.prefetch import prefetch
from metalabelnet.data.queue_limit import QueueLimit
from metalabelnet.data.rows import UNLABELED
from metalabelnet.data.streamed_tensor import StreamedTensor
from metalabelnet.data.strong_augment import augment_strongly, draw_strong_augmentation
from metalabelnet.seeds import generator, stream_seed

if TYPE_CHECKING:
    from collections.abc import Generator

    from metalabelnet.data.disk_tensor import Samples
    from metalabelnet.data.rows import Rows


SAMPLE_ORDERS = ("shuffled", "given")


@dataclass(frozen=True, kw_only=True)
class Views:
    """Augmented copies of the same samples, as network input.

    Attributes
    ----------
    weak : Tensor
        The samples with the run's augmentation.
    second : Tensor or None
        The training samples with the run's augmentation drawn again, if the method asks for it.
    strong : Tensor or None
        The same samples with strong augmentation, if the recipe or the method has it.
    partner : Tensor or None
        MixUp: the position in the batch of the sample that each sample is mixed with; None without MixUp.
    share : Tensor or None
        MixUp: the share of the sample itself in the mixture, a scalar.
    """

    weak: Tensor
    second: Tensor | None = None
    strong: Tensor | None = None
    partner: Tensor | None = None
    share: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The input of one training step.

    Attributes
    ----------
    views : Views
        Training samples.
    given : Tensor
        Their given labels; −1: unlabeled.
    index : Tensor
        Their row numbers in the training rows.
    clean_views : Views
        Clean samples.
    clean_y : Tensor
        Their clean labels.
    clean_given : Tensor
        Their given labels; −1: none is known.
    seed : int
        Seed for random numbers within the step (dropout masks).
    """

    views: Views
    given: Tensor
    index: Tensor
    clean_views: Views
    clean_y: Tensor
    clean_given: Tensor
    seed: int

    @property
    def x(self) -> Tensor:
        """The training samples with weak augmentation."""
        return self.views.weak

    @property
    def clean_x(self) -> Tensor:
        """The clean samples with weak augmentation."""
        return self.clean_views.weak


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Which samples a batch contains and how they are augmented: everything that is random in it.

    Attributes
    ----------
    train, clean : Tensor
        (5, N) int64: the row of each sample, then its numbers from `augment.draw_augmentation`.
    seed : int
        Seed for random numbers within the step.
    second : Tensor or None
        (4, N) int64: the numbers of the second copy of each training sample from `augment.draw_augmentation`.
    strong, clean_strong : Tensor or None
        (15, N) int64: the numbers of each sample from `strong_augment.draw_strong_augmentation`; None without strong
        augmentation.
    mixup, clean_mixup : Tensor or None
        (2, N) int64: the numbers of each sample from `mixup.draw_mixup`; None without MixUp.
    """

    train: Tensor
    clean: Tensor
    seed: int
    second: Tensor | None = None
    strong: Tensor | None = None
    clean_strong: Tensor | None = None
    mixup: Tensor | None = None
    clean_mixup: Tensor | None = None

    def to(self, device: torch.device) -> BatchPlan:
        """Return the same plan on another device, copied asynchronously."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields |= {k: v.to(device, non_blocking=True) for k, v in fields.items() if isinstance(v, Tensor)}
        return BatchPlan(**fields)


def to_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return samples as network input: uint8 images scaled to [−1, 1], other samples unchanged."""
    return x.to(dtype).div_(127.5).sub_(1) if x.dtype == torch.uint8 else x.to(dtype)


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The batches of a run, each a function of the seed, the epoch and the step alone.

    Every batch is full. Rows left over at the end of an epoch are in the next shuffle; with fewer rows than one
    batch holds, the batch is all of them. The same holds for the clean rows, which are cycled through several times per
    epoch. With the order `given` nothing is shuffled, and left-over rows are never used.

    Attributes
    ----------
    train, clean : Rows
        Training rows and clean rows.
    size : int
        Samples per batch.
    augment : str
        A key of `augment.AUGMENTATIONS`.
    augment_clean : bool
        Whether clean samples are augmented too.
    dtype : torch.dtype
        Type of the network input.
    seed : int
        Seed of the run.
    order : str
        `shuffled` or `given`.
    strong_augment_from : int or None
        The first epoch with strong augmentation; None: never.
    mixup : float
        α of MixUp; 0: none.
    second_view : bool
        Whether training samples are augmented a second time (`Views.second`), where there is an augmentation.
    """

    train: Rows
    clean: Rows
    size: int
    augment: str
    augment_clean: bool
    dtype: torch.dtype
    seed: int
    order: str = SAMPLE_ORDERS[0]
    strong_augment_from: int | None = None
    mixup: float = 0.0
    second_view: bool = False

    def steps(self, *, labeled_only: bool) -> int:
        """Return the number of batches per epoch."""
        return max(1, len(self._labeled if labeled_only else self.train) // self.size)

    @property
    def reads_from_disk(self) -> bool:
        """Whether samples are read from disk."""
        return self._read_threads > 0

    @property
    def _read_threads(self) -> int:
        """The number of threads that read samples from disk; 0: there are none on disk."""
        parts = (self.train.x, self.clean.x)
        return max(x.read_threads if isinstance(x, StreamedTensor) else 0 for x in parts)

    def epoch(self, epoch: int, *, labeled_only: bool, start: int = 0) -> Generator[Batch, None, None]:
        """Yield the batches of an epoch from step `start`. Samples on disk are prefetched."""
        plans = self.plan_epoch(epoch, labeled_only=labeled_only, start=start)
        if not self.reads_from_disk:
            yield from map(self.make_batch, plans)
            return
        # Of samples on disk each rank reads its share of a batch. The threads do not see the ranks.
        own = ((plan, own_span(plan.train.shape[1]), own_span(plan.clean.shape[1])) for plan in plans)
        limit = QueueLimit(self.train.x.device)
        with closing(prefetch(self._read, own, threads=self._read_threads)) as read:
            for host_plan, x, clean_x in read:
                plan = host_plan.to(self.train.x.device)
                x = _on_device(self.train.x, plan.train[0], x)
                clean_x = _on_device(self.clean.x, plan.clean[0], clean_x)
                yield self._assemble(plan, x, clean_x)
                limit.add(x.nbytes + clean_x.nbytes)

    def plan_epoch(self, epoch: int, *, labeled_only: bool, start: int = 0) -> Generator[BatchPlan, None, None]:
        """Draw the plans of all batches of an epoch, copy them to the device in one transfer, and yield them.

        If samples are read from disk the plans stay on the host: reading row numbers back from the device would block.
        """
        steps = self.steps(labeled_only=labeled_only)
        rows = self._labeled if labeled_only else torch.arange(len(self.train))
        clean_steps = max(1, len(self.clean) // self.size)
        clean_cycles = [
            self._split(self._shuffle(len(self.clean), "clean", epoch, number), clean_steps)
            for number in range(-(-steps // clean_steps))
        ]
        train = self._add_augmentation(
            self._split(rows[self._shuffle(len(rows), "train", epoch)], steps), "train", epoch
        )
        clean = self._add_augmentation(torch.cat(clean_cycles)[:steps], "clean", epoch)
        optional = {
            "second": self._draw_second(epoch, train),
            "strong": self._draw_strong("strong", epoch, train),
            "clean_strong": self._draw_strong("strong clean", epoch, clean) if self.augment_clean else None,
            "mixup": self._draw_mixup("mixup", epoch, train),
            "clean_mixup": self._draw_mixup("mixup clean", epoch, clean),
        }
        drawn = {name: draws for name, draws in optional.items() if draws is not None}

        def plan(step: int) -> BatchPlan:
            seed = stream_seed(self.seed, "step", epoch, step)
            return BatchPlan(
                train=train[step], clean=clean[step], seed=seed, **{name: draws[step] for name, draws in drawn.items()}
            )

        return (plan(step) for step in range(start, steps))

    def make_batch(self, plan: BatchPlan) -> Batch:
        """Return the batch of a plan: a deterministic function of it."""
        return self._assemble(plan, self.train.x[plan.train[0]], self.clean.x[plan.clean[0]])

    def _read(self, own: tuple[BatchPlan, slice, slice]) -> tuple[BatchPlan, Tensor | None, Tensor | None]:
        """Read the samples of a plan that are on disk: those of the two slices of the batch."""
        plan, train, clean = own
        return plan, _read_rows(self.train.x, plan.train[0, train]), _read_rows(self.clean.x, plan.clean[0, clean])

    def _assemble(self, plan: BatchPlan, x: Tensor, clean_x: Tensor) -> Batch:
        index, clean = plan.train[0], plan.clean[0]
        views = self._views(x, self.augment, plan.train[1:], plan.strong, plan.mixup)
        if plan.second is not None:
            second = to_input(AUGMENTATIONS[self.augment](x, plan.second), self.dtype)
            views = dataclasses.replace(views, second=second)
        return Batch(
            views=views,
            given=self.train.given[index],
            index=index,
            clean_views=self._views(
                clean_x,
                self.augment if self.augment_clean else "none",
                plan.clean[1:],
                plan.clean_strong,
                plan.clean_mixup,
            ),
            clean_y=self.clean.true[clean],
            clean_given=self.clean.given[clean],
            seed=plan.seed,
        )

    def _views(self, x: Tensor, augment: str, draws: Tensor, strong: Tensor | None, mixup: Tensor | None) -> Views:
        weak = to_input(AUGMENTATIONS[augment](x, draws), self.dtype)
        views = Views(weak=weak)
        if strong is not None:
            flips = "flip" in self.augment
            views = dataclasses.replace(views, strong=augment_strongly(x, strong, flips=flips, dtype=self.dtype))
        if mixup is not None:
            views = dataclasses.replace(views, partner=mixup[0], share=mixup_share(mixup, self.dtype))
        return views

    def _shuffle(self, count: int, *name: str | int) -> Tensor:
        if self.order == "given":
            return torch.arange(count)
        return torch.randperm(count, generator=generator(self.seed, "shuffle", *name))

    def _split(self, order: Tensor, count: int) -> Tensor:
        """Return (count, size): the first `count` full batches, or one batch of all rows if there are fewer."""
        size = min(self.size, len(order))
        return order[: count * size].view(count, size)

    def _add_augmentation(self, rows: Tensor, name: str, epoch: int) -> Tensor:
        """Return (steps, 5, size) on the device: the rows of an epoch with their augmentation draws."""
        draws = draw_augmentation(rows.numel(), generator(self.seed, "augment", name, epoch))
        return self._send(torch.cat([rows[:, None], draws.view(4, *rows.shape).transpose(0, 1)], 1))

    def _draw_second(self, epoch: int, rows: Tensor) -> Tensor | None:
        """Return (steps, 4, size) on the device: the draws of the second copies of an epoch, if there is any."""
        if not self.second_view or self.augment == "none":
            return None
        steps, _, size = rows.shape
        draws = draw_augmentation(steps * size, generator(self.seed, "augment", "second", epoch))
        return self._send(draws.view(4, steps, size).transpose(0, 1).contiguous())

    def _draw_strong(self, name: str, epoch: int, rows: Tensor) -> Tensor | None:
        """Return (steps, 15, size) on the device: the strong augmentation draws of an epoch, if it has any."""
        if self.strong_augment_from is None or epoch < self.strong_augment_from:
            return None
        steps, _, size = rows.shape
        draws = draw_strong_augmentation(steps * size, generator(self.seed, "augment", name, epoch))
        return self._send(draws.view(-1, steps, size).transpose(0, 1).contiguous())

    def _draw_mixup(self, name: str, epoch: int, rows: Tensor) -> Tensor | None:
        """Return (steps, 2, size) on the device: the MixUp draws of an epoch, if it has any."""
        if not self.mixup:
            return None
        steps, _, size = rows.shape
        return self._send(draw_mixup(steps, size, self.mixup, stream_seed(self.seed, "augment", name, epoch)))

    def _send(self, plans: Tensor) -> Tensor:
        """Copy the plans to the device. From pinned memory the copy to a GPU is asynchronous."""
        if self.reads_from_disk:
            return plans
        device = self.train.x.device
        return (plans.pin_memory() if device.type == "cuda" else plans).to(device, non_blocking=True)

    @cached_property
    def _labeled(self) -> Tensor:
        """The labeled rows, on the host: reading them from a busy GPU each epoch would block."""
        return (self.train.given != UNLABELED).nonzero()[:, 0].cpu()


def _read_rows(x: Samples, rows: Tensor) -> Tensor | None:
    return x.read(rows) if isinstance(x, StreamedTensor) else None


def _on_device(x: Samples, rows: Tensor, read: Tensor | None) -> Tensor:
    """Return the samples on the device: those read from disk, or else those already there."""
    if isinstance(x, StreamedTensor) and read is not None:
        return gather_rows(x.to_device(read), len(rows))
    return x[rows]
