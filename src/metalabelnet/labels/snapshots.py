"""Snapshots: means of the classifier's probabilities over epochs, compared on clean samples.

`correction` defines the rule that uses them and gives the reasons.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from metalabelnet.core.calibration import fit_temperature, softmax_at_temperature
from metalabelnet.core.posterior import LastTransitionMatrix, clean_confidence_gap, fit_transition_matrix, posterior
from metalabelnet.core.state_check import check_float, check_int, check_keys, check_tensor
from metalabelnet.core.top_classes import (
    ClassTable,
    LogitChunks,
    TopClasses,
    add_probabilities,
    check_table,
    table_from_state,
    table_state,
    value_at,
)
from metalabelnet.data.disk_tensor import chunks
from metalabelnet.data.streamed_tensor import return_freed_memory
from metalabelnet.errors import InputError
from metalabelnet.labels.loo_refit import loo_logits
from metalabelnet.labels.metrics import predict_logits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from metalabelnet.core.posterior import TransitionMatrixFit
    from metalabelnet.data import Rows
    from metalabelnet.data.problem import Problem
    from metalabelnet.engine import Engine
    from metalabelnet.methods import Method

MIN_PROBABILITY = 1e-12  # keeps logarithms finite
# By how many standard errors a loss must be lower to replace an earlier one.
STANDARD_ERRORS = 1.0
STANDARD_ERRORS_IF_MEMORIZED = 2.0
MAX_VALUES_FOR_GIVEN_ACCURACY = 10_000_000  # probabilities (rows × classes); beyond, rows are subsampled to save memory
MIN_LABELED_CLEAN_SAMPLES = 30  # clean samples with a given label that are needed to evaluate given labels
MAX_GAP_STANDARD_ERROR = 0.01  # largest standard error with which clean samples can measure the confidence gap
CORRELATED_CLEAN_SAMPLES = 10  # clean samples that count as one independent sample in suspicion


def given_probability(p: ClassTable, given: Tensor) -> Tensor:
    """Return p_y of each sample; of class 0 where there is no given label."""
    return value_at(p, given)


def safe_log(p: Tensor) -> Tensor:
    """Return log p, finite where p is 0."""
    return p.clamp_min(MIN_PROBABILITY).log()


def log_mean(total: ClassTable, count: int) -> ClassTable:
    """Return the logarithm of a sum of probabilities divided by their number."""
    if isinstance(total, TopClasses):
        return total.with_values(safe_log(total.values / count), safe_log(total.rest / count))
    return safe_log(total / count)


def clean_rows(method: Method, problem: Problem, epoch: int | None = None) -> tuple[Rows, ...]:
    """Return the clean rows on which probabilities can be evaluated: the validation rows, then the other clean rows.

    The other clean rows are left out once the classifier is trained on their labels: in `epoch`, or without an epoch
    in any epoch of the run.
    """
    untrained_on = method.clean_from is None or (epoch is not None and epoch < method.clean_from)
    return (problem.validation, problem.clean) if untrained_on and problem.holds_out else (problem.validation,)


class CleanLabels(NamedTuple):
    """True and given labels of clean rows, validation rows first. A given label of −1 means there is none."""

    true: Tensor
    given: Tensor

    @property
    def labeled(self) -> Tensor:
        """Mask of the rows that have a given label."""
        return self.given >= 0

    @property
    def has_enough_labeled(self) -> bool:
        """Whether enough rows have a given label to evaluate given labels on them."""
        return int(self.labeled.sum()) >= MIN_LABELED_CLEAN_SAMPLES

    def rows_evaluated_by(self, distribution: LabelDistribution) -> CleanLabels:
        """Return the rows on which this distribution was evaluated."""
        n = len(distribution.losses)
        return CleanLabels(self.true[:n], self.given[:n])

    def confidence_gap(self, distribution: LabelDistribution) -> float | None:
        """Return accuracy minus confidence on those rows; None where they are too few to measure it."""
        gap, error = clean_confidence_gap(distribution.clean_p, self.rows_evaluated_by(distribution).true)
        return gap if error <= MAX_GAP_STANDARD_ERROR else None


def clean_labels(method: Method, problem: Problem, epoch: int | None = None) -> CleanLabels:
    """Return true and given labels of `clean_rows`."""
    parts = clean_rows(method, problem, epoch)
    return CleanLabels(torch.cat([rows.true for rows in parts]), torch.cat([rows.given for rows in parts]))


class SnapshotPredictions(NamedTuple):
    """Predictions of one epoch.

    train  probabilities of the training rows
    clean  logits of the rows of `clean_rows`
    true   their true classes
    """

    train: ClassTable
    clean: Tensor
    true: Tensor


def snapshot_predictions(
    method: Method, problem: Problem, predictor: Method | Engine | None = None, validation: Tensor | None = None
) -> SnapshotPredictions:
    """Predict the training rows and the clean rows that can be evaluated in every epoch.

    predictor   computes the logits; the method itself by default
    validation  logits of the validation rows, where they are computed already
    """
    predictor = method if predictor is None else predictor
    clean, true = clean_logits(method, problem, predictor, validation)
    return SnapshotPredictions(predict_chunks(predictor, problem.train).softmax(1.0), clean, true)


def clean_logits(
    method: Method, problem: Problem, predictor: Method | Engine, validation: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the logits of `clean_rows` and their true classes."""
    parts = clean_rows(method, problem)
    if validation is None:
        validation = predict_logits(predictor, problem.validation.x)
    others = [predict_logits(predictor, rows.x) for rows in parts[1:]]
    return torch.cat([validation, *others]), torch.cat([rows.true for rows in parts])


