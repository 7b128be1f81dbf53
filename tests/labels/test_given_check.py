"""Given labels are kept where corrected ones are worse on clean samples; warnings about labels."""

import dataclasses
from pathlib import Path

import pytest
import torch

from metalabelnet.core.top_classes import TopClasses, top_probabilities, value_at
from metalabelnet.data.rows import Rows
from metalabelnet.labels.correction import decide_labels
from metalabelnet.labels.given_check import GivenCheck, compare_with_given, keep_given_labels
from metalabelnet.labels.label_table import LabelTable
from metalabelnet.labels.label_warnings import collapse_warning, label_warnings
from metalabelnet.train import RunFolder, train
from metalabelnet.train.json_files import check_summary_parts
from small_runs import small_problem, small_run


def test_counts_on_clean_samples_with_a_given_label() -> None:
    true, given = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([0, 1, 0, -1, -1])
    corrected = torch.tensor([0, 2, 0, 0, 1])
    check = compare_with_given(corrected, given, true)
    assert check == GivenCheck(samples=3, given=2, corrected=1)
    assert check.keeps_given
    assert not compare_with_given(given, given, true).keeps_given  # level: corrected labels stay
    assert compare_with_given(corrected, torch.full((5,), -1), true) is None


@pytest.mark.parametrize("classes", [3, 200])
def test_kept_labels_are_the_given_ones_with_their_measured_confidence(classes: int) -> None:
    g = torch.Generator().manual_seed(0)
    p = torch.softmax(4 * torch.randn(50, classes, generator=g, dtype=torch.float64), 1)
    given = torch.randint(-1, classes, (50,), generator=g)
    given[:5] = -1
    table = top_probabilities(p, given)
    assert isinstance(table, TopClasses) == (classes == 200)
    kept = keep_given_labels(table, given, GivenCheck(samples=20, given=18, corrected=15))
    total = kept.sum(1) if isinstance(kept, torch.Tensor) else kept.dense().sum(1)
    torch.testing.assert_close(total, torch.ones(50, dtype=torch.float64))
    decisions, labeled = decide_labels(kept, given), given >= 0
    assert (decisions.label == given)[labeled].all()
    assert (decisions.label == p.argmax(1))[~labeled].all()
    torch.testing.assert_close(value_at(kept, given)[labeled].min(), torch.tensor(19 / 22, dtype=torch.float64))


