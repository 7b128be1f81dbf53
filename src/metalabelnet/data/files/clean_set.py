"""The clean set: a file of ids and labels, a folder of images, or a column that marks rows."""

from __future__ import annotations

import dataclasses
import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metalabelnet.data.files import listing, table_file
from metalabelnet.data.files.spreadsheet import escape_formula, unescape_formula
from metalabelnet.data.unlabeled import UNLABELED
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from metalabelnet.data.files.listing import Columns, Listing
    from metalabelnet.data.rows import DataSet

ID_COLUMNS = ("id", "path", "file", "filename", "image", "index", "")
MAX_SUGGESTIONS_FROM = 10_000  # ids among which the closest one is suggested


@dataclass(frozen=True, kw_only=True)
class CleanSample:
    """A sample with a clean label.

    Attributes
    ----------
    id : str
        Its id.
    label : str
        Its clean label; "": the file excludes it from the clean set.
    position : int or None
        Its position in the data; None if it is not part of the data.
    item : object
        Its image path or cells, if the clean set provides them.
    """

    id: str
    label: str
    position: int | None = None
    item: Any = None


def find_clean_samples(
    data: Listing, columns: Columns, file: Path | None, missing_ids: list[str] | None = None
) -> list[CleanSample]:
    """Return the samples that the data marks as clean and those in the file; the file takes precedence.

    A sample that the data marks and the file lists without a label is not clean. Ids that do not exist are appended to
    `missing_ids`; if it is None, they raise InputError.
    """
    marked = [k for k, is_clean in enumerate(data.is_clean) if is_clean]
    for k in marked:
        if not data.labels[k]:
            raise InputError(f"{data.source}: {data.ids[k]} is marked as clean but has no label; add one")
    clean = {k: CleanSample(id=data.ids[k], label=data.labels[k], position=k) for k in marked}
    if columns.clean_column is not None and not marked:
        raise InputError(
            f"{data.source}: no row is marked as clean; {columns.clean_column!r} is empty or false in all rows"
        )
    if file is None:
        return list(clean.values())
    inside: dict[int, CleanSample] = {}
    outside: dict[str, CleanSample] = {}
    for sample in (
        _from_folder(file, data) if table_file.is_image_folder(file) else _from_table(file, data, columns, missing_ids)
    ):
        if sample.position is None:
            first = outside.setdefault(_outside_key(sample, len(outside)), sample)
        else:
            first = inside.setdefault(sample.position, sample)
        if first.label != sample.label:
            raise InputError(
                f"{file}: {sample.id} occurs twice, as {first.label!r} and as {sample.label!r}; remove one of them"
            )
    return [*(sample for sample in (clean | inside).values() if sample.label), *outside.values()]


def _outside_key(sample: CleanSample, number: int) -> str:
    """Return what identifies a clean sample outside of the data: the path of an image. Table rows may be identical."""
    return os.path.abspath(sample.item) if isinstance(sample.item, Path) else str(number)  # noqa: PTH100


def add_clean_labels(data: DataSet, file: Path) -> DataSet:
    """Return a data set of tensors with the clean labels in a file; ids are row numbers from 0 unless it has others."""
    import torch  # here, because finding the clean set of a folder or table needs no PyTorch

    from metalabelnet.data.files import duplicates

    train, notes = data.train, []
    class_numbers = {listing.normalize_name(name): k for k, name in enumerate(data.classes)}
    rows = listing.Listing(source=Path(data.name), kind="table", ids=list(train.ids), labels=list(class_numbers))
    clean_labels = torch.full_like(train.given, UNLABELED)
    for sample in find_clean_samples(rows, listing.Columns(kind="table"), file):
        if sample.label not in class_numbers:
            raise listing.unknown_class_error(sample.label, class_numbers, f"{file}, clean")
        assert sample.position is not None  # the file has ids of rows only
        clean_labels[sample.position] = class_numbers[sample.label]
    is_clean = clean_labels != UNLABELED
    notes.append(f"{int(is_clean.sum())} clean samples in {file}")
    digests = duplicates.digests(train.x)
    if (identical := duplicates.is_among(digests, duplicates.select(digests, is_clean)) & ~is_clean).any():
        notes.append(f"{int(identical.sum())} training samples are identical to clean ones and stay")
    return dataclasses.replace(data, clean_labels=clean_labels, notes=(*data.notes, *notes))


