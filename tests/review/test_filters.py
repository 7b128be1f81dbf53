"""The list of samples: filters against a Python loop, and complete pages."""

import itertools
from pathlib import Path

import pytest

from metalabelnet.review.filters import SHOWS, VERDICTS, SampleFilter, count_samples, list_samples
from metalabelnet.review.source import SampleRow
from metalabelnet.review.store import ReviewStore
from metalabelnet.review.verdicts import Verdict, add_verdict
from random_store import RandomSource, random_store

VERDICT_CYCLE = (("label", 0), ("label", 1), ("unusable", None), ("skip", None))


@pytest.fixture(scope="module")
def reviewed_store(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[ReviewStore, RandomSource, dict[int, tuple[str, int | None]]]:
    store, source = random_store(tmp_path_factory.mktemp("pages"), 300)
    verdicts = {row.n: VERDICT_CYCLE[k % 4] for k, row in enumerate(source.rows[:120])}
    for n, (kind, label) in verdicts.items():
        add_verdict(store, Verdict(n=n, kind=kind, label=label), seen=0)
    return store, source, verdicts


def matches(row: SampleRow, sample_filter: SampleFilter, verdicts: dict[int, tuple[str, int | None]]) -> bool:
    kind, label = verdicts.get(row.n, (None, None))
    by_verdict = {
        "open": kind is None,
        "decided": kind is not None,
        "kept": kind == "label" and label == row.given,
        "changed": kind == "label" and label != row.given,
        "unusable": kind == "unusable",
        "skipped": kind == "skip",
        "any": True,
    }
    by_show = {"suspects": row.suspect == 1, "labeled": row.given >= 0, "unlabeled": row.given < 0, "all": True}
    return (
        row.split == sample_filter.split
        and by_verdict[sample_filter.verdict]
        and by_show[sample_filter.show]
        and sample_filter.given in (None, row.given)
        and sample_filter.label in (None, row.label)
        and sample_filter.min_confidence <= row.confidence <= sample_filter.max_confidence
    )


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("show", SHOWS)
def test_filter_equals_a_python_loop(reviewed_store, verdict: str, show: str) -> None:
    store, source, verdicts = reviewed_store
    for split, given, label, min_confidence in itertools.product(("train", "clean"), (None, 0), (None, 1), (0.0, 0.4)):
        sample_filter = SampleFilter(
            show=show,
            verdict=verdict,
            split=split,
            given=given,
            label=label,
            min_confidence=min_confidence,
            max_confidence=1 - min_confidence / 2,
        )
        rows = [row for row in source.rows if matches(row, sample_filter, verdicts)]
        expected = [row.n for row in sorted(rows, key=lambda row: (-row.suspicion, row.n))]
        assert [row["n"] for row in list_samples(store, sample_filter, 1000)] == expected
        assert count_samples(store, sample_filter) == len(expected)


def test_pages_contain_every_sample_once(reviewed_store) -> None:
    store, source, _ = reviewed_store
    sample_filter, seen, after = SampleFilter(show="all", verdict="any"), [], None
    while rows := list_samples(store, sample_filter, 7, after):
        seen += [row["n"] for row in rows]
        after = (rows[-1]["suspicion"], rows[-1]["n"])
    assert len(seen) == len(set(seen)) == sum(row.split == "train" for row in source.rows)


def test_verdicts_do_not_make_the_next_page_skip_samples(tmp_path: Path) -> None:
    store, source = random_store(tmp_path)
    sample_filter, seen, after = SampleFilter(show="labeled"), [], None
    while rows := list_samples(store, sample_filter, 5, after):
        for row in rows:
            seen.append(row["n"])
            add_verdict(store, Verdict(n=row["n"], kind="skip"), seen=row["seen"])
        after = (rows[-1]["suspicion"], rows[-1]["n"])
    assert sorted(seen) == sorted(row.n for row in source.rows if row.given >= 0 and row.split == "train")