def predict_chunks(predictor: Method | Engine, rows: Rows) -> LogitChunks:
    """Return the classifier's logits for all rows, computed when they are needed."""
    return_freed_memory()  # of the chunks, which are large for many classes
    return LogitChunks(lambda: map(predictor.logits, chunks(rows.x)), rows.given)


def is_lower(losses: Tensor, than: Tensor, standard_errors: float = STANDARD_ERRORS_IF_MEMORIZED) -> bool:
    """Return whether paired losses are lower by more than this many standard errors of their mean difference."""
    gain = (than - losses).double()
    error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
    return float(gain.mean()) > standard_errors * error


def suspicion_scale(n: int) -> float:
    """Return a of the rule: how strongly a difference in loss on n clean samples weighs in suspicion."""
    return max(math.sqrt(n), n / CORRELATED_CLEAN_SAMPLES)


def expected_given_accuracy(p: ClassTable, given: Tensor, fit: TransitionMatrixFit = fit_transition_matrix) -> float:
    """Return the share of given labels that are correct by q: the mean of q_y. `p` must not depend on `given`."""
    all_rows, labeled = (p, given), given >= 0
    p, given = p[labeled], given[labeled]
    step = max(1, math.ceil(p.numel() / MAX_VALUES_FOR_GIVEN_ACCURACY))
    p, given = p[::step], given[::step]
    T = fit(*all_rows) if step == 1 else fit_transition_matrix(p, given)  # rows without a label change nothing
    return float(given_probability(posterior(p, given, T), given).double().mean())


def is_memorized(p: ClassTable, given: Tensor, given_accuracy: float) -> bool:
    """Return whether p agrees with more given labels than are correct."""
    labeled = given >= 0
    return float((p.argmax(1) == given)[labeled].double().mean()) > given_accuracy


class LabelDistribution(NamedTuple):
    """A candidate for the corrected labels: probabilities of every training row, and how good they are on clean rows.

    p            (N, C) calibrated probabilities of the training rows
    epochs       first and last epoch of the mean
    temperature  t
    clean_p      (n, C) the same for clean rows
    losses       (n,) cross-entropy of each clean row
    is_refit     whether it is p_F, from the LOO head refit
    uses_given   whether it is q, which uses the given labels
    """

    p: ClassTable
    epochs: tuple[int, int]
    temperature: float
    clean_p: Tensor
    losses: Tensor
    is_refit: bool = False
    uses_given: bool = False

    def provenance(self) -> dict[str, Any]:
        """Return the entry of calibration.json: where the distribution comes from and its loss on clean samples."""
        return {
            "temperature": self.temperature,
            "epochs": list(self.epochs),
            "loss": float(self.losses.mean()),
            "samples": len(self.losses),
            "refitted": self.is_refit,
            "given": self.uses_given,
        }


