"""`metalabelnet compare`: train several methods and compare them in one table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from metalabelnet.cli.build_run import build_run, run_folder_name
from metalabelnet.cli.comparison import print_comparison
from metalabelnet.cli.console import Console
from metalabelnet.cli.interrupt import interruptible
from metalabelnet.cli.run_description import check_and_describe_jobs, describe_noise
from metalabelnet.cli.unused_options import check_cluster_options, check_compared
from metalabelnet.data.read_cache import ReadCache
from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.launch.process_pool import Job, Outcome, train_all
from metalabelnet.launch.ray_cluster import RayCluster, connect
from metalabelnet.methods import METHODS
from metalabelnet.report.trackers import RunLog, parse_log_target
from metalabelnet.train import RunFolder
from metalabelnet.train.prepare import select_device

if TYPE_CHECKING:
    import argparse

    from metalabelnet.report.trackers import LogTarget
    from metalabelnet.train import Progress

MAX_SEEDS = 10_000


def compare(args: argparse.Namespace) -> None:
    """Train several methods and print a table of their results."""
    names = _method_names(args)
    targets = list(map(parse_log_target, args.log))
    first = build_run(args, method=names[0])
    check_compared(names, args.settings)
    check_cluster_options(args)
    out = args.out or Path("runs") / f"compare-{run_folder_name(first, with_method=False)}"
    jobs = [
        Job(run=build_run(args, method=name, seed=first.seed + k), folder=out / f"{name}-seed{first.seed + k}")
        for k in range(args.seeds)
        for name in names
    ]
    console = Console()
    with connect(
        args.cluster, device=first.device, cpus_per_run=first.workers or 1, gpus_per_run=args.gpus_per_run
    ) as cluster:
        outcomes = _train(args, console, jobs, targets, cluster)
    print_comparison(console, out, jobs, outcomes)


def _train(
    args: argparse.Namespace, console: Console, jobs: list[Job], targets: list[LogTarget], cluster: RayCluster | None
) -> list[Outcome]:
    """Train all jobs and return their outcomes: on this machine, or on a cluster."""
    first, names = jobs[0].run, {job.run.method for job in jobs}
    on_cpu = select_device(first).type == "cpu"
    workers = ((os.cpu_count() or 1) if on_cpu else 1) if args.jobs is None else args.jobs
    if workers < 1:
        raise InputError(f"jobs {workers} is too small: the minimum is 1")
    parallel = f"{min(workers, len(jobs))} in parallel" if min(workers, len(jobs)) > 1 else "one at a time"
    if cluster is not None:
        workers, parallel = cluster.workers, str(cluster)
    runs = f"{len(jobs)} run{'s' if len(jobs) > 1 else ''} of {len(names)} method{'s' if len(names) > 1 else ''}"
    console.log(f"{first.data}, {describe_noise(first.noise)}: {runs}, {parallel}")
    logs = [RunLog(targets, RunFolder(job.folder), console.log) for job in jobs]

    def on_progress(number: int, progress: Progress | None) -> None:
        display.update(number, jobs[number].folder.name, progress)
        if progress is None:
            logs[number].finish()
        elif progress.metrics is not None:
            logs[number].update()

    with interruptible() as stop, console.progress(runs=len(jobs)) as display:
        read_cache = ReadCache(concurrent_runs=1 if cluster else min(workers, len(jobs)))
        known_device = cluster is None or not (on_cpu and cluster.gpus_per_run)
        check_and_describe_jobs(console, jobs, workers, display, read_cache, resume=args.resume, describe=known_device)
        try:
            if cluster is not None:
                return cluster.train_all(jobs, resume=args.resume, on_progress=on_progress, stop=stop)
            return train_all(
                jobs,
                resume=args.resume,
                workers=workers,
                read_cache=read_cache,
                on_progress=on_progress,
                stop=stop,
                keep_going=True,
            )
        finally:
            for log in logs:
                log.finish()


def _method_names(args: argparse.Namespace) -> list[str]:
    """Return the names of the methods; raise InputError for an unknown one, and for a wrong number of seeds."""
    names = list(METHODS) if args.methods == "all" else list(dict.fromkeys(filter(None, args.methods.split(","))))
    if "all" in names:
        raise InputError(f"methods {args.methods!r}: all cannot be combined with names; give all, or names alone")
    if not names:
        raise InputError(f"methods {args.methods!r} names no method: choose from {', '.join(METHODS)}, or all")
    for name in names:
        if name not in METHODS:
            raise unknown_name_error("method", name, [*METHODS, "all"])
    if args.seeds < 1:
        raise InputError(f"seeds {args.seeds} is too small: the minimum is 1")
    if args.seeds > MAX_SEEDS:
        raise InputError(f"seeds {args.seeds} is too large: the maximum is {MAX_SEEDS}")
    return names
