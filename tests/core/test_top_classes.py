"""Rows that store their largest values: the same results as plain tensors, at a cost that does not grow with C²."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from metalabelnet.core.posterior import (
    EM_STEPS,
    INITIAL_DIAGONAL,
    fit_transition_matrix,
    mix_in_confusion,
    posterior,
    posterior_confidence_gap,
)
from metalabelnet.core.top_classes import (
    TOP_CLASSES,
    LogitChunks,
    TopClasses,
    add_probabilities,
    check_table,
    mean_abs_difference,
    table_from_state,
    table_state,
    top_probabilities,
    value_at,
)
from metalabelnet.errors import InputError

CLASSES = 150


def draw(rows: int = 900, classes: int = CLASSES, likely: int = TOP_CLASSES - 1) -> tuple[Tensor, Tensor]:
    """Return probabilities with equal values but for `likely` classes of each row, and given labels, some −1."""
    g = torch.Generator().manual_seed(0)
    weights = torch.full((rows, classes), 0.01, dtype=torch.float64)
    chosen = torch.rand(rows, classes, generator=g).topk(likely).indices
    weights.scatter_(1, chosen, torch.rand(rows, likely, generator=g, dtype=torch.float64) ** 8 * 20 + 0.02)
    p = weights / weights.sum(1, keepdim=True)
    given = torch.multinomial(p, 1, generator=g)[:, 0]
    return p, torch.where(torch.rand(rows, generator=g) < 0.2, -1, given)


def sparse(p: Tensor, given: Tensor) -> TopClasses:
    table = top_probabilities(p, given)
    assert isinstance(table, TopClasses)
    return table


def naive_fit(p: Tensor, given: Tensor) -> Tensor:
    """Expectation-maximization with one-hot labels, as in the formula; it costs N C² a step."""
    classes, p, given = p.shape[1], p[given >= 0].double(), given[given >= 0]
    T = torch.full((classes, classes), (1 - INITIAL_DIAGONAL) / (classes - 1), dtype=torch.float64)
    T.fill_diagonal_(INITIAL_DIAGONAL)
    for _ in range(EM_STEPS):
        q = p * T.T[given]
        counts = (q / q.sum(1, keepdim=True)).T @ functional.one_hot(given, classes).double() + 1 / classes
        T = counts / counts.sum(1, keepdim=True)
    return T


def test_rows_keep_the_largest_values_the_given_label_and_their_sum() -> None:
    g = torch.Generator().manual_seed(1)
    p, given = torch.randn(40, CLASSES, generator=g).softmax(1), torch.arange(40)
    given[0] = -1
    table = sparse(p, given)
    assert table.shape == p.shape
    assert table.numel() == 40 * TOP_CLASSES
    torch.testing.assert_close(table.dense().sum(1), torch.ones(40))
    assert torch.equal(value_at(table, given), value_at(p, given))
    assert all(torch.equal(a, b) for a, b in zip(table.max(1), p.max(1), strict=True))
    second = p.argsort(1, descending=True)[:, 1]
    assert torch.equal(table.at(second), value_at(p, second))
    assert torch.equal(table[3:5].values, table.values[3:5])


def test_few_classes_stay_a_tensor() -> None:
    p, given = torch.rand(4, 10), torch.zeros(4, dtype=torch.long)
    assert top_probabilities(p, given) is p


def test_calibration_of_logits_is_exact_for_stored_classes() -> None:
    logits = torch.randn(50, CLASSES, generator=torch.Generator().manual_seed(2))
    given = torch.arange(50)
    table = LogitChunks(lambda: iter(logits.split(7)), given).softmax(2.5)
    assert isinstance(table, TopClasses)
    p = (logits / 2.5).softmax(1)
    torch.testing.assert_close(table.values, p.gather(1, table.classes.long()))
    torch.testing.assert_close(table.dense().sum(1), torch.ones(50))


def test_calibration_of_log_probabilities() -> None:
    p, given = draw(20)
    log_p = sparse(p, given).with_values(sparse(p, given).values.log(), sparse(p, given).rest.log())
    torch.testing.assert_close(log_p.softmax(1.7).dense(), (p.log() / 1.7).softmax(1))


def test_sums_and_differences_equal_those_of_tensors() -> None:
    (p, given), (other, _) = draw(30, likely=10), draw(31, likely=12)
    other = other[1:]
    total = add_probabilities(sparse(p, given), sparse(other, given), given)
    assert isinstance(total, TopClasses)
    torch.testing.assert_close(total.dense(), p + other)
    torch.testing.assert_close(
        mean_abs_difference(sparse(p, given), sparse(other, given)), (p - other).abs().double().mean(1)
    )


@pytest.mark.parametrize("classes", [3, 20])
def test_fit_equals_the_formula(classes: int) -> None:
    p, given = draw(500, classes, likely=classes)
    torch.testing.assert_close(fit_transition_matrix(p, given), naive_fit(p, given), rtol=1e-10, atol=1e-13)


def test_posterior_and_matrices_of_sparse_rows_equal_those_of_tensors() -> None:
    p, given = draw()
    table = sparse(p, given)
    T = fit_transition_matrix(table, given)
    torch.testing.assert_close(T, naive_fit(p, given), rtol=1e-9, atol=1e-12)
    q, expected = posterior(table, given, T), posterior(p, given, T)
    assert isinstance(q, TopClasses)
    torch.testing.assert_close(q.values, expected.gather(1, q.classes.long()))
    torch.testing.assert_close(q.dense().sum(1), torch.ones(len(p), dtype=torch.float64))
    assert posterior_confidence_gap(q, table) == pytest.approx(posterior_confidence_gap(expected, p), abs=1e-12)
    torch.testing.assert_close(mix_in_confusion(T, table, 0.1), mix_in_confusion(T, p, 0.1), rtol=1e-9, atol=1e-12)


class OperationCounter(TorchDispatchMode):
    """Counts the elements that operations read and write; a matrix product (n, k) × (k, m) counts n·k·m."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default:
            self.count += args[0].numel() * args[1].shape[1]
        elif isinstance(result, Tensor):
            self.count += max([result.numel(), *(arg.numel() for arg in args if isinstance(arg, Tensor))])
        return result


