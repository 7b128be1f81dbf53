"""The part of a page that one run has: what was run, on what, what came out, and what to look at."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from metalabelnet import nets
from metalabelnet.report.curves import chart, series
from metalabelnet.report.markup import Html, cut, join, named, table, tag
from metalabelnet.report.matrices import MOST_CLASSES, matrix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metalabelnet.report.samples import Sample
    from metalabelnet.report.source import FinishedRun, Suspect

LONGEST_TEXT = 400
MOST_CELLS = 16
WORST = 15  # classes, where there are too many to show all
COLUMNS = {
    "epoch": "epoch",
    "phase": "phase",
    "lr": "learning rate",
    "loss": "loss",
    "clean_accuracy": "clean accuracy, %",
    "clean_loss": "clean loss",
    "test_accuracy": "test accuracy, %",
    "label_change": "label change",
    "seconds": "seconds",
}


def section(run: FinishedRun, samples: Mapping[int, Sample], note: str, *, anchor: str) -> Html:
    """All about one run. `samples` are those that can be shown, `note` why others cannot."""
    return tag(
        "section",
        tag("h2", named(run.name, 80)),
        _result(run),
        _what(run),
        tag("h3", "Learning curves"),
        _curves(run),
        tag("h3", "Confusion matrix"),
        _confusion(run),
        tag("h3", "Noise matrix as estimated"),
        _noise(run),
        tag("h3", f"The {len(run.suspects)} most suspicious labels" if run.suspects else "Suspicious labels"),
        _suspects(run, samples, note),
        id=anchor,
    )


def _result(run: FinishedRun) -> Html:
    """The numbers one asks for first."""
    s = run.summary
    tiles: list[tuple[str, str, str]] = []
    if s.get("test_accuracy") is not None:
        tiles.append(("Test accuracy", percent(s["test_accuracy"]), f"last epoch {percent(s['test_accuracy_last'])}"))
    tiles.append(("Clean accuracy", percent(s["clean_accuracy"]), f"epoch {s['selected_epoch']}, selected on these"))
    if s.get("macro_f1") is not None:
        tiles.append(("Macro-F1", percent(s["macro_f1"]), "mean over classes"))
    if s.get("ece") is not None:
        calibrated = s.get("ece_calibrated")
        note = "" if calibrated is None else f"calibrated {percent(calibrated)}"
        tiles.append(("Calibration error", percent(s["ece"]), note))
    if s.get("right_after") is not None:
        tiles.append(("Right labels", percent(s["right_after"]), f"as given {percent(s.get('right_before'))}"))
    if s.get("suspects") is not None:
        note = f"of {s['samples']['train'] - s.get('unlabeled', 0)} given labels"
        note += "" if s.get("suspicion_ap") is None else f"; average precision {s['suspicion_ap']:.3f}"
        tiles.append(("Suspects", str(s["suspects"]), note))
    boxes = (
        tag("div", tag("dt", what), tag("dd", value), tag("dd", note, class_="note")) for what, value, note in tiles
    )
    return tag("dl", *boxes, class_="tiles")


def _what(run: FinishedRun) -> Html:
    """Settings, data and versions: the main ones, and all of them on request."""
    s, settings, about = run.summary, run.settings, run.about
    samples = s["samples"]
    unlabeled = f" ({s['unlabeled']} unlabeled)" if s.get("unlabeled") else ""
    rate = "" if s.get("noise_rate") is None else f", {100 * s['noise_rate']:.1f} % of the labels wrong"
    versions = ", ".join(f"{name} {value}" for name, value in about.get("versions", {}).items())
    parts = (
        f"{samples['train']} to train on{unlabeled}, {samples['clean']} clean to learn from, "
        f"{samples['validation']} clean to select on, {samples['test']} to test"
    )
    rows: list[list[str]] = [
        ["Method", str(settings["method"])],
        ["Data", named(str(settings["data"]), 120)],
        ["Samples", parts],
        ["A sample", _shape(run)],
        ["Classes", _classes(run)],
        ["Noise", f"{settings['noise']}{rate}"],
        ["Network", _net(run)],
        ["Epochs", f"{s['epochs']}, of which number {s['selected_epoch']} was selected (they count from 0)"],
        ["Seed", str(settings["seed"])],
        ["Time", f"{s['seconds']:.1f} s"],
        ["Versions", versions],
        ["Commit", str(about.get("commit") or "–")],
    ]
    every = [[str(key), _value(value)] for key, value in settings.items()]
    every += [[f"{settings['method']}.{key}", _value(value)] for key, value in about["method_settings"].items()]
    numbers = [[key, _value(value)] for key, value in s.items() if not isinstance(value, dict)]
    return join(
        table([], rows, class_="facts"),
        tag("details", tag("summary", "All settings"), table(["setting", "value"], every)),
        tag("details", tag("summary", "All results, unrounded"), table(["result", "value"], numbers)),
    )


def _shape(run: FinishedRun) -> str:
    shape = run.about["shape"]
    kind = (run.inputs or {}).get("kind", "image" if len(shape) == 3 else "row of numbers")
    return f"{kind}, {'×'.join(map(str, shape))} numbers"


def _net(run: FinishedRun) -> str:
    """The network by name; `auto` is the one for this kind and size of samples."""
    own, name = run.about["own_net"], str(run.settings["net"])
    if own is not None or name != "auto":
        return str(own or name)
    return f"{nets.auto(tuple(run.about['shape']), (run.inputs or {}).get('kind'))} (auto)"


def _classes(run: FinishedRun, most: int = 20) -> Html:
    shown = [part for name in run.classes[:most] for part in (", ", named(name, 24))][1:]
    more = len(run.classes) - most
    return join(f"{len(run.classes)}: ", *shown, f" and {more} more" if more > 0 else "")


def _curves(run: FinishedRun) -> Html:
    lines = run.metrics
    if not lines:
        return tag("p", "The run folder has no metrics.jsonl: nothing is known of its epochs.", class_="missing")
    marks: dict[str, Any] = {"phases": run.phases(), "selected": run.summary.get("selected_epoch")}
    clean = "held-out clean samples"
    accuracy = [series("test samples", lines, "test_accuracy"), series(clean, lines, "clean_accuracy")]
    losses = [series("training", lines, "loss"), series(clean, lines, "clean_loss")]
    change = series("mean change of a soft label, ± standard deviation", lines, "label_change", "label_change_std")
    figures = []
    for title, drawn, unit in (("Accuracy", accuracy, "%"), ("Loss", losses, "")):
        if any(one.points for one in drawn):
            figures.append(chart(title, drawn, unit=unit, from_zero=not unit, **marks))
    if change.points:
        figures.append(chart("Label change per epoch", [change], from_zero=True, **marks))
    parts = [tag("div", *figures, class_="charts")]
    if not change.points:
        parts.append(tag("p", _no_change(run), class_="missing"))
    keys = [key for key in COLUMNS if any(line.get(key) is not None for line in lines)]
    rows = [[_number(line.get(key)) for key in keys] for line in lines]
    numbers = table([COLUMNS[key] for key in keys], rows, class_="numbers")
    return join(*parts, tag("details", tag("summary", "The numbers, by epoch"), numbers))


def _no_change(run: FinishedRun) -> str:
    if len(run.metrics) == 1:
        return "Label change per epoch: one epoch has none before it to compare with."
    return f"Label change per epoch: {run.settings['method']} made no soft labels to compare from epoch to epoch."


def _confusion(run: FinishedRun) -> Html:
    if run.confusion is None:
        said = "This run did not write its confusion matrix (confusion.json): it was made by an earlier version."
        return join(tag("p", said, class_="missing"), _worst(run))
    total = sum(run.confusion.values())
    hits = sum(n for (true, predicted), n in run.confusion.items() if true == predicted)
    selected = "" if run.part.startswith("test") else ", on which the epoch was selected too"
    said = f"{hits} of {total} {run.part} ({percent(100 * hits / max(1, total))}) are recognised{selected}."
    caption = "How many samples of each true class are taken for which"
    found = matrix(run.confusion, run.classes, rows="true", columns="predicted", shares=False, caption=caption)
    return join(tag("p", said), found, _worst(run) if len(run.classes) > MOST_CLASSES else Html())


def _worst(run: FinishedRun) -> Html:
    known = {k: v for k, v in (run.summary.get("class_accuracy") or {}).items() if v is not None}
    if not known:
        return Html()
    worst = sorted(known, key=lambda name: known[name])[:WORST]
    title = f"The {len(worst)} worst of {len(known)} classes" if len(known) > len(worst) else "Accuracy of each class"
    return table(["class", "accuracy"], [[named(name), percent(known[name])] for name in worst], caption=title)


def _noise(run: FinishedRun) -> Html:
    total = sum(run.noise.values())
    differ = sum(n for (label, given), n in run.noise.items() if label != given)
    rate = run.summary.get("noise_rate")
    known = "" if rate is None else f" In truth {100 * rate:.1f} % of the given labels are wrong."
    said = (
        f"The corrected label differs from the given one in {differ} of {total} samples "
        f"({percent(100 * differ / max(1, total))}).{known}"
    )
    caption = "Of the samples with each corrected label, which label they were given, in per cent"
    found = matrix(run.noise, run.classes, rows="corrected", columns="given", shares=True, caption=caption)
    return join(tag("p", said), found)


def _suspects(run: FinishedRun, samples: Mapping[int, Sample], note: str) -> Html:
    if not run.suspects:
        return tag("p", "No training sample has a given label.", class_="missing")
    said = tag(
        "p",
        "Each with the label it was given, and the one this run would give it with its confidence. The two can be the "
        "same: suspicion also counts how late a label was learned.",
    )
    warning = tag("p", note, class_="missing") if note else Html()
    cards = (tag("li", *_card(one, samples.get(one.index))) for one in run.suspects)
    return join(said, warning, tag("ol", *cards, class_="cards"))


def _card(one: Suspect, sample: Sample | None) -> list[Html]:
    facts = [
        ("given", named(one.given)),
        ("suggested", join(tag("strong", named(one.label)), f" {100 * one.confidence:.1f}\u00a0%")),
        ("suspicion", Html(f"{one.suspicion:.3f}")),
    ]
    facts += [("in truth", named(one.true))] if one.true else []
    listed = tag("dl", *(part for key, value in facts for part in (tag("dt", key), tag("dd", value))))
    return [_shown(one, sample), tag("div", tag("p", named(one.id, 60), class_="id"), listed)]


def _shown(one: Suspect, sample: Sample | None) -> Html:
    if sample is None:
        return Html()
    if sample.picture is not None:
        small = sample.picture.startswith("data:image/png")  # of few pixels, which are better seen than blurred
        return tag("img", src=sample.picture, alt=f"sample {cut(one.id, 60)}", class_="small" if small else None)
    if sample.text is not None:
        return tag("blockquote", cut(sample.text, LONGEST_TEXT) or "(empty)", dir="auto")
    if sample.cells:
        rows = [[named(name, 24), named(value, 40)] for name, value in sample.cells[:MOST_CELLS]]
        more = len(sample.cells) - MOST_CELLS
        note = tag("p", f"and {more} more", class_="note") if more > 0 else Html()
        return join(table([], rows, class_="cells"), note)
    return tag("p", sample.missing, class_="missing")


def percent(value: float | None) -> str:
    """Two digits, as the command line has them."""
    return "–" if value is None else f"{value:.2f}\u00a0%"


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


def _value(value: Any) -> Html:
    return named(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 200)
