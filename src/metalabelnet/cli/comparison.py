"""Results in the terminal: the summary of one run, and a table of several runs with a plot."""

from __future__ import annotations

import statistics
import textwrap
from typing import TYPE_CHECKING, Any

from metalabelnet.atomic_write import write_atomically
from metalabelnet.cli.console import format_table
from metalabelnet.cli.run_description import describe_noise
from metalabelnet.core.intervals import wilson_percent
from metalabelnet.errors import DivergenceError, InputError
from metalabelnet.report.comparison import format_spread
from metalabelnet.report.curve_plot import draw_curves
from metalabelnet.report.noise_section import format_noise
from metalabelnet.report.recommendation import recommend
from metalabelnet.train import RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from metalabelnet.cli.console import Console
    from metalabelnet.launch.process_pool import Job, Outcome

MAX_CLASSES_IN_SUMMARY = 10
WORST_CLASSES_IN_SUMMARY = 5  # listed where there are more
WORST_ANNOTATORS_IN_SUMMARY = 3
GIVEN_AND_CORRECTED = {"given_right": "given labels", "corrected_right": "corrected labels"}


def print_summary(console: Console, files: RunFolder) -> None:
    """Print the result of one run and its folder."""
    s = files.summary()
    labeled = s["samples"]["train"] - s.get("unlabeled", 0)
    n = s["samples"]["validation"]
    low, high = wilson_percent(s["clean_accuracy"], n)
    accuracy = f"{_percent(s['clean_accuracy'])} (95 % CI {low:.0f}–{high:.0f} %)"
    epoch = f"{s['selected_epoch'] + 1} of {s['epochs']}"  # files count epochs from 0, progress lines from 1
    samples = f"{n} clean sample{'s' if n > 1 else ''}"
    rows = [["selected epoch", epoch], ["clean accuracy", f"{accuracy} on the {samples} that selected the epoch"]]
    last_epoch = f"; last epoch {_percent(s['test_accuracy_last'])}"
    if s["epochs"] == 0:  # fitted, not trained in epochs
        rows, last_epoch = [["clean accuracy", f"{accuracy}, cross-validated on {samples}"]], ""
    if s["test_accuracy"] is not None:
        rows += [
            ["test accuracy", f"{_percent(s['test_accuracy'])}{last_epoch}"],
            ["macro-F1", _percent(s["macro_f1"])],
            ["class accuracy", _format_class_accuracy(s["class_accuracy"])],
            ["calibration error", f"{_percent(s['ece'])}; {_percent(s['ece_calibrated'])} after calibration"],
        ]
    elif s.get("clean_macro_f1") is not None:
        rows += [
            ["macro-F1", f"{_percent(s['clean_macro_f1'])} on the same samples"],
            ["class accuracy", _format_class_accuracy(s["clean_class_accuracy"])],
            ["calibration error", f"{_percent(s['clean_ece'])} before calibration; after it: with --test"],
        ]
    if s.get("right_after") is not None:
        change = f"{_percent(s['right_before'])} of given labels, {_percent(s['right_after'])} of corrected labels"
        rows.append(["correct labels", change])
    noise = s.get("clean_noise")
    if noise is not None:
        rows.append(["noise rate", format_noise(noise)])
    if s.get("given_check") is not None:
        rows.append(["labels of clean samples", _format_given_check(s["given_check"])])
    if annotators := s.get("annotators"):
        rows.append(["annotators", _format_annotators(annotators)])
    suspects = f"{s.get('suspects', '–')} of {labeled} given labels"
    if s.get("suspicion_ap") is not None and s.get("suspicion_auroc") is not None:
        suspects += f"; detection AUROC {s['suspicion_auroc']:.3f}, average precision {s['suspicion_ap']:.3f}"
    rows.append(["suspects", suspects])
    rows.append(["run folder", str(files.path)])
    if noise is not None:
        _print_noise_matrix(console, noise, files.metadata()["classes"])
    console.table([f"{s['method']} on {s['dataset']}", f"{describe_noise(s['noise'])}, seed {s['seed']}"], rows)


def _print_noise_matrix(console: Console, noise: dict[str, Any], classes: Sequence[str]) -> None:
    """Print how many clean samples there are by true class and given label, unless there are many classes."""
    if len(classes) > MAX_CLASSES_IN_SUMMARY:
        return
    cells = {(true, given): n for true, given, n in noise["counts"]}
    numbers = range(len(classes))
    counts = [[name, *(str(cells.get((k, j), 0)) for j in numbers)] for k, name in enumerate(classes)]
    console.print("clean samples by true class (rows) and given label (columns):")
    console.table(["", *classes], counts)
    console.print("")


def _format_given_check(check: dict[str, Any]) -> str:
    """Return how many given and corrected labels are right on the clean samples, and which ones are kept."""
    kept = "; the label table keeps the given labels" if check["keeps_given"] else ""
    given, corrected = (f"{check[key]:.0f} % of {what}" for key, what in GIVEN_AND_CORRECTED.items())
    return f"{given} and {corrected} are right on {check['samples']} clean samples{kept}"


