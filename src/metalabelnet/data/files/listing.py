"""Lists of samples before any of them is read: images in one subfolder per class, or the rows of a table."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metalabelnet.data.cells import is_identifier, is_missing, parse_bool
from metalabelnet.data.files import table_file
from metalabelnet.data.files.embedded_images import is_embedded, sample_id
from metalabelnet.data.unlabeled import UNLABELED_NAMES
from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.input_files.image_files import SUFFIXES, is_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from metalabelnet.data.files.annotation_file import ListedAnnotations

UNLABELED_FOLDER = "_unlabeled"
SPLIT_FOLDERS = {"train", "training", "val", "valid", "validation", "test"}  # folders that are parts, not classes
INTEGER = re.compile(r"[+-]?\d+(\.0+)?")
LABEL_COLUMNS = ("label", "labels", "class", "target", "y", "category", "noisy_label", "given")
ID_COLUMNS = ("id", "index")
PANDAS_INDEX_COLUMN = "__index_level_0__"  # of a data frame's index in a Parquet file
TRUE_LABEL_COLUMNS = ("true", "truth", "true_label")
MAX_ROWS_FOR_GUESS = 200  # rows that are read to guess what a column holds
MIN_IMAGE_SHARE = 0.9  # a column with more image paths than this holds images
MIN_TEXT_WORDS = 3  # in half of the cells or more: a column of texts
MIN_PROSE_WORDS = 8  # in half of the cells: texts, not names or addresses, even beside feature columns
MAX_FOLDERS = 1_000_000  # links to folders are followed, so that a few links can make endlessly many paths
ROWS_PER_PROGRESS_CALL = 1024
MIN_CLASS_LIMIT = 20  # distinct labels that are accepted as classes, however few rows there are


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The roles of table columns.

    Attributes
    ----------
    kind : str
        `image`, `text` or `table`.
    samples : tuple of str
        The columns that a sample is made of.
    label, id, clean_column, true_label : str or None
        The columns of given labels, ids, marks of the clean set, and true labels.
    left_out : tuple of str
        Columns without a role.
    """

    kind: str = "image"
    samples: tuple[str, ...] = ()
    label: str | None = None
    id: str | None = None
    clean_column: str | None = None
    true_label: str | None = None
    left_out: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the roles as text, for messages."""
        features = f"{len(self.samples)} feature{'s' if len(self.samples) > 1 else ''}"
        samples = f"{self.kind} in {self.samples[0]!r}" if self.kind != "table" else features
        others = [
            f"{what} in {name!r}"
            for what, name in (("label", self.label), ("id", self.id), ("true label", self.true_label))
            if name is not None
        ]
        left_out = [f"left out: {shorten_list(self.left_out)}"] if self.left_out else []
        return "; ".join([", ".join([samples, *others]), *left_out])


@dataclass(kw_only=True)
class Listing:
    """Samples that have not been read, one entry of each list per sample.

    Attributes
    ----------
    source : Path
        The folder or table.
    kind : str
        `image`, `text` or `table`.
    items : list
        Image paths, or lists of cells.
    ids : list of str
        Ids.
    labels : list of str
        Given labels; "": unlabeled.
    is_clean : list of bool
        Whether the source marks the sample as clean.
    true_labels : list of str
        True labels; "": unknown.
    annotations : ListedAnnotations or None
        Labels by several annotators.
    """

    source: Path
    kind: str
    items: list[Any] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    is_clean: list[bool] = field(default_factory=list)
    true_labels: list[str] = field(default_factory=list)
    annotations: ListedAnnotations | None = None

    def add(self, item: Any, name: str, label: str = "", *, is_clean: bool = False, true_label: str = "") -> None:
        """Append a sample."""
        self.items.append(item)
        self.ids.append(name)
        self.labels.append("" if label in UNLABELED_NAMES else label)
        self.is_clean.append(is_clean)
        self.true_labels.append("" if true_label in UNLABELED_NAMES else true_label)


def from_folder(path: Path, on_listed: Callable[[int], None] | None = None) -> Listing:
    """List the images in a folder. The first subfolder in an image's path is its class, `_unlabeled` for none."""
    return from_files(path, all_files(path, on_listed))


