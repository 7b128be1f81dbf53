"""BatchNorm's counters are incremented together; counters that the step reads are left alone."""

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from metalabelnet.engine.rewrites.batch_counters import merge_batch_counters


def trace_and_merge(f: Any, *args: Tensor) -> fx.GraphModule:
    module = make_fx(f)(*args)
    merge_batch_counters(module.graph)
    module.recompile()
    return module


def test_one_operator_increments_all_counters() -> None:
    def step(a: Tensor, b: Tensor, c: Tensor, x: Tensor) -> Tensor:
        for counter in (a, b, c, a, b):
            counter.add_(1)
        return x * 2

    module = trace_and_merge(step, *(torch.tensor(n) for n in range(3)), torch.ones(2))
    counters = [torch.tensor(n) for n in (10, 20, 30)]
    assert module(*counters, torch.ones(2)).tolist() == [2, 2]
    assert [int(n) for n in counters] == [12, 22, 31]
    assert module.code.count("aten._foreach_add_.Scalar") == 2  # one for each increment, 2 and 1
    assert "add_.Tensor" not in module.code


def test_counter_that_is_read_is_not_moved() -> None:
    def step(a: Tensor, x: Tensor) -> Tensor:
        a.add_(1)
        return x / a

    module = trace_and_merge(step, torch.tensor(1), torch.ones(2))
    assert "add_.Tensor" in module.code
    assert module(torch.tensor(3), torch.ones(2)).tolist() == [0.25, 0.25]
