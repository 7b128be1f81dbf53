"""`metalabelnet labels`: write the label table of a run, or label new data with it."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

from metalabelnet.cli.console import Console
from metalabelnet.cli.output_files import write_lines
from metalabelnet.cli.unused_options import check_labels_options
from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.labels.export_formats import CSV_FORMATS, FORMATS, escape_formulas, read_label_table, select_rows
from metalabelnet.train import RunFolder

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

MAX_INDEX_DIGITS = 18  # of a sample, far more than there are


def labels(args: argparse.Namespace) -> None:
    """Write the label table, or the selected rows of it, in the requested format."""
    check_labels_options(args)
    files = RunFolder(args.run)
    if args.format not in FORMATS:
        raise unknown_name_error("format", args.format, FORMATS)
    if args.spreadsheet_safe and args.format not in CSV_FORMATS:
        raise InputError(
            f"--spreadsheet-safe is for tables, and {args.format} is not one: choose --format from "
            f"{', '.join(CSV_FORMATS)}, or leave --spreadsheet-safe out"
        )
    if args.data is None:
        files.summary()  # raises an error if the run is not finished
        text, rows = _read_labels_csv(files)
    else:
        from metalabelnet.inference.relabel import relabel  # needs PyTorch, which takes seconds to import

        text = relabel(args.run, args.data, args.data_dir).to_csv()
        rows = read_label_table(text)
    selected = select_rows(rows, suspects=args.suspects, top=args.top)
    if args.format in ("label-studio", "fiftyone") and args.data is None:
        from metalabelnet.report import annotation_tools

        selected, notes = annotation_tools.add_sample_content(args.run, selected, args.format)
        for note in notes:
            Console().log(note)
    if selected is not rows or args.format != "csv":
        text = FORMATS[args.format](selected, list(rows[0]), files.metadata()["classes"])
    if args.spreadsheet_safe:
        text = escape_formulas(text)
    write_lines([text], args.output, len(selected))


def _read_labels_csv(files: RunFolder) -> tuple[str, list[dict[str, str]]]:
    """Return the text of a run's label table and its rows; raise an error if it is incomplete."""
    file = files.path / "labels.csv"
    try:
        text = files.read(file.name).decode()
        rows = read_label_table(text)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} cannot be read ({error}): copy the run folder again, or train again") from error
    columns = {"index", "id", "given", "label", "confidence", "suspect"}
    if not rows or not rows[0].keys() >= columns or None in rows[-1].values():
        raise InputError(f"{file} is incomplete: copy the run folder again, or train again")
    classes = {*files.metadata()["classes"]}
    for number, row in enumerate(rows):
        if not _is_label_row(row, classes):
            raise InputError(f"{file}: row {number} is damaged: copy the run folder again, or train again")
    return text, rows


def _is_label_row(row: Mapping[Any, Any], classes: set[str]) -> bool:
    """Return whether the cells of a row can be used: a number as index, classes as labels, shares of 1."""
    if None in row or None in row.values():  # more cells than columns, or fewer
        return False
    try:
        shares = [float(row["confidence"]), float(row.get("suspicion") or 0)]
    except ValueError:
        return False
    return (
        row["index"].isdecimal()
        and len(row["index"]) < MAX_INDEX_DIGITS
        and all(0 <= share <= 1 for share in shares)
        and row["suspect"] in ("0", "1", "")
        and row["label"] in classes
        and (not row["given"] or row["given"] in classes)
    )
