"""`metalabelnet reproduce`: train the missing runs of the paper's tables and figures, and write them."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from metalabelnet.cli.console import Console
from metalabelnet.cli.interrupt import interruptible
from metalabelnet.cli.unused_options import check_cluster_options, check_reproduce_files, check_reproduce_options
from metalabelnet.errors import DivergenceError, InputError, RunStopped, unknown_name_error
from metalabelnet.launch.ray_cluster import connect
from metalabelnet.methods import METHODS
from metalabelnet.reproduction import markdown_blocks
from metalabelnet.reproduction.epoch_seconds import measure_missing, read_epoch_seconds
from metalabelnet.reproduction.experiments import EXPERIMENTS, RUNNABLE
from metalabelnet.reproduction.figures import draw
from metalabelnet.reproduction.resources import (
    Resources,
    check_noise_probs,
    write_smoke_noise_probs,
)
from metalabelnet.reproduction.results import Results
from metalabelnet.reproduction.runner import Runner
from metalabelnet.reproduction.selection import Selection, check_selection, run_specs
from metalabelnet.reproduction.stand_ins import STAND_INS
from metalabelnet.reproduction.tables import tables
from metalabelnet.run_options import DTYPES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from metalabelnet.launch.ray_cluster import RayCluster


def reproduce(args: argparse.Namespace) -> None:
    """Train the runs without a stored result, then write tables and figures."""
    console = Console()
    check_reproduce_options(args)
    check_cluster_options(args)
    if args.list:
        print_list(console, args)
        return
    names = _parse_names(args.what)
    smoke_folder = _smoke_folder(args)
    results_folder = args.results or (smoke_folder or Path()) / "results"
    selection = _parse_selection(args, results_folder)
    check_selection(names, selection)
    if not args.tables_only:
        out = args.out or (smoke_folder or Path("runs")) / "reproduce"
        with connect(args.cluster, device=args.device, gpus_per_run=args.gpus_per_run) as cluster:
            _train(console, args, names, selection, Results(results_folder, args.dtype), out, cluster)
    results = Results(results_folder, args.dtype)  # read again: another process may have added lines
    figures = args.figures or (smoke_folder or Path("docs") / "results") / "reproduction"
    _write_tables_and_figures(console, names, results, figures, selection)
    if args.doc is not None:
        changed = markdown_blocks.update_page(args.doc, results)
        console.print(f"{args.doc}: {'updated' if changed else 'already up to date'}")


def _train(
    console: Console,
    args: argparse.Namespace,
    names: Sequence[str],
    selection: Selection,
    results: Results,
    out: Path,
    cluster: RayCluster | None,
) -> None:
    """Train the missing runs, within the time budget."""
    deadline = math.inf if args.budget is None else time.monotonic() + 60 * args.budget
    if not args.smoke and any(EXPERIMENTS[name].budgeted for name in names):
        resources = Resources(data_dir=args.data_dir, device=args.device, dtype=args.dtype)
        if not _measure_epochs(console, names, selection, results.folder, resources, deadline):
            console.log(
                f"the budget of {args.budget:g} min is used up; some methods are not measured yet; "
                "resume with the same command"
            )
            return
        selection = dataclasses.replace(selection, epoch_seconds=read_epoch_seconds(results.folder))
    specs = [spec for name in names for spec in run_specs(name, selection)]
    check_reproduce_files(args, specs)
    probs = None if args.noise_probs is None else check_noise_probs(args.noise_probs)
    if args.smoke:
        needs_probs = any(spec.needs_noise_probs for spec in specs)
        probs = write_smoke_noise_probs(out / "noise" / "digits.npy") if needs_probs else None
    data_dir = args.data_dir
    if stand_ins := {str(spec.fields["data"]) for spec in specs if args.smoke and spec.fields["data"] in STAND_INS}:
        data_dir = out / "stand-ins"
        for name in sorted(stand_ins):
            STAND_INS[name](data_dir)
    resources = Resources(
        data_dir=data_dir,
        noise_probs=probs,
        pretrained=args.pretrained,
        device=args.device,
        dtype=args.dtype or (None if cluster is None else "bf16" if cluster.gpus_per_run else "float32"),
        commit=args.commit,
    )
    concurrent = (8 if resources.on_cuda and cluster is None else 1) if args.concurrent is None else args.concurrent
    if args.jobs not in (None, 1) and (resources.on_cuda or args.concurrent is not None):
        raise InputError(f"jobs {args.jobs}: --jobs is for runs on a CPU; on a GPU use --concurrent")
    with interruptible() as stop:
        runner = Runner(
            results,
            resources,
            out,
            concurrent=concurrent,
            workers=args.jobs or 1,
            cluster=cluster,
            budget=None if args.budget is None else deadline - time.monotonic(),
            cheapest_first=args.order == "cheapest",
            log=console.log,
            stop=stop,
        )
        console.log(f"{len(runner.missing(specs))} of {len(specs)} runs to train; run folders: {out}")
        left = runner.run(specs)
    if left:
        console.log(f"the budget of {args.budget:g} min is used up; {left} runs left; resume with the same command")
    if runner.failures:
        raise DivergenceError("; ".join(runner.failures))


def _measure_epochs(
    console: Console, names: Sequence[str], selection: Selection, folder: Path, resources: Resources, deadline: float
) -> bool:
    """Measure the seconds per epoch of the selected methods that were not measured before.

    Returns False if the deadline passed before all were measured. What was measured is stored.
    """
    for name in names:
        experiment = EXPERIMENTS[name]
        if not experiment.budgeted:
            continue
        methods = [m for m in experiment.all_methods if m in (selection.methods or experiment.methods)]
        timed = dataclasses.replace(
            selection, epoch_seconds=dict.fromkeys(methods, 1.0), points=experiment.points[:1], seeds=1
        )
        cell = experiment.smoke_cells[-1]  # made without a file
        specs = run_specs(name, dataclasses.replace(timed, cells=(cell,)))
        with interruptible() as stop:

            def should_stop(stop: Callable[[], bool] = stop) -> bool:
                return stop() or time.monotonic() >= deadline

            try:
                measure_missing(folder, {spec.method: resources.run(spec) for spec in specs}, console.log, should_stop)
            except RunStopped:
                if stop():
                    raise
                return False
    return True


def _write_tables_and_figures(
    console: Console, names: Sequence[str], results: Results, folder: Path, selection: Selection
) -> None:
    """Write tables and figures; print the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    figure_error: InputError | None = None
    for name in names:
        written = tables(name, results, selection)
        for table in written:
            console.print(table.title)
            console.table(table.columns, table.rows)
            for note in table.notes:
                console.print(note)
        (folder / f"{name}.md").write_text("\n".join(table.markdown() for table in written), encoding="utf-8")
        (folder / f"{name}.tex").write_text("\n".join(table.latex() for table in written), encoding="utf-8")
        try:
            draw(name, results, folder, selection)
        except InputError as error:  # matplotlib is optional
            figure_error = error
    if figure_error is not None:
        console.log(f"no figures: {figure_error}")
    console.print(f"tables and figures: {folder}")


