"""`metalabelnet review`: serve the review page, or export its verdicts."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from metalabelnet.cli.console import Console
from metalabelnet.cli.output_files import check_output_path, write_lines
from metalabelnet.data.files.list_data import ReadOptions
from metalabelnet.errors import InputError
from metalabelnet.review import exports, server, source
from metalabelnet.review.browser import BrowserRedirect
from metalabelnet.review.store import ReviewStore, check_no_links, database_errors

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def review(args: argparse.Namespace) -> None:
    """Serve the review page, or export the clean set, the labels or the verdicts."""
    _check_options(args)
    if args.export is None:
        server.check_installed()
    elif args.output is not None:
        check_output_path(args.output)
    console = Console()
    names = ("label", "image", "text", "features", "id")
    read_options = ReadOptions(**{name: getattr(args, name) for name in names})
    with console.progress() as display:
        review_source = source.open_source(
            args.source,
            read_options,
            data=args.data,
            clean=args.clean,
            on_samples=display.samples,
            labels_only=args.export == "labels",
        )
    path = args.db or review_source.database
    if args.export == "labels":
        _export(args, _corrected_labels(path, review_source))
        return
    with database_errors(path):
        store = ReviewStore(path)
        with console.progress() as display:
            store.import_samples(review_source, display.samples)
        if args.export is not None:
            options = {"drawn": args.drawn} if args.export == "clean" else {}
            if args.export == "clean":
                for note in review_source.notes:
                    console.log(note)
            _export(args, exports.EXPORTS[args.export](store, review_source, **options))
            return
    _serve(args, review_source, store, console)


def _check_options(args: argparse.Namespace) -> None:
    """Raise InputError for options without effect."""
    for name, value in (("-o", args.output), ("--spreadsheet-safe", args.spreadsheet_safe)):
        if value and args.export is None:
            raise InputError(f"{name} is for an export, and this serves a page: choose --export NAME, or leave it out")
    for name, value in (("--open", args.open), ("--port", args.port)):
        if value and args.export is not None:
            raise InputError(f"{name} is for the page, and --export {args.export} serves none: leave out one of them")
    if args.drawn and args.export != "clean":
        raise InputError("--drawn selects samples of the clean set: use it with --export clean, or leave it out")


def _serve(args: argparse.Namespace, review_source: source.ReviewSource, store: ReviewStore, console: Console) -> None:
    """Serve the page until Ctrl-C."""
    redirect = BrowserRedirect()

    def on_ready(address: str) -> None:
        console.log(f"{len(review_source)} samples of {review_source.data}; verdicts are saved in {store.path}")
        console.print(address)
        console.log("press Ctrl-C to stop; every verdict is saved immediately")
        if args.open:
            redirect.open(address)

    def on_visit(next_address: str) -> None:
        redirect.remove()
        console.log(f"an address works once; for another browser: {next_address}")

    try:
        server.serve(review_source, store, args.port, on_ready, on_visit)
    except KeyboardInterrupt:
        console.log(f"stopped; verdicts saved; resume with: {shlex.join(['metalabelnet', *args.words])}")
    finally:
        redirect.remove()


def _corrected_labels(path: Path, review_source: source.ReviewSource) -> exports.ExportRows:
    """Return the rows of the corrected labels, with the verdicts in the database if there is one."""
    verdicts = {}
    check_no_links(path)
    if path.exists():
        with database_errors(path):
            verdicts = ReviewStore(path).current_verdicts(review_source)
    return exports.corrected_labels_without_import(verdicts, review_source)


def _export(args: argparse.Namespace, rows: exports.ExportRows) -> None:
    """Write a table as CSV."""
    lines = list(exports.csv_lines(rows, spreadsheet_safe=args.spreadsheet_safe))
    write_lines(lines, args.output, len(lines) - 1)
