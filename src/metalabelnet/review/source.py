"""Where samples, their labels and what a run thinks of them come from: a finished run, or data alone."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metalabelnet.data import DATASETS, UNLABELED, load
from metalabelnet.data.files.listing import class_names
from metalabelnet.data.files.reader import ListedData, ReadOptions, is_folder_or_table, list_data
from metalabelnet.data.splits import SPLITS
from metalabelnet.errors import InputError
from metalabelnet.review.informativeness import DEFAULT_MEASURE
from metalabelnet.review.run_label_table import RunLabelTable
from metalabelnet.review.sample_display import SampleDisplay, display_rows
from metalabelnet.seeds import generator, stream_seed
from metalabelnet.train import Run, RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from metalabelnet.data.files.clean_set import CleanSample


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    """A line of the table of samples (see `store`)."""

    n: int
    position: int
    id: str
    split: str
    given: int = UNLABELED
    label: int = UNLABELED
    confidence: float = 0.0
    suspect: int = 0
    suspicion: float = -1.0
    informative: float = 0.0
    checked: int = UNLABELED
    bars: str = "[]"

    def as_row(self) -> dict[str, Any]:
        """For the database."""
        return {**self.__dict__, "stratum": self.label if self.label >= 0 else self.given}


@dataclass(frozen=True, kw_only=True)
class ReviewSource:
    """The data's training samples by position, and the run that knows of them, if there is one."""

    data: str
    run: Path | None
    classes: tuple[str, ...]
    contents: SampleDisplay
    ids: Sequence[str]
    given: Sequence[int]
    splits: Mapping[int, str]  # of positions that are not trained on
    checked: Mapping[int, int]  # the right label of those that are clean
    named: tuple[str, ...]  # the arguments of `review` that lead here
    options: tuple[str, ...]  # of `train`, as the run had them or as they were given
    fingerprint: str
    marked_clean: frozenset[int] = frozenset()  # positions that the data itself marks as clean, whatever a file says of them
    ids_are_row_numbers: bool = False  # ids are the numbers of rows that have no other name
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def database(self) -> Path:
        """Where verdicts go: into the run folder, or beside the data."""
        if self.run is not None:
            return self.run / "review.sqlite"
        path = Path(os.path.abspath(self.data))  # noqa: PTH100  # `.` has no name of its own
        return path.parent / f"{path.name}.review.sqlite"

    def digest(self, count: int) -> str:
        """What stands for the first samples, and is another one when they are others."""
        return self.contents.digest(count)

    def samples(self) -> Iterator[SampleRow]:
        """All samples, with what the run says of those it was trained on."""
        numbers, seen = [], Counter[str]()
        for name in self.ids:
            numbers.append(stream_seed(0, "sample", name, seen[name]))
            seen[name] += 1
        trained = bytearray(len(self.ids))  # a run's table may have a million rows: none is kept
        for position, said in () if self.run is None else _table(self):
            trained[position] = 1
            yield SampleRow(n=numbers[position], position=position, id=self.ids[position], **said)
        for position in (position for position, done in enumerate(trained) if not done):
            yield SampleRow(
                n=numbers[position],
                position=position,
                id=self.ids[position],
                split=self.splits.get(position, "train" if self.run is None else "left out"),
                given=self.given[position],
                checked=self.checked.get(position, UNLABELED),
            )


_MOVED = {"data": "data", "clean": "clean set"}


def of(path: str, read_options: ReadOptions, *, data: str | None = None, clean: str | None = None) -> ReviewSource:
    """The source at a path: a run folder, a data set's name, or the path of data."""
    moved = {name: place for name, place in (("data", data), ("clean", clean)) if place is not None}
    if (Path(path) / "run.json").is_file():
        return _of_run(Path(path), moved)
    for name in moved:
        raise InputError(f"--{name} says where the {_MOVED[name]} of a run lies, and {path} is not a run: leave it out")
    own = path not in DATASETS and is_folder_or_table(Path(path))
    return _of_own(path, read_options, None, None) if own else _of_numbers(path, None, None)


def _of_run(folder: Path, moved: Mapping[str, str]) -> ReviewSource:
    files = RunFolder(folder)
    files.summary()  # refuses what is not finished
    run = files.run(**{"clean_file" if name == "clean" else name: place for name, place in moved.items()})
    if run.data_format == "memory":
        raise InputError(f"{folder} was trained on data in memory: there is nothing to show; write it to a file")
    if run.data not in DATASETS and "data" not in moved and not Path(run.data).exists():
        raise InputError(f"{run.data} is not where it was when {folder} was trained: give --data PATH")
    if run.clean_file is not None and not Path(run.clean_file).exists():
        raise InputError(f"{run.clean_file} is not where it was when {folder} was trained: give --clean PATH")
    found = _of_own(run.data, run.read_options(), folder, run) if run.is_folder_or_table else _of_numbers(run.data, folder, run)
    named = (str(folder), *(word for name, place in moved.items() for word in (f"--{name}", place)))
    return dataclasses.replace(found, named=named, notes=(*found.notes, *_table(found).notes()))


def _table(source: ReviewSource) -> RunLabelTable:
    """What the run says of the samples it was trained on."""
    assert source.run is not None
    file = source.run / "labels.csv"
    return RunLabelTable(file=file, data=source.data, ids=source.ids, classes=source.classes, ids_are_row_numbers=source.ids_are_row_numbers)


