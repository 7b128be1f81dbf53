"""Counters that nothing reads count together; others are left alone."""

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from metalabelnet.engine.rewrites.batch_counters import count_together


def counted(f: object, *args: Tensor) -> fx.GraphModule:
    module = make_fx(f)(*args)  # type: ignore[arg-type]
    count_together(module.graph)
    module.recompile()
    return module


def test_all_count_in_one_kernel_each_as_often_as_before() -> None:
    def step(a: Tensor, b: Tensor, c: Tensor, x: Tensor) -> Tensor:
        for counter in (a, b, c, a, b):
            counter.add_(1)
        return x * 2

    module = counted(step, *(torch.tensor(n) for n in range(3)), torch.ones(2))
    counters = [torch.tensor(n) for n in (10, 20, 30)]
    assert module(*counters, torch.ones(2)).tolist() == [2, 2]
    assert [int(n) for n in counters] == [12, 22, 31]
    assert module.code.count("aten._foreach_add_.Scalar") == 2  # what counts twice, and what counts once
    assert "add_.Tensor" not in module.code


def test_a_counter_that_is_read_stays_where_it_is() -> None:
    def step(a: Tensor, x: Tensor) -> Tensor:
        a.add_(1)
        return x / a

    module = counted(step, torch.tensor(1), torch.ones(2))
    assert "add_.Tensor" in module.code
    assert module(torch.tensor(3), torch.ones(2)).tolist() == [0.25, 0.25]