def calibrated_distribution(
    train: ClassTable | LogitChunks,
    clean: Tensor,
    true: Tensor,
    epochs: tuple[int, int],
    dtype: torch.dtype | None = None,
) -> LabelDistribution:
    """Return the distribution of training rows, with the temperature fitted on clean rows.

    train, clean  logits or log-probabilities
    true          classes of the clean rows
    dtype         dtype of the probabilities of the training rows; None: that of the logits
    """
    t, _ = fit_temperature(clean, true)
    losses = functional.cross_entropy(clean.double() / t, true, reduction="none")
    if isinstance(train, LogitChunks):
        p = train.softmax(t, dtype)
    else:
        p = train.softmax(t) if isinstance(train, TopClasses) else softmax_at_temperature(train, t)
    return LabelDistribution(p, epochs, t, softmax_at_temperature(clean, t), losses)


class Snapshots:
    """Running mean of the classifier's probabilities, the best mean so far, and the suspicion from all means.

    snapshots  number of epochs that take a snapshot, evenly spread; each costs a pass over the training rows
    epochs     epochs of the run
    """

    def __init__(self, snapshots: int, epochs: int) -> None:
        self.snapshots, self.epochs = min(snapshots, epochs), epochs
        self.train_sum: ClassTable | None = None  # of the probabilities of the training rows
        self.clean_sum: Tensor | None = None  # and of the clean rows
        self.count = 0
        self.best: LabelDistribution | None = None
        self.refit: LabelDistribution | None = None  # p_F on all clean rows of its epoch, if they can evaluate q
        self.min_loss = math.inf  # min L_E so far
        self.log_given_sum: Tensor | None = None  # Σ_E w_E log p_E,y, where the mean of lowest loss has weight 1
        self.weight_sum = 0.0  # Σ_E w_E
        self.given_accuracy: float | None = None  # share of given labels that are correct by q
        self.fit_transition_matrix = LastTransitionMatrix()  # of p_F, which is used twice; not part of the state

    def is_due(self, epoch: int) -> bool:
        """Return whether this epoch takes a snapshot."""
        return (epoch + 1) * self.snapshots // self.epochs > epoch * self.snapshots // self.epochs

    def add_epoch(self, method: Method, problem: Problem, epoch: int, found: SnapshotPredictions | None = None) -> None:
        """Add an epoch to the means. Its predictions are computed unless they are passed."""
        found = snapshot_predictions(method, problem) if found is None else found
        if self.count == 0:
            self._add_refit(method, problem, found.true, epoch)
        train, clean = found.train, found.clean.softmax(1)
        self.train_sum = (
            train if self.train_sum is None else add_probabilities(self.train_sum, train, problem.train.given)
        )
        self.clean_sum = clean if self.clean_sum is None else self.clean_sum + clean
        self.count += 1
        mean = calibrated_distribution(
            log_mean(self.train_sum, self.count), safe_log(self.clean_sum / self.count), found.true, (0, epoch)
        )
        self.add_given_probability(given_probability(mean.p, problem.train.given), mean.losses)
        if self.best is None or self.is_better(mean, self.best, problem.train.given):
            self.best = mean

    def is_better(self, new: LabelDistribution, than: LabelDistribution, given: Tensor) -> bool:
        """Return whether the loss is lower by one standard error, or by two where labels may be memorized."""
        may_be_memorized = self.given_accuracy is None or is_memorized(new.p, given, self.given_accuracy)
        margin = STANDARD_ERRORS_IF_MEMORIZED if may_be_memorized else STANDARD_ERRORS
        return is_lower(new.losses, than.losses, margin)

    def _add_refit(self, method: Method, problem: Problem, true: Tensor, epoch: int) -> None:
        """Compute p_F, where the network has a last linear layer that can be refitted."""
        logits = loo_logits(method, problem.train, clean_rows(method, problem, epoch))
        if logits is None:
            return
        train, clean = logits

        def refit(true: Tensor) -> LabelDistribution:
            found = calibrated_distribution(train, clean[: len(true)], true, (epoch, epoch), method.task.dtype)
            return found._replace(is_refit=True)

        labels = clean_labels(method, problem, epoch)
        has_more_rows = len(labels.true) > len(true)
        self.best = refit(true)
        on_all_rows = refit(labels.true) if has_more_rows else self.best
        can_evaluate = labels.has_enough_labeled or (has_more_rows and labels.confidence_gap(on_all_rows) is not None)
        self.refit = on_all_rows if problem.has_clean_set and can_evaluate else None
        self.given_accuracy = expected_given_accuracy(self.best.p, problem.train.given, self.fit_transition_matrix)
        self.add_given_probability(given_probability(self.best.p, problem.train.given), self.best.losses)

    def add_given_probability(self, p_y: Tensor, losses: Tensor) -> None:
        """Add w_E log p_E,y; where the loss is the lowest so far, scale down the weights of the others."""
        loss, scale = float(losses.mean()), suspicion_scale(len(losses))
        min_loss = min(loss, self.min_loss)
        weight, rescale = math.exp(-scale * (loss - min_loss)), math.exp(-scale * (self.min_loss - min_loss))
        term = weight * safe_log(p_y)
        self.log_given_sum = term if self.log_given_sum is None else term + rescale * self.log_given_sum
        self.weight_sum = weight + rescale * self.weight_sum
        self.min_loss = min_loss

    def suspicion(self) -> Tensor | None:
        """Return the suspicion from all means so far; None before the first."""
        return None if self.log_given_sum is None else -torch.expm1(self.log_given_sum / self.weight_sum)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        state = {name: table_state(getattr(self, name)) for name in _STATE}
        for name in _DISTRIBUTIONS:
            distribution = getattr(self, name)
            if distribution is not None:
                distribution = distribution._asdict() | {"p": table_state(distribution.p)}
            state[name] = distribution
        return state

    def check_state(self, state: Any, method: Method, problem: Problem) -> None:
        """Raise InputError for a state that is not one of the snapshots of this run."""
        check_keys(state, (*_STATE, *_DISTRIBUTIONS), "snapshots")
        check_int(state["count"], 0, self.snapshots, "snapshots.count")
        rows, classes = len(problem.train), len(problem.train.classes)
        clean = sum(len(part) for part in clean_rows(method, problem))
        checks: dict[str, Callable[[Any, str], None]] = {
            "train_sum": lambda value, what: check_table(value, (rows, classes), what),
            "clean_sum": lambda value, what: check_tensor(value, (clean, classes), None, what),
            "log_given_sum": lambda value, what: check_tensor(value, (rows,), None, what),
        }
        for name, check in checks.items():
            if state["count"] or (name == "log_given_sum" and state[name] is not None):
                check(state[name], f"snapshots.{name}")
            elif state[name] is not None:
                raise InputError(f"snapshots.{name} is set, but no epoch has taken a snapshot")
        for name in ("min_loss", "weight_sum", *(("given_accuracy",) if state["given_accuracy"] is not None else ())):
            check_float(state[name], f"snapshots.{name}")
        for name in _DISTRIBUTIONS:
            if state[name] is not None:
                _check_distribution(state[name], rows, classes, self.epochs, f"snapshots.{name}")
        if state["count"] and (state["best"] is None or len(state["best"]["losses"]) != clean):
            raise InputError(f"snapshots.best has not the losses of {clean} clean rows")
        all_clean = len(problem.validation) + len(problem.clean)
        if state["refit"] is not None and len(state["refit"]["losses"]) > all_clean:
            raise InputError(f"snapshots.refit has losses of more than {all_clean} clean rows")

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        for name in _STATE:
            setattr(self, name, table_from_state(state[name]))
        for name in _DISTRIBUTIONS:
            fields = state[name]
            if fields is not None:
                fields = LabelDistribution(**fields | {"p": table_from_state(fields["p"])})
            setattr(self, name, fields)


