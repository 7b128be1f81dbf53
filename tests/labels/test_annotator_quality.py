"""The quality of annotators, counted by hand, and the coverage of its interval."""

import dataclasses

import numpy as np
import pytest
import torch

from metalabelnet.core.annotations import ABSTAINED, Annotations
from metalabelnet.core.intervals import wilson
from metalabelnet.labels.annotator_quality import accuracy_interval, annotator_quality
from metalabelnet.labels.label_table import LabelTable
from small_runs import small_problem


def annotated_problem():
    """Ann labels every sample, clean or not, correctly; ben labels the first two clean ones, one of them wrongly."""
    problem = small_problem()
    parts = {}
    for name in ("train", "clean", "validation"):
        rows = getattr(problem, name)
        n = len(rows)
        sample, annotator, label = np.arange(n), np.zeros(n, int), rows.true.numpy()
        if name == "clean":
            sample = np.concatenate([sample, [0, 1, 2]])
            annotator = np.concatenate([annotator, [1, 1, 1]])
            label = np.concatenate([label, [label[0], (label[1] + 1) % 3, ABSTAINED]])
        entries = Annotations.from_entries(sample, annotator, label, size=n, names=("ann", "ben"))
        parts[name] = dataclasses.replace(rows, annotations=entries)
    return dataclasses.replace(problem, **parts)


def test_quality_on_clean_and_on_all_samples() -> None:
    problem = annotated_problem()
    train = problem.train
    p = torch.full((len(train), 3), 0.1).scatter_(1, train.true[:, None], 0.8)
    ann, ben = annotator_quality(problem, LabelTable(rows=train, probabilities=p))
    clean = len(problem.clean) + len(problem.validation)
    right = (0.8 * len(train) + clean) / (len(train) + clean)
    assert (ann["annotator"], ann["labels"], ann["abstained"]) == ("ann", len(train) + clean, 0)
    assert ann["accuracy"] == pytest.approx(100 * right)
    assert ann["low"] < ann["accuracy"] < ann["high"]
    assert (ann["clean_labels"], ann["clean_accuracy"]) == (clean, 100)
    assert (ben["annotator"], ben["labels"], ben["abstained"], ben["clean_labels"]) == ("ben", 2, 1, 2)
    low, high = wilson(1, 2)
    assert ben["clean_accuracy"] == ben["accuracy"] == 50
    assert (ben["clean_low"], ben["clean_high"]) == (pytest.approx(100 * low), pytest.approx(100 * high))


def test_annotator_without_labels_and_data_without_annotations() -> None:
    problem = annotated_problem()
    table = LabelTable(rows=problem.train, probabilities=torch.full((len(problem.train), 3), 1 / 3))
    no_clean = dataclasses.replace(problem, has_clean_set=False)
    (_, ben) = annotator_quality(no_clean, table)
    assert (ben["labels"], ben["accuracy"], ben["low"], ben["clean_accuracy"]) == (0, None, None, None)
    assert annotator_quality(small_problem(), dataclasses.replace(table, rows=small_problem().train)) is None


def test_known_classes_have_wilsons_interval() -> None:
    accuracy, interval = accuracy_interval(np.array([1.0, 1.0, 0.0, 1.0]))
    assert accuracy == 0.75
    assert interval == wilson(3, 4)


@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_interval_covers_the_accuracy(strength: float) -> None:
    """In 2,000 simulations with calibrated probabilities, 95 % of the intervals contain the accuracy (± 4 s.e.)."""
    random = np.random.default_rng(0)
    alpha, n, covered = 0.75, 80, 0
    for _ in range(2000):
        z = random.random(n) < alpha
        evidence = random.normal(np.where(z, strength, -strength), 1)  # log-likelihood ratio: 2 · strength · evidence
        odds = alpha / (1 - alpha) * np.exp(2 * strength * evidence)
        _, (low, high) = accuracy_interval(odds / (1 + odds))
        covered += low <= alpha <= high
    assert covered / 2000 > 0.95 - 4 * np.sqrt(0.95 * 0.05 / 2000)
