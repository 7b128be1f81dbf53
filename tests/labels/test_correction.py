"""The label correction rule, its snapshots, and the quality of label tables."""

import dataclasses
import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from metalabelnet.core.calibration import fit_temperature
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import make_rows
from metalabelnet.labels import snapshots as snapshots_module
from metalabelnet.labels.correction import correct_labels, decide_labels
from metalabelnet.labels.label_table import LabelTable
from metalabelnet.labels.metrics import auroc, average_precision, class_accuracy
from metalabelnet.labels.quality import label_quality
from metalabelnet.labels.snapshots import (
    CleanLabels,
    LabelDistribution,
    Snapshots,
    calibrated_distribution,
    clean_labels,
    expected_given_accuracy,
    given_probability,
    is_lower,
    is_memorized,
    snapshot_predictions,
)
from metalabelnet.methods import MethodTraits
from metalabelnet.train import RunFolder, train
from metalabelnet.train.build_method import build_method
from metalabelnet.train.prepare import prepare
from tiny_data import CLASSES, table_samples, tiny_run, write_npz

sys.path.append(str(Path(__file__).parents[1]))  # for `small`
from small_runs import column_images, small_problem, small_run

GIVEN = torch.tensor([0, 1, -1, 2])
P = torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [0.4, 0.35, 0.25]], dtype=torch.float64)


def test_decisions_follow_the_rule() -> None:
    decisions = decide_labels(P, GIVEN)
    assert decisions.label.tolist() == [0, 0, 2, 0]
    assert decisions.confidence.tolist() == [0.7, 0.6, 0.8, 0.4]
    assert decisions.suspicion[[0, 1, 3]].tolist() == pytest.approx([0.3, 0.7, 0.75])
    assert decisions.suspicion[2].isnan()
    assert decisions.suspect.tolist() == [False, True, False, True]  # 0.3 + 0.7 + 0.75 are expected to be wrong: two


def test_suspects_are_the_samples_of_highest_suspicion() -> None:
    decisions = decide_labels(P, GIVEN, torch.tensor([0.9, 0.2, 1.0, 0.4], dtype=torch.float64))
    assert decisions.suspect.tolist() == [True, False, False, True]
    assert decisions.suspicion[:2].tolist() == [0.9, 0.2]
    assert decisions.suspicion[2].isnan()  # no given label
    certain = torch.eye(3)[[0, 1, 2, 2]]
    assert not decide_labels(certain, GIVEN).suspect.any()
    unlabeled = decide_labels(P, torch.full((4,), -1))
    assert not unlabeled.suspect.any()


class ScriptedMethod:
    """A method that returns the logits it is set to."""

    clean_from = 0  # so that only the validation rows are evaluated
    traits = MethodTraits(summary="a script", reference="–", reads_given=False)  # so that there is no head refit

    def __init__(self) -> None:
        self.current_logits = torch.empty(0)

    def logits(self, x: Tensor) -> Tensor:
        return self.current_logits[: len(x)]


def take_snapshots(count: int, *epochs: Tensor) -> Snapshots:
    rows = column_images(12, seed=0)
    problem = Problem(train=rows, clean=rows, validation=rows, test=rows, noise_rate=0.0, holds_out=False)
    history, method = Snapshots(count, len(epochs)), ScriptedMethod()
    for epoch, logits in enumerate(epochs):
        method.current_logits = logits
        if history.is_due(epoch):
            history.add_epoch(method, problem, epoch)  # type: ignore[arg-type]
    return history