def _check_distribution(state: Any, rows: int, classes: int, epochs: int, what: str) -> None:
    """Raise InputError for a state that is not that of a `LabelDistribution`."""
    check_keys(state, LabelDistribution._fields, what)
    check_table(state["p"], (rows, classes), f"{what}.p")
    clean = len(state["losses"]) if isinstance(state["losses"], torch.Tensor) and state["losses"].ndim else 0
    check_tensor(state["losses"], (clean,), None, f"{what}.losses")
    check_tensor(state["clean_p"], (clean, classes), None, f"{what}.clean_p")
    check_float(state["temperature"], f"{what}.temperature", low=0.0)
    if not isinstance(state["epochs"], tuple) or len(state["epochs"]) != 2:
        raise InputError(f"{what}.epochs is not a pair of epochs")
    for epoch in state["epochs"]:
        check_int(epoch, 0, epochs - 1, f"{what}.epochs")
    for name in ("is_refit", "uses_given"):
        if type(state[name]) is not bool:
            raise InputError(f"{what}.{name} is a {type(state[name]).__name__}, not a bool")


_STATE: Sequence[str] = (
    "train_sum",
    "clean_sum",
    "count",
    "min_loss",
    "log_given_sum",
    "weight_sum",
    "given_accuracy",
)
_DISTRIBUTIONS: Sequence[str] = ("best", "refit")
