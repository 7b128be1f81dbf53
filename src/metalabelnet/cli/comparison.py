"""Results on one screen: a run's summary, several runs as a table and a picture."""

from __future__ import annotations

import statistics
import textwrap
from typing import TYPE_CHECKING, Any

from metalabelnet.cli.console import aligned
from metalabelnet.core.intervals import wilson_percent
from metalabelnet.errors import InputError
from metalabelnet.report.comparison import spread
from metalabelnet.report.curve_plot import draw_curves
from metalabelnet.report.recommendation import recommend
from metalabelnet.train import Diverged, RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from metalabelnet.cli.console import Console
    from metalabelnet.launch.process_pool import Job, Outcome


def show_summary(console: Console, files: RunFolder) -> None:
    """The result of one run, and where it is."""
    s = files.summary()
    labeled = s["samples"]["train"] - s.get("unlabeled", 0)
    count = s["samples"]["validation"]
    low, high = wilson_percent(s["clean_accuracy"], count)
    of = f"{_percent(s['clean_accuracy'])} of {count} clean sample{'s' if count > 1 else ''}"
    right = f"{of} right, which stands for {low:.0f} to {high:.0f} %"
    epoch = f"epoch {s['selected_epoch'] + 1} of {s['epochs']}"  # as while it ran; files count from 0
    rows = [["selected", f"{epoch}, with {right} (95 %)"]]
    if s["test_accuracy"] is not None:
        rows += [
            ["test accuracy", f"{_percent(s['test_accuracy'])}; at the last epoch {_percent(s['test_accuracy_last'])}"],
            ["macro-F1", _percent(s["macro_f1"])],
            ["per class", _classes(s["class_accuracy"])],
            ["calibration error", f"{_percent(s['ece'])}; calibrated {_percent(s['ece_calibrated'])}"],
        ]
    elif s.get("clean_macro_f1") is not None:  # an earlier version wrote none
        rows += [
            ["macro-F1", f"{_percent(s['clean_macro_f1'])} of the same samples"],
            ["per class", _classes(s["clean_class_accuracy"])],
            ["calibration error", f"{_percent(s['clean_ece'])} before calibrating on them"],
        ]
    if s.get("right_after") is not None:
        rows.append(["right labels", f"{_percent(s['right_before'])} as given; {_percent(s['right_after'])} corrected"])
    suspects = f"{s.get('suspects', '–')} of {labeled} given labels"
    if s.get("suspicion_ap") is not None and s.get("suspicion_auroc") is not None:
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
        shown = {"clean accuracy": "clean_accuracy"}  # without a test part the held-out clean rows are all there is
    columns = ["method", *shown, "seconds"]
    rows = []
    for method in dict.fromkeys(job.run.method for job in jobs):
        done = [o.summary for job, o in zip(jobs, outcomes, strict=True) if job.run.method == method and o.summary]
        cells = [spread([s[key] for s in done if s[key] is not None]) for key in shown.values()]
        seconds = f"{statistics.mean(s['seconds'] for s in done):.1f}" if done else "–"
        rows.append([method, *cells, seconds])
    seeds, run = len({job.run.seed for job in jobs}), jobs[0].run
    console.print(
        f"{run.data}, noise {run.noise}, {run.clean or 'all'} clean samples: per cent, mean over {seeds} "
        f"seed{'s' if seeds > 1 else ''}{' ± standard deviation' if seeds > 1 else ''}"
    )
    console.table(columns, rows)
    for method, settings in {job.run.method: job.run.settings for job in jobs if job.run.settings}.items():
        console.print(f"{method} with {', '.join(f'{name}={value}' for name, value in settings.items())}")
    advice = _advice(jobs, outcomes)
    out.mkdir(parents=True, exist_ok=True)  # where all runs are refused, nobody has made it
    (out / "table.txt").write_text(aligned(columns, rows) + "\n", encoding="utf-8")
    if lines := [(job.run, history) for job in jobs if (history := RunFolder(job.folder).metrics())]:
        try:
            picture = out / "curves.png"
            draw_curves(picture, lines)
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
    classes = 0
    for job, outcome in zip(jobs, outcomes, strict=True):
        if outcome.summary:
            summaries.setdefault(job.run.method, {})[job.run.seed] = outcome.summary
            classes = len(RunFolder(job.folder).about()["classes"])
    return recommend(summaries, classes) if summaries else ""


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"
