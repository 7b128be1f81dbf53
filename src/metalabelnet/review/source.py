"""Where samples, their labels and what a run thinks of them come from: a finished run, or data alone."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metalabelnet.data import DATASETS, UNLABELED, load
from metalabelnet.data.own import Reading, is_own, outline
from metalabelnet.data.splits import SPLITS
from metalabelnet.errors import InputError
from metalabelnet.review.contents import Contents, of_rows
from metalabelnet.review.informative import MEASURE, MEASURES
from metalabelnet.seeds import generator, stream_seed
from metalabelnet.train import Run, RunFolder
from metalabelnet.train.settings import IN_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BARS = 6


@dataclass(frozen=True, kw_only=True)
class Sample:
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
class Source:
    """The data's training samples by position, and the run that knows of them, if there is one."""

    data: str
    run: Path | None
    classes: tuple[str, ...]
    contents: Contents
    ids: Sequence[str]
    given: Sequence[int]
    splits: Mapping[int, str]  # of positions that are not trained on
    checked: Mapping[int, int]  # the right label of those that are clean
    named: tuple[str, ...]  # the arguments of `review` that lead here
    options: tuple[str, ...]  # of `train`, as the run had them or as they were given
    fingerprint: str
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def database(self) -> Path:
        """Where verdicts go: into the run folder, or beside the data."""
        if self.run is not None:
            return self.run / "review.sqlite"
        path = Path(self.data)
        return path.parent / f"{path.name}.review.sqlite"

    def samples(self) -> Iterator[Sample]:
        """All samples, with what the run says of those it was trained on."""
        numbers, seen = [], Counter[str]()
        for name in self.ids:
            numbers.append(stream_seed(0, "sample", name, seen[name]))
            seen[name] += 1
        trained = bytearray(len(self.ids))  # a run's table may have a million rows: none is kept
        for position, said in () if self.run is None else self._table(self.run / "labels.csv"):
            trained[position] = 1
            yield Sample(n=numbers[position], position=position, id=self.ids[position], **said)
        for position in (position for position, done in enumerate(trained) if not done):
            yield Sample(
                n=numbers[position],
                position=position,
                id=self.ids[position],
                split=self.splits.get(position, "train" if self.run is None else "left out"),
                given=self.given[position],
                checked=self.checked.get(position, UNLABELED),
            )

    def _table(self, file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows of a label table, by position in the data."""
        number = {name: k for k, name in enumerate(self.classes)} | {"": UNLABELED}
        by_id: dict[str, int] = {}
        with file.open(newline="", encoding="utf-8") as opened:
            reader = csv.reader(opened)
            columns = next(reader, [])
            place = {name: k for k, name in enumerate(columns)}
            if not {"index", "id", "given", "label", "confidence", "suspect", "suspicion"} <= place.keys():
                raise InputError(f"{file} is not a label table of this version; run it again")
            likely = _likely(columns, number)
            for row in reader:
                position, name = int(row[place["index"]]), row[place["id"]]
                if not (position < len(self.ids) and self.ids[position] == name):  # some samples could not be read
                    by_id = by_id or {name: k for k, name in enumerate(self.ids)}
                    position = by_id.get(name, -1)
                if position < 0:
                    raise InputError(f"{file} names {name!r}, which is not in {self.data} any more; give --data PATH")
                p = likely(row)
                suspicion = float(row[place["suspicion"]] or -1)
                yield (
                    position,
                    {
                        "split": "train",
                        "given": number[row[place["given"]]],
                        "label": number[row[place["label"]]],
                        "confidence": float(row[place["confidence"]]),
                        "suspect": int(row[place["suspect"]]),
                        "suspicion": suspicion,
                        "informative": MEASURES[MEASURE]([value for _, value in p], max(0.0, suspicion)),
                        "bars": json.dumps([[c, round(value, 4)] for c, value in p[:BARS]]),
                    },
                )


def _likely(columns: list[str], number: Mapping[str, int]) -> Any:
    """A function that gives the classes of a row with their probabilities, the most likely first."""
    if "class_1" in columns:  # too many classes for a column each
        places = [(columns.index(f"class_{k}"), columns.index(f"p_{k}")) for k in range(1, 6) if f"p_{k}" in columns]
        return lambda row: [(number[row[c]], float(row[p])) for c, p in places]
    by_class = [(c, columns.index(f"p_{name}")) for name, c in number.items() if f"p_{name}" in columns]
    return lambda row: sorted(((c, float(row[k])) for c, k in by_class), key=lambda pair: -pair[1])


def of(path: str, reading: Reading, data: str | None = None) -> Source:
    """The source at a path: a run folder, a data set's name, or the path of data."""
    if (Path(path) / "run.json").is_file():
        return _of_run(Path(path), data)
    if data is not None:
        raise InputError(f"--data says where the data of a run lies, and {path} is not a run: leave it out")
    own = path not in DATASETS and is_own(Path(path))
    return _of_own(path, reading, None, None) if own else _of_numbers(path, None, None)


def _of_run(folder: Path, data: str | None) -> Source:
    files = RunFolder(folder)
    files.summary()  # refuses what is not finished
    run = files.run() if data is None else files.run(data=data)
    if run.data == IN_MEMORY:
        raise InputError(f"{folder} was trained on data in memory: there is nothing to show; write it to a file")
    if run.own_data and not is_own(Path(run.data)):
        raise InputError(f"{run.data} is not where it was when {folder} was trained: give --data PATH")
    found = _of_own(run.data, run.reading(), folder, run) if run.own_data else _of_numbers(run.data, folder, run)
    return dataclasses.replace(found, named=(str(folder), *(() if data is None else ("--data", data))))


def _of_own(path: str, reading: Reading, folder: Path | None, run: Run | None) -> Source:
    found = outline(Path(path), reading)
    rows, classes = found.rows, found.classes
    if folder is not None:
        classes = tuple(RunFolder(folder).about()["classes"])
    number = {name: k for k, name in enumerate(classes)}
    inside = {one.position: number[one.label] for one in found.clean if one.position is not None}
    outside = len(found.clean) - len(inside)
    return Source(
        data=path,
        run=folder,
        classes=classes,
        contents=Contents(kind=rows.kind, items=rows.items, columns=found.columns.samples),
        ids=rows.ids,
        given=[number.get(label, UNLABELED) for label in rows.labels],
        splits=dict.fromkeys(inside, "clean"),
        checked=inside,
        named=(path, *_options(reading)),
        options=(*_options(reading), *_options_of_run(run)),
        fingerprint=_fingerprint(folder, classes, rows.ids, rows.labels),
        notes=(f"{outside} clean samples of the run are not part of {path}: add them yourself",) if outside else (),
    )


def _of_numbers(name: str, folder: Path | None, run: Run | None) -> Source:
    where = Path(run.data_dir) if run is not None and run.data_dir else None
    data = load(name, where, reading=None if run is None else run.reading())
    splits: dict[int, str] = {}
    checked: dict[int, int] = {}
    if run is not None:
        split = SPLITS[run.split](data, run.meta, generator(run.seed, "split"))
        test = {} if data.test is not None else dict.fromkeys(split.test.index.tolist(), "test")
        if data.checked is not None:
            checked = {k: label for k, label in enumerate(data.checked.tolist()) if label >= 0}
        elif data.meta is None and run.split == "general":  # drawn from the training rows
            checked = dict(zip(split.meta.index.tolist(), split.meta.true.tolist(), strict=True))
        splits = dict.fromkeys(checked, "clean") | test
    beside = 0 if data.meta is None else len(data.meta)
    train = data.train
    return Source(
        data=name,
        run=folder,
        classes=data.classes,
        contents=of_rows(train),
        ids=train.ids,
        given=train.given.tolist(),
        splits=splits,
        checked=checked,
        named=(name,),
        options=_options_of_run(run),
        fingerprint=_fingerprint(folder, data.classes, train.ids, train.given.tolist()),
        notes=(f"{beside} clean samples that {name} has of its own are not listed: training takes them in by itself",)
        if beside
        else (),
    )


def _options(reading: Reading) -> tuple[str, ...]:
    """How the data was read, in the words of the command line; the clean set is left for the new one."""
    names = ("image", "text", "features", "label", "id", "trusted", "truth", "test", "image_size", "encoder")
    said = [(name.replace("_", "-"), getattr(reading, name)) for name in names]
    return tuple(word for name, value in said if value is not None for word in (f"--{name}", str(value)))


def _options_of_run(run: Run | None) -> tuple[str, ...]:
    """What else decides which rows there are and how their labels are wrong, where it is not as usual."""
    names = ("data_dir", "noise", "noise_probs", "limit", "unlabeled", "seed")
    usual = {f.name: f.default for f in dataclasses.fields(Run)}
    said = [] if run is None else [(name.replace("_", "-"), getattr(run, name), usual[name]) for name in names]
    return tuple(word for name, value, default in said if value != default for word in (f"--{name}", str(value)))


def _fingerprint(folder: Path | None, classes: Sequence[str], ids: Sequence[str], labels: Sequence[Any]) -> str:
    """Changes whenever samples must be read in again."""
    digest = hashlib.sha256(json.dumps([MEASURE, classes]).encode())
    for name, label in zip(ids, labels, strict=True):
        digest.update(f"{name}\0{label}\0".encode())
    if folder is not None:
        about = (folder / "labels.csv").stat()
        digest.update(f"{about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()
