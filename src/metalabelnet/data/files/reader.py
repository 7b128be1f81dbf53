"""Anybody's data from a folder of images or a table: listed, encoded, and parted into training, clean and test rows."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data.benchmarks.download import Progress, data_folder
from metalabelnet.data.encoders import images, tables
from metalabelnet.data.encoders.encoder import fill
from metalabelnet.data.encoders.kinds import Images, reason
from metalabelnet.data.encoders.tables import Table
from metalabelnet.data.encoders.texts import Texts
from metalabelnet.data.files import clean_set, duplicates, listing, table_file
from metalabelnet.data.files.classes import class_names
from metalabelnet.data.memory_limit import GIB, MIB, room_for_samples
from metalabelnet.data.rows import UNLABELED, DataSet, Rows, make_rows
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from metalabelnet.data.encoders.encoder import Inputs
    from metalabelnet.data.files.clean_set import Clean
    from metalabelnet.data.files.listing import Columns, Listing

ON_ERROR = ("stop", "skip")
LOOKS = 1024  # headers of images between two words on how many there were
TRAIN, CLEAN, TEST, LEFT_OUT = range(4)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How a person's own data is to be read. What is None is found out, and said."""

    image: str | None = None
    text: str | None = None
    features: str | None = None
    label: str | None = None
    id: str | None = None
    clean_column: str | None = None
    true_label: str | None = None
    clean_file: str | None = None
    test: str | None = None
    image_size: int | None = None
    on_error: str = "stop"
    memory_limit: float | None = None
    encoder: str | None = None
    their_net: bool = False  # whether the network is one of timm's or torchvision's, which take larger images
    card: int | None = None  # bytes that are free on the card samples go to; None: they stay with the processor
    runs: int = 1  # runs that hold the samples at the same time
    noise_to_come: bool = False  # whether noise is yet to be added, so that labels of an .npz file may be right


def is_own(path: Path) -> bool:
    """Whether this reader is for it."""
    return path.is_dir() or table_file.is_sheet(path)


def read(path: Path, how: ReadOptions, folder: Path | None = None, tell: Progress | None = None) -> DataSet:
    """The data set in a folder or a table. `tell` hears how many samples are done."""
    notes: list[str] = []
    train, found = _list(path, how, notes)
    try:
        return _read(path, how, folder, tell, notes, train, found)
    except InputError as error:
        if path.is_dir() or (how.label is not None and (how.image or how.text or how.features)):
            raise
        raise InputError(f"{error} (columns as guessed: {found.said()})") from error


def _read(
    path: Path,
    how: ReadOptions,
    folder: Path | None,
    tell: Progress | None,
    notes: list[str],
    train: Listing,
    found: Columns,
) -> DataSet:
    clean = clean_set.find(train, found, None if how.clean_file is None else Path(how.clean_file))
    if not clean and not any(train.true_label):
        columns_too = ", a column that marks checked rows with --clean-column COL, or a column of right labels with --true-label COL"
        raise InputError(
            f"{path}: there is no clean set; name a file of checked labels with --clean FILE"
            f"{'' if path.is_dir() else columns_too}; the page of metalabelnet review {path} helps to build one"
        )
    test = None if how.test is None else _list_test(Path(how.test), how, found, train)
    all_of = _together(train, clean, test)
    learned_from = (all_of.part == TRAIN).nonzero()[:, 0].tolist()
    if not learned_from:
        raise InputError(f"{path}: all rows are clean, which leaves none to train on; mark fewer")
    looking, read_options = (
        None if tell is None else functools.partial(tell, f"{what} {path}") for what in ("looking at", "reading")
    )
    items, names = ([part[k] for k in learned_from] for part in (all_of.items, all_of.ids))
    inputs = _fit(items, names, found, how, notes, looking)
    x, kept, failed = fill(
        inputs,
        all_of.items,
        all_of.ids,
        limit=room_for_samples(how.memory_limit, how.card, how.runs),
        folder=data_folder(folder),
        skip=how.on_error == "skip",
        tell=read_options,
    )
    if failed:
        notes.append(f"{len(failed)} of {len(all_of.items)} samples left out: {listing.some(failed)}")
    if not isinstance(x, torch.Tensor):
        size = f"{x.nbytes / GIB:.1f} GiB" if x.nbytes >= GIB else f"{x.nbytes / MIB:.1f} MiB"
        notes.append(f"{size} of samples are more than memory should hold: read from disk as needed")
    where, ids = torch.tensor(kept, dtype=torch.long), tuple(all_of.ids[k] for k in kept)
    given, true, part = all_of.given[where], all_of.true[where], all_of.part[where]
    rows = make_rows(x, given, true=true, classes=all_of.classes, what=str(path), ids=ids, index=where)
    if clean:
        count, inside = int((part == CLEAN).sum()), int((where[part == CLEAN] < len(train.items)).sum())
        notes.append(f"{count} clean samples" + (f", {inside} of them taken out of training" if inside else ""))
    if out := int((all_of.part == LEFT_OUT).sum()):
        notes.append(f"{out} trusted samples have no label in {how.clean_file}: they are neither clean nor trained on")
    trained = (part == TRAIN).any()
    part = _without_copies(rows, part, notes, table=found.kind == "table")
    if trained and not (part == TRAIN).any():
        raise InputError(f"{path}: every training sample is identical to a clean one, which leaves none to train on")
    return DataSet(
        name=path.stem,
        train=rows.take((part == TRAIN).nonzero()[:, 0]),
        clean=rows.take((part == CLEAN).nonzero()[:, 0]) if clean else None,
        test=rows.take((part == TEST).nonzero()[:, 0]) if test else None,
        inputs=inputs.to_json(),
        cells="" if found.kind == "image" else _digest(all_of.items),
        notes=tuple(notes),
        listed=len(train.items),
    )


