"""Contents of samples for display (image, text or table cells), read from the data of a run.

Only the requested samples are decoded and nothing is downloaded. If the data is missing, the reason is returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from metalabelnet.data import DATASETS, data_folder, load
from metalabelnet.data.benchmarks import cifar
from metalabelnet.data.encoders import images
from metalabelnet.data.files import listing, table_file
from metalabelnet.data.files.embedded_images import sample_id
from metalabelnet.data.packed.index import is_pack
from metalabelnet.errors import InputError
from metalabelnet.input_files.image_files import describe_error
from metalabelnet.report import thumbnails

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from metalabelnet.report.finished_run import FinishedRun, Suspect

DOWNLOADED_DATA_SETS = {"cifar10": cifar.CIFAR10, "cifar100": cifar.CIFAR100}


@dataclass(frozen=True, kw_only=True)
class SampleContent:
    """An image as a data: URI, a text, or cells by column; else the reason why it is missing."""

    image: str | None = None
    text: str | None = None
    cells: tuple[tuple[str, str], ...] = ()
    missing: str = ""


def read_contents(run: FinishedRun, suspects: Sequence[Suspect]) -> tuple[dict[int, SampleContent], str]:
    """The contents of samples by index, and a message if the data cannot be read (else empty)."""
    if not suspects:
        return {}, ""
    try:
        return dict(_iterate_contents(run, suspects)), ""
    except (InputError, OSError) as error:
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        return {}, f"The samples cannot be shown: {reason.rstrip('.')}."


def _iterate_contents(run: FinishedRun, suspects: Sequence[Suspect]) -> Iterator[tuple[int, SampleContent]]:
    name = str(run.settings["data"])
    path = Path(name)
    if run.settings.get("data_format") == "memory":
        raise InputError("the data was passed in memory")
    if name not in DATASETS and not path.exists():
        raise InputError(f"{name} does not exist (relative to the current folder)")
    if name not in DATASETS and table_file.is_image_folder(path) and not is_pack(path):
        return _read_images([(one.index, path / one.id) for one in suspects if _inside(path, one.id)])
    if table_file.is_table_file(path) and name not in DATASETS:
        return _from_table(run, path, suspects)
    return _from_arrays(run, name, suspects)


def _inside(folder: Path, name: str) -> bool:
    """Whether the name refers to a file inside the folder, also after following links."""
    return (folder / name).resolve().is_relative_to(folder.resolve())


def _read_images(files: Sequence[tuple[int, Path]]) -> Iterator[tuple[int, SampleContent]]:
    results = images.map_in_threads(thumbnails.thumbnail_from_file, [file for _, file in files])
    for (index, _), result in zip(files, results, strict=True):
        if isinstance(result, Exception):
            yield index, SampleContent(missing=describe_error(result))
        else:
            yield index, SampleContent(image=result)


def _from_table(run: FinishedRun, path: Path, suspects: Sequence[Suspect]) -> Iterator[tuple[int, SampleContent]]:
    kind, columns, rows = table_cells_of(run, path, suspects)
    if kind == "image":
        return _read_images([(index, path.parent / cells[0]) for index, cells in rows])
    if kind == "text":
        return ((index, SampleContent(text=cells[0])) for index, cells in rows)
    return ((index, SampleContent(cells=tuple(zip(columns, cells, strict=True)))) for index, cells in rows)


def table_cells_of(
    run: FinishedRun, path: Path, suspects: Sequence[Suspect]
) -> tuple[str, list[str], list[tuple[int, list[str]]]]:
    """The kind of the samples of a table, their columns, and the cells of each requested sample with its index.

    Rows are found by id, and by row number where several rows share an id.
    """
    if run.encoder is None or not run.encoder.columns:
        raise InputError(f"{run.path} has no encoder.json that names columns: how {path} was read is unknown")
    kind, columns = run.encoder.kind, run.encoder.columns
    requested = listing.Columns(
        kind=kind, samples=tuple(columns), label=run.settings.get("label"), id=run.settings.get("id")
    )
    id_column = listing.find_columns(path, requested, None, needs_label=False).id
    by_id = {one.id: one for one in suspects}
    rows: dict[str, dict[int, list[str]]] = {}
    for number, cells in enumerate(
        table_file.iterate_rows(path, [*columns, *([id_column] if id_column is not None else [])])
    ):
        default_id = sample_id(cells[0], number) if kind == "image" else str(number)
        name = cells[-1] if id_column is not None else default_id
        if name in by_id:
            rows.setdefault(name, {})[number] = cells[: len(columns)]
    found = []
    for one in suspects:
        same = rows.get(one.id, {})
        cells_of = same.get(one.index) if len(same) > 1 else next(iter(same.values()), None)
        if cells_of is not None:
            found.append((one.index, cells_of))
    return kind, columns, found


def _from_arrays(run: FinishedRun, name: str, suspects: Sequence[Suspect]) -> Iterator[tuple[int, SampleContent]]:
    folder = Path(run.settings["data_dir"]) if run.settings.get("data_dir") else None
    if name in DOWNLOADED_DATA_SETS:
        files, root = DOWNLOADED_DATA_SETS[name], data_folder(folder)
        if not any((root / part).exists() for part in (f"{files.name}.npz", files.folder, files.archive)):
            raise InputError(f"{name} is not downloaded")
    rows = load(name, folder, classes=None if name in DATASETS else run.classes).train
    positions = {index: position for position, index in enumerate(rows.index.tolist())}
    for one in suspects:
        position = positions.get(one.index)
        if position is None or rows.ids[position] != one.id:
            continue
        x = rows.x[torch.tensor([position])][0]
        if rows.is_image:
            yield one.index, SampleContent(image=thumbnails.thumbnail_from_array(x.numpy()))
        else:
            values = x.flatten().tolist()
            yield one.index, SampleContent(cells=tuple((str(k), f"{value:.4g}") for k, value in enumerate(values)))
