"""A pass of a network in which every rank computes its share of the rows, with the result of one process.

Rows of a batch meet in a network in two places. BatchNorm normalizes by the mean and variance of all rows: each rank
computes mean m_r and variance v_r of its share s_r of them, all ranks gather these, and

    mean = Σ_r s_r m_r        variance = Σ_r s_r (v_r + (m_r − mean)²)

Gradients and tangents of both follow from those of the maps in `metalabelnet.core.ranks`. And dropout masks are drawn
for all rows by one generator: every rank draws the masks of the whole batch and uses those of its rows.

Not covered: a network that draws random numbers in other ways than PyTorch's dropout functions and attention (each
rank then draws the same numbers for its own rows), and one whose first dimension is not the rows (or rows × positions).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from metalabelnet.core.ranks import World, all_rows, current_world, local_copies, own_rows

if TYPE_CHECKING:
    from contextvars import Token

_DROPOUTS = {
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
}
_ATTENTIONS = {functional.scaled_dot_product_attention, functional.multi_head_attention_forward}


class ShardedPass(TorchFunctionMode):
    """Computes the functions of a network for this rank's share of the rows of a batch.

    Parameters
    ----------
    world : World
        The ranks.
    rows : int
        Rows of the batch, at least one per rank.
    """

    def __init__(self, world: World, rows: int) -> None:
        super().__init__()
        self.world, self.rows = world, rows
        self.start, self.end = world.span(rows)
        self._token: Token[ShardedPass | None] | None = None

    def __enter__(self) -> ShardedPass:
        self._token = _current_pass.set(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        assert self._token is not None
        _current_pass.reset(self._token)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.batch_norm:
            return self._batch_norm(*args, **kwargs)
        if func is functional.instance_norm:
            return self._instance_norm(*args, **kwargs)
        if func in _DROPOUTS:
            return self._dropout(func, *args, **kwargs)
        if func in _ATTENTIONS:
            return self._attention(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,  # noqa: FBT001, FBT002 (PyTorch's signature)
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Normalize by the statistics of all rows, and update the running ones by them."""
        if not training:
            return functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        dims, channels = [0, *range(2, x.ndim)], (1, -1, *(1,) * (x.ndim - 2))
        own = torch.cat([x.mean(dims), x.var(dims, correction=0)])[None]
        means, variances = all_rows(self.world, self.world.size, own).chunk(2, 1)
        shares = self._shares(x)[:, None]
        mean = (shares * means).sum(0)
        var = (shares * (variances + (means - mean).square())).sum(0)
        if running_mean is not None and running_var is not None:
            count = x.numel() // x.shape[1] // (self.end - self.start) * self.rows
            running_mean.lerp_(mean.detach().to(running_mean), momentum)
            running_var.lerp_((var.detach() * count / (count - 1)).to(running_var), momentum)
        mean, var = local_copies(self.world, mean, var)
        scale = (var + eps).rsqrt()
        scale = scale if weight is None else scale * weight
        y = (x - mean.view(channels)) * scale.view(channels)
        return y if bias is None else y + bias.view(channels)

    def _instance_norm(
        self, x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, *args: Any, **how: Any
    ) -> Tensor:
        """Normalize each row, and average the updated running statistics over the rows of all ranks."""
        y = functional.instance_norm(x, running_mean, running_var, *args, **how)
        if running_mean is not None and running_var is not None:
            share = self._shares(x)[self.world.rank]
            means, variances = self.world.all_reduce([share * running_mean, share * running_var])
            running_mean.copy_(means)
            running_var.copy_(variances)
        return y

    def _dropout(
        self,
        func: Any,
        x: Tensor,
        p: float = 0.5,
        training: bool = True,  # noqa: FBT001, FBT002 (PyTorch's signature)
        inplace: bool = False,  # noqa: FBT001, FBT002
    ) -> Tensor:
        """Draw the masks of all rows, and use those of the own ones."""
        if not training or p == 0:
            return func(x, p, training, inplace)  # type: ignore[no-any-return]
        return self._own_part(func(self._pad(x), p, training), x)

    def _attention(self, func: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Draw the dropout masks of the attention weights of all rows. A mask given by the network has no rows."""
        position, dim = (1, 0) if func is functional.scaled_dot_product_attention else (7, 1)
        if not (args[position] if len(args) > position else kwargs.get("dropout_p", 0.0)):
            return func(query, key, value, *args, **kwargs)
        padded = {x: self._pad(x, dim) for x in (query, key, value)}  # self-attention stays one tensor
        output = func(*(padded[x] for x in (query, key, value)), *args, **kwargs)
        if isinstance(output, Tensor):
            return self._own_part(output, query)
        attended, weights = output
        rows = query.transpose(0, 1)
        own = None if weights is None else self._own_part(weights, rows)
        return self._own_part(attended.transpose(0, 1), rows).transpose(0, 1), own

    def _pad(self, x: Tensor, dim: int = 0) -> Tensor:
        """Return x with zeros for the rows of other ranks, in the same memory order, in which masks are drawn.

        `dim` is the dimension of the rows.
        """
        order = sorted(range(x.ndim), key=x.stride, reverse=True)
        in_memory, rows = x.permute(order), order.index(dim)
        per_row, shape = x.shape[dim] // (self.end - self.start), in_memory.shape
        before = x.new_zeros(*shape[:rows], self.start * per_row, *shape[rows + 1 :])
        after = x.new_zeros(*shape[:rows], (self.rows - self.end) * per_row, *shape[rows + 1 :])
        return torch.cat([before, in_memory, after], rows).permute([order.index(i) for i in range(x.ndim)])

    def _own_part(self, y: Tensor, x: Tensor) -> Tensor:
        """Return the own rows of y, where x are the own rows of the input."""
        return y.narrow(0, self.start * (len(x) // (self.end - self.start)), len(x))

    def _shares(self, x: Tensor) -> Tensor:
        spans = [self.world.span(self.rows, rank) for rank in range(self.world.size)]
        return x.new_tensor([(end - start) / self.rows for start, end in spans])


_current_pass: ContextVar[ShardedPass | None] = ContextVar("current_pass", default=None)


def share_rows(x: Tensor) -> AbstractContextManager[object]:
    """Return the context of a pass over x: that of one process, unless ranks share its rows.

    Fewer rows than ranks are passed by every rank as a whole.
    """
    world = current_world()
    return nullcontext() if world is None or len(x) < world.size else ShardedPass(world, len(x))


def pass_input(x: Tensor) -> Tensor:
    """Return the samples to call the network with, inside `share_rows`."""
    current = _current_pass.get()
    return x if current is None else own_rows(current.world, x)


def pass_weights(net: nn.Module, theta: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights to call the network with, inside `share_rows`: θ, and its own for those not in θ."""
    current = _current_pass.get()
    if current is None:
        return theta
    weights = {name: weight for name, weight in net.named_parameters() if weight.requires_grad} | theta
    return dict(zip(weights, local_copies(current.world, *weights.values()), strict=True)) if weights else {}


def pass_output(local: Tensor) -> Tensor:
    """Return the rows of all ranks of the network's output, or of a result inside it, inside `share_rows`."""
    current = _current_pass.get()
    return local if current is None else all_rows(current.world, current.rows, local)
