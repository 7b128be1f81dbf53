"""The noise that clean samples show, counted by hand."""

import dataclasses

import pytest
import torch

from metalabelnet.core.intervals import wilson
from metalabelnet.labels.clean_noise import count_clean_noise
from small_runs import small_problem


def test_noise_is_counted_over_all_clean_rows_with_a_given_label() -> None:
    problem = small_problem()
    given = problem.clean.true.clone()
    given[0] = (given[0] + 1) % 3
    given[1] = -1
    problem = dataclasses.replace(problem, clean=problem.clean.with_given_labels(given))
    noise = count_clean_noise(problem)
    assert noise is not None
    n = 11 + len(problem.validation)
    assert (noise["samples"], noise["rate"]) == (n, pytest.approx(100 / n))
    assert noise["low"] == pytest.approx(100 * wilson(1, n)[0])
    assert sum(part["samples"] for part in noise["by_class"].values()) == n
    assert noise["by_class"]["left"]["rate"] == pytest.approx(100 / noise["by_class"]["left"]["samples"])
    assert [0, 1, 1] in noise["counts"]
    assert sum(count for _, _, count in noise["counts"]) == n


def test_none_without_given_labels_of_clean_rows() -> None:
    problem = small_problem()
    hidden = {
        part: getattr(problem, part).with_given_labels(torch.full((len(getattr(problem, part)),), -1))
        for part in ("clean", "validation")
    }
    assert count_clean_noise(dataclasses.replace(problem, **hidden)) is None