def scripted_logits(margin: float, seed: int, wrong: int = 0) -> Tensor:
    """Return logits of twelve samples of class i mod 3; the first `wrong` of them predict another class."""
    predicted = torch.where(torch.arange(12) < wrong, (TRUE + 1) % 3, TRUE)
    noise = torch.randn(12, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return margin * torch.nn.functional.one_hot(predicted, 3) + noise


TRUE = torch.arange(12) % 3
EPOCHS = [
    scripted_logits(1, 0),
    scripted_logits(3, 1),
    scripted_logits(3, 2),
    scripted_logits(3, 3, wrong=9),
    scripted_logits(3, 4, wrong=12),
]


def mean_of(*epochs: Tensor) -> Tensor:
    return torch.stack([e.softmax(1) for e in epochs]).mean(0)


def test_mean_grows_while_loss_is_significantly_lower() -> None:
    best = take_snapshots(5, *EPOCHS).best
    assert best is not None
    assert best.epochs == (0, 1)  # twelve samples do not show that the third epoch improves on the second
    powered = mean_of(*EPOCHS[:2]) ** (1 / best.temperature)
    torch.testing.assert_close(best.p, powered / powered.sum(1, keepdim=True))
    worse = take_snapshots(2, EPOCHS[1], EPOCHS[4]).best
    assert worse is not None
    assert worse.epochs == (0, 0)


def test_lower_means_by_more_than_two_standard_errors() -> None:
    """Differences 1 ± d have the mean 1 and the standard error d√(n/(n − 1))/√n."""
    d = torch.tensor([1.0, -1.0] * 50, dtype=torch.float64)
    than = torch.full((100,), 7.0, dtype=torch.float64)
    for spread, expected in ((4.9, True), (5.1, False)):  # 2 · 5 · √(100/99)/10 = 1.005
        assert is_lower(than - 1 + spread * d, than) is expected
        assert is_lower(than - 1 + 2 * spread * d, than, 1) is expected
    assert not is_lower(than, than)
    assert is_lower(than[:1] - 0.1, than[:1])


def test_suspicion_is_the_weighted_product() -> None:
    """Compare with a naive loop over the epochs."""
    losses, p_y = [], []
    for E in range(5):
        log_mean = mean_of(*EPOCHS[: E + 1]).log()
        t, loss = fit_temperature(log_mean, TRUE)
        losses.append(loss)
        p_y.append((log_mean / t).softmax(1)[range(12), TRUE])
    w = [math.exp(-math.sqrt(12) * (loss - min(losses))) for loss in losses]
    expected = 1 - math.prod(p ** (weight / sum(w)) for weight, p in zip(w, p_y, strict=True))
    _, suspicion = correct_labels(take_snapshots(5, *EPOCHS), single_epoch(EPOCHS[4]), TRUE)
    torch.testing.assert_close(suspicion, expected)


def test_suspicion_weights_sharpen_with_more_clean_samples() -> None:
    """From 100 clean samples on, a mean whose loss is higher by 0.1 has weight exp(−0.1 n/10)."""
    for n, weight in ((25, math.exp(-0.5)), (100, math.exp(-1)), (400, math.exp(-4))):
        history = Snapshots(2, 2)
        assert history.suspicion() is None
        for loss, p_y in ((1.0, 0.2), (1.1, 0.6)):
            history.add_given_probability(torch.tensor([p_y]).double(), torch.full((n,), loss, dtype=torch.float64))
        assert float(history.suspicion()) == pytest.approx(1 - (0.2 * 0.6**weight) ** (1 / (1 + weight)))


def test_suspicion_survives_memorization() -> None:
    """After all labels are memorized, suspicion still has the order of the early snapshots."""
    history = Snapshots(2, 2)
    for p_y in ([0.0001, 0.01, 0.9], [0.999, 0.998, 0.999]):
        history.add_given_probability(torch.tensor(p_y).double(), torch.ones(25).double())
    assert history.suspicion().tolist() == pytest.approx([0.99, 0.9, 0.052], abs=1e-3)  # 1 − the root of the product


def test_zero_probability_keeps_suspicion_finite() -> None:
    history = Snapshots(2, 2)
    for p_y in ([0.0, 0.5], [1.0, 0.5]):
        history.add_given_probability(torch.tensor(p_y), torch.ones(25).double())
    suspicion = history.suspicion()
    assert suspicion.isfinite().all()
    assert suspicion.tolist() == pytest.approx([1 - 1e-6, 0.5])


def test_restored_state_gives_same_suspicion() -> None:
    """The minimum loss falls and rises in between."""
    g = torch.Generator().manual_seed(0)
    terms = [(torch.rand(12, generator=g), torch.full((25,), loss).double()) for loss in (1.0, 0.8, 0.7, 0.75)]
    whole, before, after = Snapshots(4, 4), Snapshots(4, 4), Snapshots(4, 4)
    for term in terms:
        whole.add_given_probability(*term)
    for term in terms[:2]:
        before.add_given_probability(*term)
    after.load_state(before.state())
    for term in terms[2:]:
        after.add_given_probability(*term)
    assert torch.equal(after.suspicion(), whole.suspicion())
    assert not torch.equal(after.suspicion(), before.suspicion())


def single_epoch(logits: Tensor) -> LabelDistribution:
    return calibrated_distribution(logits, logits, TRUE, (7, 7))


def test_selected_epoch_is_used_if_its_loss_is_lower() -> None:
    history = take_snapshots(2, scripted_logits(0.1, 0, wrong=6), scripted_logits(0.1, 1, wrong=6))
    assert history.best is not None
    good, bad = scripted_logits(6, 2), scripted_logits(0.1, 3, wrong=9)
    found, _ = correct_labels(history, single_epoch(good), TRUE)
    assert found.epochs == (7, 7)
    torch.testing.assert_close(found.p, (good / found.temperature).softmax(1))
    assert correct_labels(history, single_epoch(bad), TRUE)[0] is history.best
    found, suspicion = correct_labels(Snapshots(0, 9), single_epoch(bad), TRUE)
    assert found.epochs == (7, 7)
    torch.testing.assert_close(suspicion, 1 - found.p[range(12), TRUE])


@pytest.mark.parametrize(
    ("method", "rows"),
    [
        ("metalabelnet", [18, 18, 18, 18, 18]),
        ("cross-entropy", [18, 18, 18, 18, 18]),
        ("fine-tune", [18, 18, 4, 4, 4]),
        ("metalabelnet-plus", [18, 4, 4, 4, 4]),
        ("clean-only", [4, 4, 4, 4, 4]),
    ],
)
def test_clean_rows_are_evaluated_until_trained_on(method: str, rows: list[int], tmp_path: Path) -> None:
    run = tiny_run(write_npz(tmp_path / "tiny.npz"), method, net="mlp")
    problem = prepare(run)
    built = build_method(run, problem)
    paper = prepare(tiny_run(tmp_path / "tiny.npz", method, net="mlp", protocol="paper"))
    for epoch, expected in enumerate(rows):
        assert len(clean_labels(built, problem, epoch).true) == expected
        assert len(clean_labels(build_method(run, paper), paper, epoch).true) == 18
    found = snapshot_predictions(built, problem)  # of every epoch
    assert len(found.clean) == len(found.true) == rows[-1]
    assert torch.equal(found.clean[:4], built.logits(problem.validation.x))
    assert torch.equal(found.train, built.logits(problem.train.x).softmax(1))
    assert len(snapshot_predictions(build_method(run, paper), paper).clean) == 18


@pytest.mark.parametrize(("count", "epochs"), [(30, 30), (30, 120), (7, 120), (1, 5), (0, 9), (50, 3)])
def test_snapshots_are_evenly_spaced(count: int, epochs: int) -> None:
    history = Snapshots(count, epochs)
    due = [epoch for epoch in range(epochs) if history.is_due(epoch)]
    assert len(due) == min(count, epochs)
    if due:
        assert due[-1] == epochs - 1
        gaps = [b - a for a, b in zip([-1, *due], due, strict=False)]
        assert max(gaps) - min(gaps) <= 1


def test_run_writes_provenance_of_labels(tmp_path: Path) -> None:
    run = tiny_run(write_npz(tmp_path / "tiny.npz"))
    result = train(run, folder=tmp_path / "run")
    about = json.loads((tmp_path / "run" / "calibration.json").read_text())
    assert about["temperature"] == RunFolder(tmp_path / "run").temperature() == result.summary["temperature"]
    assert about["samples"] == 18  # MetaLabelNet's classifier is not trained on clean labels, held out or not
    first, last = about["labels"]["epochs"]
    assert 0 <= first <= last < 5
    assert about["labels"]["samples"] == 18
    torch.testing.assert_close(result.labels.probabilities.sum(1), torch.ones(62))
    assert result.summary["right_after"] == pytest.approx(
        100
        * float(
            (result.labels.decisions().label == result.labels.rows.true)[result.labels.rows.given >= 0].float().mean()
        )
    )


def test_snapshots_change_only_the_label_table(tmp_path: Path) -> None:
    file = write_npz(tmp_path / "tiny.npz")
    with_snapshots, without = (train(tiny_run(file, snapshots=count)) for count in (30, 0))
    label_keys = {"seconds", "suspects", "right_after", "suspicion_auroc", "suspicion_ap", "label_ece"}
    for name, value in with_snapshots.summary.items():
        if name not in label_keys:
            assert value == without.summary[name], name
    for one, other in zip(
        with_snapshots.method.model_state_dict().values(), without.method.model_state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)


# Metrics


@pytest.mark.parametrize("ties", [False, True])
def test_areas_equal_scikit_learn(ties: bool) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    g = torch.Generator().manual_seed(0)
    for _ in range(20):
        score = torch.rand(40, generator=g, dtype=torch.float64)
        score = (score * 6).floor() / 6 if ties else score
        positive = torch.rand(40, generator=g) < score * 0.6
        if 0 < int(positive.sum()) < 40:
            assert auroc(score, positive) == pytest.approx(metrics.roc_auc_score(positive, score))
            assert average_precision(score, positive) == pytest.approx(metrics.average_precision_score(positive, score))


def test_area_is_none_for_one_kind_of_sample() -> None:
    score = torch.rand(5)
    none, every = torch.zeros(5, dtype=torch.bool), torch.ones(5, dtype=torch.bool)
    assert auroc(score, none) is auroc(score, every) is average_precision(score, none) is None
    assert average_precision(score, every) == pytest.approx(1.0)


def test_class_accuracy() -> None:
    true, predicted = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 1])
    assert class_accuracy(predicted, true, CLASSES) == pytest.approx(
        {"a": 200 / 3, CLASSES[1]: 100.0, CLASSES[2]: None}
    )


