"""`metalabelnet review`: serve the review page, or export its verdicts."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from metalabelnet.cli.console import Console
from metalabelnet.cli.output_files import stdout_for_data, write_atomically
from metalabelnet.data import ReadOptions
from metalabelnet.review import exports, server, source
from metalabelnet.review.store import ReviewStore

if TYPE_CHECKING:
    import argparse


def review(args: argparse.Namespace) -> None:
    """Serve the review page, or export the clean set, the labels or the verdicts."""
    if args.export is None:
        server.check_installed()
    console = Console()
    names = ("label", "image", "text", "features", "id")
    read_options = ReadOptions(**{name: getattr(args, name) for name in names})
    review_source = source.open_source(args.source, read_options, data=args.data, clean=args.clean)
    store = ReviewStore(args.db or review_source.database)
    with console.progress() as display:
        store.import_samples(review_source, display.samples)
    if args.export is not None:
        _export(args, review_source, store, console)
        return

    def ready(address: str) -> None:
        console.log(f"{len(review_source)} samples of {review_source.data}; verdicts are saved in {store.path}")
        console.print(address)
        console.log("press Ctrl-C to stop; every verdict is saved immediately")
        if args.open:
            import webbrowser

            webbrowser.open(address)

    try:
        server.serve(review_source, store, args.port, ready)
    except KeyboardInterrupt:
        console.log(f"stopped; verdicts saved; resume with: {shlex.join(['metalabelnet', *args.words])}")


def _export(args: argparse.Namespace, review_source: source.ReviewSource, store: ReviewStore, console: Console) -> None:
    """Write the requested table as CSV."""
    options = {"drawn": args.drawn} if args.export == "clean" else {}
    lines = list(exports.csv_lines(exports.EXPORTS[args.export](store, review_source, **options)))
    if args.export == "clean":
        for note in review_source.notes:
            console.log(note)
    if args.output is None:
        out = stdout_for_data()
        out.writelines(lines)
        out.flush()
    else:
        with write_atomically(args.output) as file:
            file.writelines(lines)
        print(f"{len(lines) - 1} rows written to {args.output}")
