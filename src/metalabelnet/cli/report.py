"""`metalabelnet report`: write a page about runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.cli.console import Console
from metalabelnet.cli.output_files import check_folder, whole
from metalabelnet.report import make_report

if TYPE_CHECKING:
    import argparse


def report(args: argparse.Namespace) -> None:
    """Write the page, and say how large it is."""
    check_folder(args.output)
    console = Console()
    content = make_report(args.runs, console.say)
    with whole(args.output) as out:
        out.write(content)
    console.print(f"{args.output} written ({len(content.encode()) / 1e6:.2f} MB)")
