"""A review store with random samples, without data or a run."""

import random
from collections.abc import Iterator
from pathlib import Path

from metalabelnet.review.source import SampleRow
from metalabelnet.review.store import ReviewStore


class RandomSource:
    """Replaces a `ReviewSource`: samples with random labels and scores."""

    def __init__(self, count: int, classes: int = 3, seed: int = 0) -> None:
        self.count, self.fingerprint, self.ids_are_row_numbers = count, f"{count} {classes} {seed}", False
        self.classes = tuple("abcdefghij"[:classes])
        self.random, self.rows = random.Random(seed), []
        for k in range(count):
            given, label = self.random.randrange(-1, classes), self.random.randrange(classes)
            suspicion = -1.0 if given < 0 else round(self.random.random(), 2)  # with ties
            self.rows.append(
                SampleRow(
                    n=self.random.getrandbits(62),
                    position=k,
                    id=f"sample {k}",
                    split="train" if k % 10 else "clean",
                    given=given,
                    label=label,
                    confidence=round(self.random.random(), 2),
                    suspect=int(suspicion > 0.6),
                    suspicion=suspicion,
                    informativeness=round(self.random.random(), 3),
                    clean_label=-1 if k % 10 else label,
                    probabilities=f"[[{label}, 0.7]]",
                )
            )

    def __len__(self) -> int:
        return self.count

    def samples(self) -> Iterator[SampleRow]:
        return iter(self.rows)


def random_store(folder: Path, count: int = 60, **options: int) -> tuple[ReviewStore, RandomSource]:
    source = RandomSource(count, **options)
    store = ReviewStore(folder / "review.sqlite")
    store.import_samples(source)  # type: ignore[arg-type]
    return store, source
