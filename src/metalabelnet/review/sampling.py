"""Which sample is next for a clean set, and how far the set is.

Samples are drawn from the classes that still want some, in turns that nobody can foresee, so that seeing a sample says
nothing of the label it was given. A class stands for the best guess there is: the run's label, else the given one.
Which sample is drawn depends on the verdicts so far alone: a page that is loaded again shows the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from metalabelnet.review.noise_rate import Stratum, noise_rate
from metalabelnet.seeds import generator

if TYPE_CHECKING:
    from metalabelnet.review.noise_rate import Rate
    from metalabelnet.review.store import Store

_ORDERS = {"random": "s.n", "informative": "s.informative DESC, s.n"}


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How many samples of each class are confirmed, by number, and what is known of the given labels."""

    confirmed: tuple[int, ...]
    wanted: int
    rate: Rate | None
    openly: int = 0  # samples whose label was in sight when they were decided on

    @property
    def done(self) -> bool:
        """Whether every class has what it wants."""
        return min(self.confirmed) >= self.wanted


def progress(store: Store, classes: int, wanted: int) -> Progress:
    """How far the set is."""
    openly = _openly(store)
    found, so_far = rate(store, openly), confirmed(store, classes)
    return Progress(confirmed=so_far, wanted=wanted, rate=found, openly=sum(openly.values()))


def confirmed(store: Store, classes: int) -> tuple[int, ...]:
    """How many samples of each class a person has confirmed; those that have gone since do not count."""
    asked = (
        "SELECT c.label, count(*) FROM standing c WHERE c.kind = 'label' "
        "AND EXISTS (SELECT 1 FROM samples s WHERE s.n = c.n) GROUP BY c.label"
    )
    counts = dict(store.read_options().execute(asked).fetchall())
    return tuple(counts.get(c, 0) for c in range(classes))


def draw(store: Store, so_far: Progress, way: str) -> int | None:
    """The number of the next sample; None when no class wants one, or none is left."""
    wanting = [c for c, number in enumerate(so_far.confirmed) if number < so_far.wanted]
    if not wanting:
        return None
    made = store.read_options().execute("SELECT ifnull(max(v), 0) FROM verdicts").fetchone()[0]
    turns = torch.randperm(len(so_far.confirmed), generator=generator(0, "draw", made)).tolist()
    for c in [*(c for c in turns if c in wanting), *(c for c in turns if c not in wanting), -1]:
        found = (
            store.read_options()
            .execute(
                "SELECT s.n FROM samples s WHERE s.split = 'train' AND s.stratum = ? AND NOT EXISTS "  # noqa: S608
                f"(SELECT 1 FROM standing c WHERE c.n = s.n) ORDER BY {_ORDERS[way]} LIMIT 1",
                (c,),
            )
            .fetchone()
        )
        if found is not None:
            return int(found["n"])
    return None


def rate(store: Store, openly: dict[int, int] | None = None) -> Rate | None:
    """The share of wrong given labels, from the samples that were drawn at random and judged blind.

    Samples chosen for being informative are not like the others, and a label that was seen has been believed: neither
    counts. Of several looks at a sample the last blind one does. What was decided openly is not drawn any more, so that
    the share is that of the other samples.
    """
    db = store.read_options()
    judged = {
        row["stratum"]: (row["judged"], row["wrong"])
        for row in db.execute(
            "SELECT s.stratum, count(*) AS judged, sum(s.given != b.label) AS wrong FROM samples s JOIN ("
            "  SELECT n, label, max(v) FROM verdicts WHERE kind = 'label' AND blind = 1 AND way = 'random' AND"
            "  v NOT IN (SELECT undoes FROM verdicts WHERE undoes IS NOT NULL) GROUP BY n"
            ") b ON b.n = s.n WHERE s.given >= 0 AND s.split = 'train' GROUP BY s.stratum"
        )
    }
    sizes = db.execute("SELECT stratum, count FROM sizes WHERE split = 'train' AND labeled = 1").fetchall()
    openly = _openly(store) if openly is None else openly
    strata = [(size["stratum"], size["count"], *judged.get(size["stratum"], (0, 0))) for size in sizes]
    return noise_rate([Stratum(size=size - openly.get(c, 0), judged=n, wrong=k) for c, size, n, k in strata])


def _openly(store: Store) -> dict[int, int]:
    """How many samples of each stratum were decided on with their label in sight, and never blind."""
    asked = (
        "SELECT s.stratum, count(*) FROM samples s NOT INDEXED WHERE s.n IN (SELECT n FROM standing) "
        "AND s.split = 'train' AND s.given >= 0 AND NOT EXISTS "
        "(SELECT 1 FROM verdicts v WHERE v.n = s.n AND v.blind = 1 AND v.way = 'random') GROUP BY s.stratum"
    )
    return dict(store.read_options().execute(asked).fetchall())
