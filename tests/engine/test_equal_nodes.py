"""Equal expressions of a traced graph are merged, unless memory they use is written to."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from metalabelnet.engine.materialize import materialize
from metalabelnet.engine.rewrites.equal_nodes import merge_equal_nodes

aten = torch.ops.aten


def merge(f: Callable[..., object], *args: Tensor) -> tuple[fx.GraphModule, Counter[object]]:
    """Return the merged trace of a function, and how often it calls each operator."""
    module = make_fx(f)(*(arg.clone() for arg in args))
    merge_equal_nodes(module.graph, args)
    module.graph.lint()
    module.recompile()
    return module, Counter(node.target for node in module.graph.nodes if node.op == "call_function")


def check(f: Callable[..., object], *args: Tensor) -> Counter[object]:
    """Compare results and written arguments of a function and its merged trace; return the operators it calls."""
    module, calls = merge(f, *args)
    expected_args, actual_args = ([arg.clone() for arg in args] for _ in range(2))
    expected, actual = f(*expected_args), module(*actual_args)
    torch.testing.assert_close((actual, actual_args), (expected, expected_args), rtol=0, atol=0)
    return calls


X = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)


def test_equal_expressions_are_computed_once() -> None:
    def f(x: Tensor) -> Tensor:
        return materialize(x.exp().view(4, 3)).sum(0) + materialize(x.exp().view(4, 3)).sum(0)

    calls = check(f, X)
    assert calls[aten.exp.default] == calls[aten.view.default] == calls[aten.sum.dim_IntList] == 1
    assert calls[torch.ops.metalabelnet.materialize.default] == 1


def test_parts_of_equal_results_are_equal() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.sort(x)[0] + torch.sort(x)[0]

    assert check(f, X)[aten.sort.default] == 1


def test_constants_of_other_types_are_different() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full_like(x, 1, dtype=None), x.new_full((2,), True), x.new_full((2,), 1), x.new_full((2,), 1.0)  # type: ignore[return-value]

    check(f, X)
    assert check(lambda x: (x * 2, x * 2.0, x * True), X)[aten.mul.Tensor] == 3


def test_other_names_of_a_tensor_are_removed() -> None:
    calls = check(lambda x: aten.alias(x).detach() + aten.alias(x), X)
    assert calls == {aten.add.Tensor: 1}


def write(x: Tensor) -> Tensor:
    before = x.exp()
    x.add_(1)
    return before + x.exp()


def write_view(x: Tensor) -> Tensor:
    before = x.exp()
    x.view(-1)[2:].zero_()
    return before + x.exp()


def write_alias(x: Tensor) -> Tensor:
    before = x.exp()
    aten.alias(x).zero_()
    return before + x.exp()


def write_unsafe_view(x: Tensor) -> Tensor:
    y = x.clone()
    before = y.exp()
    aten._unsafe_view(y, [12]).zero_()
    return before + y.exp()


def write_result(x: Tensor) -> Tensor:
    first, second = x.exp(), x.exp()
    first.zero_()
    return first + second


def write_list(x: Tensor) -> Tensor:
    y = x.clone()
    before = y.exp()
    torch._foreach_add_([x, y], 1)
    return before + y.exp()


def write_part(x: Tensor) -> Tensor:
    y = x.clone()
    first, second = y.split(2, 1)
    before = second.exp()
    second.mul_(2)
    return before + second.exp() + first.sum()


def change_view(x: Tensor) -> Tensor:
    other = aten.alias(x)
    other.as_strided_([4, 3], [3, 1])
    return other.sum(0).sum() + x.sum(1)


@pytest.mark.parametrize(
    "f", [write, write_view, write_alias, write_unsafe_view, write_result, write_list, write_part, change_view]
)
def test_written_memory_is_read_again(f: Callable[..., Tensor]) -> None:
    check(f, X)


def test_arguments_that_share_memory() -> None:
    """Writing to one argument changes the other."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        before = x.exp()
        y.zero_()
        return before + x.exp()

    def shared() -> Sequence[Tensor]:
        x = X.clone()
        return x, x.view(-1)[:6]

    module = make_fx(f)(*shared())
    merge_equal_nodes(module.graph, shared())
    module.recompile()
    arguments = shared()
    merge_equal_nodes(module.graph, arguments)
    torch.testing.assert_close(module(*shared()), f(*shared()), rtol=0, atol=0)
