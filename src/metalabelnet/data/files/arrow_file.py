"""Parquet files, and folders written by `save_to_disk` of Hugging Face `datasets`, as rows of cells; read by pyarrow.

A folder of `datasets` has Arrow streams, whose names are in state.json. The types of the columns ("features") are in
the metadata of the streams, and in that of Parquet files by `datasets`. Class numbers become class names. Images in
cells, as struct{bytes, path} or as bytes, become files (`embedded_images.py`), and the cell is their path.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from metalabelnet.data.files.embedded_images import EmbeddedImages
from metalabelnet.errors import InputError, missing_package_error
from metalabelnet.input_files.json_text import parse_json
from metalabelnet.input_files.regular_files import check_regular_file, open_regular_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BATCH_ROWS = 1024
STATE_FILE = "state.json"  # of a folder written by `Dataset.save_to_disk`
SPLITS_FILE = "dataset_dict.json"  # of a folder written by `DatasetDict.save_to_disk`
MAX_JSON_BYTES = 1 << 24


def is_saved_dataset(path: Path) -> bool:
    """Whether the path is a folder written by `save_to_disk` of Hugging Face `datasets`."""
    return path.is_dir() and ((path / STATE_FILE).is_file() or (path / SPLITS_FILE).is_file())


def is_arrow_table(path: Path) -> bool:
    """Whether the path is a Parquet file or a folder of Hugging Face `datasets`."""
    return is_saved_dataset(path) or path.suffix.lower() == ".parquet"


def column_names(path: Path) -> list[str]:
    """Return the names of the columns."""
    return [str(name) for name in _schema(_files(path)[0]).names]


def iterate_cells(path: Path, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the cells of these columns, row by row; "" is an empty cell."""
    from pyarrow import ArrowException

    for file in _files(path):
        schema, row = _schema(file), 0
        convert = [_converter(schema, name, file) for name in columns]
        try:
            for batch in _batches(file, list(columns)):
                cells = [batch.column(batch.schema.get_field_index(name)).to_pylist() for name in columns]
                for values in zip(*cells, strict=True):
                    yield [to_cell(value, row) for to_cell, value in zip(convert, values, strict=True)]
                    row += 1
        except (ArrowException, OSError) as error:
            raise InputError(f"{file}: cannot be read ({_one_line(error)}); it is damaged") from error


def _files(path: Path) -> list[Path]:
    """Return the Parquet file, or the Arrow files of a folder of `datasets`."""
    if not is_saved_dataset(path):
        return [path]
    if not (path / STATE_FILE).is_file():
        splits = [str(name) for name in _read_json(path / SPLITS_FILE).get("splits", [])]
        example = path / (splits[0] if splits else "train")
        raise InputError(f"{path}: contains the splits {', '.join(splits)}; give one of them, such as {example}")
    entries = _read_json(path / STATE_FILE).get("_data_files")
    names = [entry.get("filename") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    files = [path / name for name in names if isinstance(name, str) and name and Path(name).name == name]
    if not files or len(files) < len(names):
        raise InputError(f"{path / STATE_FILE}: names no Arrow files of this folder; write it again with save_to_disk")
    return files


def _read_json(file: Path) -> dict[str, Any]:
    try:
        with open_regular_file(file) as opened:
            content = parse_json(opened.read(MAX_JSON_BYTES))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({_one_line(error)}); write it again with save_to_disk") from error
    if not isinstance(content, dict):
        raise InputError(f"{file}: is not a JSON object; write it again with save_to_disk")
    return content


def _schema(file: Path) -> Any:
    if file.suffix.lower() == ".parquet":
        return _open_parquet(file).schema_arrow
    with _open_stream(file) as reader:
        return reader.schema


def _batches(file: Path, columns: list[str]) -> Iterator[Any]:
    if file.suffix.lower() == ".parquet":
        yield from _open_parquet(file).iter_batches(batch_size=BATCH_ROWS, columns=columns)
        return
    with _open_stream(file) as reader:
        for batch in reader:
            batch.validate(full=True)  # the file may come from a stranger
            yield from (batch.slice(start, BATCH_ROWS) for start in range(0, batch.num_rows, BATCH_ROWS))


def _open_parquet(file: Path) -> Any:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise missing_package_error("pyarrow", "tables", "a Parquet file") from error
    try:
        return parquet.ParquetFile(file)
    except (ArrowException, OSError) as error:
        raise InputError(f"{file}: cannot be read ({_one_line(error)}); it is not a Parquet file") from error


def _open_stream(file: Path) -> Any:
    try:
        from pyarrow import ArrowException, ipc
    except ImportError as error:
        raise missing_package_error("pyarrow", "tables", "a folder of Hugging Face datasets") from error
    try:
        check_regular_file(file)
        return ipc.open_stream(str(file))
    except (ArrowException, OSError) as error:
        raise InputError(f"{file}: cannot be read ({_one_line(error)}); write it again with save_to_disk") from error


def _converter(schema: Any, column: str, file: Path) -> Callable[[Any, int], str]:
    """Return the function that turns a value of a column and its row number into a cell."""
    from pyarrow import types

    kind = schema.field(column).type
    if types.is_struct(kind) and {"bytes", "path"} <= {field.name for field in kind}:
        return EmbeddedImages(file, column).cell_of_struct
    if types.is_binary(kind) or types.is_large_binary(kind):
        return EmbeddedImages(file, column).cell_of_bytes
    names = _class_names(schema, column)
    if names and types.is_integer(kind):
        return lambda value, _row: names[value] if value is not None and 0 <= value < len(names) else ""
    return lambda value, _row: format_cell(value)


def _class_names(schema: Any, column: str) -> list[str]:
    """Return the class names of a column of type ClassLabel; empty for other columns."""
    try:
        features = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
        feature = features[column]
        names = feature["names"] if feature["_type"] == "ClassLabel" else []
    except (KeyError, TypeError, ValueError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def format_cell(value: Any) -> str:
    """Return a value as a cell; NaN is an empty one."""
    return "" if value is None or value != value else str(value).strip()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