def print_list(console: Console, args: argparse.Namespace) -> None:
    """Print all tables and figures with their progress, or the runs of those that are named."""
    results = Results(args.results or Path("results"), args.dtype)
    selection = _parse_selection(args, results.folder)
    names = _parse_names(args.what) if args.what else list(EXPERIMENTS)
    check_selection(names, selection)
    if any(results.folder.glob("*.jsonl")):
        console.log(f"finished runs are those in the result files of the folder {results.folder}")
    else:
        console.log(f"no finished runs: {results.folder} has no result files; name another folder with --results DIR")
    if not args.what:
        rows = []
        for name, experiment in EXPERIMENTS.items():
            specs = run_specs(name, _with_all_methods(selection))
            finished = sum(results.find(spec) is not None for spec in specs)
            needs = f" (needs data: {experiment.needs_data})" if experiment.needs_data else ""
            rows.append([name, f"{finished}/{len(specs)}", experiment.summary + needs])
        console.table(["name", "finished runs", "content"], rows)
        return
    for name in names:
        experiment, rows = EXPERIMENTS[name], []
        for spec in run_specs(name, _with_all_methods(selection)):
            measured = not experiment.budgeted or selection.smoke or spec.method in selection.epoch_seconds
            line = results.find(spec) if measured else None
            result = "" if line is None else "failed" if line.get("failure") else _accuracy(line)
            fields = {k: v for k, v in spec.fields.items() if k not in ("method", "seed")}
            if not measured:
                fields["epochs"] = f"{spec.point} min, not measured yet"
            recipe = ", ".join(f"{k}={v}" for k, v in fields.items() if v not in (None, {}, ()))
            rows.append([str(spec), result, "" if spec.paper is None else str(spec.paper), recipe])
        console.print(f"{name}: {experiment.summary}" + (" (needs data)" if experiment.needs_data else ""))
        console.table(["run", "ours", "paper", "recipe"], rows)


def _with_all_methods(selection: Selection) -> Selection:
    """Return a selection that lists methods whose seconds per epoch were not measured, too."""
    return dataclasses.replace(selection, epoch_seconds=dict.fromkeys(METHODS, 1.0) | dict(selection.epoch_seconds))


def _accuracy(line: dict[str, object]) -> str:
    summary = line["summary"]
    return f"{summary['test_accuracy']:.2f}" if isinstance(summary, dict) else "done"


def _parse_selection(args: argparse.Namespace, results_folder: Path) -> Selection:
    """Return the runs that these arguments select."""
    for name in ("seeds", "concurrent", "jobs"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"{name} {value} is too small: the minimum is 1")
    if args.budget is not None and not (math.isfinite(args.budget) and args.budget > 0):
        raise InputError(f"budget {args.budget}: give a positive number of minutes")
    if args.dtype is not None and args.dtype not in DTYPES:
        raise unknown_name_error("dtype", args.dtype, DTYPES)
    return Selection(
        methods=_split(args.methods),
        cells=_split(args.cells),
        points=_split(args.points),
        seeds=args.seeds,
        smoke=args.smoke,
        epoch_seconds=read_epoch_seconds(results_folder),
    )


def _split(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(filter(None, text.split(",")))


def _parse_names(words: Sequence[str]) -> list[str]:
    """Return the names of tables and figures; `all` stands for those whose data can be downloaded."""
    if not words:
        raise InputError(f"name a table or figure: choose from {', '.join(RUNNABLE)}, or all (see --list)")
    names = list(dict.fromkeys(name for word in words for name in (RUNNABLE if word == "all" else (word,))))
    for name in names:
        if name not in EXPERIMENTS:
            raise unknown_name_error("table or figure", name, [*EXPERIMENTS, "all"])
    return names


def _smoke_folder(args: argparse.Namespace) -> Path | None:
    """Return a temporary folder for a smoke test, so that it does not write to the project; None otherwise."""
    if not args.smoke or (args.results and args.out and args.figures):
        return None
    return Path(tempfile.mkdtemp(prefix="metalabelnet-smoke-"))
