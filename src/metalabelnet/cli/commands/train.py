"""`metalabelnet train`: train one method and write a run folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from metalabelnet import train as training
from metalabelnet.cli.build_run import build_run, run_folder_name, run_to_resume
from metalabelnet.cli.comparison import print_summary
from metalabelnet.cli.console import Console
from metalabelnet.cli.interrupt import ignore_closed_terminal, interruptible
from metalabelnet.cli.run_description import describe_run
from metalabelnet.cli.unused_options import linear_fit_notes
from metalabelnet.core.ranks import several_ranks
from metalabelnet.errors import InputError, RunStopped
from metalabelnet.launch.torchrun import join_ranks
from metalabelnet.report.trackers import RunLog, parse_log_target
from metalabelnet.train import RunFolder
from metalabelnet.train.prepare import prepare

if TYPE_CHECKING:
    import argparse

    from metalabelnet.core.ranks import World
    from metalabelnet.train import Progress, Run


def train(args: argparse.Namespace) -> None:
    """Train one method and print its summary."""
    with join_ranks() as world:
        run = run_to_resume(args) or build_run(args)
        if not (math.isfinite(args.checkpoint_seconds) and args.checkpoint_seconds >= 0):
            raise InputError(f"checkpoint-seconds {args.checkpoint_seconds}: give a number that is 0 or more")
        targets = list(map(parse_log_target, args.log))
        if world is not None and world.rank > 0:
            _train_as_other_rank(run, world)
            return
        files = RunFolder(args.out or Path("runs") / run_folder_name(run))
        files.check(run, resume=args.resume)
        console = Console()
        run_log = RunLog(targets, files, console.log)
        if files.finished if world is None else world.any(files.finished):
            console.log(f"{files.path} is already finished")
            run_log.finish()
        else:
            _train_with_progress(run, args, files, console, run_log, world)
            if not files.finished:  # the terminal was closed while data were read
                raise RunStopped
        for warning in files.summary().get("warnings", ()):
            console.log(warning)
        print_summary(console, files)


def _train_with_progress(
    run: Run, args: argparse.Namespace, files: RunFolder, console: Console, run_log: RunLog, world: World | None
) -> None:
    """Train and show the progress, in a single process or as rank 0."""
    with interruptible() as stop, ignore_closed_terminal(), console.progress() as display:

        def on_samples(text: str, done: int, total: int) -> None:
            display.samples(text, done, total)
            if stop():  # embeddings of an encoder may take hours; those that are computed are cached
                raise RunStopped

        problem = prepare(run, display.download, on_samples, stop=stop)
        for note in problem.notes:
            console.log(note)
        description = [*describe_run(run, problem), *linear_fit_notes(args, run, problem)]
        if world is not None:
            description.append(f"{world.size} ranks share the rows of each batch; steps run eagerly")
        if stop():  # before the first step, whose compilation may take minutes
            raise RunStopped

        def on_progress(progress: Progress) -> None:
            with ignore_closed_terminal():
                while description:  # printed at the first report: then network, samples and settings fit together
                    console.log(description.pop(0))
                display.update(0, run.method, progress)
            if progress.metrics is not None:
                run_log.update()

        try:
            with several_ranks(world):
                training.train(
                    run,
                    folder=files.path,
                    resume=args.resume,
                    problem=problem,
                    on_progress=on_progress,
                    stop=stop,
                    checkpoint_seconds=args.checkpoint_seconds,
                )
        finally:
            run_log.finish()


def _train_as_other_rank(run: Run, world: World) -> None:
    """Train the rows of this rank, without run folder and output. The steps are those of rank 0."""
    if world.any(False):  # noqa: FBT003 (rank 0 knows whether the run is finished)
        return
    with interruptible() as stop:
        problem = prepare(run, stop=stop)
        with several_ranks(world):
            training.train(run, problem=problem, stop=stop, checkpoint_seconds=math.inf)  # rank 0 decides when
