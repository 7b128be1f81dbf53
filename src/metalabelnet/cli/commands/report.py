"""`metalabelnet report`: write an HTML report of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.cli.console import Console
from metalabelnet.cli.output_files import check_output_path, write_atomically
from metalabelnet.report import make_report

if TYPE_CHECKING:
    import argparse


def report(args: argparse.Namespace) -> None:
    """Write the report and print its size."""
    check_output_path(args.output)
    console = Console()
    content = make_report(args.runs, console.log)
    with write_atomically(args.output) as out:
        out.write(content)
    console.print(f"{args.output} written ({len(content.encode()) / 1e6:.2f} MB)")