def _digest(cells: Sequence[Any]) -> str:
    """A short text that is another one for other cells."""
    found = hashlib.blake2b(digest_size=16)
    for row in cells:
        found.update(json.dumps(row).encode())
    return found.hexdigest()


def _without_copies(rows: Rows, part: Tensor, notes: list[str], *, table: bool) -> Tensor:
    """The part of each row, with copies of clean samples left out of training; copies in the test part are reported.

    Two rows of a table may well be alike and no copies: they stay.
    """
    held = duplicates.digests(rows.x)
    twins = duplicates.among(held, duplicates.pick(held, part == CLEAN)) & (part == TRAIN)
    if twins.any():
        names = [rows.ids[k] for k in twins.nonzero()[:, 0].tolist()]
        done = "stay" if table else "are taken out"
        notes.append(f"{len(names)} training samples are identical to clean ones and {done}: {listing.some(names)}")
    part = part if table else torch.where(twins, LEFT_OUT, part)
    learned = duplicates.pick(held, (part == TRAIN) | (part == CLEAN))
    seen = (duplicates.among(held, learned) & (part == TEST)).nonzero()[:, 0].tolist()
    notes += duplicates.in_test([rows.ids[k] for k in seen], int((part == TEST).sum()), table=table)
    return part


@dataclass(frozen=True, kw_only=True)
class Outline:
    """What there is in a folder or a table, with no sample read: names, labels, and which rows are clean."""

    rows: Listing
    columns: Columns
    clean: list[Clean]
    gone: list[str]  # ids of clean samples that are not there any more


def outline(path: Path, how: ReadOptions) -> Outline:
    """List the samples, for whoever shows them to a person. A clean set need not be there."""
    rows, found = _list(path, how, [])
    gone: list[str] = []
    clean = clean_set.find(rows, found, None if how.clean_file is None else Path(how.clean_file), gone)
    return Outline(rows=rows, columns=found, clean=clean, gone=gone)


@dataclass(frozen=True, kw_only=True)
class _All:
    """The samples of all parts, one after the other, with numbers for labels and parts."""

    items: list[Any]
    ids: list[str]
    given: Tensor
    true: Tensor
    part: Tensor
    classes: tuple[str, ...]


def _together(train: Listing, clean: list[Clean], test: Listing | None) -> _All:
    """The data's samples, then the clean ones that are not among them, then the test's.

    A row that is trusted has no other label to count wrong ones by; one that was checked in a file has. A trusted row
    that is not clean, because the file says so, is left out.
    """
    inside = [one for one in clean if one.position is not None]
    outside = [one for one in clean if one.position is None]
    n, m = len(train.items), len(train.items) + len(outside)
    items = [*train.items, *(one.item for one in outside), *(test.items if test else [])]
    names = class_names(train, [one.label for one in clean], test)
    number = {name: k for k, name in enumerate(names)} | {"": UNLABELED}
    given, true = torch.full((len(items),), UNLABELED), torch.full((len(items),), UNLABELED)
    given[:n] = torch.tensor([number["" if t else y] for y, t in zip(train.labels, train.clean_column, strict=True)])
    true[:n] = torch.tensor([number[y] for y in train.true_label])
    part = torch.full((len(items),), TRAIN)
    part[:n][torch.tensor(train.clean_column, dtype=torch.bool)] = LEFT_OUT
    part[n:m], part[m:] = CLEAN, TEST
    for place, one in [*((one.position, one) for one in inside), *enumerate(outside, n)]:
        true[place], part[place] = number[one.label], CLEAN
    true[m:] = torch.tensor([number[y] for y in test.labels] if test else [])
    ids = [*train.ids, *(one.id for one in outside), *(test.ids if test else [])]
    return _All(items=items, ids=ids, given=given, true=true, part=part, classes=names)


