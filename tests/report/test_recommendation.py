"""The recommendation of `compare` and its uncertainty."""

from pathlib import Path
from typing import Any

import pytest

from cli_runner import TINY, run_cli
from metalabelnet.core.intervals import wilson_percent
from metalabelnet.report.recommendation import recommend
from tiny_data import write_npz

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


def test_significant_winner() -> None:
    text = recommend(summaries(a=[90.0, 91.0, 89.0], b=[95.0, 96.1, 94.0], c=[80.0, 80.0, 82.0]), 10)
    assert text.startswith("b was best, with 95.03 % of the test samples correct. ")
    assert "It is 5.03 ± 0.06 points ahead of a, paired by seed, and ahead on 3 of 3 seeds" in text
    assert "every other method is significantly worse (95 % CI over seeds" in text
    assert "selected on 20 validation samples (2 per class): 94.7 % correct (95 % CI 76–99 %)" in text
    assert "so the selected epoch is partly random" in text


def test_methods_that_are_not_significantly_different() -> None:
    text = recommend(summaries(a=[90.0, 94.0, 89.0], b=[91.0, 93.0, 92.0], c=[92.0, 90.0, 91.0], d=[9.0, 9.0, 9.0]), 10)
    assert text.startswith("b was best")
    assert "a and c are not significantly different" in text or "c and a are not significantly different" in text
    assert "d" not in text.partition("not significantly")[0].split()


def test_single_seed_uses_the_wilson_interval() -> None:
    text = recommend(summaries(a=[90.0], b=[91.0], c=[50.0]), 10)
    assert "1.00 points ahead of a in a single run" in text
    low, high = wilson_percent(91.0, 500)
    assert f"its 95 % CI is {low:.1f}–{high:.1f} %, which includes a: use more seeds" in text
    assert "--seeds" in text
    assert "which includes no other method" in recommend(summaries(a=[90.0], c=[50.0]), 10)


def test_without_test_set_uses_validation_samples() -> None:
    text = recommend(summaries(test=0, a=[90.0, 85.0], b=[80.0, 70.0]), 40)
    assert "validation samples correct (the samples on which the epoch was selected)" in text
    assert "20 validation samples (less than one per class)" in text
    assert text.endswith("and there is no test set.")


def test_ties() -> None:
    text = recommend(summaries(a=[90.0, 92.0], b=[100.0, 100.0], c=[100.0, 100.0]), 10)
    assert text.startswith("b and c tied for best, with 100.00 % of the test samples correct. It is 9.00")
    assert "points ahead of a, paired by seed, and ahead on 2 of 2 seeds" in text
    assert "points" not in recommend(summaries(b=[90.0], c=[90.0]), 10)


def test_one_method_and_no_method() -> None:
    assert recommend(summaries(a=[90.0]), 2).count(". ") == 1
    assert recommend({"a": {}}, 2) == ""


def test_spread_has_a_minimum_of_one_sample() -> None:
    text = recommend(summaries(test=12, a=[100.0, 100.0], b=[91.67, 91.67]), 3)
    assert "b is not significantly different (95 % CI over seeds, with a spread of at least one of 12 samples)" in text
    certain = recommend(summaries(test=10_000, a=[99.0] * 2, b=[91.0] * 2), 3)
    assert "significantly worse (95 % CI over seeds, with a spread of at least one of 10000 samples)" in certain


def test_compare_ends_with_the_recommendation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "small.npz")
    common = ["--seeds", "2", "--jobs", "1", *TINY.split(), "--out", "o"]
    text = run_cli(["compare", "small.npz", "--methods", "cross-entropy,clean-only", *common], capsys)
    assert text.code == 0
    last = text.out.rpartition("\n\n")[2]
    assert " best, with" in last
    assert "selected on 4 validation samples (1 per class)" in " ".join(last.split())


def summaries_by_seed(**accuracies: dict[int, float]) -> Summaries:
    """Summaries of methods with failed runs."""
    complete = summaries(**{method: list(by_seed.values()) for method, by_seed in accuracies.items()})
    return {
        method: dict(zip(accuracies[method], by_seed.values(), strict=True)) for method, by_seed in complete.items()
    }


def test_methods_with_few_common_seeds_are_not_ranked() -> None:
    text = recommend(summaries_by_seed(a={0: 90.0, 1: 80.0, 2: 94.0}, b={1: 87.0}), 10)
    assert text.startswith("No method can be called best; a has 88.00 % of the test samples correct. ")
    assert (
        "Not ranked against a because too few seeds are in common: b (1 of 3 seeds in common, 7.00 points ahead). "
        in text
    )
    for wrong in ("was best,", "in a single run", "its 95 % CI is", "includes"):
        assert wrong not in text


def test_methods_are_compared_on_common_seeds() -> None:
    """A complete method has no advantage over one with failed runs, and other seeds do not count."""
    failed = summaries_by_seed(a={0: 70.0, 1: 71.0, 2: 99.0}, b={0: 90.0, 1: 92.0}, c={0: 85.0, 1: 86.0}, d={2: 99.0})
    text = recommend(failed, 10)
    assert text.startswith("b was best, with 91.00 % of the test samples correct (compared on seeds 0 and 1). ")
    assert "It is 5.50 ± 0.71 points ahead of c, paired by seed, and ahead on 2 of 2 seeds" in text
    assert "too few seeds are in common: d (0 of 2 seeds in common). " in text
    one = recommend(summaries_by_seed(a={0: 90.0, 1: 80.0}, b={1: 87.0}), 10)
    low, high = wilson_percent(87.0, 500)
    assert one.startswith("b was best, with 87.00 % of the test samples correct (compared on seed 1). It is 7.00 ")
    assert f"points ahead of a in a single run; with 500 samples its 95 % CI is {low:.1f}–{high:.1f}" in one
