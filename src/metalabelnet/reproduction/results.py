"""Result lines: one JSON line per run in results/*.jsonl, small enough to commit.

Keys of a line:

    date             day the run ended
    settings         every field of the run except those of the machine, the recipe by name and by value; the authors'
                     noise file is "authors"
    method_settings  all settings of the method
    summary          accuracies at the selected and the last epoch, the selected epoch, seconds, …; null if it failed
    failure          why there is no result (only failed runs)
    curves           test accuracy by epoch, and accuracy and loss on the held-out clean samples, which select the epoch
                     (older lines: test accuracy only); mean and standard deviation of the change of the soft labels
    losses           the three losses along a step (only `fig-losses`)
    concurrent       number of runs that shared the device, this one included (only if several)
    tuned_on         the data on which the settings of the method were chosen
    superseded       "COMMIT: reason" if the method has changed since; such a line is kept, but is in no table
    reselected       "COMMIT: reason" if the epoch was selected again from the curves of a superseded line, because
                     other epochs may be selected now; without what only the earlier epoch has, such as macro F1
    versions         of the packages, and the device that trained
    commit

Two lines belong to the same run if their settings are equal. How it was computed (dtype, execution, device) and
whether labels were corrected do not count. All lines of a run are used: tables average them.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from metalabelnet.atomic_write import write_atomically
from metalabelnet.data import ReadOptions
from metalabelnet.errors import InputError
from metalabelnet.input_files.json_text import parse_json
from metalabelnet.input_files.regular_files import open_regular_file
from metalabelnet.methods import METHODS
from metalabelnet.reproduction import field
from metalabelnet.reproduction.tuning_data import tuning_data
from metalabelnet.train.check_run import MAX_EPOCHS
from metalabelnet.train.json_files import has_type
from metalabelnet.train.settings import Run, make_run, make_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from metalabelnet.reproduction.experiment import RunSpec
    from metalabelnet.train.run_folder import RunFolder

ResultLine = dict[str, Any]
Fields = dict[str, Any]  # the type of the value of each key

# Fields of a run that are not part of its identity.
MACHINE_FIELDS = ("data_dir", "device")
# Not used: the data are benchmarks.
READ_FIELDS = ("data_format", *(f.name for f in dataclasses.fields(ReadOptions) if f.name != "split"))
# How a run was computed; `settings` and `recipe` are in method_settings.
EXECUTION_FIELDS = ("dtype", "execution", "kernels", "snapshots", "settings", "recipe")

SUMMARY_KEYS = (  # the part of summary.json that the settings do not contain
    "noise_rate",
    "epochs",
    "selected_epoch",
    "clean_accuracy",
    "test_accuracy",
    "test_accuracy_last",
    "test_top5_accuracy",
    "second_test_accuracy",
    "second_test_top5_accuracy",
    "macro_f1",
    "ece",
    "label_accuracy",
    "samples",
    "unlabeled",
    "suspects",
    "seconds",
)

# What tables, figures and runtime estimates read from a line, with its JSON types.
_REQUIRED: Fields = {"date": str, "settings": dict[str, Any], "summary": dict[str, Any] | None}
_REQUIRED |= {"versions": dict[str, Any], "commit": str | None}
_OPTIONAL: Fields = {"method_settings": dict[str, Any], "curves": dict[str, Any], "losses": dict[str, Any]}
_OPTIONAL |= {"concurrent": int, **dict.fromkeys(("failure", "tuned_on", "superseded", "reselected"), str)}
_SETTINGS: Fields = {"data": str, "method": str, "noise": str, "net": str, "seed": int, "batch_size": int}
_SETTINGS |= dict.fromkeys(("epochs", "warmup"), int)
_SUMMARY: Fields = {"seconds": float} | dict.fromkeys(("test_accuracy", "test_accuracy_last"), float | None)
_OPTIONAL_SUMMARY: Fields = {"samples": dict[str, int]}
_CURVES: Fields = {"test_accuracy": list[float]}
_LABEL_CHANGE: Fields = {"from": int, "mean": list[float], "std": list[float]}
_LOSSES: Fields = dict.fromkeys(("tau", "train_before", "meta", "train_after"), list[float])
_LOSSES |= dict.fromkeys(("meta_at_theta", "meta_at_theta_hat", "meta_at_new_theta_hat", "new_theta_hat_at"), float)


def parse_lines(file: Path, content: bytes, *, skip: int) -> Iterator[ResultLine]:
    """Yield the result lines in the content of a file after the first `skip` lines.

    Raises
    ------
    InputError
        If a line is not a result.
    """
    for number, text in enumerate(content.splitlines()[skip:], skip + 1):
        if not text.strip():
            continue
        try:
            line = parse_json(text)
        except ValueError:
            line = None
        if not (isinstance(line, dict) and _is_result(line)):
            raise InputError(f"{file}, line {number}: not a result of a run; remove the line")
        yield line


def _is_result(line: ResultLine) -> bool:
    line = {name: value for name, value in line.items() if value is not None or name in _REQUIRED}
    return (
        _has(line, _REQUIRED, _OPTIONAL)
        and line.get("concurrent", 1) > 0
        and _has(line["settings"], _SETTINGS, {"settings": dict[str, Any]})
        and max(line["settings"]["epochs"], line["settings"]["warmup"]) <= MAX_EPOCHS
        and (line["summary"] is None or _has(line["summary"], _SUMMARY, _OPTIONAL_SUMMARY))
        and ("curves" not in line or _are_curves(line["curves"], line["settings"]))
        and ("losses" not in line or _are_losses(line["losses"]))
    )


def _are_curves(curves: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether the curves reach the end of warm-up and the changes of the soft labels, if any, are complete."""
    change = curves.get("label_change")
    complete = change is None or (
        isinstance(change, dict) and _has(change, _LABEL_CHANGE) and 0 <= change["from"] <= MAX_EPOCHS
    )
    return complete and _has(curves, _CURVES) and len(curves["test_accuracy"]) >= settings["warmup"]


