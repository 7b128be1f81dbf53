"""What compare advises, and how sure it says it is."""

from pathlib import Path
from typing import Any

import pytest

from metalabelnet.core.intervals import T_95, is_positive, wilson_percent
from metalabelnet.report.recommendation import recommend
from shell import TINY, call
from tiny import write_npz

Summaries = dict[str, dict[int, dict[str, Any]]]


def summaries(test: int = 500, **accuracies: list[float]) -> Summaries:
    samples = {"train": 1000, "clean": 80, "validation": 20, "test": test}
    return {
        method: {
            seed: {"test_accuracy": value if test else None, "clean_accuracy": min(value, 95.0), "samples": samples}
            for seed, value in enumerate(values)
        }
        for method, values in accuracies.items()
    }


def test_a_clear_winner_is_called_one() -> None:
    said = recommend(summaries(a=[90.0, 91.0, 89.0], b=[95.0, 96.1, 94.0], c=[80.0, 80.0, 82.0]), 10)
    assert said.startswith("b was best here, with 95.03 % of the test samples right. ")
    assert "That is 5.03 ± 0.06 points ahead of a, seed by seed, and ahead in 3 of 3" in said
    assert "more than chance for every other method" in said
    assert "selected on 20 clean samples (2 a class): 94.7 % of them right stand for 76 to 99 %" in said
    assert "the choice of the epoch is partly chance" in said


def test_what_cannot_be_told_apart_is_said_so() -> None:
    said = recommend(summaries(a=[90.0, 94.0, 89.0], b=[91.0, 93.0, 92.0], c=[92.0, 90.0, 91.0], d=[9.0, 9.0, 9.0]), 10)
    assert said.startswith("b was best here")
    assert "a and c cannot be told from it" in said or "c and a cannot be told from it" in said
    assert "d" not in said.partition("cannot")[0].replace("ahead", "").replace("seed", "").split()


def test_one_seed_leaves_what_the_number_of_samples_says() -> None:
    said = recommend(summaries(a=[90.0], b=[91.0], c=[50.0]), 10)
    assert "1.00 points ahead of a, in one run" in said
    low, high = wilson_percent(91.0, 500)
    assert f"{low:.1f} to {high:.1f} % (95 %), and a cannot be told from it" in said
    assert "--seeds" in said
    assert "no other comes near" in recommend(summaries(a=[90.0], c=[50.0]), 10)


def test_without_a_test_set_the_clean_samples_are_all_there_is() -> None:
    said = recommend(summaries(test=0, a=[90.0, 85.0], b=[80.0, 70.0]), 40)
    assert "held-out clean samples right, on which the epoch was selected too" in said
    assert "20 clean samples (less than one a class)" in said
    assert said.endswith("and no more is known.")


def test_of_several_that_are_level_none_is_called_best() -> None:
    said = recommend(summaries(a=[90.0, 92.0], b=[100.0, 100.0], c=[100.0, 100.0]), 10)
    assert said.startswith("b and c were level and best here, with 100.00 % of the test samples right. That is 9.00")
    assert "points ahead of a, seed by seed, and ahead in 2 of 2" in said
    assert "points" not in recommend(summaries(b=[90.0], c=[90.0]), 10)


def test_one_method_and_none() -> None:
    assert recommend(summaries(a=[90.0]), 2).count(". ") == 1
    assert recommend({"a": {}}, 2) == ""


def test_wilson_is_sound_at_the_ends() -> None:
    """Against the closed forms: at 100 % of n the interval is n/(n + z²) to 1."""
    low, high = wilson_percent(100.0, 20)
    assert (low, high) == pytest.approx((100 * 20 / (20 + 1.96**2), 100.0))
    assert wilson_percent(0.0, 20) == pytest.approx((0.0, 100 - low))
    low, high = wilson_percent(50.0, 10**6)
    assert high - low == pytest.approx(2 * 1.96 * 100 * 0.5 / 1000, rel=1e-4)


def test_students_quantiles() -> None:
    stats = pytest.importorskip("scipy.stats")
    assert pytest.approx([stats.t.ppf(0.975, df) for df in range(1, 11)], abs=1e-3) == T_95
    assert is_positive([1.0, 1.1, 0.9], 0.01)
    assert not is_positive([1.0, -0.5, 2.0], 0.01)
    assert not is_positive([1.0], 0.01)
    for n in (12, 30, 100):  # beyond the table an approximation, good to a hundredth
        assert 1.96 + 2.5 / (n - 1) == pytest.approx(stats.t.ppf(0.975, n - 1), abs=0.03)


def test_equal_differences_of_few_samples_are_no_certainty() -> None:
    said = recommend(summaries(test=12, a=[100.0, 100.0], b=[91.67, 91.67]), 3)
    assert "taken to be one sample of 12 at least, b cannot be told from it" in said
    assert "at least, that is more than chance" in recommend(summaries(test=10_000, a=[99.0] * 2, b=[91.0] * 2), 3)


def test_compare_ends_with_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "small.npz")
    common = ["--seeds", "2", "--jobs", "1", *TINY.split(), "--out", "o"]
    said = call(["compare", "small.npz", "--methods", "cross-entropy,clean-only", *common], capsys)
    assert said.code == 0
    last = said.out.rpartition("\n\n")[2]
    assert "was best here, with" in last
    assert "selected on 4 clean samples (1 a class)" in " ".join(last.split())


def of_seeds(**accuracies: dict[int, float]) -> Summaries:
    """Summaries of methods some of whose runs have failed."""
    made = summaries(**{method: list(by_seed.values()) for method, by_seed in accuracies.items()})
    return {method: dict(zip(accuracies[method], by_seed.values(), strict=True)) for method, by_seed in made.items()}


def test_methods_that_share_one_seed_of_several_are_not_ranked() -> None:
    said = recommend(of_seeds(a={0: 90.0, 1: 80.0, 2: 94.0}, b={1: 87.0}), 10)
    assert said.startswith("Which method was best here cannot be said; a has 88.00 % of the test samples right. ")
    assert "Too few seeds are shared with a to compare it with b (1 of 3, 7.00 points ahead there). " in said
    for wrong in ("was best here,", "in one run", "known as", "comes near"):
        assert wrong not in said


def test_methods_are_compared_on_the_seeds_that_most_runs_share() -> None:
    """The one that ran through must not win because of that, nor by its luck with another seed."""
    failed = of_seeds(a={0: 70.0, 1: 71.0, 2: 99.0}, b={0: 90.0, 1: 92.0}, c={0: 85.0, 1: 86.0}, d={2: 99.0})
    said = recommend(failed, 10)
    assert said.startswith("b was best here, with 91.00 % of the test samples right (compared on seeds 0 and 1). ")
    assert "That is 5.50 ± 0.71 points ahead of c, seed by seed, and ahead in 2 of 2" in said
    assert "to compare it with d (0 of 2). " in said
    one = recommend(of_seeds(a={0: 90.0, 1: 80.0}, b={1: 87.0}), 10)
    low, high = wilson_percent(87.0, 500)
    assert one.startswith("b was best here, with 87.00 % of the test samples right (compared on seed 1). That is 7.00 ")
    assert (
        f"points ahead of a, in one run; from 500 samples alone its accuracy is known as {low:.1f} to {high:.1f}" in one
    )
