"""What a run folder holds, read once: also one that an earlier version wrote."""

from __future__ import annotations

import csv
import heapq
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metalabelnet.data.files.table_file import LONGEST_CELL
from metalabelnet.errors import InputError
from metalabelnet.methods import METHODS
from metalabelnet.train import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TOP = 30  # samples to look at
Pairs = Counter[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A sample whose given label is doubtful. `true` is empty where the truth is unknown."""

    index: int
    id: str
    given: str
    label: str
    confidence: float
    suspicion: float
    true: str


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Epochs that belong together, the last one included."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """What the folder of a finished run says.

    settings   of the run, as run.json has them
    noise      (corrected, given) → how many samples
    confusion  (true, predicted) → how many samples of `part`; None where the run did not write it
    suspects   the most suspicious first
    """

    name: str
    path: Path
    about: dict[str, Any]
    settings: dict[str, Any]
    inputs: dict[str, Any] | None
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    classes: tuple[str, ...]
    noise: Pairs
    confusion: Pairs | None
    part: str
    suspects: tuple[Suspect, ...]

    def phases(self) -> list[Phase]:
        """The stages of the training: as the method names them, else by which epochs could be selected."""
        names = [_phase(line, self.settings) for line in self.metrics]
        found: list[Phase] = []
        for line, name in zip(self.metrics, names, strict=True):
            epoch = int(line["epoch"])
            if found and found[-1].name == name:
                found[-1] = Phase(name=name, first=found[-1].first, last=epoch)
            else:
                found.append(Phase(name=name, first=epoch, last=epoch))
        return found if len(found) > 1 else []


def read(folder: Path) -> FinishedRun:
    """All that the report needs of a run; refuses what is not a finished one."""
    files = RunFolder(folder)
    summary, about = files.summary(), files.about()
    classes = tuple(map(str, about["classes"]))
    noise, suspects = _labels(folder / "labels.csv", classes)
    confusion, part = _confusion(folder / "confusion.json", len(classes))
    return FinishedRun(
        name=folder.resolve().name,
        path=folder,
        about=about,
        settings=about["run"],
        inputs=files.inputs(),
        summary=summary,
        metrics=files.metrics(),
        classes=classes,
        noise=noise,
        confusion=confusion,
        part=part,
        suspects=suspects,
    )


def _phase(line: dict[str, Any], settings: dict[str, Any]) -> str:
    name = line.get("phase", "only")
    if name != "only":
        return str(name)
    candidate = line.get("candidate")
    if candidate is None:  # a run of an earlier version
        method = METHODS.get(settings["method"])
        warmup = int(settings.get("warmup", 0)) if method is not None and method.has_warmup else 0
        return "warm-up" if line["epoch"] < warmup else "after warm-up"
    return "after preparation" if candidate else "preparation"


def _labels(file: Path, classes: Sequence[str]) -> tuple[Pairs, tuple[Suspect, ...]]:
    """Counts of (corrected, given) and the most suspicious rows, in one pass over the table."""
    number = {name: k for k, name in enumerate(classes)}
    pairs: Pairs = Counter()
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            rows = _rows(opened, number, pairs)
            top = heapq.nsmallest(TOP, rows, key=lambda suspect: -suspect.suspicion)
    except FileNotFoundError:
        raise InputError(f"{file} is missing: the run folder is not whole") from None
    except (KeyError, ValueError, IndexError, StopIteration, csv.Error) as error:
        raise InputError(f"{file} is not the label table of this run: {error!r}") from error
    return pairs, tuple(top)


def _rows(opened: Any, number: dict[str, int], pairs: Pairs) -> Iterator[Suspect]:
    csv.field_size_limit(LONGEST_CELL)
    reader = csv.reader(opened)
    header = next(reader, [])
    place = {name: k for k, name in enumerate(header)}
    index, name, given, label, confidence = (place[key] for key in ("index", "id", "given", "label", "confidence"))
    doubt, true_label = place.get("suspicion"), place.get("true")
    for row in reader:
        if not row[given]:
            continue
        pairs[number[row[label]], number[row[given]]] += 1
        if doubt is not None:
            suspicion = float(row[doubt])
        else:  # an earlier version: what the table says of the given label, if it does
            p = place.get(f"p_{row[given]}")
            differs = float(row[confidence]) if row[given] != row[label] else 0.0
            suspicion = differs if p is None else 1 - float(row[p])
        yield Suspect(
            index=int(row[index]),
            id=row[name],
            given=row[given],
            label=row[label],
            confidence=float(row[confidence]),
            suspicion=suspicion,
            true=row[true_label] if true_label is not None else "",
        )


def _confusion(file: Path, classes: int) -> tuple[Pairs | None, str]:
    if not file.is_file():
        return None, ""
    try:
        about = json.loads(file.read_text())
        pairs: Pairs = Counter({(int(t), int(p)): int(n) for t, p, n in about["counts"]})
        part = {"test": "test samples", "validation": "held-out clean samples"}[about["part"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not what a run of this program writes: {error!r}") from error
    if any(not 0 <= k < classes for pair in pairs for k in pair):
        raise InputError(f"{file} has a class beyond the {classes} of the run")
    return pairs, part