def _from_folder(folder: Path, data: Listing) -> list[CleanSample]:
    if data.kind != "image":
        raise InputError(f"{folder} is a folder of images, but {data.source} contains {data.kind}s; give a table")
    files = listing.from_folder(folder)
    _check_labels(folder, files)
    positions = _positions_by_path(data)
    return [
        CleanSample(id=name, label=label, item=item, position=positions.get(os.path.abspath(item)))  # noqa: PTH100
        for name, label, item in zip(files.ids, files.labels, files.items, strict=True)
    ]


def _from_table(file: Path, data: Listing, columns: Columns, missing_ids: list[str] | None) -> list[CleanSample]:
    if not table_file.is_table_file(file):
        problem = "is not supported" if file.exists() else "does not exist"
        raise InputError(
            f"{file} {problem}: a clean set is a number, a folder, or a table ({', '.join(table_file.SUFFIXES)})"
        )
    names = table_file.column_names(file)
    label = _label_column(file, names, columns)
    if data.kind == "image" or not columns.samples or not set(columns.samples) <= set(names):
        name = _id_column(file, names, label, columns)
        rows = listing.from_table(file, listing.Columns(samples=(name,), label=label), data)
        undo_spreadsheet_escapes(rows, data)
        return _look_up(file, rows, data, missing_ids, id_column=name, label_column=label)
    # The file has the sample columns of the data: it contains the samples themselves.
    own_id = columns.id if columns.id in names else None
    requested = listing.Columns(kind=data.kind, samples=columns.samples, label=label, id=own_id)
    rows = listing.from_table(file, requested, data)
    undo_spreadsheet_escapes(rows, data)
    _check_labels(file, rows)
    positions = positions_by_id(data, file) if own_id is not None else {}
    return [
        CleanSample(id=name, label=y, item=item, position=positions.get(listing.normalize_name(name)))
        for name, y, item in zip(rows.ids, rows.labels, rows.items, strict=True)
    ]


def undo_spreadsheet_escapes(rows: Listing, data: Listing) -> None:
    """Remove the apostrophes that a spreadsheet-safe export has put before ids and labels.

    A file in which a formula has no apostrophe is not such an export, and is left as it is.
    """
    cells = [*rows.ids, *rows.labels]
    if any(cell[:1] != "'" and escape_formula(cell) != cell for cell in cells):
        return
    if all(unescape_formula(cell) == cell for cell in cells):
        return
    ids = {listing.normalize_name(name) for name in data.ids}
    labels = {*data.labels, *data.true_labels}
    rows.ids = [_undo_escape(name, ids, rows.source) for name in rows.ids]
    rows.labels = [_undo_escape(label, labels, rows.source) for label in rows.labels]


def _undo_escape(cell: str, known: set[str], file: Path) -> str:
    """Return the cell without its apostrophe if that is a known id or label; raise InputError if both are."""
    unescaped = unescape_formula(cell)
    if unescaped == cell or listing.normalize_name(unescaped) not in known:
        return cell
    if listing.normalize_name(cell) in known:
        raise InputError(
            f"{file}: {cell!r} is ambiguous, because the data has {cell!r} and {unescaped!r}, and a spreadsheet-safe "
            f"export writes {unescaped!r} as {cell!r}; rename one of them in the data"
        )
    return unescaped


def _label_column(file: Path, names: list[str], columns: Columns) -> str:
    """Return the label column of a clean set: that of the data, a usual name, or the one beside the ids."""
    if columns.label is not None and columns.label in names:
        return columns.label
    name = listing.find_columns(file, listing.Columns(), [], needs_label=False).label
    others = [other for other in names if other.lower() not in ID_COLUMNS]
    if name is None and len(names) == 2 and len(others) == 1:
        name = others[0]
    if name is None:
        raise InputError(
            f"{file}: cannot tell which column is the label: {listing.shorten_list(names, 8)}; rename it to "
            f"{columns.label or 'label'}"
        )
    return name