def _list(path: Path, how: ReadOptions, notes: list[str]) -> tuple[Listing, Columns]:
    if path.is_dir():
        asked = [
            name
            for name in ("image", "text", "features", "label", "id", "clean_column", "true_label")
            if getattr(how, name)
        ]
        if asked:
            raise InputError(f"--{asked[0]} names a column of a table, and {path} is a folder; leave it out")
        if others := listing.other_files(path):
            told = [f"{count} {ending}" for ending, count in others.most_common()]
            notes.append(f"{others.total()} files in {path} are no images ({listing.some(told)}): left out")
        return listing.from_folder(path), listing.Columns()
    if sum(name is not None for name in (how.image, how.text, how.features)) > 1:
        raise InputError("a sample is an image, a text or a row of features: give one of --image, --text, --features")
    named = None if how.features is None else [name.strip() for name in how.features.split(",") if name.strip()]
    features = None if named is None else list(dict.fromkeys(named))
    if features == []:
        raise InputError(f"--features {how.features!r} names no column; give some, separated by commas")
    asked_for = listing.Columns(
        kind="image" if how.image is not None else "text" if how.text is not None else "table",
        samples=tuple(name for name in (how.image, how.text) if name is not None),
        label=how.label,
        id=how.id,
        clean_column=how.clean_column,
        true_label=how.true_label,
    )
    found = listing.find_columns(path, asked_for, features)
    rows = listing.from_sheet(path, found)
    if found.kind == "table" and features is None:  # guessed from the first rows; now all are there
        useless = [k for k in range(len(found.samples)) if _useless([row[k] for row in rows.items])]
        found, rows = listing.without(found, rows, useless)
    notes.append(f"{path}: {found.said()}")
    if (same := len(rows.ids) - len({*rows.ids})) > 0:
        notes.append(f"{same} of {len(rows.ids)} samples have the {found.id or 'path'} of another one")
    return rows, found


def _useless(cells: Sequence[str]) -> bool:
    return tables.is_name(cells) or all(map(tables.is_missing, cells))


def _list_test(path: Path, how: ReadOptions, found: Columns, train: Listing) -> Listing:
    if path.is_dir():
        _check_kind(path, "image", found.kind)
        rows = listing.from_folder(path)
    elif path.exists() and not table_file.is_sheet(path):
        raise InputError(f"{path}: a test set is a folder of images, or a table {', '.join(table_file.SUFFIXES)}")
    else:
        label = found.label or how.label
        asked = listing.Columns(kind=found.kind, samples=found.samples, label=label)
        here = listing.find_columns(path, asked, None)
        _check_kind(path, here.kind, found.kind)
        rows = listing.from_sheet(path, here, train)
    if "" in rows.labels:
        name = rows.ids[rows.labels.index("")]
        raise InputError(f"{path}: {name} has no label, but every test sample needs its right one")
    return rows


def _check_kind(path: Path, kind: str, wanted: str) -> None:
    """Refuse a test set of other samples than those that are trained on."""
    what = {"image": "images", "text": "texts", "table": "rows of features"}
    if kind != wanted:
        raise InputError(f"--test {path}: holds {what[kind]}, the training data {what[wanted]}; give such too")


def _fit(
    items: list[Any],
    ids: list[str],
    found: Columns,
    how: ReadOptions,
    notes: list[str],
    tell: Callable[[int, int], None] | None,
) -> Inputs:
    """What samples are read with, fitted to those that are trained on."""
    if found.kind == "table":
        table = Table.fit(found.samples, items)
        for form in dict.fromkeys(part["form"] for part in table.parts if "form" in part):
            names = [part["name"] for part in table.parts if part.get("form") == form]
            notes.append(f"numbers are written like {form} in {listing.some(names)}")
        return table
    if found.kind == "text":
        return Texts.fit(found.samples[0], items, how.encoder)
    sizes = []
    for done, (name, result) in enumerate(zip(ids, images.each(images.look, items), strict=True), start=1):
        if tell is not None and done % LOOKS == 0:
            tell(done, len(ids))
        if not isinstance(result, Exception):
            sizes.append(result)
        elif how.on_error != "skip":
            raise InputError(f"{name} {reason(result)}; repair it, or leave such images out with --on-error skip")
    if not sizes:
        raise InputError(f"none of the {len(items)} images can be read")
    shape = images.choose_shape(sizes, how.image_size, their_net=how.their_net)
    color = "grey" if shape[0] == 1 else "color"
    hint = "" if how.image_size else " (--image-size to change)"
    notes.append(f"images become {shape[2]}×{shape[1]}, {color}{hint}")
    return Images(shape, found.samples[0] if found.samples else None)