def test_label_quality_uses_labeled_rows_with_true_label() -> None:
    rows = make_rows(torch.zeros(4, 2), GIVEN, true=torch.tensor([0, 0, 1, -1]), classes=CLASSES, what="four")
    quality = label_quality(LabelTable(rows=rows, probabilities=P))
    assert quality["right_before"] == 50.0  # of rows 0 and 1
    assert quality["right_after"] == 100.0
    assert quality["suspicion_auroc"] == quality["suspicion_ap"] == 1.0
    # rows 0, 1 and 2 have a true label; the last of them is wrong with 0.8
    assert quality["label_ece"] == pytest.approx(100 * (0.3 + 0.4 + 0.8) / 3)
    without_truth = make_rows(torch.zeros(4, 2), GIVEN, classes=CLASSES, what="four")
    assert set(label_quality(LabelTable(rows=without_truth, probabilities=P)).values()) == {None}


def test_summary_has_class_accuracy_by_name(tmp_path: Path) -> None:
    x, y = table_samples(30, seed=1)
    summary = train(tiny_run(write_npz(tmp_path / "tiny.npz", x_test=x, y_test=y))).summary
    assert list(summary["class_accuracy"]) == list(CLASSES)
    assert sum(summary["class_accuracy"].values()) / 3 == pytest.approx(summary["test_accuracy"])  # ten of each
    assert summary["right_before"] == pytest.approx(100 * (1 - summary["noise_rate"]), abs=8)
    assert summary["ece_calibrated"] >= 0


