"""FixMatch: the step equals the formula; given labels are not read."""

from collections.abc import Callable

import pytest
from torch import Tensor
from torch.nn import functional

from metalabelnet.errors import InputError
from sgd_step import check_step
from small_runs import StepRunner, small_problem, small_run


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
def test_step_equals_the_formula(threshold: float) -> None:
    settings = {"threshold": threshold, "unlabeled_weight": 0.7}
    one = StepRunner(small_run("fixmatch", settings=settings), small_problem(unlabeled=6)).advance(4)
    one.method.begin_epoch(1)
    batch, kept = next(iter(one.batches.epoch(1, labeled_only=False))), []

    def loss_at(log_p: Callable[[Tensor], Tensor]) -> Tensor:
        loss = functional.nll_loss(log_p(batch.clean_x), batch.clean_y)
        q, strong = log_p(batch.x).exp().detach(), log_p(batch.views.strong)
        for row in range(len(q)):
            if float(q[row].max()) >= threshold:
                kept.append(row)
                loss = loss - 0.7 * strong[row, q[row].argmax()] / len(q)
        return loss

    check_step(one, batch, loss_at)
    count = len(batch.x)
    assert {0.0: len(kept) == count, 0.5: 0 < len(kept) <= count, 1.0: not kept}[threshold]


def test_given_labels_are_not_read() -> None:
    runs = [StepRunner(small_run("fixmatch"), small_problem(wrong=wrong)).advance() for wrong in (0.0, 0.5)]
    assert runs[0].losses == runs[1].losses


def test_threshold_out_of_range_is_rejected() -> None:
    with pytest.raises(InputError, match=r"threshold=1\.5 is out of range: give a probability from 0 to 1"):
        small_run("fixmatch", settings={"threshold": 1.5})
