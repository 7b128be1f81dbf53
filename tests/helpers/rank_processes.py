"""Processes that train together, forked from a server that has imported the package, and what they train."""

import dataclasses
import functools
import math
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.autograd import forward_ad

from metalabelnet.cli import main
from metalabelnet.core.forward_ad_cache import make_dual, unpack_dual
from metalabelnet.core.forward_pass import forward, predict, trainable_parameters
from metalabelnet.core.optimizers import Optimizer
from metalabelnet.core.ranks import World, gather_rows, own_span, several_ranks
from metalabelnet.core.sharded_table import ShardedTable
from metalabelnet.core.soft_label_table import SoftLabelTable
from metalabelnet.core.top_classes import TopClasses, top_probabilities
from metalabelnet.data.disk_tensor import DiskTensor, chunks
from metalabelnet.engine import Engine
from metalabelnet.labels.metrics import predict_logits
from metalabelnet.methods.sop import own_normal_rows
from metalabelnet.train.rank_agreement import gather_tables
from networks import NETWORKS, make
from small_runs import StepRunner, make_batches, short_run, small_problem

_context = multiprocessing.get_context("forkserver")


@functools.cache
def start_server() -> None:
    """Start the fork server. It imports this module, which it finds by PYTHONPATH only."""
    _context.set_forkserver_preload(["rank_processes"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("FORK_SERVER", "1")
        forkserver.ensure_running()


def run_ranks(function: Callable[..., Any], size: int, folder: Path, *args: Any) -> list[Any]:
    """Return what the function returns on each of `size` ranks, connected by Gloo."""
    folder.mkdir()
    processes = [start(_work, function, rank, size, str(folder), args) for rank in range(size)]
    codes = join(processes)
    assert codes == [0] * size, codes
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def start(function: Callable[..., Any], *args: Any) -> Any:
    start_server()
    process = _context.Process(target=_run, args=(function, args, sys.path))
    process.start()
    return process


def join(processes: Sequence[Any], seconds: float = 1200) -> list[int]:
    """Wait for processes and return their exit codes; those that are still running are killed."""
    for process in processes:
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in processes]


def _run(function: Callable[..., Any], args: Sequence[Any], path: list[str]) -> None:
    sys.path[:] = path
    torch.set_num_threads(1)
    function(*args)


def _work(function: Callable[..., Any], rank: int, size: int, folder: str, args: Sequence[Any]) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    try:
        with several_ranks(World(rank=rank, size=size)):
            torch.save(function(*args), f"{folder}/{rank}.pt")
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the other ranks wait
    distributed.destroy_process_group()


class Interruption(NamedTuple):
    """A signal that a rank sends itself after this many steps."""

    rank: int
    steps: int
    signal: int


def run_command(
    arguments: Sequence[str], size: int, folder: Path, interruption: Interruption | None = None
) -> tuple[list[int], list[str]]:
    """Run a command on ranks as torchrun does, and return exit codes and what was printed on standard error."""
    folder.mkdir()
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    processes = [
        start(_command, list(arguments), {**variables, "RANK": str(rank)}, str(folder / f"{rank}.txt"), interruption)
        for rank in range(size)
    ]
    return join(processes), [(folder / f"{rank}.txt").read_text() for rank in range(size)]


def _command(arguments: list[str], variables: dict[str, str], file: str, interruption: Interruption | None) -> None:
    os.environ.update(variables)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), 2)
    if interruption is not None and interruption.rank == int(variables["RANK"]):
        _interrupt(interruption)
    os._exit(main(arguments))


def _interrupt(interruption: Interruption) -> None:
    step, done = Engine.step, [0]

    def step_and_count(*args: Any) -> Tensor:
        loss = step(*args)
        done[0] += 1
        if done[0] == interruption.steps:
            os.kill(os.getpid(), interruption.signal)
        return loss

    Engine.step = step_and_count  # type: ignore[method-assign]


