"""Sampling for a clean set, and its progress.

Samples are drawn from the classes that need more, in random order, so that a sample does not reveal its given label.
The class of a sample is its corrected label, else its given label (its stratum). The draw depends only on the verdicts
so far: reloading the page shows the same sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from metalabelnet.review.noise_rate import Stratum, noise_rate
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from metalabelnet.review.noise_rate import NoiseRateEstimate
    from metalabelnet.review.store import ReviewStore

_ORDER_BY = {"random": "s.n", "informative": "s.informativeness DESC, s.n"}


@dataclass(frozen=True, kw_only=True)
class CleanSetProgress:
    """Number of confirmed samples of each class, and the estimated noise rate."""

    confirmed: tuple[int, ...]
    target: int  # samples per class
    noise_rate: NoiseRateEstimate | None
    unblinded: int = 0  # samples decided on while their label was visible

    @property
    def done(self) -> bool:
        """Whether every class has its target number of samples."""
        return min(self.confirmed) >= self.target


def progress(store: ReviewStore, classes: int, target: int) -> CleanSetProgress:
    """The progress of the clean set."""
    unblinded = _count_unblinded(store)
    return CleanSetProgress(
        confirmed=count_confirmed(store, classes),
        target=target,
        noise_rate=estimate_noise_rate(store, unblinded),
        unblinded=sum(unblinded.values()),
    )


def count_confirmed(store: ReviewStore, classes: int) -> tuple[int, ...]:
    """The number of confirmed samples of each class that are still in the data."""
    query = (
        "SELECT c.label, count(*) FROM current_verdicts c WHERE c.kind = 'label' "
        "AND EXISTS (SELECT 1 FROM samples s WHERE s.n = c.n) GROUP BY c.label"
    )
    counts = dict(store.connection().execute(query).fetchall())
    return tuple(counts.get(c, 0) for c in range(classes))


def draw_sample(store: ReviewStore, so_far: CleanSetProgress, sampling: str) -> int | None:
    """The number of the next sample, or None if the set is complete or no sample is left."""
    incomplete = [c for c, count in enumerate(so_far.confirmed) if count < so_far.target]
    if not incomplete:
        return None
    last_verdict = store.connection().execute("SELECT ifnull(max(v), 0) FROM verdicts").fetchone()[0]
    order = torch.randperm(len(so_far.confirmed), generator=generator(0, "draw", last_verdict)).tolist()
    for c in [*(c for c in order if c in incomplete), *(c for c in order if c not in incomplete), -1]:
        row = (
            store.connection()
            .execute(
                "SELECT s.n FROM samples s WHERE s.split = 'train' AND s.stratum = ? AND NOT EXISTS "  # noqa: S608
                f"(SELECT 1 FROM current_verdicts c WHERE c.n = s.n) ORDER BY {_ORDER_BY[sampling]} LIMIT 1",
                (c,),
            )
            .fetchone()
        )
        if row is not None:
            return int(row["n"])
    return None


def estimate_noise_rate(store: ReviewStore, unblinded: dict[int, int] | None = None) -> NoiseRateEstimate | None:
    """Estimate the noise rate from samples that were drawn at random and judged blind.

    Samples drawn by informativeness are not representative and visible labels bias the verdict, so neither counts. Of
    several verdicts on a sample the last blind one counts. Samples decided on unblinded are no longer drawn, so the
    estimate is for the other samples.
    """
    db = store.connection()
    judged = {
        row["stratum"]: (row["judged"], row["wrong"])
        for row in db.execute(
            "SELECT s.stratum, count(*) AS judged, sum(s.given != b.label) AS wrong FROM samples s JOIN ("
            "  SELECT n, label, max(v) FROM verdicts WHERE kind = 'label' AND blind = 1 AND sampling = 'random' AND"
            "  v NOT IN (SELECT undoes FROM verdicts WHERE undoes IS NOT NULL) GROUP BY n"
            ") b ON b.n = s.n WHERE s.given >= 0 AND s.split = 'train' GROUP BY s.stratum"
        )
    }
    sizes = db.execute("SELECT stratum, count FROM stratum_sizes WHERE split = 'train' AND labeled = 1").fetchall()
    unblinded = _count_unblinded(store) if unblinded is None else unblinded
    strata = [(size["stratum"], size["count"], *judged.get(size["stratum"], (0, 0))) for size in sizes]
    return noise_rate([Stratum(size=size - unblinded.get(c, 0), judged=n, wrong=k) for c, size, n, k in strata])


def _count_unblinded(store: ReviewStore) -> dict[int, int]:
    """The number of samples of each stratum decided on with their label visible and never blind."""
    query = (
        "SELECT s.stratum, count(*) FROM samples s NOT INDEXED WHERE s.n IN (SELECT n FROM current_verdicts) "
        "AND s.split = 'train' AND s.given >= 0 AND NOT EXISTS "
        "(SELECT 1 FROM verdicts v WHERE v.n = s.n AND v.blind = 1 AND v.sampling = 'random') GROUP BY s.stratum"
    )
    return dict(store.connection().execute(query).fetchall())
