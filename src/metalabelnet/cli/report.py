"""`metalabelnet report`: write a page about runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.cli.console import Console
from metalabelnet.report import make_report
from metalabelnet.train.checkpoint import write_atomically

if TYPE_CHECKING:
    import argparse


def report(args: argparse.Namespace) -> None:
    """Write the page, and say how large it is."""
    console = Console()
    content = make_report(args.runs, console.say).encode()
    write_atomically(args.output, content)
    console.print(f"{args.output} written ({len(content) / 1e6:.2f} MB)")
