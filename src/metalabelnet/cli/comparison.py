"""Results on one screen: a run's summary, several runs as a table and a picture."""

from __future__ import annotations

import math
import statistics
import textwrap
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.cli.console import aligned
from metalabelnet.cli.curves import draw_curves
from metalabelnet.cli.recommendation import recommend, wilson
from metalabelnet.errors import InputError
from metalabelnet.train import Diverged, RunFolder
from metalabelnet.train.estimate import Estimate, estimate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from metalabelnet.cli.console import Console
    from metalabelnet.train import Run
    from metalabelnet.train.prepare import Problem
    from metalabelnet.train.several import Job, Outcome

UNEVEN = 5


def describe(run: Run, problem: Problem) -> str:
    """What is about to be used and what it will take, in one line; a second one where classes are uneven."""
    recorded = ", steps recorded and replayed" if run.records(problem.train.x.device) else ""
    used = _used(run, problem) + recorded
    return f"{run.method} on {run.data}: {used}; {estimate(run, problem)}{_uneven(problem)}"


def describe_all(jobs: Sequence[Job], problem: Problem, workers: int) -> str:
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
    if problem.select is not problem.clean:
        clean += f" and {len(problem.select)} to select on"
    return (
        f"{len(train)} samples of {len(train.classes)} classes"
        + (f" ({unlabeled} unlabeled)" if unlabeled else "")
        + f"{noise}, {clean}"
        + (f", {len(problem.test)} to test" if len(problem.test) else "")
        + f"; {problem.net_name(run)} on {train.x.device}"
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


def show_summary(console: Console, files: RunFolder) -> None:
    """The result of one run, and where it is."""
    s = files.summary()
    labeled = s["samples"]["train"] - s["unlabeled"]
    count = s["samples"]["select"]
    low, high = wilson(s["meta_accuracy"], count)
    of = f"{_percent(s['meta_accuracy'])} of {count} clean sample{'s' if count > 1 else ''}"
    right = f"{of} right, which stands for {low:.0f} to {high:.0f} %"
    rows = [["selected", f"epoch {s['selected_epoch']}, with {right} (95 %)"]]
    if s["test_accuracy"] is not None:
        rows += [
            ["test accuracy", f"{_percent(s['test_accuracy'])}; at the last epoch {_percent(s['test_accuracy_last'])}"],
            ["macro-F1", _percent(s["macro_f1"])],
            ["per class", _classes(s["class_accuracy"])],
            ["calibration error", f"{_percent(s['ece'])}; calibrated {_percent(s['ece_calibrated'])}"],
        ]
    elif s.get("meta_macro_f1") is not None:  # an earlier version wrote none
        rows += [
            ["macro-F1", f"{_percent(s['meta_macro_f1'])} of the same samples"],
            ["per class", _classes(s["meta_class_accuracy"])],
            ["calibration error", f"{_percent(s['meta_ece'])} before calibrating on them"],
        ]
    if s["right_after"] is not None:
        rows.append(["right labels", f"{_percent(s['right_before'])} as given; {_percent(s['right_after'])} corrected"])
    suspects = f"{s['suspects']} of {labeled} given labels"
    if s["suspicion_ap"] is not None and s["suspicion_auroc"] is not None:
        suspects += f"; suspicion has AUROC {s['suspicion_auroc']:.3f}, average precision {s['suspicion_ap']:.3f}"
    rows.append(["suspects", suspects])
    rows.append(["run folder", str(files.path)])
    console.table([f"{s['method']} on {s['dataset']}", f"noise {s['noise']}, seed {s['seed']}"], rows)


def _classes(accuracies: dict[str, float | None], most: int = 5) -> str:
    """The accuracy of each class, or of the worst ones where there are many."""
    known = {name: value for name, value in accuracies.items() if value is not None}
    worst = sorted(known, key=lambda name: known[name])[:most]
    names = list(known) if len(known) <= 2 * most else worst
    cut = "" if len(names) == len(known) else f" (the {most} worst of {len(known)})"
    return ", ".join(f"{name} {known[name]:.1f}" for name in names) + cut


def show(console: Console, out: Path, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
    """One row a method: mean and spread over seeds. Beside it a picture, and where the runs are."""
    shown = {
        "test accuracy": "test_accuracy",
        "last epoch": "test_accuracy_last",
        "macro-F1": "macro_f1",
        "right labels": "right_after",
    }
    if all(o.summary is None or o.summary["test_accuracy"] is None for o in outcomes):
        shown = {"clean accuracy": "meta_accuracy"}  # without a test part the held-out clean rows are all there is
    columns = ["method", *shown, "seconds"]
    rows = []
    for method in dict.fromkeys(job.run.method for job in jobs):
        done = [o.summary for job, o in zip(jobs, outcomes, strict=True) if job.run.method == method and o.summary]
        cells = [_spread([s[key] for s in done if s[key] is not None]) for key in shown.values()]
        seconds = f"{statistics.mean(s['seconds'] for s in done):.1f}" if done else "–"
        rows.append([method, *cells, seconds])
    seeds, run = len({job.run.seed for job in jobs}), jobs[0].run
    console.print(
        f"{run.data}, noise {run.noise}, {run.meta or 'all'} clean samples: per cent, mean over {seeds} "
        f"seed{'s' if seeds > 1 else ''}{' ± standard deviation' if seeds > 1 else ''}"
    )
    console.table(columns, rows)
    for method, settings in {job.run.method: job.run.settings for job in jobs if job.run.settings}.items():
        console.print(f"{method} with {', '.join(f'{name}={value}' for name, value in settings.items())}")
    advice = _advice(jobs, outcomes)
    (out / "table.txt").write_text(aligned(columns, rows) + "\n")
    curves = {job.folder: RunFolder(job.folder).metrics() for job in jobs}
    try:
        picture = out / "curves.png"
        draw_curves(picture, [(job.run, curves[job.folder]) for job in jobs if curves[job.folder]])
        console.print(f"learning curves: {picture}")
    except InputError as error:  # matplotlib is an extra: a table without a picture is still a table
        console.say(f"no picture: {error}")
    console.print(f"run folders: {out}/METHOD-seedN")
    if advice:
        console.print(f"\n{textwrap.fill(advice, 100)}")
    failures = [f"{job.folder}: {o.failure}" for job, o in zip(jobs, outcomes, strict=True) if o.failure]
    if failures:
        raise Diverged("; ".join(failures))


def _advice(jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> str:
    """The recommendation, from the runs that came to their end."""
    summaries: dict[str, dict[int, dict[str, Any]]] = {}
    for job, outcome in zip(jobs, outcomes, strict=True):
        if outcome.summary:
            summaries.setdefault(job.run.method, {})[job.run.seed] = outcome.summary
    return recommend(summaries, len(RunFolder(jobs[0].folder).about()["classes"])) if summaries else ""


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"
