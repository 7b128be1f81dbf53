"""Batches made on the device: shuffled, augmented, scaled, each with a clean batch beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metalabelnet.data.augment import AUGMENTS
from metalabelnet.data.rows import UNLABELED
from metalabelnet.seeds import generator, stream_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metalabelnet.data.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a method is given for one step.

    x, given, index   training samples, their untrusted labels (−1: none), and their row numbers
    clean_x, clean_y  clean samples with labels to trust
    seed              for whatever the step draws at random (dropout masks)
    """

    x: Tensor
    given: Tensor
    index: Tensor
    clean_x: Tensor
    clean_y: Tensor
    seed: int


def to_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What a network reads: bytes scaled to [−1, 1]; tables as they are."""
    return x.to(dtype).div_(127.5).sub_(1) if x.dtype == torch.uint8 else x.to(dtype)


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The batches of a run, each a function of the seed, the epoch and the step alone.

    Every batch is full. The rows left over at the end of an epoch wait for the next one's shuffle; where
    there are fewer rows than one batch holds, the batch is all of them. The same goes for the clean rows,
    which are gone through again and again within an epoch.
    """

    train: Rows
    clean: Rows
    size: int
    augment: str
    augment_clean: bool
    dtype: torch.dtype
    seed: int

    def steps(self, *, labeled_only: bool) -> int:
        """How many batches an epoch has."""
        rows = int((self.train.given != UNLABELED).sum()) if labeled_only else len(self.train)
        return max(1, rows // self.size)

    def epoch(self, epoch: int, *, labeled_only: bool, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from step `start` on."""
        rows = self.train.given != UNLABELED if labeled_only else torch.ones_like(self.train.given, dtype=torch.bool)
        rows = rows.nonzero()[:, 0]
        order = rows[self._shuffled(len(rows), "train", epoch)]
        in_a_round = max(1, len(self.clean) // self.size)
        for step in range(start, self.steps(labeled_only=labeled_only)):
            rounds, place = divmod(step, in_a_round)
            if place == 0 or step == start:
                clean_order = self._shuffled(len(self.clean), "clean", epoch, rounds)
            index = order[step * self.size : (step + 1) * self.size]
            clean = clean_order[place * self.size : (place + 1) * self.size]
            yield Batch(
                x=self._inputs(self.train, index, self.augment, epoch, step),
                given=self.train.given[index],
                index=index,
                clean_x=self._inputs(self.clean, clean, self.augment if self.augment_clean else "none", epoch, step),
                clean_y=self.clean.true[clean],
                seed=stream_seed(self.seed, "step", epoch, step),
            )

    def _inputs(self, rows: Rows, positions: Tensor, augment: str, epoch: int, step: int) -> Tensor:
        name = "train" if rows is self.train else "clean"
        randomness = generator(self.seed, "augment", name, epoch, step, device=rows.x.device)
        return to_input(AUGMENTS[augment](rows.x[positions], randomness), self.dtype)

    def _shuffled(self, count: int, *name: str | int) -> Tensor:
        order = torch.randperm(count, generator=generator(self.seed, "shuffle", *name))
        return order.to(self.train.x.device)