def noisy_labels(kind: str, *, n: int = 600) -> tuple[Tensor, Tensor, Tensor]:
    """Return calibrated p, true classes and given labels: no noise, random noise, or noise where p is uncertain."""
    g = torch.Generator().manual_seed(3)
    p = torch.randn(n, 3, generator=g, dtype=torch.float64).mul(2).softmax(1)
    true = torch.multinomial(p, 1, generator=g)[:, 0]
    if kind == "none":
        return p, true, true
    if kind == "chance":
        wrong = torch.rand(n, generator=g) < 0.1
        return p, true, torch.where(wrong, (true + 1) % 3, true)
    return (
        p,
        true,
        torch.where(p.max(1).values < 0.7, p.argsort(1)[:, 1], true),
    )  # the second most likely class where p is uncertain


@pytest.mark.parametrize(
    ("kind", "count", "taken"), [("chance", 300, True), ("chance", 20, False), ("unsure", 300, False)]
)
def test_posterior_is_used_if_labeled_clean_samples_support_it(kind: str, count: int, taken: bool) -> None:
    p, true, given = noisy_labels(kind)
    half = len(p) // 2
    history = Snapshots(1, 1)
    history.refit = history.best = calibrated_distribution(
        p[:half].log(), p[half:].log(), true[half:], (0, 0)
    )._replace(is_refit=True)
    history.add_given_probability(given_probability(history.best.p, given[:half]), history.best.losses)
    unlabeled = torch.full((half,), -1)
    clean = CleanLabels(true[half:], torch.where(torch.arange(half) < count, given[half:], unlabeled))
    bad = calibrated_distribution(torch.zeros(half, 3), torch.zeros(half, 3), true[half:], (0, 0))
    found, suspicion = correct_labels(history, bad, given[:half], clean)
    assert found.uses_given is taken
    assert found.provenance()["given"] is taken
    torch.testing.assert_close(suspicion, correct_labels(history, bad, given[:half])[1])
    if taken:
        right = [float((x.argmax(1) == true[:half]).double().mean()) for x in (history.best.p, found.p)]
        assert right[1] > right[0] + 0.1
    else:
        assert found is history.best