def _of_own(path: str, read_options: ReadOptions, folder: Path | None, run: Run | None) -> ReviewSource:
    found = list_data(Path(path), read_options)
    rows = found.rows
    if folder is None:
        classes = class_names(rows, [one.label for one in found.clean], None)
    else:  # a class that has gone from the data stays one
        classes = tuple(RunFolder(folder).metadata()["classes"])
    number = {name: k for k, name in enumerate(classes)}
    clean = [one for one in found.clean if one.label in number]
    strange = [one for one in found.clean if one.label not in number]
    inside = {one.position: number[one.label] for one in clean if one.position is not None}
    ids_are_row_numbers = rows.kind != "image" and found.columns.id is None
    contents = SampleDisplay(kind=rows.kind, items=rows.items, columns=found.columns.samples)
    return ReviewSource(
        data=path,
        run=folder,
        classes=classes,
        contents=contents,
        ids=rows.ids,
        given=[number.get(label, UNLABELED) for label in rows.labels],
        splits=dict.fromkeys(inside, "clean"),
        checked=inside,
        named=(path, *_options(read_options)),
        options=(*_options(read_options), *_options_of_run(run)),
        fingerprint=_fingerprint(folder, classes, rows.ids, rows.labels, contents if ids_are_row_numbers else None),
        marked_clean=frozenset(k for k, is_clean in enumerate(rows.is_clean) if is_clean)
        - {one.position for one in strange},
        ids_are_row_numbers=ids_are_row_numbers,
        notes=(*_clean_notes(path, found, len(clean) - len(inside), strange), *_twice(rows.ids)),
    )


def _clean_notes(path: str, found: ListedData, outside: int, strange: Sequence[CleanSample]) -> tuple[str, ...]:
    """What is not listed of the run's clean set; where most of it has gone, it is that of other data."""
    gone = found.missing_ids
    if len(gone) > len(found.clean):
        raise InputError(f"the clean set names {gone[0]!r}, which is not in {path}; give --data or --clean PATH")
    notes = [f"{outside} clean samples of the run are not part of {path}: add them yourself"] if outside else []
    if gone:
        notes.append(f"{len(gone)} clean samples of the run are not in {path} any more, as {gone[0]!r}: left out")
    if strange:
        notes.append(
            f"{len(strange)} clean samples have a class that the run does not know, as {strange[0].label!r}: left out"
        )
    return tuple(notes)


def _twice(ids: Sequence[str]) -> tuple[str, ...]:
    """A word of warning, before hours are spent on what cannot be trained with."""
    repeated = len(ids) - len(set(ids))
    told = f"{repeated} samples have the id of another: their clean set cannot say which it means, and train --clean"
    return (f"{told} refuses it; name a column of ids with --id before you begin",) if repeated else ()


def _of_numbers(name: str, folder: Path | None, run: Run | None) -> ReviewSource:
    where = Path(run.data_dir) if run is not None and run.data_dir else None
    data = load(name, where, read_options=None if run is None else run.read_options())
    splits: dict[int, str] = {}
    checked: dict[int, int] = {}
    if run is not None:
        split = SPLITS[run.split](data, run.clean_size, generator(run.seed, "split"))
        test = {} if data.test is not None else dict.fromkeys(split.test.index.tolist(), "test")
        if data.clean_labels is not None:
            checked = {k: label for k, label in enumerate(data.clean_labels.tolist()) if label >= 0}
        elif data.clean is None and run.split == "general":  # drawn from the training rows
            checked = dict(zip(split.clean.index.tolist(), split.clean.true.tolist(), strict=True))
        splits = dict.fromkeys(checked, "clean") | test
    beside = 0 if data.clean is None else len(data.clean)
    train, contents = data.train, display_rows(data.train)
    return ReviewSource(
        data=name,
        run=folder,
        classes=data.classes,
        contents=contents,
        ids=train.ids,
        given=train.given.tolist(),
        splits=splits,
        checked=checked,
        named=(name,),
        options=_options_of_run(run),
        fingerprint=_fingerprint(folder, data.classes, train.ids, train.given.tolist(), contents),
        ids_are_row_numbers=True,
        notes=(f"{beside} clean samples that {name} has of its own are not listed: training takes them in by itself",)
        if beside
        else (),
    )


def _options(read_options: ReadOptions) -> tuple[str, ...]:
    """How the data was read, in the words of the command line; the clean set is left for the new one."""
    names = ("image", "text", "features", "label", "id", "clean_column", "true_label", "test", "image_size", "encoder")
    said = [(name.replace("_", "-"), getattr(read_options, name)) for name in names]
    return tuple(word for name, value in said if value is not None for word in (f"--{name}", str(value)))


def _options_of_run(run: Run | None) -> tuple[str, ...]:
    """What else decides which rows there are and how their labels are wrong, where it is not as usual."""
    names = ("data_dir", "noise", "noise_probs", "limit", "unlabeled", "seed")
    usual = {f.name: f.default for f in dataclasses.fields(Run)}
    said = [] if run is None else [(name.replace("_", "-"), getattr(run, name), usual[name]) for name in names]
    return tuple(word for name, value, default in said if value != default for word in (f"--{name}", str(value)))


def _fingerprint(
    folder: Path | None, classes: Sequence[str], ids: Sequence[str], labels: Sequence[Any], rows: SampleDisplay | None
) -> str:
    """Changes whenever samples must be read in again; with the rows themselves, where only numbers are their names."""
    digest = hashlib.sha256(json.dumps([DEFAULT_MEASURE, classes]).encode())
    for name, label in zip(ids, labels, strict=True):
        digest.update(f"{name}\0{label}\0".encode())
    if rows is not None:
        digest.update(rows.digest(len(ids)).encode())
    if folder is not None and (folder / "labels.csv").is_file():
        about = (folder / "labels.csv").stat()
        digest.update(f"{about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()