def from_files(path: Path, files: Sequence[Path]) -> Listing:
    """List the images among the files below a folder, as `from_folder`."""
    listing = Listing(source=path, kind="image")
    for file in _select_images(path, files):
        inside = file.relative_to(path)
        if len(inside.parts) == 1:
            raise InputError(
                f"{file} is outside of the class folders; move it into one, or into {path / UNLABELED_FOLDER}"
            )
        label = "" if inside.parts[0] == UNLABELED_FOLDER else normalize_name(inside.parts[0])
        listing.add(file, inside.as_posix(), label)
    names = sorted({*listing.labels})
    if {*names} <= SPLIT_FOLDERS and all(name.count("/") > 1 for name in listing.ids) and listing.items:
        raise InputError(
            f"{path}: {', '.join(names)} look like parts of a data set, not like classes; give the training part as "
            "data, and the test part with --test"
        )
    if not listing.items:
        if (path / "run.json").is_file():
            raise InputError(f"{path} is a run folder: give the data that it was trained on")
        raise InputError(f"{path}: no images (*{', *'.join(SUFFIXES)}) in subfolders, one per class")
    return listing


def image_files(folder: Path, on_listed: Callable[[int], None] | None = None) -> list[Path]:
    """Return all images below a folder, sorted by path, without hidden files."""
    return _select_images(folder, all_files(folder, on_listed))


def _select_images(folder: Path, files: Sequence[Path]) -> list[Path]:
    files = [file for file in files if is_image(file)]
    for name in (file.relative_to(folder).as_posix() for file in files):
        if name.encode(errors="ignore").decode() != name:  # bytes that are no characters
            raise InputError(
                f"{folder}: the file name {name!r} is not UTF-8 and cannot be written to a table; rename the file"
            )
    return files


def count_other_files(files: Sequence[Path]) -> Counter[str]:
    """Return how many of the files are not images, by suffix."""
    return Counter(file.suffix.lower() or "without a suffix" for file in files if not is_image(file))


def all_files(folder: Path, on_listed: Callable[[int], None] | None = None) -> list[Path]:
    """Return all files below a folder, sorted by path, without hidden files.

    Links to folders are followed, except to a parent folder. `on_listed` is called with the number of files so far.
    """
    files: list[Path] = []
    parents: dict[Path, tuple[Path, ...]] = {folder: (folder.resolve(),)}
    for number, (current, subfolders, names) in enumerate(os.walk(folder, followlinks=True)):
        if number >= MAX_FOLDERS:
            raise InputError(
                f"{folder}: more than {MAX_FOLDERS:,} folders, links included; give a folder that contains the samples"
            )
        if on_listed is not None:
            on_listed(len(files))
        chain = parents.pop(Path(current))
        resolved = {name: Path(current, name).resolve() for name in subfolders if not name.startswith(".")}
        subfolders[:] = [name for name, target in resolved.items() if target not in chain]
        parents |= {Path(current, name): (*chain, resolved[name]) for name in subfolders}
        files += [Path(current, name) for name in names if not name.startswith(".")]
    if on_listed is not None:
        on_listed(len(files))
    return sorted(files, key=lambda file: file.relative_to(folder).as_posix())


def from_table(
    path: Path, columns: Columns, train: Listing | None = None, on_listed: Callable[[int], None] | None = None
) -> Listing:
    """List the rows of a table. `train` is the training data, if these are other rows: labels follow its spelling."""
    listing = Listing(source=path, kind=columns.kind)
    others = [columns.label, columns.id, columns.clean_column, columns.true_label]
    wanted = [*columns.samples, *(name for name in others if name is not None)]
    width, mark, is_image_path = len(columns.samples), columns.clean_column, columns.kind == "image"
    label, name, true_label = (
        (None if x is None else wanted.index(x, width)) for x in (columns.label, columns.id, columns.true_label)
    )
    for number, cells in enumerate(table_file.iterate_rows(path, wanted)):
        if on_listed is not None and number % ROWS_PER_PROGRESS_CALL == 0:
            on_listed(number)
        default_id = sample_id(cells[0], number) if is_image_path else str(number)
        listing.add(
            path.parent / cells[0] if is_image_path else cells[:width],
            cells[name] if name is not None else default_id,
            normalize_name(cells[label]) if label is not None else "",
            is_clean=mark is not None and parse_bool(cells[wanted.index(mark, width)], number, mark, path),
            true_label=normalize_name(cells[true_label]) if true_label is not None else "",
        )
    if not listing.items:
        raise InputError(f"{path}: there are no rows below the first line")
    if on_listed is not None:
        on_listed(len(listing.items))
    train_labels = {*train.labels, *train.true_labels} if train is not None else set()
    if not any(INTEGER.fullmatch(name) and "." in name for name in train_labels):
        listing.labels, listing.true_labels = _to_integers(listing.labels, listing.true_labels)
    return listing