def _are_losses(losses: Mapping[str, Any]) -> bool:
    """Whether the losses along a step have one value for each position."""
    curves = ("tau", "train_before", "meta", "train_after")
    return _has(losses, _LOSSES) and len({len(losses[name]) for name in curves}) == 1


def _has(mapping: Mapping[str, Any], required: Fields, optional: Fields | None = None) -> bool:
    """Whether the values have these types, and those that are numbers are finite."""
    types = {name: kind for name, kind in (optional or {}).items() if name in mapping} | required
    return all(
        name in mapping
        and has_type(mapping[name], kind)
        and (not isinstance(mapping[name], float) or math.isfinite(mapping[name]))
        for name, kind in types.items()
    )


def stored_settings(spec: RunSpec, **execution: Any) -> dict[str, Any]:
    """The settings of a run as they are stored, without paths of this machine."""
    run = make_run(**{**spec.fields, **execution, "noise": "none"})
    settings = {
        name: value for name, value in dataclasses.asdict(run).items() if name not in (*MACHINE_FIELDS, *READ_FIELDS)
    }
    source = "probe" if spec.fields["data"] == "digits" else "authors"
    probs = source if spec.needs_noise_probs else spec.fields.get("noise_probs")
    return settings | {"noise": spec.fields["noise"], "noise_probs": probs}


def run_key(settings: Mapping[str, Any], method_settings: Mapping[str, Any] | None = None, kind: str = "run") -> str:
    """The identity of a run as JSON text. Fields missing from the settings have their default."""
    method = settings["method"]
    if method not in METHODS:
        raise InputError(f"the results contain the unknown method {method!r}; known: {', '.join(METHODS)}")
    own = dataclasses.asdict(make_settings(method, settings.get("settings", {}))) | dict(method_settings or {})
    defaults = {f.name: f.default for f in dataclasses.fields(Run) if f.default is not dataclasses.MISSING}
    ignored: tuple[str, ...] = (*MACHINE_FIELDS, *EXECUTION_FIELDS)
    if not METHODS[method].traits.reads_given:
        ignored = (*ignored, "noise", "noise_probs")
    run = {name: value for name, value in (defaults | dict(settings)).items() if name not in ignored}
    return json.dumps({"kind": kind, "run": run, "method": own}, sort_keys=True)


_spec_keys: dict[str, str] = {}  # by the fields of a spec: the tables of a page look up the same runs many times


def spec_key(spec: RunSpec) -> str:
    """The identity of the run of a spec."""
    fields = repr((spec.kind, sorted(spec.fields.items())))
    if fields not in _spec_keys:
        _spec_keys[fields] = run_key(stored_settings(spec), kind=spec.kind)
    return _spec_keys[fields]


def _line_key(line: ResultLine) -> str:
    return run_key(line["settings"], line.get("method_settings"), line.get("kind", "run"))


