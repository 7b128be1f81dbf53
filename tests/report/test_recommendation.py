"""The recommendation of `compare` and its uncertainty."""

import math
from pathlib import Path
from typing import Any

import pytest

from cli_runner import TINY, run_cli
from metalabelnet.core.intervals import wilson_percent
from metalabelnet.core.student_t import critical_value
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
    # 5.03 ± t · 0.2/√3: one of 500 samples is the least spread, and Holm tests the first of two at 0.05/2
    half_width = critical_value(0.025, df=2) * 0.2 / math.sqrt(3)
    low, high = 5.0 + 0.1 / 3 - half_width, 5.0 + 0.1 / 3 + half_width
    assert (
        f"It is 5.03 points ahead of a (95 % CI {low:.2f} to {high:.2f} over 3 seeds, paired, corrected for 2 " in text
    )
    assert "comparisons, with a spread of at least one of 500 samples), and ahead on 3 of them" in text
    assert "selected on 20 validation samples (2 per class): 94.7 % correct (95 % CI 76–99 %)" in text
    assert "so the selected epoch is partly random" in text


def test_methods_that_are_level() -> None:
    text = recommend(summaries(a=[90.0, 94.0, 89.0], b=[91.0, 93.0, 92.0], c=[92.0, 90.0, 91.0], d=[9.0, 9.0, 9.0]), 10)
    assert text.startswith(
        "b had the highest accuracy, 92.00 % of the test samples correct, but is level with a and c. "
    )
    assert "best" not in text


def test_correction_for_the_number_of_methods() -> None:
    """b is beyond the 95 % CI by itself (p = 0.03), but not among five comparisons."""
    pair = {"a": [95.0, 95.6, 95.3], "b": [94.0, 94.2, 94.5]}
    assert recommend(summaries(**pair), 10).startswith("a was best")
    others = {name: [94.0 + 0.01 * k, 94.2, 94.5] for k, name in enumerate("cdef")}
    text = recommend(summaries(**pair, **others), 10)
    assert text.startswith(
        "a had the highest accuracy, 95.30 % of the test samples correct, but is level with f, e, d, "
    )
    assert "best" not in text


def test_single_seed_uses_the_wilson_interval() -> None:
    text = recommend(summaries(a=[90.0], b=[91.0], c=[50.0]), 10)
    assert text.startswith("b had the highest accuracy, 91.00 % of the test samples correct. ")
    assert "1.00 points ahead of a in a single run, which has no interval over seeds; " in text
    low, high = wilson_percent(91.0, 500)
    assert f"its 95 % CI is {low:.1f}–{high:.1f} %, which includes a: use more seeds" in text
    assert "--seeds" in text
    assert "which includes no other method" in recommend(summaries(a=[90.0], c=[50.0]), 10)


def test_without_test_set_uses_validation_samples() -> None:
    text = recommend(summaries(test=0, a=[90.0, 85.0], b=[80.0, 70.0]), 40)
    assert "validation samples correct (the samples on which the epoch was selected)" in text
    assert "20 validation samples (less than one per class)" in text
    assert text.endswith("and there is no test set.")


def test_equal_methods_are_level() -> None:
    text = recommend(summaries(a=[90.0, 92.0], b=[100.0, 100.0], c=[100.0, 100.0]), 10)
    assert text.startswith("b had the highest accuracy, 100.00 % of the test samples correct, but is level with c")


def test_one_method_and_no_method() -> None:
    assert recommend(summaries(a=[90.0]), 2).startswith("a has 90.00 % of the test samples correct. The epoch was ")
    assert recommend({"a": {}}, 2) == ""


def test_spread_has_a_minimum_of_one_sample() -> None:
    text = recommend(summaries(test=12, a=[100.0, 91.67], b=[91.67, 83.33]), 3)
    assert "but is level with b. " in text
    assert "over 2 seeds, paired, with a spread of at least one of 12 samples)" in text
    assert recommend(summaries(test=10_000, a=[99.0, 99.01], b=[91.0, 91.01]), 3).startswith("a was best")


def test_equal_results_of_all_seeds_count_once() -> None:
    """Three times the same fit are no three observations: the interval is that of 40 samples, 4 of which differ."""
    text = recommend(summaries(test=40, a=[85.0] * 3, b=[75.0] * 3, c=[40.0] * 3), 2)
    half_width = critical_value(0.05, df=1e6) * 100 * math.sqrt(0.1 * 0.9 / 40)
    interval = f"{10 - half_width:.2f} to {10 + half_width:.2f}"
    assert f"(95 % CI at least as wide as {interval} over 40 samples, corrected for 2 comparisons). " in text
    assert "Both have the same result with each of 3 seeds. " in text
    assert recommend(summaries(test=20, a=[85.0] * 3, b=[75.0] * 3), 2).startswith("a had the highest accuracy, ")
    assert recommend(summaries(test=10_000, a=[76.0] * 3, b=[75.0] * 3), 2).startswith("a was best")
    assert "level with b" in recommend(summaries(test=100, a=[75.0] * 3, b=[75.0] * 3), 2)


def test_compare_ends_with_the_recommendation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "small.npz")
    common = ["--seeds", "2", "--jobs", "1", *TINY.split(), "--out", "o"]
    text = run_cli(["compare", "small.npz", "--methods", "cross-entropy,clean-only", *common], capsys)
    assert text.code == 0
    last = text.out.rpartition("\n\n")[2]
    assert " best, with" in last or "had the highest accuracy, " in " ".join(last.split())
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
    start = "b had the highest accuracy, 91.00 % of the test samples correct (compared on seeds 0 and 1), but is level "
    assert text.startswith(start)
    assert "It is 5.50 points ahead of c (95 % CI " in text
    assert "over 2 seeds, paired, corrected for 2 comparisons), and ahead on 2 of them" in text
    assert "too few seeds are in common: d (0 of 2 seeds in common). " in text
    one = recommend(summaries_by_seed(a={0: 90.0, 1: 80.0}, b={1: 87.0}), 10)
    low, high = wilson_percent(87.0, 500)
    start = "b had the highest accuracy, 87.00 % of the test samples correct (compared on seed 1). It is 7.00 points "
    assert one.startswith(start)
    assert f"with 500 samples its 95 % CI is {low:.1f}–{high:.1f}" in one
