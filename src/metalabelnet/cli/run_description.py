"""What is said before training starts: what will be used, how long it may take, and what to beware of."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from metalabelnet.train import RunFolder
from metalabelnet.train.cost_estimate import Estimate, estimate
from metalabelnet.train.prepare import net_name, prepare, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metalabelnet.cli.console import Bars, Console
    from metalabelnet.data.problem import Problem
    from metalabelnet.data.read_cache import ReadCache
    from metalabelnet.launch.process_pool import Job
    from metalabelnet.train import Run

UNEVEN = 5  # times the labels of the smallest class
RECORDED = ", steps recorded, compiled (a minute or more, the first time) and replayed"


def announce(
    console: Console, jobs: list[Job], workers: int, progress: Bars, read_cache: ReadCache, *, resume: bool
) -> None:
    """Read the data; what its reader has to say and what the runs will use and take, before the first one starts.

    Where noise comes from a probe the latter is left out: training it takes as long as a short run.
    """
    for job in jobs:
        RunFolder(job.folder).check(job.run, resume=resume)
    left = [job for job in jobs if not RunFolder(job.folder).finished]
    if not left:
        return
    run = left[0].run
    for note in read(run, progress.download, progress.samples, read_cache).notes:
        console.say(note)
    if run.noise.startswith("feature") and not run.noise_probs:
        return
    problem = prepare(run, read_cache=read_cache)
    console.say(_describe_all(left, problem, workers))


def describe(run: Run, problem: Problem) -> str:
    """What is about to be used and what it will take, in one line; a second one where classes are uneven."""
    recorded = RECORDED if run.records(problem.train.x.device) else ""
    used = _used(run, problem) + recorded
    return f"{run.method} on {run.data}: {used}; {estimate(run, problem)}{_uneven(problem)}"


def _describe_all(jobs: Sequence[Job], problem: Problem, workers: int) -> str:
    """The same for several runs, of which so many go on at a time; the problem is the first one's."""
    of_method = {job.run.method: estimate(job.run, problem) for job in jobs}
    each = [of_method[job.run.method] for job in jobs]
    workers = min(workers, len(jobs))
    seconds = max(sum(one.seconds for one in each) / workers, max(one.seconds for one in each))
    whole = Estimate(seconds=seconds, bytes=workers * max(one.bytes for one in each))
    return f"{_used(jobs[0].run, problem)}; {whole} in all{_uneven(problem)}"


def _used(run: Run, problem: Problem) -> str:
    """Samples, classes, clean and unlabeled ones, network and device."""
    train = problem.train
    unlabeled = int((train.given < 0).sum())
    known = not math.isnan(problem.noise_rate)
    noise = f", {100 * problem.noise_rate:.1f} % of the labels wrong" if known else ""
    if problem.noise_rate == 0 and run.noise == "none" and not run.own_data:
        noise = ", whose labels are taken to be right"  # an .npz file without a clean set, or a benchmark as it is
    clean = f"{len(problem.clean)} clean to learn from"
    if problem.validation is not problem.clean:
        clean += f" and {len(problem.validation)} to select on"
    return (
        f"{len(train)} samples of {len(train.classes)} classes"
        + (f" ({unlabeled} unlabeled)" if unlabeled else "")
        + f"{noise}, {clean}"
        + (f", {len(problem.test)} to test" if len(problem.test) else "")
        + f"; {net_name(run, problem.shape, problem.inputs)} on {train.x.device}"
    )


def _uneven(problem: Problem) -> str:
    """A warning where the largest class has many times the labels of the smallest."""
    train = problem.train
    counts = torch.bincount(train.given[train.given >= 0], minlength=len(train.classes)).tolist()
    least, most = (pick(range(len(counts)), key=counts.__getitem__) for pick in (min, max))
    if counts[most] < UNEVEN * max(1, counts[least]):
        return ""
    few = f"{counts[least]} label{'s' if counts[least] != 1 else ''}"
    return (
        f"\nclasses are uneven: {train.classes[least]!r} has {few}, {train.classes[most]!r} {counts[most]}; "
        "accuracy hides how the small ones fare, macro-F1 does not"
    )
