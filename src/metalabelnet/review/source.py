"""The samples to review with their labels and predictions: from a finished run, or from data alone.

PyTorch takes longer to import than the labels of 100,000 samples to export; see `array_samples` for data that needs it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metalabelnet.data.files.list_data import ListedData, ReadOptions, is_folder_or_table, list_data
from metalabelnet.data.files.listing import class_names
from metalabelnet.data.unlabeled import UNLABELED
from metalabelnet.errors import InputError
from metalabelnet.review.array_samples import ArraySamples, load_samples, read_npz_without_splits
from metalabelnet.review.informativeness import DEFAULT_MEASURE
from metalabelnet.review.run_label_table import RunLabels, RunLabelTable
from metalabelnet.review.sample_display import SampleDisplay
from metalabelnet.run_options import DATASET_DEFAULTS, PATH_KINDS, RunOptions
from metalabelnet.seeds import stream_seed
from metalabelnet.train.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from metalabelnet.data import ProgressCallback
    from metalabelnet.data.files.clean_set import CleanSample


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    """A row of the table `samples` (see `store`)."""

    n: int
    position: int
    id: str
    split: str
    given: int = UNLABELED
    label: int = UNLABELED
    confidence: float = 0.0
    suspect: int = 0
    suspicion: float = -1.0
    informativeness: float = 0.0
    clean_label: int = UNLABELED
    probabilities: str = "[]"

    def as_row(self) -> dict[str, Any]:
        """The columns of the row by name."""
        return {**self.__dict__, "stratum": self.label if self.label >= 0 else self.given}


@dataclass(frozen=True, kw_only=True)
class ReviewSource:
    """The training samples of the data by position, and the run that was trained on them, if any.

    Attributes
    ----------
    data : str
        Path or name of the data.
    run : Path or None
        Run folder.
    classes : tuple of str
        Names of the classes.
    display : SampleDisplay
        Images, texts or cells of the samples.
    ids, given : sequence
        Id and given label of each sample.
    splits : mapping of int to str
        Split of the positions that are not training samples.
    clean_labels : mapping of int to int
        Labels of the positions in the clean set of the run.
    review_arguments : tuple of str
        Arguments of `metalabelnet review` for this source.
    train_arguments : tuple of str
        Arguments of `metalabelnet train` for this data, as in the run or as given.
    marked_clean : frozenset of int
        Positions marked as clean in the data itself.
    annotations : sequence of (int, str, str)
        Position, annotator and label of the annotations of the run's data; label "": abstained.
    ids_are_row_numbers : bool
        Whether samples have no ids other than their row numbers.
    notes : tuple of str
        Messages for the user.
    run_labels : RunLabels or None
        Labels of the run.
    """

    data: str
    run: Path | None
    classes: tuple[str, ...]
    display: SampleDisplay
    ids: Sequence[str]
    given: Sequence[int]
    splits: Mapping[int, str]
    clean_labels: Mapping[int, int]
    review_arguments: tuple[str, ...]
    train_arguments: tuple[str, ...]
    marked_clean: frozenset[int] = frozenset()
    annotations: Sequence[tuple[int, str, str]] = ()
    ids_are_row_numbers: bool = False
    notes: tuple[str, ...] = ()
    run_labels: RunLabels | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def database(self) -> Path:
        """The default path of the verdicts: in the run folder, or next to the data."""
        if self.run is not None:
            return self.run / "review.sqlite"
        path = Path(os.path.abspath(self.data))  # noqa: PTH100  # `.` has no name
        return path.parent / f"{path.name}.review.sqlite"

    def digest(self, count: int) -> str:
        """A hash of the first samples."""
        return self.display.digest(count)

    @cached_property
    def fingerprint(self) -> str:
        """A hash that changes when the samples must be imported again; with their content if ids are row numbers."""
        digest = hashlib.sha256(json.dumps([DEFAULT_MEASURE, self.classes]).encode())
        digest.update("".join([f"{n}\0{label}\0" for n, label in zip(self.ids, self.given, strict=True)]).encode())
        if self.ids_are_row_numbers:
            digest.update(self.digest(len(self)).encode())
        if self.run is not None and (self.run / "labels.csv").is_file():
            status = (self.run / "labels.csv").stat()
            digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
        return digest.hexdigest()

    def sample_numbers(self) -> list[int]:
        """The number that identifies each sample in the database: a hash of its id and how often the id came before."""
        numbers, seen = [], Counter[str]()
        for name in self.ids:
            numbers.append(stream_seed(0, "sample", name, seen[name]))
            seen[name] += 1
        return numbers

    def positions_of(self, numbers: Collection[int], likely_ids: Collection[str]) -> dict[int, int]:
        """The position of each numbered sample that is in the data.

        Samples with likely ids are hashed first, and all samples only if some numbers are not among them.
        """
        positions, seen = dict[int, int](), Counter[str]()
        for position, name in enumerate(self.ids):
            if name in likely_ids:
                positions[stream_seed(0, "sample", name, seen[name])] = position
                seen[name] += 1
        if not all(n in positions for n in numbers):
            positions = {n: position for position, n in enumerate(self.sample_numbers())}
        return {n: positions[n] for n in numbers if n in positions}

    def samples(self) -> Iterator[SampleRow]:
        """Yield all samples, with predictions for those the run was trained on."""
        numbers = self.sample_numbers()
        for position, columns in () if self.run is None else _label_table(self):
            yield SampleRow(n=numbers[position], position=position, id=self.ids[position], **columns)
        is_trained = bytes(len(self)) if self.run_labels is None else self.run_labels.is_trained
        for position in (position for position, done in enumerate(is_trained) if not done):
            yield SampleRow(
                n=numbers[position],
                position=position,
                id=self.ids[position],
                split=self.splits.get(position, "train" if self.run is None else "left out"),
                given=self.given[position],
                clean_label=self.clean_labels.get(position, UNLABELED),
            )


_MOVABLE = {"data": "data", "clean": "clean set"}


def open_source(
    path: str,
    read_options: ReadOptions,
    *,
    data: str | None = None,
    clean: str | None = None,
    on_samples: ProgressCallback | None = None,
    labels_only: bool = False,
) -> ReviewSource:
    """Open a run folder, a data set by name, or data at a path.

    Parameters
    ----------
    path : str
        Run folder, name of a data set, or path of data.
    read_options : ReadOptions
        How to read data without a run.
    data, clean : str, optional
        New paths of the data and the clean set of a run, if they were moved.
    on_samples : callable, optional
        Called with (what, samples done, samples in all; 0: unknown) while samples are listed.
    labels_only : bool
        Whether the source is for the export of labels alone: `splits` may be empty.

    Raises
    ------
    InputError
        If the run is not finished, or the data cannot be read or is not that of the run.
    """
    moved = {name: new_path for name, new_path in (("data", data), ("clean", clean)) if new_path is not None}
    unused = " ".join(_read_arguments(read_options)[::2])
    if (Path(path) / "run.json").is_file():
        if unused:
            raise InputError(
                f"{unused} is for data, but {path} is a run, which reads its data as in training: leave it out"
            )
        return _from_run(Path(path), moved, on_samples, labels_only=labels_only)
    for name in moved:
        raise InputError(
            f"--{name} gives the new path of the {_MOVABLE[name]} of a run, but {path} is not a run: leave it out"
        )
    if len(Path(path).parts) > 1 and not Path(path).exists():
        raise InputError(f"{path}: no such file, folder or run; give a run folder, {PATH_KINDS}")
    if _is_folder_or_table(path):
        return _from_files(path, read_options, None, None, on_samples)
    if unused and (path in DATASET_DEFAULTS or Path(path).exists()):
        raise InputError(f"{unused} is for a folder or a table, and {path} is neither: leave it out")
    samples = read_npz_without_splits(path, None) if labels_only else None
    return _from_arrays(samples or load_samples(path, None), path, None, None)


def _is_folder_or_table(data: str) -> bool:
    return data not in DATASET_DEFAULTS and is_folder_or_table(Path(data))


def _from_run(
    folder: Path, moved: Mapping[str, str], on_samples: ProgressCallback | None, *, labels_only: bool
) -> ReviewSource:
    files = RunFolder(folder)
    files.summary()  # raises an error if the run is not finished
    if files.has("labels.csv"):
        files.open("labels.csv").close()  # raises an error if the file has changed
    changes = {"clean_file" if name == "clean" else name: new_path for name, new_path in moved.items()}
    run = files.options(**changes)
    if run.data_format == "memory" and "data" not in moved:
        raise InputError(f"{folder} was trained on data in memory, which cannot be shown: train on a file instead")
    if run.data not in DATASET_DEFAULTS and "data" not in moved and not Path(run.data).exists():
        raise InputError(f"{run.data}, the data of {folder}, does not exist: pass its new path with --data PATH")
    if run.clean_file is not None and not Path(run.clean_file).exists():
        raise InputError(
            f"{run.clean_file}, the clean set of {folder}, does not exist: pass its new path with --clean PATH"
        )
    if _is_folder_or_table(run.data) if "data" in moved else run.data_format in ("folder", "table"):
        source = _from_files(run.data, ReadOptions.of_run(run), folder, run, on_samples)
    else:
        samples = read_npz_without_splits(run.data, run, files.drawn_clean_labels()) if labels_only else None
        source = _from_arrays(samples or load_samples(run.data, files.run(**changes)), run.data, folder, run)
    arguments = (str(folder), *(word for name, new_path in moved.items() for word in (f"--{name}", new_path)))
    run_labels = _label_table(source).read_labels()
    notes = (*source.notes, *run_labels.notes)
    return dataclasses.replace(source, review_arguments=arguments, run_labels=run_labels, notes=notes)


def _label_table(source: ReviewSource) -> RunLabelTable:
    """The label table of the run of a source."""
    assert source.run is not None
    file = source.run / "labels.csv"
    return RunLabelTable(
        file=file,
        data=source.data,
        ids=source.ids,
        classes=source.classes,
        ids_are_row_numbers=source.ids_are_row_numbers,
    )


def _from_files(
    path: str,
    read_options: ReadOptions,
    folder: Path | None,
    run: RunOptions | None,
    on_samples: ProgressCallback | None,
) -> ReviewSource:
    listed = list_data(Path(path), read_options, on_samples)
    rows = listed.rows
    if folder is None:
        classes = class_names(rows, [one.label for one in listed.clean], None)
    else:  # classes without samples in the data are kept
        classes = tuple(RunFolder(folder).metadata()["classes"])
    number = {name: k for k, name in enumerate(classes)}
    clean = [one for one in listed.clean if one.label in number]
    unknown_class = [one for one in listed.clean if one.label not in number]
    in_data = {one.position: number[one.label] for one in clean if one.position is not None}
    ids_are_row_numbers = rows.kind != "image" and listed.columns.id is None
    display = SampleDisplay(kind=rows.kind, items=rows.items, columns=listed.columns.samples)
    return ReviewSource(
        data=path,
        run=folder,
        classes=classes,
        display=display,
        ids=rows.ids,
        given=[number.get(label, UNLABELED) for label in rows.labels],
        splits=dict.fromkeys(in_data, "clean"),
        clean_labels=in_data,
        review_arguments=(path, *_read_arguments(read_options)),
        train_arguments=(*_read_arguments(read_options), *_run_arguments(run)),
        marked_clean=frozenset(k for k, is_clean in enumerate(rows.is_clean) if is_clean)
        - {one.position for one in unknown_class},
        annotations=() if rows.annotations is None else rows.annotations.entries(),
        ids_are_row_numbers=ids_are_row_numbers,
        notes=(
            *_clean_set_notes(path, listed, len(clean) - len(in_data), unknown_class),
            *_duplicate_id_notes(rows.ids),
        ),
    )


def _clean_set_notes(
    path: str, listed: ListedData, outside: int, unknown_class: Sequence[CleanSample]
) -> tuple[str, ...]:
    """Messages about clean samples that are not listed; raises InputError if most of them are missing."""
    missing = listed.missing_ids
    if len(missing) > len(listed.clean):
        raise InputError(
            f"the clean set has the sample {missing[0]!r}, which is not in {path}; pass --data PATH or --clean PATH"
        )
    notes = (
        [f"{outside} clean samples of the run are not in {path} and not exported: add them to the clean set"]
        if outside
        else []
    )
    if missing:
        notes.append(
            f"{len(missing)} clean samples of the run are no longer in {path}, such as {missing[0]!r}: left out"
        )
    if unknown_class:
        example = unknown_class[0].label
        notes.append(
            f"{len(unknown_class)} clean samples have a class that the run does not have, such as {example!r}: left out"
        )
    return tuple(notes)


def _duplicate_id_notes(ids: Sequence[str]) -> tuple[str, ...]:
    """A warning about duplicate ids: a clean set with such ids cannot be used for training."""
    repeated = len(ids) - len(set(ids))
    note = f"{repeated} samples have a duplicate id, and train --clean rejects a clean set with ambiguous ids: "
    return (f"{note}choose a column with unique ids (--id) before you start",) if repeated else ()


def _from_arrays(samples: ArraySamples, name: str, folder: Path | None, run: RunOptions | None) -> ReviewSource:
    separate = samples.separate_clean
    return ReviewSource(
        data=name,
        run=folder,
        classes=samples.classes,
        display=samples.display,
        ids=samples.ids,
        given=samples.given,
        splits=samples.splits,
        clean_labels=samples.clean_labels,
        review_arguments=(name,),
        train_arguments=_run_arguments(run),
        annotations=samples.annotations,
        ids_are_row_numbers=tuple(samples.ids) == tuple(map(str, range(len(samples.ids)))),
        notes=(f"{separate} clean samples that {name} contains separately are not listed: training uses them anyway",)
        if separate
        else (),
    )


def _read_arguments(read_options: ReadOptions) -> tuple[str, ...]:
    """The read options as command line arguments, without the clean set."""
    names = (
        *("image", "text", "features", "label", "id", "clean_column", "true_label", "annotations", "test"),
        *("image_size", "encoder"),
    )
    values = [(name.replace("_", "-"), getattr(read_options, name)) for name in names]
    return tuple(word for name, value in values if value is not None for word in (f"--{name}", str(value)))


def _run_arguments(run: RunOptions | None) -> tuple[str, ...]:
    """The settings of a run that determine its rows and noise, as command line arguments, if not the default."""
    names = ("data_dir", "noise", "noise_probs", "limit", "unlabeled", "seed")
    defaults = {f.name: f.default for f in dataclasses.fields(RunOptions)}
    values = [] if run is None else [(name.replace("_", "-"), getattr(run, name), defaults[name]) for name in names]
    return tuple(word for name, value, default in values if value != default for word in (f"--{name}", str(value)))
