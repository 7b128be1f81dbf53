"""The section of a report for one run: results, settings, learning curves, matrices and suspects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from metalabelnet import nets
from metalabelnet.report.annotator_table import annotator_table
from metalabelnet.report.markup import Html, join, name_tag, table, tag, truncate
from metalabelnet.report.matrices import MAX_MATRIX_CLASSES, pair_table
from metalabelnet.report.noise_section import clean_noise_html, warnings_html
from metalabelnet.report.svg_chart import chart, series

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metalabelnet.report.finished_run import FinishedRun, Suspect
    from metalabelnet.report.sample_content import SampleContent

MAX_TEXT_CHARACTERS = 400
MAX_CELLS = 16
MAX_WORST_CLASSES = 15
METRIC_COLUMNS = {
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


def make_section(run: FinishedRun, samples: Mapping[int, SampleContent], note: str, *, anchor: str) -> Html:
    """The section of one run. `samples` are the contents that can be shown, `note` is the reason why others cannot."""
    return tag(
        "section",
        tag("h2", name_tag(run.name, 80)),
        _result(run),
        warnings_html(run),
        _details(run),
        tag("h3", "Learning curves"),
        _curves(run),
        tag("h3", "Confusion matrix"),
        _confusion(run),
        tag("h3", "Noise on the clean samples"),
        clean_noise_html(run),
        tag("h3", "Estimated noise matrix"),
        _noise(run),
        annotator_table(annotators) if (annotators := run.summary.get("annotators")) else Html(),
        tag("h3", f"Top {len(run.suspects)} suspects" if run.suspects else "Suspects"),
        _suspects(run, samples, note),
        id=anchor,
    )


def _result(run: FinishedRun) -> Html:
    """The main results as tiles."""
    s = run.summary
    tiles: list[tuple[str, str, str]] = []
    fitted = s["epochs"] == 0
    if s.get("test_accuracy") is not None:
        last = "" if fitted else f"last epoch {percent(s['test_accuracy_last'])}"
        tiles.append(("Test accuracy", percent(s["test_accuracy"]), last))
    source = "cross-validated" if fitted else f"validation samples, epoch {s['selected_epoch']}"
    tiles.append(("Clean accuracy", percent(s["clean_accuracy"]), source))
    if s.get("macro_f1") is not None:
        tiles.append(("Macro-F1", percent(s["macro_f1"]), "mean over classes"))
    if s.get("ece") is not None:
        calibrated = s.get("ece_calibrated")
        note = "" if calibrated is None else f"calibrated {percent(calibrated)}"
        tiles.append(("Calibration error", percent(s["ece"]), note))
    if s.get("right_after") is not None:
        tiles.append(("Correct labels", percent(s["right_after"]), f"given labels {percent(s.get('right_before'))}"))
    if s.get("suspects") is not None:
        note = f"of {s['samples']['train'] - s.get('unlabeled', 0)} given labels"
        note += "" if s.get("suspicion_ap") is None else f"; average precision {s['suspicion_ap']:.3f}"
        tiles.append(("Suspects", str(s["suspects"]), note))
    boxes = (
        tag("div", tag("dt", title), tag("dd", value), tag("dd", note, class_="note")) for title, value, note in tiles
    )
    return tag("dl", *boxes, class_="tiles")


def _details(run: FinishedRun) -> Html:
    """The main settings, data and versions; all settings and results in collapsed tables."""
    s, settings, metadata = run.summary, run.settings, run.metadata
    samples = s["samples"]
    unlabeled = f" ({s['unlabeled']} unlabeled)" if s.get("unlabeled") else ""
    rate = "" if s.get("noise_rate") is None else f", {100 * s['noise_rate']:.1f} % of the labels wrong"
    versions = ", ".join(f"{name} {value}" for name, value in metadata.get("versions", {}).items())
    parts = (
        f"{samples['train']} training{unlabeled}, {samples['clean']} clean, "
        f"{samples['validation']} validation, {samples['test']} test"
    )
    rows: list[list[str]] = [
        ["Method", str(settings["method"])],
        ["Data", name_tag(str(settings["data"]), 120)],
        ["Samples", parts],
        ["Shape of a sample", _shape(run)],
        ["Classes", _classes(run)],
        ["Noise", f"{settings['noise']}{rate}"],
        ["Network", _net(run)],
        ["Epochs", f"{s['epochs']}; selected epoch {s['selected_epoch']} (counted from 0)" if s["epochs"] else "–"],
        ["Seed", str(settings["seed"])],
        ["Time", f"{s['seconds']:.1f} s"],
        ["Versions", versions],
        ["Commit", str(metadata.get("commit") or "–")],
    ]
    all_settings = [[str(key), _value(value)] for key, value in settings.items()]
    all_settings += [
        [f"{settings['method']}.{key}", _value(value)] for key, value in metadata["method_settings"].items()
    ]
    results = [[key, _value(value)] for key, value in s.items() if not isinstance(value, dict | list)]
    return join(
        table([], rows, class_="facts"),
        tag("details", tag("summary", "All settings"), table(["setting", "value"], all_settings)),
        tag("details", tag("summary", "All results, unrounded"), table(["result", "value"], results)),
    )


def _shape(run: FinishedRun) -> str:
    shape = run.metadata["shape"]
    kind = run.encoder.kind if run.encoder is not None else "image" if len(shape) == 3 else "features"
    return f"{kind}, {'×'.join(map(str, shape))} values"


def _net(run: FinishedRun) -> str:
    """The name of the network; `auto` is resolved by kind and shape of the samples."""
    own, name = run.metadata["own_net"], str(run.settings["net"])
    if own is not None or name != "auto":
        return str(own or name)
    if run.summary["epochs"] == 0:  # a linear layer was fitted
        return "linear (auto)"
    kind = None if run.encoder is None else run.encoder.kind
    return f"{nets.default_net(tuple(run.metadata['shape']), kind)} (auto)"


def _classes(run: FinishedRun, max_names: int = 20) -> Html:
    shown = [part for name in run.classes[:max_names] for part in (", ", name_tag(name, 24))][1:]
    more = len(run.classes) - max_names
    return join(f"{len(run.classes)}: ", *shown, f" and {more} more" if more > 0 else "")


def _curves(run: FinishedRun) -> Html:
    lines = run.metrics
    if not lines:
        return tag("p", "The run folder has no metrics.jsonl.", class_="missing")
    marks: dict[str, Any] = {"phases": run.phases(), "selected": run.summary.get("selected_epoch")}
    validation = "validation samples"
    accuracy = [series("test samples", lines, "test_accuracy"), series(validation, lines, "clean_accuracy")]
    losses = [series("training", lines, "loss"), series(validation, lines, "clean_loss")]
    change = series("mean change of a soft label, ± standard deviation", lines, "label_change", "label_change_std")
    figures = []
    for title, curves, unit in (("Accuracy", accuracy, "%"), ("Loss", losses, "")):
        if any(curve.points for curve in curves):
            figures.append(chart(title, curves, unit=unit, from_zero=not unit, **marks))
    if change.points:
        figures.append(chart("Label change per epoch", [change], from_zero=True, **marks))
    parts = [tag("div", *figures, class_="charts")]
    if not change.points:
        parts.append(tag("p", _no_change(run), class_="missing"))
    keys = [key for key in METRIC_COLUMNS if any(line.get(key) is not None for line in lines)]
    rows = [[_number(line.get(key)) for key in keys] for line in lines]
    numbers = table([METRIC_COLUMNS[key] for key in keys], rows, class_="numbers")
    return join(*parts, tag("details", tag("summary", "Metrics by epoch"), numbers))


def _no_change(run: FinishedRun) -> str:
    if len(run.metrics) == 1:
        return "Label change per epoch: needs at least two epochs."
    return f"Label change per epoch: {run.settings['method']} has no soft labels."


def _confusion(run: FinishedRun) -> Html:
    if run.confusion is None:
        text = "The run folder has no confusion.json."
        return join(tag("p", text, class_="missing"), _worst_classes(run))
    total = sum(run.confusion.values())
    hits = sum(n for (true, predicted), n in run.confusion.items() if true == predicted)
    selected = "" if run.part.startswith("test") else "; the epoch was selected on the same samples"
    if selected and run.summary["epochs"] == 0:
        selected = ", each by a model that was fitted without it"
    text = f"{hits} of {total} {run.part} ({percent(100 * hits / max(1, total))}) are classified correctly{selected}."
    caption = "Number of samples by true and predicted class"
    matrix = pair_table(run.confusion, run.classes, rows="true", columns="predicted", shares=False, caption=caption)
    return join(tag("p", text), matrix, _worst_classes(run) if len(run.classes) > MAX_MATRIX_CLASSES else Html())


def _worst_classes(run: FinishedRun) -> Html:
    known = {k: v for k, v in (run.summary.get("class_accuracy") or {}).items() if v is not None}
    if not known:
        return Html()
    worst = sorted(known, key=lambda name: known[name])[:MAX_WORST_CLASSES]
    title = (
        f"The {len(worst)} classes with the lowest accuracy of {len(known)}"
        if len(known) > len(worst)
        else "Accuracy of each class"
    )
    return table(["class", "accuracy"], [[name_tag(name), percent(known[name])] for name in worst], caption=title)


def _noise(run: FinishedRun) -> Html:
    total = sum(run.noise.values())
    differ = sum(n for (label, given), n in run.noise.items() if label != given)
    rate = run.summary.get("noise_rate")
    known = "" if rate is None else f" The true noise rate is {100 * rate:.1f} %."
    text = (
        f"The corrected label differs from the given label for {differ} of {total} samples "
        f"({percent(100 * differ / max(1, total))}).{known}"
    )
    caption = "Given label of the samples with each corrected label, in percent"
    matrix = pair_table(run.noise, run.classes, rows="corrected", columns="given", shares=True, caption=caption)
    return join(tag("p", text), matrix)


def _suspects(run: FinishedRun, samples: Mapping[int, SampleContent], note: str) -> Html:
    if not run.suspects:
        return tag("p", "No training sample has a given label.", class_="missing")
    intro = tag(
        "p",
        "Given label, corrected label with its confidence, and suspicion. Given and corrected label can be equal: "
        "suspicion also depends on how late in training a label was learned.",
    )
    warning = tag("p", note, class_="missing") if note else Html()
    cards = (tag("li", *_card(suspect, samples.get(suspect.index))) for suspect in run.suspects)
    return join(intro, warning, tag("ol", *cards, class_="cards"))


def _card(suspect: Suspect, sample: SampleContent | None) -> list[Html]:
    facts = [
        ("given", name_tag(suspect.given)),
        ("corrected", join(tag("strong", name_tag(suspect.label)), f" {100 * suspect.confidence:.1f}\u00a0%")),
        ("suspicion", Html(f"{suspect.suspicion:.3f}")),
    ]
    facts += [("true", name_tag(suspect.true))] if suspect.true else []
    listing = tag("dl", *(part for key, value in facts for part in (tag("dt", key), tag("dd", value))))
    return [_content(suspect, sample), tag("div", tag("p", name_tag(suspect.id, 60), class_="id"), listing)]


def _content(suspect: Suspect, sample: SampleContent | None) -> Html:
    if sample is None:
        return Html()
    if sample.image is not None:
        small = sample.image.startswith("data:image/png")  # few pixels: scaled up without smoothing
        return tag("img", src=sample.image, alt=f"sample {truncate(suspect.id, 60)}", class_="small" if small else None)
    if sample.text is not None:
        return tag("blockquote", truncate(sample.text, MAX_TEXT_CHARACTERS) or "(empty)", dir="auto")
    if sample.cells:
        rows = [[name_tag(name, 24), name_tag(value, 40)] for name, value in sample.cells[:MAX_CELLS]]
        more = len(sample.cells) - MAX_CELLS
        note = tag("p", f"and {more} more", class_="note") if more > 0 else Html()
        return join(table([], rows, class_="cells"), note)
    return tag("p", sample.missing, class_="missing")


def percent(value: float | None) -> str:
    """Format with two decimals, as on the command line."""
    return "–" if value is None else f"{value:.2f}\u00a0%"


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


def _value(value: Any) -> Html:
    return name_tag(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 200)
