"""`metalabelnet export`: write the model of a run as ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.cli.console import Console
from metalabelnet.cli.output_files import check_output_path
from metalabelnet.inference.export import export_onnx

if TYPE_CHECKING:
    import argparse


def export(args: argparse.Namespace) -> None:
    """Write the ONNX file and print how far its probabilities differ from PyTorch's."""
    check_output_path(args.onnx)
    difference = export_onnx(args.run, args.onnx, net=args.net)
    Console().print(f"{args.onnx} written; probabilities differ from PyTorch by at most {difference:.1g}")
