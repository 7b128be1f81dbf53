"""What samples there are, before any of them is read: a folder with a subfolder per class, or the rows of a table."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metalabelnet.data.encoders import images, tables
from metalabelnet.data.files import table_file
from metalabelnet.data.rows import NO_LABEL
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_LABEL_FOLDER = "_unlabeled"
PARTS = {"train", "training", "val", "valid", "validation", "test"}  # folders that many data sets come in
WHOLE = re.compile(r"[+-]?\d+(\.0+)?")
LABEL_NAMES = ("label", "labels", "class", "target", "y", "category", "noisy_label", "given")
ID_NAMES = ("id", "index")
SAVED_INDEX = "__index_level_0__"
TRUE_LABEL_NAMES = ("true", "truth", "true_label")
LOOKED_AT = 200  # rows, to guess what a column holds
WORDS = 3  # in half of the cells or more: a column of texts
CLEARLY = 8  # words in half of the cells: texts, even beside columns of a table, and no names or addresses


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns of a table hold what. `samples` are those a sample is made of."""

    kind: str = "image"
    samples: tuple[str, ...] = ()
    label: str | None = None
    id: str | None = None
    clean_column: str | None = None
    true_label: str | None = None
    left_out: tuple[str, ...] = ()  # columns nobody asked for that are no part of a sample

    def said(self) -> str:
        """In words."""
        many = f"{len(self.samples)} feature{'s' if len(self.samples) > 1 else ''}"
        held = f"{self.kind} in {self.samples[0]!r}" if self.kind != "table" else many
        more = [
            f"{what} in {name!r}" for what in ("label", "id", "true_label") if (name := getattr(self, what)) is not None
        ]
        out = [f"left out: {some(self.left_out)}"] if self.left_out else []
        return "; ".join([", ".join([held, *more]), *out])


@dataclass(kw_only=True)
class Listing:
    """Samples with what is known of them: paths or cells, names, labels ("" where there is none)."""

    source: Path
    kind: str
    items: list[Any] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    clean_column: list[bool] = field(default_factory=list)
    true_label: list[str] = field(default_factory=list)

    def add(self, item: Any, name: str, label: str = "", *, clean_column: bool = False, true_label: str = "") -> None:
        """One more."""
        self.items.append(item)
        self.ids.append(name)
        self.labels.append("" if label in NO_LABEL else label)
        self.clean_column.append(clean_column)
        self.true_label.append("" if true_label in NO_LABEL else true_label)


def from_folder(path: Path) -> Listing:
    """Images in a folder: the first subfolder on the way to one is its class, `_unlabeled` stands for none."""
    listing = Listing(source=path, kind="image")
    for file in image_files(path):
        inside = file.relative_to(path)
        if len(inside.parts) == 1:
            raise InputError(
                f"{file} lies beside the folders of the classes; put it into one, or into {path / NO_LABEL_FOLDER}"
            )
        label = "" if inside.parts[0] == NO_LABEL_FOLDER else normal(inside.parts[0])
        listing.add(file, inside.as_posix(), label)
    names = sorted({*listing.labels})
    if {*names} <= PARTS and all(name.count("/") > 1 for name in listing.ids) and listing.items:
        raise InputError(
            f"{path}: {', '.join(names)} look like parts of the data, not like classes; give the one to train on as "
            "data, and the one to measure on with --test"
        )
    if not listing.items:
        raise InputError(f"{path}: has no images (*{', *'.join(images.SUFFIXES)}) in a subfolder per class")
    return listing


def image_files(folder: Path) -> list[Path]:
    """All images below a folder, in an order that does not depend on the file system; hidden ones left out."""
    found = [file for file in _files(folder) if images.is_image(file)]
    for name in (file.relative_to(folder).as_posix() for file in found):
        if name.encode(errors="ignore").decode() != name:  # bytes that stand for no character
            raise InputError(f"{folder}: the name {name!r} is not UTF-8, and no table can hold it; rename the file")
    return found