def _to_integers(*lists: list[str]) -> list[list[str]]:
    """Undo the conversion of class numbers to floats (1.0, -1.0), which pandas does in columns with missing values."""
    if not all(INTEGER.fullmatch(name) for labels in lists for name in labels if name):
        return list(lists)
    numbers = [[name.partition(".")[0] for name in labels] for labels in lists]
    return [["" if name in UNLABELED_NAMES else name for name in labels] for labels in numbers]


def class_names(train: Listing, clean_labels: Sequence[str], test: Listing | None) -> tuple[str, ...]:
    """Return the class names: those of the training labels, in numerical, then alphabetical order."""
    annotated = train.annotations.labels if train.annotations is not None else ()
    known = {*train.labels, *train.true_labels, *annotated} - {""}
    for what, labels in (("clean", clean_labels), ("test", test.labels if test else ())):
        for name in labels:
            if name not in known:
                raise unknown_class_error(name, known, what)
    missing = sorted(name for name in known - {*clean_labels} if clean_labels and is_missing(name))
    if missing:
        raise InputError(
            f"{train.source}: the label of {train.labels.count(missing[0])} rows is {missing[0]!r}; leave the cell "
            "empty for unlabeled rows, or add a clean sample of that class"
        )
    if len(known) < 2:
        raise InputError(f"{train.source}: there must be at least 2 classes, not {len(known)}")
    labeled = sum(label != "" for label in train.labels)
    if len(known) > max(MIN_CLASS_LIMIT, labeled / 2):
        raise InputError(
            f"{train.source}: {len(known)} different labels in {labeled} rows are too many for classes; "
            "name the column of labels with --label"
        )
    return tuple(sorted(known, key=_class_order))


def _class_order(name: str) -> tuple[bool, float, str]:
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    return (False, number, name) if math.isfinite(number) else (True, 0.0, name)  # NaN cannot be ordered


def unknown_class_error(name: str, known: Iterable[str], what: str) -> InputError:
    """Return the error for a label that is not among the training labels."""
    return InputError(f"{what} labels: {unknown_name_error('class', name, known)}; no training label has this class")


def find_columns(
    path: Path, requested: Columns, features: Sequence[str] | None, *, needs_label: bool = True
) -> Columns:
    """Return the roles of the columns: as requested, and guessed where nothing is requested and it is unambiguous."""
    names = table_file.column_names(path)
    sample_columns = {*requested.samples, *(features or ())}
    columns = (
        *(requested.label, requested.id, requested.clean_column, requested.true_label),
        *requested.samples,
        *(features or ()),
    )
    table_file.column_positions([name for name in columns if name is not None], names, path)
    others = [name for name in names if name not in sample_columns]  # y may be a feature, if it is requested as one
    label = requested.label if requested.label is not None else _first_present(others, LABEL_COLUMNS)
    if label is None and needs_label:
        raise InputError(
            f"{path}: cannot tell which column is the label; choose from {shorten_list(names, 8)} with --label"
        )
    found = dataclasses.replace(
        requested,
        label=label,
        id=requested.id if requested.id is not None else id_column(others),
        true_label=(
            requested.true_label if requested.true_label is not None else _first_present(others, TRUE_LABEL_COLUMNS)
        ),
    )
    for role in ("label", "true_label", "clean_column"):
        if (name := getattr(found, role)) is not None and name in sample_columns:
            option = f"--{role.replace('_', '-')}"
            raise InputError(
                f"{path}: the column {name!r} is that of {option} and cannot be part of a sample; leave it out of the "
                f"sample, or name another column with {option}"
            )
    if requested.samples:
        return found
    if features is not None:
        return dataclasses.replace(found, kind="table", samples=tuple(features))
    taken = {found.label, found.id, found.clean_column, found.true_label}
    free = [name for name in names if name not in taken]
    cells = list(itertools.islice(table_file.iterate_rows(path, free), MAX_ROWS_FOR_GUESS)) if free else []
    if free and not cells:
        raise InputError(f"{path}: there are no rows below the first line")
    by_column = dict(zip(free, zip(*cells, strict=True), strict=True)) if cells else {}
    return dataclasses.replace(found, **_guess_samples(by_column, path))