@pytest.mark.parametrize(
    ("kind", "cleans", "taken"),
    [("chance", 2000, True), ("chance", 60, False), ("unsure", 2000, False), ("none", 2000, True)],
)
def test_posterior_is_used_if_its_confidence_gap_agrees_with_clean_samples(kind: str, cleans: int, taken: bool) -> None:
    """No clean sample has a given label."""
    p, true, given = noisy_labels(kind, n=6000)
    trained, checked = slice(0, 4000), slice(4000, 4000 + cleans)
    best = calibrated_distribution(p[trained].log(), p[checked].log(), true[checked], (0, 0))
    history = Snapshots(1, 1)
    history.best = best
    history.add_given_probability(given_probability(best.p, given[trained]), best.losses)
    bad = calibrated_distribution(torch.zeros(4000, 3), torch.zeros(cleans, 3), true[checked], (0, 0))
    clean = CleanLabels(true[checked], torch.full((cleans,), -1))
    found, _ = correct_labels(history, bad, given[trained], clean)
    assert found.uses_given is taken
    assert correct_labels(history, bad, given[trained])[0] is best  # without a clean set
    unlabeled = torch.full((4000,), -1)
    assert correct_labels(history, bad, unlabeled, clean)[0] is best
    if taken:
        right = [float((x == true[trained]).double().mean()) for x in (best.p.argmax(1), found.p.argmax(1))]
        assert right[1] > right[0] + 0.1
        assert right[1] > float((given == true)[trained].double().mean()) - 0.02  # with no noise, few labels change
        assert (
            -0.06 < float(found.p.max(1).values.mean()) - right[1] < 0.01
        )  # the mixed-in confusion makes it underconfident
    else:
        assert found is best


def test_posterior_is_not_used_without_head_refit() -> None:
    """A mean over epochs has learned given labels already."""
    p, true, given = noisy_labels("chance")
    history = Snapshots(1, 1)
    history.best = calibrated_distribution(p.log(), p.log(), true, (0, 0))
    history.add_given_probability(given_probability(history.best.p, given), history.best.losses)
    bad = calibrated_distribution(torch.zeros(len(p), 3), torch.zeros(len(p), 3), true, (0, 0))
    assert correct_labels(history, bad, given, CleanLabels(true, given))[0] is history.best


@pytest.mark.parametrize(
    ("labeled_count", "has_clean_set", "kept"), [(40, True, True), (20, True, False), (40, False, False)]
)
def test_refit_is_stored_only_if_it_can_be_evaluated(labeled_count: int, has_clean_set: bool, kept: bool) -> None:
    """It is as large as the label table, and every checkpoint contains it."""
    clean = column_images(40, seed=1)
    clean = clean.with_given_labels(torch.where(torch.arange(40) < labeled_count, clean.given, -1))
    problem = dataclasses.replace(small_problem(), clean=clean, has_clean_set=has_clean_set)
    problem = dataclasses.replace(
        problem, validation=problem.validation.with_given_labels(torch.full_like(problem.validation.given, -1))
    )
    method = build_method(small_run("metalabelnet"), problem)
    history = Snapshots(1, 1)
    history.add_epoch(method, problem, 0)
    assert history.best is not None
    assert (history.refit is not None) is kept
    assert (history.state()["refit"] is not None) is kept