def other_files(folder: Path) -> Counter[str]:
    """How many files below a folder have a name that is not an image's, by its ending; hidden ones left out."""
    return Counter(file.suffix.lower() or "without an ending" for file in _files(folder) if not images.is_image(file))


def _files(folder: Path) -> list[Path]:
    """All files below a folder, links to folders followed, none of which leads back to where it is."""
    found = []
    above: dict[Path, tuple[Path, ...]] = {folder: (folder.resolve(),)}
    for place, folders, files in os.walk(folder, followlinks=True):
        way = above.pop(Path(place))
        real = {name: Path(place, name).resolve() for name in folders if not name.startswith(".")}
        folders[:] = [name for name, there in real.items() if there not in way]
        above |= {Path(place, name): (*way, real[name]) for name in folders}
        found += [Path(place, name) for name in files if not name.startswith(".")]
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix())


def from_sheet(path: Path, found: Columns, train: Listing | None = None) -> Listing:
    """The rows of a table; `train` has the classes that they are of, where they are not the training rows."""
    listing = Listing(source=path, kind=found.kind)
    named = [found.label, found.id, found.clean_column, found.true_label]
    wanted = [*found.samples, *(name for name in named if name is not None)]
    width = len(found.samples)
    for number, cells in enumerate(table_file.rows(path, wanted)):
        values = dict(zip(wanted[width:], cells[width:], strict=True))
        item = path.parent / cells[0] if found.kind == "image" else cells[:width]
        own = cells[0] if found.kind == "image" else str(number)
        listing.add(
            item,
            values[found.id] if found.id is not None else own,
            normal(values[found.label]) if found.label is not None else "",
            clean_column=found.clean_column is not None
            and truthy(values[found.clean_column], number, found.clean_column, path),
            true_label=normal(values[found.true_label]) if found.true_label is not None else "",
        )
    if not listing.items:
        raise InputError(f"{path}: has no rows below its first line")
    if train is None or not any(WHOLE.fullmatch(name) and "." in name for name in {*train.labels, *train.true_label}):
        listing.labels, listing.true_label = _whole(listing.labels, listing.true_label)
    return listing


def _whole(*parts: list[str]) -> list[list[str]]:
    """Class numbers that became decimal fractions, 1.0 and -1.0, as numbers again: pandas makes them so beside gaps."""
    if not all(WHOLE.fullmatch(name) for part in parts for name in part if name):
        return list(parts)
    numbers = [[name.partition(".")[0] for name in part] for part in parts]
    return [["" if name in NO_LABEL else name for name in part] for part in numbers]


def find_columns(path: Path, asked: Columns, features: Sequence[str] | None, *, needs_label: bool = True) -> Columns:
    """Which columns hold what: as asked, and guessed where nothing was asked and it is clear."""
    names = table_file.header(path)
    named = (asked.label, asked.id, asked.clean_column, asked.true_label, *asked.samples, *(features or ()))
    table_file.find([name for name in named if name is not None], names, path)
    of_samples = {*asked.samples, *(features or ())}
    others = [name for name in names if name not in of_samples]  # y may be a coordinate, if somebody says so
    label = asked.label if asked.label is not None else _named(others, LABEL_NAMES)
    if label is None and needs_label:
        raise InputError(f"{path}: which column is the label? name one of {', '.join(names)} with --label")
    found = dataclasses.replace(
        asked,
        label=label,
        id=asked.id if asked.id is not None else id_column(others),
        true_label=asked.true_label if asked.true_label is not None else _named(others, TRUE_LABEL_NAMES),
    )
    taken = {found.label, found.id, found.clean_column, found.true_label}
    for what in ("label", "true_label", "clean_column"):
        if (name := getattr(found, what)) is not None and name in of_samples:
            raise InputError(
                f"{path}: the column {name!r} is that of --{what} and no part of a sample too; leave it out of the "
                f"sample, or name another column with --{what}"
            )
    if asked.samples:
        return found
    if features is not None:
        return dataclasses.replace(found, kind="table", samples=tuple(features))
    free = [name for name in names if name not in taken]
    cells = list(itertools.islice(table_file.rows(path, free), LOOKED_AT)) if free else []
    if free and not cells:
        raise InputError(f"{path}: has no rows below its first line")
    by_name = dict(zip(free, zip(*cells, strict=True), strict=True)) if cells else {}
    return dataclasses.replace(found, **_guess_samples(by_name, path))


