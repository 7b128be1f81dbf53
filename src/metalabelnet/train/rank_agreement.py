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
from metalabelnet.engine.engine import state_tensors
from metalabelnet.errors import InputError

if TYPE_CHECKING:
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


def broadcast_state(state: dict[str, Any] | None, device: torch.device) -> dict[str, Any] | None:
    """Return the state that rank 0 has read, on every rank. No code in it is executed."""
    world = current_world()
    if world is None:
        return state
    buffer = io.BytesIO()
    if state is not None:
        torch.save(state, buffer)
    content = world.broadcast_bytes(buffer.getvalue())
    if world.rank == 0 or not content:
        return state
    received: dict[str, Any] = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    return received


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
