"""CSV and TSV files by the standard library; Parquet files and folders of Hugging Face `datasets` by `arrow_file`.

Every cell is a string, "" if it is empty.

Files are read a few rows at a time, so that predictions can be made for files of any size.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from typing import TYPE_CHECKING

from metalabelnet.data.files import arrow_file
from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.input_files.regular_files import check_regular_file, open_regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import TextIO

SUFFIXES = (".csv", ".tsv", ".parquet")
MAX_CELL_CHARACTERS = 1 << 26  # the default of the standard library, 131,072, is too small for long texts
MAX_COLUMNS = 100_000  # more is a mistake, such as a table of samples in columns, and takes minutes to read
MAX_HEADER_CHARACTERS = 1 << 24
MAX_LINE_CHARACTERS = 1 << 28


def is_table_file(path: Path) -> bool:
    """Whether the file name has the suffix of a table, or the path is a folder of Hugging Face `datasets`."""
    return path.suffix.lower() in SUFFIXES or arrow_file.is_saved_dataset(path)


def is_image_folder(path: Path) -> bool:
    """Whether the path is a folder that is not a table."""
    return path.is_dir() and not arrow_file.is_saved_dataset(path)


def column_names(path: Path) -> list[str]:
    """Return the names of the columns."""
    try:
        if not arrow_file.is_saved_dataset(path):
            check_regular_file(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    if arrow_file.is_arrow_table(path):
        names = arrow_file.column_names(path)
    else:
        first = next(_lines(path), None)
        if first is None:
            raise InputError(f"{path}: the file is empty; its first line must name the columns")
        names = [name.strip() for name in first]
    if len(names) > MAX_COLUMNS:
        raise InputError(
            f"{path}: {len(names):,} columns, more than the limit of {MAX_COLUMNS:,}; remove columns, or transpose the "
            "table: each row is a sample"
        )
    duplicate = next((name for name, count in Counter(names).items() if count > 1), None)
    if duplicate is not None:
        raise InputError(f"{path}: two columns have the name {duplicate!r}; rename one of them")
    return names


def iterate_rows(path: Path, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the cells of these columns, row by row."""
    names = column_names(path)
    positions = column_positions(columns, names, path)
    if arrow_file.is_arrow_table(path):
        yield from arrow_file.iterate_cells(path, columns)
        return
    width = len(names)
    for number, cells in enumerate(itertools.islice(_lines(path), 1, None), start=2):
        if not cells:  # an empty line
            continue
        if len(cells) != width:
            raise InputError(
                f"{path}: row {number} has {len(cells)} cells, but the first line names {width} columns; "
                "put cells that contain the separator in quotes"
            )
        yield [cells[position].strip() for position in positions]


def column_positions(columns: Sequence[str], names: Sequence[str], path: Path) -> list[int]:
    """Return the positions of these columns. The error for an unknown column suggests the closest name."""
    position = {name: k for k, name in enumerate(names)}
    missing = next((name for name in columns if name not in position), None)
    if missing is not None:
        raise InputError(f"{path}: {unknown_name_error('column', missing, names)}")
    return [position[name] for name in columns]


def _lines(path: Path) -> Iterator[list[str]]:
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    try:
        with io.TextIOWrapper(open_regular_file(path), encoding="utf-8-sig", newline="") as file:
            lines = _limited_lines(file, path)
            first = next(lines, "")
            unquoted = re.sub(r'"[^"]*"', "", first)  # quoted names may contain other separators
            separator = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=unquoted.count)
            if first:
                yield from csv.reader(itertools.chain([first], lines), delimiter=separator, strict=True)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: the file is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error
    except csv.Error as error:
        raise InputError(f"{path}: cannot be read ({error}); it is damaged, or not a CSV file") from error


def _limited_lines(file: TextIO, path: Path) -> Iterator[str]:
    """Yield the lines of a file; raise InputError if one is too long to be that of a table."""
    limit = MAX_HEADER_CHARACTERS
    while line := file.readline(limit):
        if len(line) == limit:
            raise InputError(f"{path}: a line is longer than {limit:,} characters; it is damaged, or not a CSV file")
        yield line
        limit = MAX_LINE_CHARACTERS