class Results:
    """The result lines of a folder.

    Parameters
    ----------
    folder : Path
        Folder with .jsonl files; it may not exist yet.
    dtype : str, optional
        Only lines computed with this dtype are found by `find`.
    """

    def __init__(self, folder: Path, dtype: str | None = None) -> None:
        self.folder, self.dtype = folder, dtype
        self.lines: list[ResultLine] = []
        self._by_key: dict[str, list[ResultLine]] = {}
        self._lines_read: dict[Path, int] = {}  # by file
        for file in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
            self._read_new_lines(file)

    def _read_new_lines(self, file: Path) -> bytes:
        """Read lines that this or another process has added to a file; returns the content of the file."""
        content = b""
        if os.path.lexists(file):
            with open_regular_file(file) as opened:
                content = opened.read()
        for line in parse_lines(file, content, skip=self._lines_read.get(file, 0)):
            self._index(line)
        self._lines_read[file] = len(content.splitlines())
        return content

    def _index(self, line: ResultLine) -> None:
        self.lines.append(line)
        if not line.get("superseded") and (self.dtype is None or line["settings"].get("dtype") == self.dtype):
            self._by_key.setdefault(_line_key(line), []).append(line)

    def find_all(self, spec: RunSpec) -> list[ResultLine]:
        """The lines of a run; none if the spec needs curves and no line has them."""
        lines = self._by_key.get(spec_key(spec), [])
        if spec.curves and not any(line.get("curves") is not None or line.get("failure") for line in lines):
            return []
        return lines

    def find(self, spec: RunSpec) -> ResultLine | None:
        """The first line of a run, with curves where the spec needs them, or None."""
        lines = self.find_all(spec)
        with_curves = [line for line in lines if line.get("curves") is not None or line.get("failure")]
        return next(iter(with_curves if spec.curves else lines), None)

    def find_superseded(self, specs: Iterable[RunSpec]) -> list[ResultLine]:
        """The superseded lines with the method, data, noise and seed of one of the specs."""
        lines = [line for line in self.lines if line.get("superseded")]
        methods = {line["settings"]["method"] for line in lines}
        wanted = {_subject(stored_settings(spec)) for spec in specs if spec.fields["method"] in methods}
        return [line for line in lines if _subject(line["settings"]) in wanted]

    def add(self, line: ResultLine) -> None:
        """Append a line to the file of its data set unless it is there already. The file is replaced atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{_file_name(line)}.jsonl"
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
        line = json.loads(text)  # as it will be read
        with _locked(self.folder):
            before = self._read_new_lines(file)
            if any(_is_same_run(line, other) for other in self._by_key.get(_line_key(line), ())):
                return
            if before and not before.endswith(b"\n"):
                before += b"\n"
            write_atomically(file, before + text.encode() + b"\n")
            self._lines_read[file] += 1
        self._index(line)


def _is_same_run(one: ResultLine, other: ResultLine) -> bool:
    """Whether two lines with the same settings come from one run folder, and not from a repeated run."""
    return all(one.get(name) == other.get(name) for name in ("summary", "failure", "losses", "curves"))


def _subject(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("data", "method", "protocol", "clean", "unlabeled", "seed")
    noise = ("noise", "noise_probs") if METHODS[settings["method"]].traits.reads_given else ()
    return tuple(settings.get(name) for name in (*names, *noise))


def make_result_line(
    spec: RunSpec,
    *,
    metadata: Mapping[str, Any],
    summary: Mapping[str, Any] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    failure: str | None = None,
    **more: Any,
) -> ResultLine:
    """Build the line of a run that finished or failed; `metadata` is the content of its run.json."""
    stored = {"kernels": "auto"} | dict(metadata["run"])  # older runs have no `kernels`
    execution = {name: stored[name] for name in ("dtype", "execution", "kernels", "snapshots")}
    line: ResultLine = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "settings": stored_settings(spec, **execution),
        "method_settings": metadata["method_settings"],
        "summary": None if summary is None else {k: _round_float(summary[k], 4) for k in SUMMARY_KEYS if k in summary},
    }
    if spec.kind != "run":
        line["kind"] = spec.kind
    if failure is not None:
        line["failure"] = failure
    if history:
        line["curves"] = compact_curves(history)
    line |= {**more, "tuned_on": tuning_data(spec.fields["method"], line["settings"]["recipe"])}
    executed = metadata.get("executed", {})  # a run that failed early has none
    versions = metadata["versions"] | {name: executed[name] for name in ("device",) if name in executed}
    return line | {"versions": versions, "commit": metadata["commit"]}


def result_line_from_folder(spec: RunSpec, files: RunFolder, **more: Any) -> ResultLine:
    """Build the line of a finished run folder."""
    return make_result_line(spec, metadata=files.metadata(), summary=files.summary(), history=files.metrics(), **more)


def compact_curves(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The curves of a run: accuracies to two decimals, clean loss and label change to three significant digits."""
    compact: dict[str, Any] = {
        name: [_round_float(m[name], 2) for m in history] for name in ("test_accuracy", "clean_accuracy")
    }
    compact["clean_loss"] = [_three_digits(m["clean_loss"]) for m in history]
    changed = [(m["epoch"], m["label_change"], m["label_change_std"]) for m in history if "label_change" in m]
    if changed:
        epochs, means, stds = zip(*changed, strict=True)
        compact["label_change"] = {
            "from": epochs[0],
            "mean": [_three_digits(x) for x in means],
            "std": [_three_digits(x) for x in stds],
        }
    return compact


def _round_float(value: Any, decimals: int) -> Any:
    return round(value, decimals) if isinstance(value, float) else value


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def _file_name(line: ResultLine) -> str:
    if line.get("kind", "run") != "run":
        return f"fig-{line['kind']}"
    if line["settings"]["net"] == field.NET:
        return "field"
    if line["settings"]["protocol"] == "default":  # runs compared with the paper use the protocol "paper"
        return "beyond"
    return "cifar10n" if line["settings"]["noise"].startswith("cifar10n:") else str(line["settings"]["data"])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder: two processes that read and rewrite a file at once would lose a line."""
    try:
        import fcntl
    except ImportError:  # not POSIX
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