def without(found: Columns, rows: Listing, places: Sequence[int]) -> tuple[Columns, Listing]:
    """The same table without some of the columns of its samples."""
    kept = [k for k in range(len(found.samples)) if k not in places]
    if not kept:
        raise InputError(f"{rows.source}: no column is left for a sample; name them with --features")
    rows.items = [[row[k] for k in kept] for row in rows.items]
    out = (*found.left_out, *(found.samples[k] for k in places))
    return dataclasses.replace(found, samples=tuple(found.samples[k] for k in kept), left_out=out), rows


def truthy(cell: str, row: int, name: str, path: Path) -> bool:
    """Whether a row is one to trust."""
    text = cell.lower()
    if text in ("1", "1.0", "true", "t", "yes", "y", "x"):
        return True
    if text in ("0", "0.0", "false", "f", "no", "n") or tables.is_missing(text):
        return False
    raise InputError(f"{path}: row {row} has {cell!r} in the column {name!r}; give 1 or 0, true or false, yes or no")


def normal(name: str) -> str:
    """One spelling of a name: file systems differ in how they write an umlaut."""
    return unicodedata.normalize("NFC", name)


def id_column(names: Sequence[str]) -> str | None:
    """The column that names the samples. One without a name, the first, holds row numbers somebody saved along.

    In a Parquet file of pandas those stand in the last column, under a name of its own.
    """
    saved_along = "" if names[:1] == [""] else SAVED_INDEX if SAVED_INDEX in names else None
    return _named(names, ID_NAMES) or saved_along


def some(names: Sequence[str], most: int = 5) -> str:
    """A few of these names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name or "''" for name in names[:most]) + more


def _named(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """The first of the wanted names that is there, in whatever case."""
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in wanted if name in lower), None)


def _guess_samples(cells: dict[str, tuple[str, ...]], path: Path) -> dict[str, Any]:
    paths = [name for name, values in cells.items() if _share(values, lambda v: images.is_image(Path(v))) > 0.9]
    texts = [name for name, values in cells.items() if _share(values, lambda v: len(v.split()) >= WORDS) >= 0.5]
    names = [name for name, values in cells.items() if tables.is_name(values)]
    useful = [name for name in cells if name not in (*names, *texts) and not all(map(tables.is_missing, cells[name]))]
    if useful:
        texts = [name for name in texts if name in names]  # a few different ones are a category
    for kind, candidates in (("image", paths), ("text", texts)):
        if len(candidates) > 1:
            raise InputError(
                f"{path}: which column is the {kind}: {', '.join(candidates)}? name it with --{kind}, or the columns "
                "of a table with --features"
            )
        if candidates:
            (found,) = candidates
            if kind == "text" and useful and _share(cells[found], lambda v: len(v.split()) >= CLEARLY) < 0.5:
                raise InputError(
                    f"{path}: is a sample the text in {found!r} or a row of the other columns? say so with "
                    f"--text {found}, or with --features {','.join(useful)}"
                )
            return {"kind": kind, "samples": (found,), "left_out": tuple(name for name in cells if name != found)}
    used = tuple(name for name in cells if name not in names)
    if not used:
        raise InputError(
            f"{path}: no column is left for a sample ({some(names)}: a different text in most rows); name columns "
            "with --image, --text or --features"
        )
    return {"kind": "table", "samples": used, "left_out": tuple(names)}


def _share(values: Sequence[str], test: Any) -> float:
    said = [value for value in values if value]
    return sum(map(test, said)) / len(said) if said else 0.0