def _id_column(file: Path, names: list[str], label: str, columns: Columns) -> str:
    """Return the id column of a clean set: that of the data, a usual name, or the only one beside the label."""
    others = [name for name in names if name != label]
    preferred = [columns.id, *columns.samples] if columns.kind == "image" else [columns.id]
    for name in preferred:
        if name is not None and name in others:
            return name
    lower = {name.lower(): name for name in reversed(others)}
    name = next((lower[word] for word in ID_COLUMNS if word in lower), None)
    if name is None and len(others) == 1:
        name = others[0]
    if name is None:
        raise InputError(
            f"{file}: cannot tell which column has the ids: {listing.shorten_list(others, 8)}; rename it to id"
        )
    return name


def _look_up(
    file: Path, rows: Listing, data: Listing, missing_ids: list[str] | None, *, id_column: str, label_column: str
) -> list[CleanSample]:
    """Return the samples of the data with these ids; for images also files outside of the data.

    Other spellings of a path are accepted too: ./cats/1.jpg, and backslashes as on Windows. Only a sample that the data
    marks as clean may have no label.
    """
    by_id = positions_by_id(data, file)
    by_path = _positions_by_path(data) if data.kind == "image" else {}
    folder = data.source if table_file.is_image_folder(data.source) else data.source.parent
    clean = []
    for name, label in zip(rows.ids, rows.labels, strict=True):
        position, item = by_id.get(listing.normalize_name(name)), None
        if position is None and data.kind == "image":
            spellings = dict.fromkeys((name, name.replace("\\", "/")))
            for path in (root / spelling for spelling in spellings for root in (folder, file.parent, Path())):
                position = by_path.get(os.path.abspath(path)) if position is None else position  # noqa: PTH100
                item = path if path.is_file() else item
        if position is not None or item is not None:
            is_marked = position is not None and bool(data.is_clean) and data.is_clean[position]
            if not label and not is_marked:
                raise InputError(
                    f"{file}: {name} has no label, but a clean sample needs one; only a row that --clean-column marks "
                    "may have none, which excludes it from the clean set"
                )
            clean.append(CleanSample(id=name, label=label, position=position, item=item))
        elif missing_ids is None:
            columns = ""
            if (id_column, label_column) != ("id", "label"):
                columns = f" (ids are read from {id_column!r}, labels from {label_column!r}; expected names: id, label)"
            raise InputError(f"{file}: {no_sample_message(name, by_id, data.source)}{columns}")
        else:
            missing_ids.append(name)
    return clean


def positions_by_id(data: Listing, file: Path) -> dict[str, int]:
    """Return the position of each sample by its id; raise InputError if an id is not unique."""
    by_id = {listing.normalize_name(name): k for k, name in enumerate(data.ids)}
    if len(by_id) < len(data.ids):
        duplicate = next(name for k, name in enumerate(data.ids) if by_id[listing.normalize_name(name)] != k)
        raise InputError(
            f"{data.source}: two samples have the id {duplicate!r}, so the ids in {file} are ambiguous; name a column "
            "of unique ids with --id"
        )
    return by_id


def no_sample_message(name: str, known: Iterable[str], source: Path) -> str:
    """Return the message for an id that no sample has, with the closest one that exists, else the first."""
    names = list(known)[:MAX_SUGGESTIONS_FROM]
    closest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {closest[0]!r}?" if closest else f"its first id is {names[0]!r}" if names else "it has no ids"
    return f"there is no sample {name!r} in {source}; {hint}"


def _positions_by_path(data: Listing) -> dict[str, int]:
    return {os.path.abspath(item): k for k, item in enumerate(data.items)}  # noqa: PTH100


def _check_labels(file: Path, rows: Listing) -> None:
    if "" in rows.labels:
        raise InputError(f"{file}: {rows.ids[rows.labels.index('')]} has no label, but a clean sample needs one")