def test_kept_label_is_most_likely_where_few_given_labels_are_right() -> None:
    p, given = torch.tensor([[0.05, 0.95, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]), torch.tensor([0, 0, 0])
    kept = keep_given_labels(p, given, GivenCheck(samples=10, given=1, corrected=0))
    assert kept.argmax(1).tolist() == [0, 0, 0]
    assert kept.isfinite().all()
    torch.testing.assert_close(kept.sum(1), torch.ones(3))


@pytest.mark.parametrize("classes", [3, 200])
def test_kept_probabilities_sum_to_one_where_the_given_label_is_all_but_certain(classes: int) -> None:
    """In float32 the given label has probability 1, and the others have some, too."""
    p = torch.full((1, classes), 1e-9)
    p[0, :2] = torch.tensor([1.0, 2e-8])
    given = torch.tensor([0])
    kept = keep_given_labels(top_probabilities(p, given), given, GivenCheck(samples=20, given=18, corrected=15))
    dense = kept if isinstance(kept, torch.Tensor) else kept.dense()
    torch.testing.assert_close(dense.sum(1), torch.ones(1))
    torch.testing.assert_close(dense[0, 0], torch.tensor(19 / 22))


def with_given(rows: Rows, given: torch.Tensor) -> Rows:
    return rows.with_given_labels(given)


def test_run_keeps_given_labels_that_are_better(tmp_path: Path) -> None:
    """Images are exchanged between classes in training, so that all corrected labels of clean rows are wrong."""
    problem = small_problem(wrong=0.0)
    swapped = (problem.train.true + 1) % 3
    problem = dataclasses.replace(
        problem,
        train=dataclasses.replace(problem.train, given=swapped, true=swapped),
        validation=with_given(problem.validation, problem.validation.true),
    )
    result = train(small_run("cross-entropy"), folder=tmp_path / "run", problem=problem)
    check = RunFolder(tmp_path / "run").summary()["given_check"]
    assert check == result.summary["given_check"]
    assert check["given_right"] == 100
    assert check["corrected_right"] < 100
    assert check["keeps_given"]
    assert (result.labels.decisions().label == problem.train.given).all()
    assert result.summary["right_after"] == result.summary["right_before"]
    assert any("keeps the given labels" in warning for warning in result.summary["warnings"])


def test_run_keeps_corrected_labels_that_are_better() -> None:
    problem = small_problem(wrong=0.4)
    wrong = (problem.validation.true + (torch.arange(9) % 3 == 0)) % 3
    problem = dataclasses.replace(problem, validation=with_given(problem.validation, wrong))
    summary = train(small_run("cross-entropy", epochs=8), problem=problem).summary
    check = summary["given_check"]
    assert check["given_right"] == pytest.approx(100 * 6 / 9)
    assert check["corrected_right"] >= check["given_right"]
    assert not check["keeps_given"]
    assert summary["right_after"] > summary["right_before"]


@pytest.mark.parametrize("method", ["clean-only", pytest.param("fixmatch", marks=pytest.mark.slow)])
def test_labels_of_methods_without_given_labels_are_those_of_the_selected_classifier(method: str) -> None:
    """They cannot memorize given labels, so that the mean over early epochs is no safer."""
    problem = small_problem(wrong=0.4)
    no_given = with_given(problem.validation, torch.full((9,), -1))
    problem = dataclasses.replace(problem, validation=no_given)
    result = train(small_run(method), problem=problem)
    predicted = result.method.logits(problem.train.x).argmax(1)
    assert (result.labels.decisions().label == predicted).all()
    assert result.summary["label_accuracy"] == pytest.approx(100 * (predicted == problem.train.true).double().mean())


def test_collapsed_labels() -> None:
    problem = small_problem()
    p = torch.eye(3)[torch.ones(300).long()]
    text = collapse_warning(problem, "soft labels", p)
    assert text.startswith("soft labels have collapsed: 100.0 % are 'middle', as are 33 % of the clean samples")
    p[:9] = torch.eye(3)[0]
    assert collapse_warning(problem, "soft labels", p) == ""
    rare = dataclasses.replace(problem.clean, true=torch.ones(12).long())
    assert collapse_warning(dataclasses.replace(problem, clean=rare), "soft labels", torch.eye(3)[[1] * 9]) == ""
    table = LabelTable(rows=problem.train, probabilities=torch.eye(3)[[1] * 48], soft_labels=torch.eye(3)[[1] * 48])
    assert [w.split(":")[0] for w in label_warnings(problem, table, None, epochs=0)] == [
        "corrected labels have collapsed",
        "soft labels have collapsed",
    ]


def test_damaged_parts_of_the_summary() -> None:
    samples = {"train": 1, "clean": 1, "validation": 1, "test": 0}
    rate = {"rate": 1.0, "low": 0.0, "high": 2.0, "samples": 3}
    noise = {**rate, "by_class": {"a": rate}, "counts": [[0, 0, 1]]}
    check_summary_parts(Path("s"), {"samples": samples, "clean_noise": noise, "given_check": None})
    for bad in ({**noise, "counts": 3}, {**noise, "by_class": {"a": {"rate": 1.0}}}, {"rate": 1.0}):
        with pytest.raises(ValueError, match="s"):
            check_summary_parts(Path("s"), {"samples": samples, "clean_noise": bad})
    with pytest.raises(ValueError, match="corrected_right"):
        check_summary_parts(Path("s"), {"samples": samples, "given_check": {"samples": 1, "given_right": 1.0}})