def operations(function: Callable[[], Any]) -> int:
    with OperationCounter() as counter:
        function()
    return counter.count


def test_cost_of_a_fit_is_linear_in_classes() -> None:
    """Per step about N C for tensors; N K + C² for sparse rows. N C² would be 100 and 900 times the first two."""
    counts = [operations(lambda c=c: fit_transition_matrix(*draw(2000, c, likely=c))) for c in (10, 100)]
    assert counts[1] < 15 * counts[0]
    few, many = (draw(2000, classes) for classes in (150, 450))
    tables = [(sparse(p, given), given) for p, given in (few, many)]
    counts = [operations(lambda t=t: fit_transition_matrix(*t)) for t in tables]
    assert counts[1] < 3 * counts[0] + EM_STEPS * 12 * 450**2
    assert counts[1] < EM_STEPS * 2000 * 450 * 4


def test_state_of_a_table_is_checked() -> None:
    p, given = draw(12)
    state = table_state(sparse(p, given))
    check_table(state, (12, CLASSES), "table")
    assert torch.equal(table_from_state(state).dense(), sparse(p, given).dense())
    for name, value in (("values", torch.zeros(3, 3)), ("classes", state["classes"] + CLASSES), ("total", 5)):
        with pytest.raises(InputError, match=f"table.{name}"):
            check_table(state | {name: value}, (12, CLASSES), "table")
    with pytest.raises(InputError, match="table is a Tensor, not a dict"):
        check_table(p, (12, CLASSES), "table")


def test_chunks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables have the same bytes however many rows are held as a plain tensor at a time; the fit adds the same rows."""
    (p, given), (other, _) = draw(300), draw(301)
    other, logits = other[1:], p.log()

    def results() -> list[Tensor]:
        a, b = sparse(p, given), sparse(other, given)
        scaled, total = LogitChunks(lambda: iter(logits.split(70)), given).softmax(1.3), add_probabilities(a, b, given)
        tables = [table for table in (a, scaled, total) if isinstance(table, TopClasses)]
        values = [value for table in tables for value in (table.values, table.classes, table.rest)]
        return [*values, mean_abs_difference(a, b), fit_transition_matrix(a, given), mix_in_confusion(p.T @ p, a, 0.1)]

    monkeypatch.setattr("metalabelnet.core.top_classes.MAX_VALUES_PER_CHUNK_ON_CPU", 1 << 20)
    whole = results()
    monkeypatch.setattr("metalabelnet.core.top_classes.MAX_VALUES_PER_CHUNK_ON_CPU", 11 * CLASSES)
    assert len(whole) == 12
    assert all(torch.equal(a, b) for a, b in zip(whole, results(), strict=True))
