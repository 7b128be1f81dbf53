"""What the ranks of a run agree on: the data, the state to resume from, the weights at the start of an epoch, the stop.

Rank 0 alone reads and writes the run folder. A checkpoint has nothing that depends on the number of ranks.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from metalabelnet.core.optimizers import Optimizer
from metalabelnet.core.ranks import current_world
from metalabelnet.core.sharded_table import ShardedTable
from metalabelnet.engine.engine import state_tensors
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from metalabelnet.methods import Method
    from metalabelnet.train.settings import Run


def check_ranks(run: Run, data_digest: str) -> None:
    """Raise InputError if the ranks cannot train together: there are too many, or their data differs."""
    world = current_world()
    if world is None:
        return
    if run.batch_size < world.size:
        raise InputError(
            f"a batch of {run.batch_size} rows cannot be shared by {world.size} ranks: start at most {run.batch_size}, "
            "or choose a larger --batch-size"
        )
    if world.broadcast_bytes(data_digest.encode()) != data_digest.encode():
        raise InputError(f"rank {world.rank} has read other data than rank 0: give all ranks the same files")


def gather_tables(state: Any) -> Any:
    """Return a method's state with whole tables on rank 0, and None in their place on the others."""
    if isinstance(state, ShardedTable):
        return state.gather()
    return {name: gather_tables(value) for name, value in state.items()} if type(state) is dict else state


def send_state(
    state: dict[str, Any] | None, method: Method, device: torch.device, load: Callable[[dict[str, Any]], None]
) -> None:
    """Let the other ranks load the state that rank 0 has loaded, if there is one. No code in it is executed.

    They receive their own rows of a table alone, after the rest, in which a meta tensor is in the place of the table.
    """
    world = current_world()
    if world is None:
        return
    buffer = io.BytesIO()
    if state is not None:
        torch.save(state | {"method": _without_tables(state["method"], method.state_dict())}, buffer)
    if not (content := world.broadcast_bytes(buffer.getvalue())):
        return
    if state is None:
        load(torch.load(io.BytesIO(content), map_location=device, weights_only=True))
    _scatter_tables(state and state["method"], method.state_dict())


def _without_tables(state: Any, form: Any) -> Any:
    """Return a state with meta tensors for the tables of `form`, the same state of the method of rank 0."""
    if isinstance(form, ShardedTable):
        return state.to("meta")
    return {name: _without_tables(state[name], value) for name, value in form.items()} if type(form) is dict else state


def _scatter_tables(state: Any, form: Any) -> None:
    if isinstance(form, ShardedTable):
        form.scatter(state)
    elif type(form) is dict:
        for name, value in form.items():
            _scatter_tables(state and state[name], value)


def copy_from_rank_0(method: Method) -> None:
    """Copy the networks and optimizers of rank 0 to the others, in case that different hardware rounds differently."""
    world = current_world()
    if world is not None:
        parts = [part for part in method.components().values() if isinstance(part, nn.Module | Optimizer)]
        world.broadcast_into(tensor for part in parts for tensor in state_tensors(part.state_dict()))


def is_set_on_any_rank(flag: bool) -> bool:  # noqa: FBT001 (the value, not an option)
    """Return whether the flag is set on any rank, when all have reached this call."""
    world = current_world()
    return flag if world is None else world.any(flag)
