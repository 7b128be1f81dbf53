"""Reads a finished run folder for a report."""

from __future__ import annotations

import csv
import heapq
import io
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metalabelnet.data.files.table_file import MAX_CELL_CHARACTERS
from metalabelnet.errors import InputError
from metalabelnet.train import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from metalabelnet.data.encoders import Encoder

MAX_SUSPECTS = 30
PairCounts = Counter[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A sample whose given label looks wrong. `true` is empty if the true label is unknown."""

    index: int
    id: str
    given: str
    label: str
    confidence: float
    suspicion: float
    true: str


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A range of epochs, `last` included."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """The content of a finished run folder.

    Attributes
    ----------
    name : str
        Name of the folder.
    path : Path
        The folder.
    metadata : dict
        Content of run.json.
    settings : dict
        Settings of the run: `metadata["run"]`.
    encoder : Encoder or None
        The encoder of the samples; None if they were tensors already.
    summary : dict
        Content of summary.json.
    metrics : list of dict
        Metrics of each epoch.
    classes : tuple of str
        Names of the classes.
    noise : Counter
        Number of samples for each (corrected label, given label).
    confusion : Counter or None
        Number of samples for each (true label, predicted label); None if the run has no confusion.json.
    part : str
        The samples of the confusion matrix: "test samples" or "validation samples".
    suspects : tuple of Suspect
        The suspects, most suspicious first.
    """

    name: str
    path: Path
    metadata: dict[str, Any]
    settings: dict[str, Any]
    encoder: Encoder | None
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    classes: tuple[str, ...]
    noise: PairCounts
    confusion: PairCounts | None
    part: str
    suspects: tuple[Suspect, ...]

    def phases(self) -> list[Phase]:
        """The phases of training, as named by the method, else by whether an epoch could be selected."""
        names = [_phase_name(line) for line in self.metrics]
        phases: list[Phase] = []
        for line, name in zip(self.metrics, names, strict=True):
            epoch = int(line["epoch"])
            if phases and phases[-1].name == name:
                phases[-1] = Phase(name=name, first=phases[-1].first, last=epoch)
            else:
                phases.append(Phase(name=name, first=epoch, last=epoch))
        return phases if len(phases) > 1 else []


def read_run(folder: Path) -> FinishedRun:
    """Read a finished run folder.

    Raises
    ------
    InputError
        If the folder is not a finished run or a file is damaged.
    """
    files = RunFolder(folder)
    summary, metadata = files.summary(), files.metadata()
    classes = tuple(map(str, metadata["classes"]))
    noise, suspects = _read_labels(files, classes)
    confusion, part = _read_confusion(files, len(classes))
    return FinishedRun(
        name=folder.resolve().name,
        path=folder,
        metadata=metadata,
        settings=metadata["run"],
        encoder=files.encoder(),
        summary=summary,
        metrics=files.metrics(),
        classes=classes,
        noise=noise,
        confusion=confusion,
        part=part,
        suspects=suspects,
    )


def _phase_name(line: dict[str, Any]) -> str:
    if line["phase"] != "only":
        return str(line["phase"])
    return "selectable epochs" if line["candidate"] else "epochs before selection"


def _read_labels(files: RunFolder, classes: Sequence[str]) -> tuple[PairCounts, tuple[Suspect, ...]]:
    """Counts of (corrected, given) and the most suspicious rows, in one pass over labels.csv."""
    number = {name: k for k, name in enumerate(classes)}
    pairs: PairCounts = Counter()
    file = files.path / "labels.csv"
    try:
        with io.TextIOWrapper(files.open(file.name), encoding="utf-8", newline="") as opened:
            rows = _iterate_suspects(opened, number, pairs)
            top = heapq.nsmallest(MAX_SUSPECTS, rows, key=lambda suspect: -suspect.suspicion)
    except FileNotFoundError:
        raise InputError(f"{file} is missing: copy the run folder again, or train again") from None
    except InputError:
        raise
    except (KeyError, ValueError, IndexError, StopIteration, csv.Error) as error:
        raise InputError(
            f"{file} is not the label table of this run ({error!r}): copy the run folder again, or train again"
        ) from error
    return pairs, tuple(top)


def _iterate_suspects(opened: Any, number: dict[str, int], pairs: PairCounts) -> Iterator[Suspect]:
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    reader = csv.reader(opened)
    header = next(reader, [])
    column = {name: k for k, name in enumerate(header)}
    index, name, given, label, confidence = (column[key] for key in ("index", "id", "given", "label", "confidence"))
    suspicion, true_label = column["suspicion"], column.get("true")
    for row in reader:
        if not row[given]:
            continue
        pairs[number[row[label]], number[row[given]]] += 1
        yield Suspect(
            index=int(row[index]),
            id=row[name],
            given=row[given],
            label=row[label],
            confidence=float(row[confidence]),
            suspicion=float(row[suspicion]),
            true=row[true_label] if true_label is not None else "",
        )


def _read_confusion(files: RunFolder, classes: int) -> tuple[PairCounts | None, str]:
    file, content = files.path / "confusion.json", files.confusion()
    if content is None:
        return None, ""
    try:
        pairs: PairCounts = Counter({(int(t), int(p)): int(n) for t, p, n in content["counts"]})
        part = {"test": "test samples", "validation": "validation samples"}[content["part"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is damaged ({error!r}): copy the run folder again, or train again") from error
    if any(not 0 <= k < classes for pair in pairs for k in pair):
        raise InputError(
            f"{file} has a class number beyond the {classes} classes of the run: copy the run folder again, or "
            "train again"
        )
    return pairs, part
