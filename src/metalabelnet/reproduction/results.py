"""What was run: one line a run in results/*.jsonl, small enough to commit.

    date      when it ended
    settings  every field of the run but those of the machine; the authors' noise file is "authors"
    method_settings  the method's own settings, complete
    summary   accuracies at the selected and the last epoch, the epoch, seconds, …; null where it failed
    failure   why it has no result, where it has none
    curves    test accuracy by epoch; mean and spread of the change of the soft labels (may be missing)
    losses    for `fig-losses` alone: the three losses along a step
    together  how many runs shared the device with it, itself included, where they were several
    versions, commit

Two lines are of one run when their settings are; how it was computed (dtype, engine, device), and whether labels
were corrected along the way, does not count.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from metalabelnet.data import ReadOptions
from metalabelnet.errors import InputError
from metalabelnet.methods import METHODS
from metalabelnet.reproduction.result_lines import Line, read_lines
from metalabelnet.train.checkpoint import write_atomically
from metalabelnet.train.settings import Run, make_settings, recipe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from metalabelnet.reproduction.recipes import Entry
    from metalabelnet.train.run_folder import RunFolder

MACHINE = ("data_dir", "device")
OWN = tuple(
    field.name for field in dataclasses.fields(ReadOptions)
)  # how a person's own data is read: not in these runs
HOW = (
    "dtype",
    "execution",
    "snapshots",
    "settings",
    "preset",
)  # `settings` is in method_settings, and a preset is its values
SUMMARY = (  # what the settings do not say
    "noise_rate",
    "epochs",
    "selected_epoch",
    "clean_accuracy",
    "test_accuracy",
    "test_accuracy_last",
    "macro_f1",
    "ece",
    "label_accuracy",
    "samples",
    "unlabeled",
    "suspects",
    "seconds",
)


def settings_of(entry: Entry, **how: Any) -> dict[str, Any]:
    """The settings of an entry's run as they are written down, with no path of this machine in them."""
    run = recipe(**{**entry.fields, **how, "noise": "none"})
    settings = {name: value for name, value in dataclasses.asdict(run).items() if name not in (*MACHINE, *OWN)}
    source = "probe" if entry.fields["data"] == "digits" else "authors"
    probs = source if entry.needs_probs else entry.fields.get("noise_probs")
    return settings | {"noise": entry.fields["noise"], "noise_probs": probs}


def key_of(settings: Mapping[str, Any], method_settings: Mapping[str, Any] | None = None, kind: str = "run") -> str:
    """What makes two runs the same run. What a line does not name has its default."""
    method = settings["method"]
    if method not in METHODS:
        raise InputError(f"a result is of the unknown method {method!r}")
    own = dataclasses.asdict(make_settings(method, settings.get("settings", {}))) | dict(method_settings or {})
    defaults = {f.name: f.default for f in dataclasses.fields(Run) if f.default is not dataclasses.MISSING}
    no_part = (*MACHINE, *HOW) if METHODS[method].reads_given else (*MACHINE, *HOW, "noise", "noise_probs")
    what = {name: value for name, value in (defaults | dict(settings)).items() if name not in no_part}
    return json.dumps({"kind": kind, "run": what, "method": own}, sort_keys=True)


def key(entry: Entry) -> str:
    """The key of an entry's run."""
    return key_of(settings_of(entry), kind=entry.kind)


def _key(line: Line) -> str:
    return key_of(line["settings"], line.get("method_settings"), line.get("kind", "run"))


class Results:
    """The lines of a folder."""

    def __init__(self, folder: Path, dtype: str | None = None) -> None:
        self.folder, self.dtype = folder, dtype
        self.lines: list[Line] = []
        self._by_key: dict[str, Line] = {}
        self._known: dict[Path, int] = {}  # lines of each file
        for file in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
            self._catch_up(file)

    def _catch_up(self, file: Path) -> bytes:
        """Take what another process has added; gives what the file holds."""
        content = file.read_bytes() if file.exists() else b""
        for line in read_lines(file, content, after=self._known.get(file, 0)):
            self._take(line)
        self._known[file] = len(content.splitlines())
        return content

    def _take(self, line: Line) -> None:
        self.lines.append(line)
        if self._of_dtype(line) and self._counts(line):
            self._by_key[_key(line)] = line

    def _of_dtype(self, line: Line) -> bool:
        return self.dtype is None or line["settings"].get("dtype") == self.dtype

    def _counts(self, line: Line) -> bool:
        """The first counts, but for one that has the epochs where the first has not."""
        before = self._by_key.get(_key(line))
        return before is None or (before.get("curves") is None and line.get("curves") is not None)

    def of(self, entry: Entry) -> Line | None:
        """The line of an entry's run, if it is there and has what the entry needs."""
        line = self._by_key.get(key(entry))
        if line is None or (entry.curves and line.get("curves") is None and not line.get("failure")):
            return None
        return line

    def add(self, line: Line) -> None:
        """Append a line to the file of its data set, unless another process has; the file is at any time whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{_file_name(line)}.jsonl"
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
        with _locked(self.folder):
            before = self._catch_up(file)
            if self._of_dtype(line) and not self._counts(line):
                return
            if before and not before.endswith(b"\n"):
                before += b"\n"
            write_atomically(file, before + text.encode() + b"\n")
            self._known[file] += 1
        self._take(json.loads(text))  # as it will be read


def make_line(
    entry: Entry,
    *,
    about: Mapping[str, Any],
    summary: Mapping[str, Any] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    failure: str | None = None,
    **more: Any,
) -> Line:
    """The line of a run that has come to its end, good or bad; `about` is what its run.json says."""
    how = {name: about["run"][name] for name in ("dtype", "execution", "snapshots")}
    line: Line = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "settings": settings_of(entry, **how),
        "method_settings": about["method_settings"],
        "summary": None if summary is None else {k: _rounded(summary[k], 4) for k in SUMMARY if k in summary},
    }
    if entry.kind != "run":
        line["kind"] = entry.kind
    if failure is not None:
        line["failure"] = failure
    if history:
        line["curves"] = curves(history)
    return line | more | {"versions": about["versions"], "commit": about["commit"]}


def line_of_folder(entry: Entry, files: RunFolder, **more: Any) -> Line:
    """The line of a finished run folder."""
    return make_line(entry, about=files.about(), summary=files.summary(), history=files.metrics(), **more)


def curves(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The epochs in little room: accuracy to two decimals, the change of the soft labels to three digits."""
    compact: dict[str, Any] = {"test_accuracy": [_rounded(m["test_accuracy"], 2) for m in history]}
    changed = [(m["epoch"], m["label_change"], m["label_change_std"]) for m in history if "label_change" in m]
    if changed:
        epochs, means, stds = zip(*changed, strict=True)
        compact["label_change"] = {
            "from": epochs[0],
            "mean": [_digits(x) for x in means],
            "std": [_digits(x) for x in stds],
        }
    return compact


def _rounded(value: Any, decimals: int) -> Any:
    return round(value, decimals) if isinstance(value, float) else value


def _digits(value: float) -> float:
    return float(f"{value:.3g}")


def _file_name(line: Line) -> str:
    if line.get("kind", "run") != "run":
        return f"fig-{line['kind']}"
    if line["settings"]["protocol"] == "default":  # what stands beside the paper has the paper's
        return "beyond"
    return "cifar10n" if line["settings"]["noise"].startswith("file:cifar10n") else str(line["settings"]["data"])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time: two that read and write the file at once would lose a line."""
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
