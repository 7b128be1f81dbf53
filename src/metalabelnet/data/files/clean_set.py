"""The clean set: a file of ids and labels, a folder, or a column that marks rows."""

from __future__ import annotations

import dataclasses
import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data.files import duplicates, listing, table_file
from metalabelnet.data.rows import UNLABELED
from metalabelnet.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from metalabelnet.data.files.listing import Columns, Listing
    from metalabelnet.data.rows import DataSet

USUAL_IDS = ("id", "path", "file", "filename", "image", "index", "")


@dataclass(frozen=True, kw_only=True)
class Clean:
    """A sample whose label is right: one of the data (its position there), or one beside it."""

    id: str
    label: str
    position: int | None = None
    item: Any = None


def find(data: Listing, found: Columns, file: Path | None, gone: list[str] | None = None) -> list[Clean]:
    """The clean samples that the data marks and the file names; what the file says of a sample counts.

    A sample that the data marks and the file names without a label is not clean.

    gone  is told the ids of samples that are nowhere; without it they are refused
    """
    marked = [k for k, clean_column in enumerate(data.clean_column) if clean_column]
    for k in marked:
        if not data.labels[k]:
            raise InputError(f"{data.source}: {data.ids[k]} is trusted but has no label")
    clean = {k: Clean(id=data.ids[k], label=data.labels[k], position=k) for k in marked}
    if found.clean_column is not None and not marked:
        raise InputError(f"{data.source}: no row is trusted, {found.clean_column!r} is empty or false in all of them")
    if file is None:
        return list(clean.values())
    inside: dict[int, Clean] = {}
    outside: dict[str, Clean] = {}
    for one in _from_folder(file, data) if file.is_dir() else _from_sheet(file, data, found, gone):
        if one.position is None:
            before = outside.setdefault(_place(one, len(outside)), one)
        else:
            before = inside.setdefault(one.position, one)
        if before.label != one.label:
            raise InputError(f"{file}: {one.id} is there twice, as {before.label!r} and as {one.label!r}")
    return [*(one for one in (clean | inside).values() if one.label), *outside.values()]


def _place(one: Clean, number: int) -> str:
    """What tells clean samples beside the data apart: where a file lies. Rows of a table may well be alike."""
    return os.path.abspath(one.item) if isinstance(one.item, Path) else str(number)  # noqa: PTH100


def in_numbers(data: DataSet, file: Path) -> DataSet:
    """Data that is numbers already, with what a file says of its training rows; ids are row numbers from 0."""
    train, notes = data.train, []
    known = {listing.normal(name): k for k, name in enumerate(data.classes)}
    rows = listing.Listing(source=Path(data.name), kind="table", ids=list(train.ids))
    checked = torch.full_like(train.given, UNLABELED)
    for one in find(rows, listing.Columns(kind="table"), file):
        if one.label not in known:
            raise unknown_class(one.label, known, "clean")
        assert one.position is not None  # nothing but row numbers stands in the file
        checked[one.position] = known[one.label]
    clean = checked != UNLABELED
    notes.append(f"{int(clean.sum())} clean samples in {file}")
    held = duplicates.digests(train.x)
    if (alike := duplicates.among(held, duplicates.pick(held, clean)) & ~clean).any():
        notes.append(f"{int(alike.sum())} training samples are identical to clean ones and stay")
    return dataclasses.replace(data, checked=checked, notes=(*data.notes, *notes))


def _from_folder(folder: Path, data: Listing) -> list[Clean]:
    if data.kind != "image":
        raise InputError(f"{folder} is a folder of images, but {data.source} holds {data.kind}s; give a table")
    files = listing.from_folder(folder)
    _check_labels(folder, files)
    here = _places(data)
    return [
        Clean(id=name, label=label, item=item, position=here.get(os.path.abspath(item)))  # noqa: PTH100
        for name, label, item in zip(files.ids, files.labels, files.items, strict=True)
    ]


def _from_sheet(file: Path, data: Listing, found: Columns, gone: list[str] | None) -> list[Clean]:
    if not table_file.is_sheet(file):
        absent = "" if file.exists() else " does not exist"
        raise InputError(
            f"{file}{absent}: a clean set is a number, a folder, or a table {', '.join(table_file.SUFFIXES)}"
        )
    names = table_file.header(file)
    label = _label_column(file, names, found)
    if data.kind == "image" or not found.samples or not set(found.samples) <= set(names):
        name = _id_column(file, names, label, found)
        rows = listing.from_sheet(file, listing.Columns(samples=(name,), label=label), data)
        return _looked_up(file, rows, data, gone)
    has_id = found.id if found.id in names else None  # here the samples themselves stand in the file
    asked = listing.Columns(kind=data.kind, samples=found.samples, label=label, id=has_id)
    rows = listing.from_sheet(file, asked, data)
    _check_labels(file, rows)
    here = _by_id(data, file) if has_id is not None else {}
    return [
        Clean(id=name, label=y, item=item, position=here.get(listing.normal(name)))
        for name, y, item in zip(rows.ids, rows.labels, rows.items, strict=True)
    ]


