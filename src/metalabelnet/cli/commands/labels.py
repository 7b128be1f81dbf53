"""`metalabelnet labels`: write the label table of a run, or label new data with it."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from metalabelnet.cli.console import Console
from metalabelnet.cli.output_files import stdout_for_data, write_atomically
from metalabelnet.errors import InputError, unknown_name_error
from metalabelnet.inference.relabel import relabel
from metalabelnet.labels.export_formats import FORMATS, read_label_table, select_rows
from metalabelnet.report import annotation_tools
from metalabelnet.train import RunFolder

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def labels(args: argparse.Namespace) -> None:
    """Write the label table, or the selected rows of it, in the requested format."""
    files = RunFolder(args.run)
    if args.format not in FORMATS:
        raise unknown_name_error("format", args.format, FORMATS)
    if args.data is None:
        files.summary()  # raises an error if the run is not finished
        text = _read_labels_csv(files.path / "labels.csv")
    else:
        text = relabel(args.run, args.data, args.data_dir).to_csv()
    rows = read_label_table(text)
    selected = select_rows(rows, suspects=args.suspects, top=args.top)
    if args.format in ("label-studio", "fiftyone") and args.data is None:
        selected, notes = annotation_tools.add_sample_content(args.run, selected, args.format)
        for note in notes:
            Console().log(note)
    if selected is not rows or args.format != "csv":
        text = FORMATS[args.format](selected, list(rows[0]), files.metadata()["classes"])
    if args.output is None:
        out = stdout_for_data()
        out.write(text)
        out.flush()
    else:
        with write_atomically(args.output) as file:
            file.write(text)
        print(f"{len(selected)} rows written to {args.output}")


def _read_labels_csv(file: Path) -> str:
    """Return the text of a label table; raise an error if it is incomplete."""
    try:
        text = file.read_text(encoding="utf-8")
        rows = read_label_table(text)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} cannot be read ({error}): copy the run folder again, or train again") from error
    columns = {"index", "id", "given", "label", "confidence", "suspect"}
    if not rows or not rows[0].keys() >= columns or None in rows[-1].values():
        raise InputError(f"{file} is incomplete: copy the run folder again, or train again")
    return text
