"""Tables in files: CSV and TSV by the standard library, Parquet by pyarrow. Every cell is text, "" where it is empty.

A file is read a few rows at a time, so that what is predicted may be of any size.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from metalabelnet.errors import InputError, missing_package, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SUFFIXES = (".csv", ".tsv", ".parquet")
LONGEST_CELL = 1 << 26  # characters; the standard library's limit of 131,072 is less than a long text
Row = list[str]


def is_sheet(path: Path) -> bool:
    """Whether the name is that of a table."""
    return path.suffix.lower() in SUFFIXES


def header(path: Path) -> list[str]:
    """The names of the columns."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    if path.suffix.lower() == ".parquet":
        names = [str(name) for name in _parquet(path).schema_arrow.names]
    else:
        first = next(_lines(path), None)
        if first is None:
            raise InputError(f"{path}: is empty; its first line must name the columns")
        names = [name.strip() for name in first]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"{path}: two columns have the name {twice!r}; give each its own")
    return names


def rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The cells of these columns, row by row."""
    names = header(path)
    places = find(columns, names, path)
    if path.suffix.lower() == ".parquet":
        for batch in _parquet(path).iter_batches(batch_size=1024, columns=list(columns)):
            by_column = [[_cell(value) for value in batch.column(name).to_pylist()] for name in columns]
            yield from map(list, zip(*by_column, strict=True))
        return
    width = len(names)
    for number, cells in enumerate(itertools.islice(_lines(path), 1, None), start=2):
        if not cells:  # an empty line
            continue
        if len(cells) != width:
            raise InputError(
                f"{path}: row {number} has {len(cells)} cells, but the first line names {width} columns; "
                "a cell with the separator in it must be in quotes"
            )
        yield [cells[place].strip() for place in places]


def find(columns: Sequence[str], names: Sequence[str], path: Path) -> list[int]:
    """The places of these columns; for one that is not there the nearest name is suggested."""
    place = {name: k for k, name in enumerate(names)}
    missing = next((name for name in columns if name not in place), None)
    if missing is not None:
        raise InputError(f"{path}: {unknown('column', missing, names)}")
    return [place[name] for name in columns]


def _cell(value: Any) -> str:
    return "" if value is None or value != value else str(value).strip()  # NaN is a gap too


def _lines(path: Path) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_CELL)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            bare = re.sub(r'"[^"]*"', "", file.readline())  # a name in quotes may hold other signs
            file.seek(0)
            separator = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=bare.count)
            yield from csv.reader(file, delimiter=separator, strict=True)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error
    except csv.Error as error:
        raise InputError(f"{path}: cannot be read ({error}); it is damaged, or not a CSV file") from error


def _parquet(path: Path) -> Any:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise missing_package("pyarrow", "tables", "a Parquet file") from error
    try:
        return parquet.ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]}); it is not a Parquet file") from error
