"""What a run is about to do, printed before training: data, network, device, estimated cost, imbalanced classes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from metalabelnet.train import RunFolder
from metalabelnet.train.cost_estimate import CostEstimate, estimate_cost
from metalabelnet.train.prepare import classifier_name, prepare, read_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metalabelnet.cli.console import Console, ProgressDisplay
    from metalabelnet.data.problem import Problem
    from metalabelnet.data.read_cache import ReadCache
    from metalabelnet.launch.process_pool import Job
    from metalabelnet.train import Run

IMBALANCE_RATIO = 5  # of the labels of the largest class to those of the smallest: from here on, warn
COMPILED_STEPS = ", steps compiled (takes a minute or more the first time)"


def check_and_describe_jobs(
    console: Console,
    jobs: list[Job],
    workers: int,
    progress: ProgressDisplay,
    read_cache: ReadCache,
    *,
    resume: bool,
    describe: bool = True,
) -> None:
    """Check the run folders, read the data, and print its notes and a description of the unfinished jobs.

    With feature noise from a noise probe the description is omitted: training the probe takes as long as a short run.
    So it is without `describe`, for runs on a device that this machine does not have.
    """
    for job in jobs:
        RunFolder(job.folder).check(job.run, resume=resume)
    unfinished = [job for job in jobs if not RunFolder(job.folder).finished]
    if not unfinished:
        return
    run = unfinished[0].run
    for note in read_data(run, progress.download, progress.samples, read_cache).notes:
        console.log(note)
    if not describe or (run.noise.startswith("feature") and not run.noise_probs):
        return
    problem = prepare(run, read_cache=read_cache)
    for line in _describe_jobs(unfinished, problem, workers):
        console.log(line)


def describe_run(run: Run, problem: Problem) -> list[str]:
    """Return a line about data, network and estimated cost; a second line where classes are imbalanced."""
    compiled = COMPILED_STEPS if run.uses_compiled_steps(problem.train.x.device) else ""
    description = _describe_problem(run, problem) + compiled
    return [f"{run.method} on {run.data}: {description}; {estimate_cost(run, problem)}", *_imbalance_warning(problem)]


def describe_noise(noise: str) -> str:
    """Return the noise that is added to the labels; the data may have wrong labels without it."""
    return "no added noise" if noise == "none" else f"added noise {noise}"


def _describe_jobs(jobs: Sequence[Job], problem: Problem, workers: int) -> list[str]:
    """Return the same for several jobs that run `workers` at a time; `problem` is the first job's."""
    by_method = {job.run.method: estimate_cost(job.run, problem) for job in jobs}
    costs = [by_method[job.run.method] for job in jobs]
    workers = min(workers, len(jobs))
    seconds = max(sum(cost.seconds for cost in costs) / workers, max(cost.seconds for cost in costs))
    total = CostEstimate(seconds=seconds, bytes=workers * max(cost.bytes for cost in costs))
    return [f"{_describe_problem(jobs[0].run, problem)}; {total} in total", *_imbalance_warning(problem)]


def _describe_problem(run: Run, problem: Problem) -> str:
    """Return the numbers of samples and classes, the network and the device."""
    train = problem.train
    unlabeled = int((train.given < 0).sum())
    noise = "" if math.isnan(problem.noise_rate) else f", {100 * problem.noise_rate:.1f} % wrong labels"
    if problem.noise_rate == 0 and run.noise == "none" and not run.is_folder_or_table:
        noise = ", labels assumed correct"  # an .npz file without a clean set, or a benchmark without added noise
    network = classifier_name(run, problem.shape, problem.encoder_config)
    clean = f"{len(problem.clean)} clean samples"
    if problem.holds_out:
        clean = f"{len(problem.clean) + len(problem.validation)} clean samples"
        if not (run.is_linear and network == "linear"):  # a linear fit learns from all of them
            clean += f" ({len(problem.validation)} for validation)"
    return (
        f"{len(train)} training samples of {len(train.classes)} classes"
        + (f" ({unlabeled} unlabeled)" if unlabeled else "")
        + f"{noise}; {clean}"
        + (f"; {len(problem.test)} test samples" if len(problem.test) else "")
        + f"; {network} on {train.x.device}"
    )


def _imbalance_warning(problem: Problem) -> list[str]:
    """Return a warning if the largest class has many times the labels of the smallest."""
    train = problem.train
    counts = torch.bincount(train.given[train.given >= 0], minlength=len(train.classes)).tolist()
    smallest, largest = (pick(range(len(counts)), key=counts.__getitem__) for pick in (min, max))
    if counts[largest] < IMBALANCE_RATIO * max(1, counts[smallest]):
        return []
    count = f"{counts[smallest]} label{'s' if counts[smallest] != 1 else ''}"
    warning = (
        f"classes are imbalanced: {train.classes[smallest]!r} has {count}, {train.classes[largest]!r} has "
        f"{counts[largest]}; compare macro-F1, because accuracy hides errors in small classes"
    )
    return [warning]