def net_with_batch_norm_and_dropout() -> nn.Module:
    """Return a network for `small_problem` whose rows meet in BatchNorm, and with both shapes of dropout masks."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            *(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2)),
            *(nn.MaxPool2d(4), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, 3)),
        )


def train_methods(runs: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Tensor]]:
    """Return losses, predictions, soft labels and weights after short runs of methods, with augmentation."""
    results = []
    for name, changes in runs:
        run = short_run(name, augment="flip-crop", **{"lr": 0.01, "lr_milestones": (), **changes})
        runner = StepRunner(run, small_problem(unlabeled=6), net_with_batch_norm_and_dropout()).advance()
        soft_labels = runner.method.soft_labels()
        tables = vars(soft_labels) if isinstance(soft_labels, TopClasses) else {"soft_labels": soft_labels}
        result = {
            "losses": torch.tensor(runner.losses, dtype=torch.float64),
            "logits": predict_logits(runner.method, runner.problem.test.x),
            **tables,
            **runner.method.model_state_dict(),
        }
        results.append({key: value for key, value in result.items() if isinstance(value, Tensor)})
    return results


def pass_networks(rows: int) -> dict[str, dict[str, Tensor]]:
    """Return logits, gradient, tangent, Hessian-vector product and running statistics of one pass of each network."""
    results = {}
    for name in PASSED_NETWORKS:
        net = make_passed_net(name)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(rows, 2, 8, 8, generator=generator, dtype=torch.float64)
        theta = trainable_parameters(net)
        direction = {key: torch.randn(w.shape, generator=generator).to(w) for key, w in theta.items()}
        logits = forward(net, x, theta, seed=3, update_statistics=True)
        loss = logits.log_softmax(1)[:, 0].square().mean()
        gradient = torch.autograd.grad(loss, list(theta.values()), create_graph=True)
        along = sum((d * v).sum() for d, v in zip(gradient, direction.values(), strict=True))
        assert isinstance(along, Tensor)
        hvp = torch.autograd.grad(along, list(theta.values()), materialize_grads=True)
        with torch.no_grad(), forward_ad.dual_level():
            dual = {key: make_dual(weight.detach(), direction[key]) for key, weight in theta.items()}
            tangent = unpack_dual(forward(net, x, dual, seed=3, update_statistics=False)).tangent
        results[name] = {
            "logits": logits.detach(),
            "tangent": tangent,
            "eval": predict(net, x),
            **dict(net.named_buffers()),
        }
        results[name] |= {f"gradient {i}": d.detach() for i, d in enumerate(gradient)}
        results[name] |= {f"hvp {i}": d.detach() for i, d in enumerate(hvp)}
    return results


PASSED_NETWORKS = (*NETWORKS, "instance norm", "batch norm without running statistics", "alpha dropout")


def make_passed_net(name: str) -> nn.Module:
    if name in NETWORKS:
        return make(name)
    layers: dict[str, list[nn.Module]] = {
        "instance norm": [nn.InstanceNorm2d(4, affine=True, track_running_stats=True)],
        "batch norm without running statistics": [nn.BatchNorm2d(4, track_running_stats=False)],
        "alpha dropout": [nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.1)],
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 4, 3), *layers[name], nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)).double()


def use_tables(rows: int, indices: Sequence[Tensor]) -> dict[str, Any]:
    """Return what lookups, updates, checkpoints and soft labels of tables with this many rows give."""
    results: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        # Several messages and draws per table.
        patch.setattr("metalabelnet.core.sharded_table.MAX_VALUES_PER_MESSAGE", 6)
        patch.setattr("metalabelnet.methods.sop.MAX_VALUES_PER_CHUNK", 6)
        for dtype in (torch.float32, torch.float64):
            whole = torch.linspace(-1, 1, 3 * rows, dtype=dtype).view(rows, 3)
            whole[0] = torch.tensor([-0.0, torch.inf, torch.nan])
            table = ShardedTable(whole[own_span(rows)].clone(), rows)
            looked_up = [table[index] for index in indices]
            table[indices[0]] = 2 * table[indices[0]]
            table.add(indices[0][:2], torch.ones(2, 3, dtype=dtype))
            ring = ShardedTable(torch.stack([table.local, -table.local]), rows, dim=1)
            state = gather_tables({"table": table.state(), "ring": ring.state()})
            copies = [ShardedTable(torch.zeros_like(t.local), rows, dim=t.dim) for t in (table, ring)]
            for copy, stored in zip(copies, state.values(), strict=True):
                copy.load(torch.empty(copy.shape, device="meta") if stored is None else stored)
                if copy.world is not None:
                    copy.scatter(stored)
            results[str(dtype)] = {"looked up": looked_up, **state}
            results[str(dtype)] |= {"numel": table.local.numel(), "chunks": torch.cat(list(table.chunks()))}
            for name, copy in zip(("own rows", "own rows of ring"), copies, strict=True):
                results[str(dtype)][name] = gather_rows(copy.local.movedim(copy.dim, 0), rows)
        results["normal"] = gather_rows(own_normal_rows(rows, 5, torch.Generator().manual_seed(0)), rows)
    given = torch.arange(rows) % 150 - 1
    for classes in (4, 150):
        soft_labels = SoftLabelTable(given.clamp_max(classes - 1), classes, 3.0, torch.float64).soft_labels()
        table_of_all = top_probabilities(soft_labels, given.clamp_max(classes - 1))
        results[f"{classes} classes"] = vars(table_of_all) if isinstance(table_of_all, TopClasses) else table_of_all
    return results


def count_table_values(names: Sequence[str]) -> dict[str, dict[str, tuple[int, int]]]:
    """Return how many numbers of each table of methods this rank stores, and how many there are, in any phase.

    Other tensors of samples × classes numbers, or more, are listed as tables of which every rank stores all.
    """
    counts: dict[str, dict[str, tuple[int, int]]] = {}
    for name in names:
        runner, counts[name] = StepRunner(short_run(name), small_problem(unlabeled=6)), {}
        size = len(runner.problem.train) * len(runner.problem.train.classes)
        while runner.epoch < runner.method.epochs:
            runner.advance(1)
            for part, component in runner.method.components().items():
                if isinstance(component, nn.Module | Optimizer):
                    continue
                for key, value in component.state_dict().items():
                    if isinstance(value, ShardedTable):
                        counts[name][f"{part}.{key}"] = value.local.numel(), math.prod(value.shape)
                    elif isinstance(value, Tensor) and value.is_floating_point() and value.numel() >= size:
                        counts[name][f"{part}.{key}"] = value.numel(), value.numel()
    return counts


def read_batches(folder: str) -> dict[str, Any]:
    """Return the batches of an epoch and the chunks of samples on disk, and how many rows were read for them."""
    problem = small_problem()
    x = DiskTensor.empty(len(problem.train), tuple(problem.train.x.shape[1:]), torch.uint8, Path(folder))
    x[0] = problem.train.x[:]
    problem = dataclasses.replace(problem, train=dataclasses.replace(problem.train, x=x))
    run = short_run("cross-entropy", augment="flip-crop")
    batches = make_batches(run, problem, StepRunner(run, problem).method)
    rows, read = [], DiskTensor.read

    def read_and_count(self: DiskTensor, which: Any) -> Tensor:
        result = read(self, which)
        rows.append(len(result))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiskTensor, "read", read_and_count)
        patch.setattr("metalabelnet.data.disk_tensor.MAX_CHUNK_SAMPLES", 20)
        epoch = [batch.x for batch in batches.epoch(0, labeled_only=True)]
        return {"batches": torch.stack(epoch), "chunks": torch.cat(list(chunks(x))), "read": sum(rows)}


if "FORK_SERVER" in os.environ:
    train_methods([("metalabelnet", {"epochs": 2, "warmup": 1})])  # loads what PyTorch imports at first use
