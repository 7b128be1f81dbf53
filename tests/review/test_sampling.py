"""Sampling for a clean set: order, completion and noise rate."""

import dataclasses
import itertools
import random
from pathlib import Path

import pytest

from metalabelnet.review.clean_set_sampling import draw_sample, estimate_noise_rate, progress
from metalabelnet.review.store import ReviewStore
from metalabelnet.review.verdicts import Verdict, add_verdict, undo_last
from random_store import RandomSource, random_store


def test_draws_until_every_class_is_complete(tmp_path: Path) -> None:
    store, source = random_store(tmp_path, 400)
    by_number = {row.n: row for row in source.rows}
    for _ in range(400):
        so_far = progress(store, 3, 4)
        n = draw_sample(store, so_far, "random")
        if n is None:
            break
        assert draw_sample(store, so_far, "random") == n  # as when the page is reloaded
        assert by_number[n].split == "train"
        add_verdict(store, Verdict(n=n, kind="label", label=by_number[n].label, page="clean"), seen=0)
    assert progress(store, 3, 4).confirmed == (4, 4, 4)
    assert progress(store, 3, 4).done
    assert draw_sample(store, progress(store, 3, 5), "random") is not None


def test_draws_all_samples_if_a_class_is_never_found(tmp_path: Path) -> None:
    store, source = random_store(tmp_path, 30)
    drawn = set()
    while (n := draw_sample(store, progress(store, 3, 2), "random")) is not None:
        drawn.add(n)
        add_verdict(store, Verdict(n=n, kind="label", label=0, page="clean"), seen=0)  # always class a
    assert drawn == {row.n for row in source.rows if row.split == "train"}
    assert not progress(store, 3, 2).done


def test_most_informative_first(tmp_path: Path) -> None:
    store, source = random_store(tmp_path, 200)
    drawn = []
    for _ in range(30):
        n = draw_sample(store, progress(store, 3, 100), "informative")
        assert n is not None
        drawn.append(next(row for row in source.rows if row.n == n))
        add_verdict(store, Verdict(n=n, kind="skip", page="clean"), seen=0)
    for label in range(3):
        scores = [row.informativeness for row in drawn if row.label == label]
        best = sorted(
            (row.informativeness for row in source.rows if (row.label, row.split) == (label, "train")), reverse=True
        )
        assert scores == best[: len(scores)]
        assert scores


def test_random_draws_are_not_in_data_order(tmp_path: Path) -> None:
    store, source = random_store(tmp_path, 300)
    positions = {row.n: row.position for row in source.rows}
    drawn = []
    for _ in range(60):
        n = draw_sample(store, progress(store, 3, 100), "random")
        assert n is not None
        drawn.append(positions[n])
        add_verdict(store, Verdict(n=n, kind="skip", page="clean"), seen=0)
    rises = sum(a < b for a, b in itertools.pairwise(drawn))
    assert 15 < rises < 45  # of 59: a random order has 29.5 with a standard deviation of 2.2


def test_noise_rate_uses_blind_verdicts_on_random_draws(tmp_path: Path) -> None:
    store, source = random_store(tmp_path, 200)
    labeled = [row for row in source.rows if row.split == "train" and row.given >= 0]
    assert estimate_noise_rate(store) is None

    def judge(row, *, correct: bool, **options: object) -> None:
        label = row.given if correct else (row.given + 1) % 3
        add_verdict(store, Verdict(n=row.n, kind="label", label=label, page="clean", **options), seen=0)

    judge(labeled[0], correct=False, blind=False, sampling="random")
    judge(labeled[1], correct=False, blind=True, sampling="informative")
    assert estimate_noise_rate(store) is None
    for k, row in enumerate(labeled[2:52]):
        judge(row, correct=k % 5 > 0, blind=True, sampling="random", tab="t")
    estimate = estimate_noise_rate(store)
    assert estimate is not None
    assert estimate.judged == 50
    strata = [[row.n for row in labeled if row.label == c and row in labeled[2:52]] for c in range(3)]
    wrong = {row.n for k, row in enumerate(labeled[2:52]) if k % 5 == 0}
    sizes = [sum(row.label == c for row in labeled[2:]) for c in range(3)]  # without samples decided on unblinded
    naive = sum(s * len(wrong & set(ns)) / len(ns) for s, ns in zip(sizes, strata, strict=True)) / sum(sizes)
    assert estimate.rate == pytest.approx(naive)
    assert estimate.low < estimate.rate < estimate.high
    undo_last(store, "t")
    assert estimate_noise_rate(store).judged == 49
    row = labeled[2]  # a later unblinded verdict changes the label, not the estimate
    seen = store.connection().execute("SELECT v FROM current_verdicts WHERE n = ?", (row.n,)).fetchone()[0]
    before = estimate_noise_rate(store)
    add_verdict(store, Verdict(n=row.n, kind="label", label=row.given), seen=seen)
    assert estimate_noise_rate(store) == before


@pytest.mark.slow
def test_interval_coverage_with_actual_draws(tmp_path: Path) -> None:
    """100 clean sets of ten samples per class. The standard error of the coverage is 2.2 points."""
    hits, misses = 0, []
    for seed in range(100):
        rng, source = random.Random(seed), RandomSource(320, seed=seed)
        true_label = {row.n: rng.randrange(3) for row in source.rows}
        for k, row in enumerate(source.rows):
            given = true_label[row.n] if rng.random() < 0.75 else (true_label[row.n] + rng.randrange(1, 3)) % 3
            label = true_label[row.n] if rng.random() < 0.8 else given
            source.rows[k] = dataclasses.replace(row, given=given, label=label, split="train")
        store = ReviewStore(tmp_path / f"{seed}.sqlite")
        store.connection().execute("PRAGMA synchronous = OFF")
        store.import_samples(source)  # type: ignore[arg-type]
        while (n := draw_sample(store, progress(store, 3, 10), "random")) is not None:
            options = {"page": "clean", "blind": True, "sampling": "random"}
            add_verdict(store, Verdict(n=n, kind="label", label=true_label[n], **options), seen=0)
        estimate, correct = (
            estimate_noise_rate(store),
            sum(row.given != true_label[row.n] for row in source.rows) / len(source.rows),
        )
        assert estimate is not None
        hits += estimate.low <= correct <= estimate.high
        misses.append(estimate.rate - correct)
        store.close()
    assert hits >= 88
    assert abs(sum(misses) / len(misses)) < 0.035
