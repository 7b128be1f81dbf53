"""Training a run: check the folder, prepare the data, and take all steps of the loop that fits the method."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from metalabelnet.core.ranks import current_world
from metalabelnet.engine import tf32_and_cudnn_benchmark
from metalabelnet.errors import DivergenceError, InputError, shorten_value
from metalabelnet.methods import LogisticMethod
from metalabelnet.train.build_method import find_method_class
from metalabelnet.train.data_digest import compute_data_digest
from metalabelnet.train.logistic_run import LogisticRun
from metalabelnet.train.loop import TrainingLoop
from metalabelnet.train.prepare import prepare
from metalabelnet.train.rank_agreement import check_ranks
from metalabelnet.train.run_folder import RunFolder
from metalabelnet.train.settings import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from metalabelnet.data.problem import Problem
    from metalabelnet.data.read_cache import ReadCache
    from metalabelnet.train.result import Progress, Result

MAX_REASON_CHARACTERS = 100  # of an error in linear algebra


def training_steps(
    run: Run,
    *,
    folder: Path | str | None = None,
    resume: bool = False,
    net: nn.Module | None = None,
    problem: Problem | None = None,
    read_cache: ReadCache | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    checkpoint_seconds: float = 10.0,
    concurrent_runs: int = 1,
) -> Generator[None, None, Result]:
    """Train a run as a generator that yields after every step and returns the `Result`.

    The caller can interleave several runs. `concurrent_runs` is the number of runs that share the device, this one
    included. The other parameters are those of `train`.
    """
    _check_arguments(run, net, on_progress)
    files = None if folder is None else RunFolder(folder)
    if files is not None:
        files.check(run, resume=resume)
        if files.finished:
            raise InputError(
                f"{files.path} is already finished: its result is in summary.json, labels.csv and model.safetensors"
            )
    problem = prepare(run, read_cache=read_cache, stop=stop) if problem is None else problem
    several_ranks = current_world() is not None
    data_digest = compute_data_digest(run, problem) if several_ranks or files is not None else ""
    check_ranks(run, data_digest)
    if files is not None:
        files.check_data(data_digest)
    loop: TrainingLoop | LogisticRun
    if issubclass(find_method_class(run, problem, net), LogisticMethod):
        if several_ranks:
            raise InputError(f"{run.method} with a linear network is fitted by one process: start it without torchrun")
        loop = LogisticRun(run, problem, files)
    else:
        loop = TrainingLoop(run, problem, net, files, concurrent_runs)
    with nullcontext() if files is None else files.lock():
        if files is not None:
            facts = {
                "data_digest": data_digest,
                "classes": problem.train.classes,
                "shape": problem.shape,
                "bytes": problem.train.x.dtype == torch.uint8,
                "own_net": None if net is None else f"{type(net).__module__}.{type(net).__qualname__}",
            }
            files.create(
                run,
                encoder_config=problem.encoder_config,
                clean_labels=problem.drawn_clean_labels(),
                device=problem.train.x.device,
                **facts,
            )
        loop.restore()
        try:
            return (yield from loop.steps(on_progress, stop, checkpoint_seconds))
        except (torch.linalg.LinAlgError, np.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
            reason = " ".join(str(error).split())[:MAX_REASON_CHARACTERS]
            raise DivergenceError(
                f"{run.method}: a linear system cannot be solved ({reason}), because features or predictions are too "
                "large or not finite: try a lower lr"
            ) from error


def _check_arguments(run: Run, net: nn.Module | None, on_progress: object) -> None:
    """Raise InputError for an argument of another type."""
    if not isinstance(run, Run):
        raise InputError(f"run={shorten_value(run)}: give the settings that make_run returns")
    if not isinstance(net, nn.Module | None):
        raise InputError(f"net={shorten_value(net)}: give a module; the name of a network goes to make_run")
    if on_progress is not None and not callable(on_progress):
        raise InputError(f"on_progress={shorten_value(on_progress)}: give a function of a Progress")


def run_to_completion(steps: Generator[None, None, Result]) -> Result:
    """Run all steps of `training_steps` and return the result."""
    with tf32_and_cudnn_benchmark():
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: Result = end.value
                return result


def train(
    run: Run,
    *,
    folder: Path | str | None = None,
    resume: bool = False,
    net: nn.Module | None = None,
    problem: Problem | None = None,
    read_cache: ReadCache | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    checkpoint_seconds: float = 10.0,
) -> Result:
    """Train a run.

    Parameters
    ----------
    run : Run
        The settings; see `make_run`.
    folder : Path or str, optional
        Run folder to write. Without it nothing is written.
    resume : bool, default False
        Continue from the checkpoint in the folder. The result has the same bytes as without the interruption.
    net : nn.Module, optional
        Classifier to use instead of the network in the settings. It is trained in place.
    problem : Problem, optional
        Prepared rows, to share them between runs. Default: `run` is prepared.
    read_cache : ReadCache, optional
        Data that was read already, to share it between runs.
    on_progress : callable, optional
        Called with `Progress` when an epoch begins, after every step, and when the epoch has ended.
    stop : callable, optional
        Checked after every step. If it returns True, the run saves a checkpoint and raises `RunStopped`. It is also
        checked while the network for feature-dependent noise is trained, which saves no checkpoint.
    checkpoint_seconds : float, default 10
        Time between checkpoints.

    Returns
    -------
    Result
        Summary, metrics, trained method and corrected labels.

    Raises
    ------
    InputError
        If the data, the settings or the folder cannot be used.
    RunStopped
        If `stop` returned True.
    DivergenceError
        If a loss or a weight is not finite, or a linear system of the method cannot be solved.

    Examples
    --------
    >>> from metalabelnet.train import make_run, train
    >>> run = make_run("digits", method="cross-entropy", noise="uniform:0.2", epochs=1, limit=200, device="cpu")
    >>> result = train(run)
    >>> len(result.labels.rows), sorted(result.history[0])[:3]
    (200, ['candidate', 'clean_accuracy', 'clean_loss'])
    """
    return run_to_completion(
        training_steps(
            run,
            folder=folder,
            resume=resume,
            net=net,
            problem=problem,
            read_cache=read_cache,
            on_progress=on_progress,
            stop=stop,
            checkpoint_seconds=checkpoint_seconds,
        )
    )
