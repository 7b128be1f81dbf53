"""The list: filters against a loop in Python, and pages that miss nothing."""

import itertools
from pathlib import Path

import pytest

from metalabelnet.review.filters import SHOWS, VERDICTS, SampleFilter, count, page
from metalabelnet.review.source import SampleRow
from metalabelnet.review.store import ReviewStore
from metalabelnet.review.verdicts import Verdict, decide
from stores import Made, made_store

SAID = (("label", 0), ("label", 1), ("unusable", None), ("skip", None))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[ReviewStore, Made, dict[int, tuple[str, int | None]]]:
    store, made = made_store(tmp_path_factory.mktemp("pages"), 300)
    said = {row.n: SAID[k % 4] for k, row in enumerate(made.rows[:120])}
    for n, (kind, label) in said.items():
        decide(store, Verdict(n=n, kind=kind, label=label), seen=0)
    return store, made, said


def wanted(row: SampleRow, which: SampleFilter, said: dict[int, tuple[str, int | None]]) -> bool:
    kind, label = said.get(row.n, (None, None))
    fits = {
        "open": kind is None,
        "decided": kind is not None,
        "kept": kind == "label" and label == row.given,
        "changed": kind == "label" and label != row.given,
        "unusable": kind == "unusable",
        "skipped": kind == "skip",
        "any": True,
    }
    shown = {"suspects": row.suspect == 1, "labeled": row.given >= 0, "unlabeled": row.given < 0, "all": True}
    return (
        row.split == which.split
        and fits[which.verdict]
        and shown[which.show]
        and which.given in (None, row.given)
        and which.label in (None, row.label)
        and which.least <= row.confidence <= which.most
    )


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("show", SHOWS)
def test_a_filter_is_what_a_loop_finds(judged, verdict: str, show: str) -> None:
    store, made, said = judged
    for split, given, label, least in itertools.product(("train", "clean"), (None, 0), (None, 1), (0.0, 0.4)):
        which = SampleFilter(
            show=show, verdict=verdict, split=split, given=given, label=label, least=least, most=1 - least / 2
        )
        rows = [row for row in made.rows if wanted(row, which, said)]
        expected = [row.n for row in sorted(rows, key=lambda row: (-row.suspicion, row.n))]
        assert [row["n"] for row in page(store, which, 1000)] == expected
        assert count(store, which) == len(expected)


def test_pages_hold_every_sample_once(judged) -> None:
    store, made, _ = judged
    which, seen, after = SampleFilter(show="all", verdict="any"), [], None
    while rows := page(store, which, 7, after):
        seen += [row["n"] for row in rows]
        after = (rows[-1]["suspicion"], rows[-1]["n"])
    assert len(seen) == len(set(seen)) == sum(row.split == "train" for row in made.rows)


def test_verdicts_on_a_page_make_nobody_miss_a_sample_of_the_next(tmp_path: Path) -> None:
    store, made = made_store(tmp_path)
    which, seen, after = SampleFilter(show="labeled"), [], None
    while rows := page(store, which, 5, after):
        for row in rows:
            seen.append(row["n"])
            decide(store, Verdict(n=row["n"], kind="skip"), seen=row["seen"])
        after = (rows[-1]["suspicion"], rows[-1]["n"])
    assert sorted(seen) == sorted(row.n for row in made.rows if row.given >= 0 and row.split == "train")
