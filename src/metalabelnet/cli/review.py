"""`metalabelnet review`: the page where a person looks at labels, and what it leaves to take away."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from metalabelnet.cli.console import Console
from metalabelnet.cli.output_files import for_data, whole
from metalabelnet.data import ReadOptions
from metalabelnet.review import exports, server, source
from metalabelnet.review.store import Store

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

EXAMPLES = """examples:
  metalabelnet review runs/mine                            check suspects, build a clean set
  metalabelnet review photos/                              build a clean set of data that no run has seen
  metalabelnet review runs/mine --take clean -o clean.csv  what was confirmed, for train --clean clean.csv
  metalabelnet review runs/mine --take labels -o labels.csv
  metalabelnet review runs/mine --take verdicts -o verdicts.csv
"""


def add_review(parser: argparse.ArgumentParser, file: Callable[[str], Path | None]) -> None:
    """The arguments of `review`; `file` says what is written to."""
    add = parser.add_argument
    add("source", metavar="RUN|DATA", help="a finished run's folder; or data, to build a clean set of it")
    add("--port", type=int, default=0, metavar="N", help="port of this computer's own address (default: a free one)")
    add("--open", action="store_true", help="open the page in a browser")
    add("--take", choices=sorted(exports.TAKES), help="serve no page; write the clean set, the labels or the verdicts")
    add("--drawn", action="store_true", help="with --take clean: leave out what was checked as a suspect")
    add("-o", "--output", type=file, metavar="FILE", help="where to write (default, and for -: standard output)")
    add("--db", type=Path, metavar="FILE", help="the file of the verdicts (default: review.sqlite in the run folder)")
    add("--data", metavar="PATH", help="where the run's data lies now, if it was moved")
    add("--clean", metavar="PATH", help="where the run's clean set lies now, if it was moved")
    for name, text in (
        ("label", "column of the label"),
        ("image", "column of image paths"),
        ("text", "column of texts"),
        ("features", "columns of numbers and categories, separated by commas"),
        ("id", "column of the samples' names"),
    ):
        add(f"--{name}", metavar="NAME", help=f"DATA: {text}; guessed where clear")


def review(args: argparse.Namespace) -> None:
    """Serve the page, or write what it has left."""
    if args.take is None:
        server.check_installed()
    console = Console()
    names = ("label", "image", "text", "features", "id")
    read_options = ReadOptions(**{name: getattr(args, name) for name in names})
    found = source.of(args.source, read_options, data=args.data, clean=args.clean)
    store = Store(args.db or found.database)
    with console.progress() as bars:
        store.fill(found, bars.samples)
    if args.take is not None:
        _take(args, found, store, console)
        return

    def ready(address: str) -> None:
        console.say(f"{len(found)} samples of {found.data}; verdicts are written to {store.path}")
        console.print(address)
        console.say("Ctrl-C stops; nothing is lost")
        if args.open:
            import webbrowser

            webbrowser.open(address)

    try:
        server.serve(found, store, args.port, ready)
    except KeyboardInterrupt:
        console.say(f"stopped; go on with: {shlex.join(['metalabelnet', *args.words])}")


def _take(args: argparse.Namespace, found: source.Source, store: Store, console: Console) -> None:
    more = {"drawn": args.drawn} if args.take == "clean" else {}
    lines = list(exports.lines(exports.TAKES[args.take](store, found, **more)))
    if args.take == "clean":
        for note in found.notes:
            console.say(note)
    if args.output is None:
        out = for_data()
        out.writelines(lines)
        out.flush()
    else:
        with whole(args.output) as file:
            file.writelines(lines)
        print(f"{len(lines) - 1} rows written to {args.output}")