def test_given_accuracy_is_estimated_without_true_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    p, true, given = noisy_labels("chance", n=3000)
    share = float((given == true).double().mean())
    error = math.sqrt(share * (1 - share) / 3000)
    right = expected_given_accuracy(p, given)
    assert abs(right - share) < 4 * error
    part = torch.cat([given, torch.full_like(given, -1)])
    assert expected_given_accuracy(torch.cat([p, p]), part) == right  # unlabeled samples do not count
    monkeypatch.setattr(
        snapshots_module, "MAX_VALUES_FOR_GIVEN_ACCURACY", 2100
    )  # every fifth row of three probabilities
    assert 0 < abs(expected_given_accuracy(p, given) - right) < 4 * math.sqrt(5) * error


def test_memorization_shows_on_training_samples() -> None:
    p, true, given = noisy_labels("chance")
    right = expected_given_accuracy(p, given)
    learned = torch.nn.functional.one_hot(given, 3).double()
    assert is_memorized(learned, given, right)
    assert not is_memorized(p, given, right)
    assert not is_memorized(torch.nn.functional.one_hot((true + (p.max(1).values < 0.5)) % 3, 3), given, right)
    some = torch.where(torch.arange(len(given)) < 100, given, -1)
    assert is_memorized(learned, some, 0.99)
    assert not is_memorized(learned, some, 1.0)


def distribution_with(losses: Tensor, label: Tensor) -> LabelDistribution:
    p = torch.nn.functional.one_hot(label, 3).double()
    return LabelDistribution(p, (0, 5), 1.0, p, losses)


@pytest.mark.parametrize(
    ("errors", "memorized", "given_accuracy", "taken"),
    [
        (0.9, False, 0.7, False),
        (1.5, False, 0.7, True),
        (1.5, True, 0.7, False),
        (1.5, False, None, False),  # no head refit: the accuracy of given labels is unknown
        (2.5, True, 0.7, True),
        (2.5, True, None, True),
    ],
)
def test_memorizing_classifier_needs_a_larger_margin(
    errors: float, memorized: bool, given_accuracy: float | None, taken: bool
) -> None:
    given = torch.where(torch.arange(12) < 4, (TRUE + 1) % 3, TRUE)  # a third is wrong
    d = torch.tensor([1.0, -1.0] * 6, dtype=torch.float64)
    gain = errors / math.sqrt(11) + d  # its standard error is 1/√11
    history = Snapshots(2, 2)
    history.best = distribution_with(torch.full((12,), 3.0).double(), TRUE)
    history.given_accuracy = given_accuracy
    history.add_given_probability(given_probability(history.best.p, given), history.best.losses)
    selected = distribution_with(3 - gain, given if memorized else TRUE)
    assert (correct_labels(history, selected, given)[0] is selected) is taken
    resumed = Snapshots(2, 2)
    resumed.load_state(history.state())
    found = correct_labels(resumed, selected, given)[0]
    assert (found is selected) is taken


@pytest.mark.parametrize(("given_accuracy", "epochs"), [(1.0, (0, 1)), (0.0, (0, 0))])
def test_mean_that_memorizes_needs_a_larger_margin(given_accuracy: float, epochs: tuple[int, int]) -> None:
    """The second mean is better by 1.5 standard errors. If no given label is correct, agreement is memorization."""
    rows = column_images(12, seed=0)
    problem = Problem(train=rows, clean=rows, validation=rows, test=rows, noise_rate=0.0, holds_out=False)
    history, method = Snapshots(2, 2), ScriptedMethod()
    for epoch, logits in enumerate((scripted_logits(3, 1, wrong=3), scripted_logits(3, 6, wrong=1))):
        method.current_logits = logits
        history.add_epoch(method, problem, epoch)  # type: ignore[arg-type]
        history.given_accuracy = given_accuracy
    assert history.best is not None
    assert history.best.epochs == epochs


def test_first_snapshot_estimates_given_accuracy() -> None:
    problem = small_problem()
    history = Snapshots(1, 1)
    history.add_epoch(build_method(small_run("metalabelnet"), problem), problem, 0)
    assert history.given_accuracy is not None
    assert 0 < history.given_accuracy <= 1
