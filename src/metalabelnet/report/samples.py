"""What a sample is to a person — picture, text, cells of a row —, read from the data a run was trained on.

Only the samples that are asked for are decoded, and nothing is ever downloaded. Where the data has gone, the reason is
given instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from metalabelnet.data import DATASETS, data_folder, load
from metalabelnet.data.benchmarks import cifar
from metalabelnet.data.encoders import images
from metalabelnet.data.encoders.kinds import reason
from metalabelnet.data.files import listing, table_file
from metalabelnet.errors import InputError
from metalabelnet.report import pictures
from metalabelnet.train.settings import IN_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from metalabelnet.report.source import FinishedRun, Suspect

DOWNLOADED = {"cifar10": cifar.CIFAR10, "cifar100": cifar.CIFAR100}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What is shown: a picture as a data: URI, a text, or cells by column; else the reason why it is not."""

    picture: str | None = None
    text: str | None = None
    cells: tuple[tuple[str, str], ...] = ()
    missing: str = ""


def find(run: FinishedRun, wanted: Sequence[Suspect]) -> tuple[dict[int, Sample], str]:
    """The samples by index, as far as they can be found; and, where the data has gone, a sentence that says so."""
    if not wanted:
        return {}, ""
    try:
        return dict(_find(run, wanted)), ""
    except (InputError, OSError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        return {}, f"The samples themselves cannot be shown: {why.rstrip('.')}."


def _find(run: FinishedRun, wanted: Sequence[Suspect]) -> Iterator[tuple[int, Sample]]:
    name = str(run.settings["data"])
    path = Path(name)
    if name == IN_MEMORY:
        raise InputError("they were handed over in memory, and no file of them is known")
    if name not in DATASETS and not path.exists():
        raise InputError(f"{name} is not there any more, seen from the folder in which the report was made")
    if name not in DATASETS and path.is_dir():
        return _pictures([(one.index, path / one.id) for one in wanted if _inside(path, one.id)])
    if table_file.is_sheet(path) and name not in DATASETS:
        return _from_sheet(run, path, wanted)
    return _from_arrays(run, name, wanted)


def _inside(folder: Path, name: str) -> bool:
    """Whether the name stays within the folder, whatever it says."""
    return (folder / name).resolve().is_relative_to(folder.resolve())


def _pictures(files: Sequence[tuple[int, Path]]) -> Iterator[tuple[int, Sample]]:
    found = images.each(pictures.of_file, [file for _, file in files])
    for (index, _), made in zip(files, found, strict=True):
        yield index, Sample(missing=reason(made)) if isinstance(made, Exception) else Sample(picture=made)


def _from_sheet(run: FinishedRun, path: Path, wanted: Sequence[Suspect]) -> Iterator[tuple[int, Sample]]:
    kind, own, found = rows_of(run, path, wanted)
    if kind == "image":
        return _pictures([(index, path.parent / cells[0]) for index, cells in found])
    if kind == "text":
        return ((index, Sample(text=cells[0])) for index, cells in found)
    return ((index, Sample(cells=tuple(zip(own, cells, strict=True)))) for index, cells in found)


def rows_of(
    run: FinishedRun, path: Path, wanted: Sequence[Suspect]
) -> tuple[str, list[str], list[tuple[int, list[str]]]]:
    """What samples of a table are, in which columns they stand, and the cells of those that are wanted, by index.

    Rows are found by their id; where several have it, by their number too.
    """
    if run.inputs is None:
        raise InputError(f"{run.path} has no inputs.json, which says how {path} was read")
    kind, own = run.inputs["kind"], _columns(run.inputs)
    asked = listing.Columns(kind=kind, samples=tuple(own), label=run.settings.get("label"), id=run.settings.get("id"))
    id_column = listing.find_columns(path, asked, None, needs_label=False).id
    by_id = {one.id: one for one in wanted}
    rows: dict[str, dict[int, list[str]]] = {}
    for number, cells in enumerate(table_file.rows(path, [*own, *([id_column] if id_column is not None else [])])):
        name = cells[-1] if id_column is not None else cells[0] if kind == "image" else str(number)
        if name in by_id:
            rows.setdefault(name, {})[number] = cells[: len(own)]
    found = []
    for one in wanted:
        same = rows.get(one.id, {})
        cells_of = same.get(one.index) if len(same) > 1 else next(iter(same.values()), None)
        if cells_of is not None:
            found.append((one.index, cells_of))
    return kind, own, found


def _columns(inputs: dict[str, Any]) -> list[str]:
    """The columns of a table that a sample is made of."""
    if inputs["kind"] == "table":
        return [str(part["name"]) for part in inputs["columns"]]
    return [str(inputs["column"])]


def _from_arrays(run: FinishedRun, name: str, wanted: Sequence[Suspect]) -> Iterator[tuple[int, Sample]]:
    folder = Path(run.settings["data_dir"]) if run.settings.get("data_dir") else None
    if name in DOWNLOADED:
        known, root = DOWNLOADED[name], data_folder(folder)
        if not any((root / part).exists() for part in (f"{known.name}.npz", known.folder, known.archive)):
            raise InputError(f"{name} is not on this computer")
    rows = load(name, folder, classes=None if name in DATASETS else run.classes).train
    for one in wanted:
        if one.index >= len(rows) or rows.ids[one.index] != one.id:
            continue
        x = rows.x[torch.tensor([one.index])][0]
        if rows.is_image:
            yield one.index, Sample(picture=pictures.of_array(x.numpy()))
        else:
            values = x.flatten().tolist()
            yield one.index, Sample(cells=tuple((str(k), f"{value:.4g}") for k, value in enumerate(values)))
