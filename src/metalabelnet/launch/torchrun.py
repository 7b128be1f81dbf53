"""Ranks that torchrun has started: joining them, and a single report of an error.

torchrun describes the ranks in environment variables and runs a key-value store that outlives every rank. This module
imports PyTorch in the functions that need it, so that the command line can ask whether there are ranks.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from metalabelnet.errors import InputError, RankLostError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed.distributed_c10d import Store

    from metalabelnet.core.ranks import World

TIMEOUT = timedelta(hours=1)  # for ranks that read their data more slowly than others

_store: Store | None = None
_standard_error: int | None = None  # a copy of the stream, where it is silenced
_is_reporter: bool | None = None  # the answer of `report_once`


def rank_and_size() -> tuple[int, int]:
    """Return the number of this process and of all processes that torchrun has started; 0 and 1 without it."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextmanager
def join_ranks() -> Iterator[World | None]:
    """Connect to the other ranks, by NCCL for tensors on GPUs and by Gloo for others. None: there are no others.

    Raises
    ------
    InputError
        If there are more ranks than GPUs on a machine that has GPUs.
    """
    rank, size = rank_and_size()
    if size == 1:
        yield None
        return
    import torch
    from torch import distributed
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    from metalabelnet.core.ranks import World

    global _store
    store, _, _ = next(rendezvous("env://", timeout=TIMEOUT))
    _store = PrefixStore(f"metalabelnet/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    local_rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= gpus > 0:
        raise InputError(
            f"{local_rank + 1} ranks on a machine with {gpus} GPUs: start torchrun with --nproc-per-node {gpus}, or "
            "with CUDA_VISIBLE_DEVICES= to train on CPUs"
        )
    if gpus:
        torch.cuda.set_device(local_rank)
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    distributed.init_process_group(backend, store=_store, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        yield World(rank=rank, size=size)
    except RankLostError:
        raise
    except BaseException:
        report_once()  # before the other ranks notice that this one has left
        raise
    finally:
        distributed.destroy_process_group()


def silence() -> None:
    """Discard what this process prints; `report_once` restores standard error."""
    global _standard_error
    _standard_error = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(null, number)
    os.close(null)


def report_once() -> bool:
    """Return whether this process is to report the end of the run: the first rank that asks, which can print then."""
    global _is_reporter
    if rank_and_size()[1] == 1:
        return True
    if _store is None:  # before ranks are connected, all of them find the same error
        return _standard_error is None
    if _is_reporter is None:
        try:
            _is_reporter = _store.add("reports", 1) == 1
        except RuntimeError:  # the store ended with torchrun
            _is_reporter = False
        if _is_reporter and _standard_error is not None:
            os.dup2(_standard_error, 2)
    return _is_reporter