def _label_column(file: Path, names: list[str], found: Columns) -> str:
    """The column of a clean set's file that says the right label: as in the data, by its name, or beside the ids."""
    if found.label is not None and found.label in names:
        return found.label
    name = listing.find_columns(file, listing.Columns(), [], needs_label=False).label
    beside = [other for other in names if other.lower() not in USUAL_IDS]
    if name is None and len(names) == 2 and len(beside) == 1:
        name = beside[0]
    if name is None:
        raise InputError(f"{file}: which column is the label: {', '.join(names)}? call it {found.label or 'label'}")
    return name


def _id_column(file: Path, names: list[str], label: str, found: Columns) -> str:
    """The column of a clean set's file that says which sample is meant."""
    others = [name for name in names if name != label]
    wanted = [found.id, *found.samples] if found.kind == "image" else [found.id]
    for name in wanted:
        if name is not None and name in others:
            return name
    lower = {name.lower(): name for name in reversed(others)}
    name = next((lower[word] for word in USUAL_IDS if word in lower), None)
    if name is None and len(others) == 1:
        name = others[0]
    if name is None:
        raise InputError(f"{file}: which column says the sample: {', '.join(others)}? call it id")
    return name


def _looked_up(file: Path, rows: Listing, data: Listing, gone: list[str] | None) -> list[Clean]:
    """The samples of the data that the ids mean; for images also files beside the data.

    Of a path other spellings are found too: ./cats/1.jpg, and with backslashes, as Windows writes it. Only a sample
    that the data marks as clean may have no label.
    """
    by_id = _by_id(data, file)
    by_path = _places(data) if data.kind == "image" else {}
    folder = data.source if data.source.is_dir() else data.source.parent
    clean = []
    for name, label in zip(rows.ids, rows.labels, strict=True):
        position, item = by_id.get(listing.normal(name)), None
        if position is None and data.kind == "image":
            spelt = dict.fromkeys((name, name.replace("\\", "/")))
            for path in (place / way for way in spelt for place in (folder, file.parent, Path())):
                position = by_path.get(os.path.abspath(path)) if position is None else position  # noqa: PTH100
                item = path if path.is_file() else item
        if position is not None or item is not None:
            if not label and not (position is not None and data.clean_column and data.clean_column[position]):
                raise InputError(
                    f"{file}: {name} has no label, but a clean sample needs one; only a row that --clean-column marks may "
                    "have none, and is left out then"
                )
            clean.append(Clean(id=name, label=label, position=position, item=item))
        elif gone is None:
            raise InputError(f"{file}: {_no_sample(name, by_id, data.source)}")
        else:
            gone.append(name)
    return clean


def _by_id(data: Listing, file: Path) -> dict[str, int]:
    """The place of each sample by its name, which no other may have."""
    by_id = {listing.normal(name): k for k, name in enumerate(data.ids)}
    if len(by_id) < len(data.ids):
        twice = next(name for k, name in enumerate(data.ids) if by_id[listing.normal(name)] != k)
        raise InputError(
            f"{data.source}: two samples have the id {twice!r}, so that {file} cannot say which it means; name a "
            "column of different ones with --id"
        )
    return by_id


def _no_sample(name: str, known: Iterable[str], source: Path) -> str:
    nearest = difflib.get_close_matches(name, list(known)[:10_000], n=1)
    return f"there is no sample {name!r} in {source}" + (f"; did you mean {nearest[0]!r}?" if nearest else "")


def _places(data: Listing) -> dict[str, int]:
    return {os.path.abspath(item): k for k, item in enumerate(data.items)}  # noqa: PTH100


def _check_labels(file: Path, rows: Listing) -> None:
    if "" in rows.labels:
        raise InputError(f"{file}: {rows.ids[rows.labels.index('')]} has no label, but a clean sample needs one")


def unknown_class(name: str, known: Iterable[str], what: str) -> InputError:
    """A label that the training data does not have."""
    return InputError(f"{what} labels: {unknown('class', name, known)}; the training labels have no such class")