def _format_annotators(annotators: list[dict[str, Any]]) -> str:
    """Return the number of annotators, and those whose interval ends lowest."""
    known = [one for one in annotators if one["high"] is not None]
    worst = sorted(known, key=lambda one: one["high"])[:WORST_ANNOTATORS_IN_SUMMARY]
    listed = ", ".join(
        f"{one['annotator']}: {one['accuracy']:.0f} % (95 % CI {one['low']:.0f}–{one['high']:.0f} %)" for one in worst
    )
    labels = sum(one["labels"] for one in annotators)
    return f"{len(annotators)}, {labels} label{'s' if labels != 1 else ''}; least often right: {listed}"


def _format_class_accuracy(accuracies: dict[str, float | None]) -> str:
    """Return the accuracy of each class, or of the worst classes where there are many."""
    known = {name: value for name, value in accuracies.items() if value is not None}
    names = list(known)
    note = ""
    if len(known) > MAX_CLASSES_IN_SUMMARY:
        names = sorted(known, key=lambda name: known[name])[:WORST_CLASSES_IN_SUMMARY]
        note = f" (the {WORST_CLASSES_IN_SUMMARY} worst of {len(known)} classes)"
    return ", ".join(f"{name}: {known[name]:.1f} %" for name in names) + note


def print_comparison(console: Console, out: Path, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
    """Print mean and standard deviation over seeds for each method; write the table and a plot of the curves."""
    metrics = {
        "test accuracy": "test_accuracy",
        "last epoch": "test_accuracy_last",
        "macro-F1": "macro_f1",
        "correct labels": "right_after",
    }
    if all(o.summary is None or o.summary["test_accuracy"] is None for o in outcomes):
        metrics = {"clean accuracy": "clean_accuracy"}  # without a test set only the validation samples are known
    columns = ["method", *metrics, "seconds"]
    rows = []
    for method in dict.fromkeys(job.run.method for job in jobs):
        done = [o.summary for job, o in zip(jobs, outcomes, strict=True) if job.run.method == method and o.summary]
        cells = [format_spread([s[key] for s in done if s[key] is not None]) for key in metrics.values()]
        seconds = f"{statistics.mean(s['seconds'] for s in done):.1f}" if done else "–"
        rows.append([method, *cells, seconds])
    seeds, run = len({job.run.seed for job in jobs}), jobs[0].run
    console.print(
        f"{run.data}, {describe_noise(run.noise)}, {run.clean} clean samples; in %, "
        + (f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "1 seed")
    )
    console.table(columns, rows)
    print_label_warnings(console, jobs, outcomes)
    for method, settings in {job.run.method: job.run.settings for job in jobs if job.run.settings}.items():
        console.print(f"{method} with {', '.join(f'{name}={value}' for name, value in settings.items())}")
    recommendation = _recommendation(jobs, outcomes)
    out.mkdir(parents=True, exist_ok=True)  # it does not exist if every run was rejected
    write_atomically(out / "table.txt", f"{format_table(columns, rows)}\n".encode(), sync=False)
    if curves := [(job.run, history) for job in jobs if (history := RunFolder(job.folder).metrics())]:
        try:
            plot = out / "curves.png"
            draw_curves(plot, curves)
            console.print(f"learning curves: {plot}")
        except InputError as error:  # matplotlib is optional
            console.log(f"no plot: {error}")
    console.print(f"run folders: {out}/METHOD-seedN")
    if recommendation:
        for line in ("", *textwrap.wrap(recommendation, 100)):
            console.print(line)
    failures = [f"{job.folder}: {o.failure}" for job, o in zip(jobs, outcomes, strict=True) if o.failure]
    if failures:
        raise DivergenceError("; ".join(failures))


def print_label_warnings(console: Console, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
    """Print the noise that the clean samples show, which is that of all methods with the same seed, and warnings."""
    noises = {o.summary["seed"]: o.summary["clean_noise"] for o in outcomes if o.summary and o.summary["clean_noise"]}
    lines = {seed: format_noise(noise) for seed, noise in noises.items()}
    if len({*lines.values()}) == 1:
        console.print(f"noise rate: {next(iter(lines.values()))}")
        done = next(job for job, outcome in zip(jobs, outcomes, strict=True) if outcome.summary)
        _print_noise_matrix(console, next(iter(noises.values())), RunFolder(done.folder).metadata()["classes"])
    else:
        for seed, line in lines.items():
            console.print(f"noise rate, seed {seed}: {line}")
    for job, outcome in zip(jobs, outcomes, strict=True):
        for warning in (outcome.summary or {}).get("warnings", ()):
            console.log(f"{job.folder.name}: {warning}")


def _recommendation(jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> str:
    """Return the recommendation from the runs that finished."""
    summaries: dict[str, dict[int, dict[str, Any]]] = {}
    classes = 0
    for job, outcome in zip(jobs, outcomes, strict=True):
        if outcome.summary:
            summaries.setdefault(job.run.method, {})[job.run.seed] = outcome.summary
            classes = len(RunFolder(job.folder).metadata()["classes"])
    return recommend(summaries, classes) if summaries else ""


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"