def drop_columns(columns: Columns, rows: Listing, positions: Sequence[int]) -> tuple[Columns, Listing]:
    """Remove some of the sample columns of a table."""
    dropped = {*positions}
    remaining = [k for k in range(len(columns.samples)) if k not in dropped]
    if not remaining:
        raise InputError(f"{rows.source}: no column is left for a sample; name the feature columns with --features")
    rows.items = [[row[k] for k in remaining] for row in rows.items]
    left_out = (*columns.left_out, *(columns.samples[k] for k in positions))
    samples = tuple(columns.samples[k] for k in remaining)
    return dataclasses.replace(columns, samples=samples, left_out=left_out), rows


def normalize_name(name: str) -> str:
    """Return the name in Unicode form NFC: file systems differ in how they store accents."""
    return unicodedata.normalize("NFC", name)


def id_column(names: Sequence[str]) -> str | None:
    """Return the column of ids. An unnamed first column, or pandas' index in a Parquet file, holds row numbers."""
    saved_index = "" if names[:1] == [""] else PANDAS_INDEX_COLUMN if PANDAS_INDEX_COLUMN in names else None
    return _first_present(names, ID_COLUMNS) or saved_index


def shorten_list(names: Sequence[str], limit: int = 5) -> str:
    """Return the first few names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(name or "''" for name in names[:limit]) + more


def _first_present(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """Return the first wanted name that is among the names, ignoring case."""
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in wanted if name in lower), None)


def _guess_samples(cells: dict[str, tuple[str, ...]], path: Path) -> dict[str, Any]:
    """Return kind, sample columns and left-out columns, guessed from the first cells of each column."""

    def is_path(cell: str) -> bool:
        return is_image(Path(cell))

    def has_words(least: int) -> Callable[[str], bool]:
        return lambda cell: len(cell.split()) >= least

    paths = [name for name, values in cells.items() if _share(values, is_path) > MIN_IMAGE_SHARE]
    embedded = [name for name in paths if any(map(is_embedded, cells[name]))]
    paths = embedded or paths  # beside images in the table, a column of paths says where they came from
    texts = [name for name, values in cells.items() if _share(values, has_words(MIN_TEXT_WORDS)) >= 0.5]
    identifiers = [name for name, values in cells.items() if is_identifier(values)]
    distinct = {*identifiers}
    no_features = {*identifiers, *texts}
    features = [name for name in cells if name not in no_features and not all(map(is_missing, cells[name]))]
    if features:
        texts = [name for name in texts if name in distinct]  # a few distinct texts are a category
    for kind, candidates in (("image", paths), ("text", texts)):
        if len(candidates) > 1:
            raise InputError(
                f"{path}: cannot tell which column is the {kind}: {shorten_list(candidates)}; name it with --{kind}, "
                "or the columns of a table with --features"
            )
        if candidates:
            (found,) = candidates
            if kind == "text" and features and _share(cells[found], has_words(MIN_PROSE_WORDS)) < 0.5:
                raise InputError(
                    f"{path}: cannot tell whether a sample is the text in {found!r} or a row of the other columns; use "
                    f"--text {found}, or --features {','.join(features[:5])}{',…' if len(features) > 5 else ''}"
                )
            return {"kind": kind, "samples": (found,), "left_out": tuple(name for name in cells if name != found)}
    used = tuple(name for name in cells if name not in distinct)
    if not used:
        raise InputError(
            f"{path}: no column is left for a sample ({shorten_list(identifiers)}: a different text in most rows); "
            "name columns with --image, --text or --features"
        )
    return {"kind": "table", "samples": used, "left_out": tuple(identifiers)}


def _share(values: Sequence[str], test: Callable[[str], bool]) -> float:
    """Return the share of the non-empty values that pass the test."""
    present = [value for value in values if value]
    return sum(map(test, present)) / len(present) if present else 0.0
