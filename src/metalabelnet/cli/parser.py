"""The commands and their arguments."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import metalabelnet
from metalabelnet.cli import commands
from metalabelnet.cli.arguments import add_run_arguments
from metalabelnet.cli.report import report
from metalabelnet.cli.reproduce import EXAMPLES as REPRODUCE
from metalabelnet.cli.reproduce import add_reproduce, reproduce
from metalabelnet.cli.review import EXAMPLES as REVIEW
from metalabelnet.cli.review import add_review, review
from metalabelnet.data.files.reader import ON_ERROR
from metalabelnet.labels.export_formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TRAIN = """examples:
  metalabelnet train digits --noise uniform:0.4 --clean 100
  metalabelnet train digits --method fine-tune --noise feature:0.4 --seed 1 --out runs/mine
  metalabelnet train cifar10 --split paper --protocol paper --noise uniform:0.6
  metalabelnet train mine.npz --unlabeled 500 --set beta=0.001 --set loss_scale=sum
  metalabelnet train digits --noise uniform:0.4 --resume          go on after a crash
  metalabelnet train photos/ --clean checked.csv                   a subfolder per class, a table of checked labels
  metalabelnet train mine.npz --clean checked.csv                  ids are row numbers, from 0
  metalabelnet train table.csv --label kind --clean-column checked     rows marked in the column checked are clean
  metalabelnet train photos/ --clean checked.csv --net timm:resnet18 --pretrained
"""
COMPARE = """examples:
  metalabelnet compare digits --noise uniform:0.4 --seeds 3
  metalabelnet compare digits --methods cross-entropy,metalabelnet --noise feature:0.2 --jobs 2
  metalabelnet compare digits --set mlnt.synthetic=2 --set metalabelnet.beta=0.001
"""
LABELS = """examples:
  metalabelnet labels runs/mine -o labels.csv              the table of the training samples
  metalabelnet labels runs/mine --suspects --top 200       the labels to look at, the most suspicious first
  metalabelnet labels runs/mine --suspects --format label-studio -o tasks.json
  metalabelnet labels runs/mine --data new.npz -o new.csv  labels for data that was never seen
"""
PREDICT = """examples:
  metalabelnet predict runs/mine new_photos/ -o predictions.csv
  metalabelnet predict runs/mine one.jpg another.jpg
  metalabelnet predict runs/mine new.csv -o predictions.csv --on-error skip
"""
EXPORT = """examples:
  metalabelnet export runs/mine --onnx model.onnx
  metalabelnet export runs/mine --onnx model.onnx --net my_nets:make
"""
REPORT = """examples:
  metalabelnet report runs/mine -o report.html
  metalabelnet report runs/compare-digits-uniform0.4-meta100/*-seed* -o report.html     side by side
"""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """The arguments, and the words that say them."""
        found = super().parse_args(args, namespace)
        found.words = list(sys.argv[1:] if args is None else args)
        return found

    def error(self, message: str) -> Any:
        """Say what is wrong and where help is."""
        self.exit(2, f"metalabelnet: {message} (see {self.prog} --help)\n")


def make_parser() -> argparse.ArgumentParser:
    """The parser of `metalabelnet`."""
    parser = Parser(prog="metalabelnet", description=metalabelnet.__doc__)
    parser.add_argument("--version", action="version", version=f"metalabelnet {metalabelnet.__version__}")
    add = parser.add_subparsers(title="commands", required=True, metavar="COMMAND").add_parser

    def command(name: str, call: Callable[[argparse.Namespace], None], text: str, examples: str = "") -> Parser:
        sub: Parser = add(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(command=call)
        return sub

    _add_train(command("train", commands.train, "train one method, and leave a run folder", TRAIN))
    _add_compare(
        command("compare", commands.compare, "train several methods side by side, and show one table", COMPARE)
    )
    _add_labels(command("labels", commands.labels, "write the label table of a run, or label new data with it", LABELS))
    _add_predict(
        command("predict", commands.predict, "ask a run about new samples: images, a table, an .npz file", PREDICT)
    )
    _add_export(command("export", commands.export, "write the model of a run for other programs", EXPORT))
    _add_report(command("report", report, "write a page about runs: results, curves, the labels to look at", REPORT))
    text = "look at labels on a page of this computer, and take away what is right"
    add_review(command("review", review, text, REVIEW), _file)
    add_reproduce(command("reproduce", reproduce, "rebuild the paper's tables and figures", REPRODUCE))
    methods = command("methods", commands.methods, "list the methods, or the settings of one")
    methods.add_argument("name", nargs="?", metavar="METHOD", help="show the settings of this method")
    command("datasets", commands.datasets, "list the data sets known by name")
    command("noises", commands.noises, "list the kinds of label noise")
    return parser


def _add_train(parser: Parser) -> None:
    add_run_arguments(parser)
    add = parser.add_argument
    add("--out", type=Path, metavar="DIR", help="the run folder (default: runs/ and a name from the settings)")
    add("--resume", action="store_true", help="go on with the run in that folder")
    text = "how many seconds of work a crash may cost (default: 10)"
    add("--checkpoint-seconds", type=float, default=10.0, metavar="X", help=text)


def _add_compare(parser: Parser) -> None:
    add_run_arguments(parser, several_methods=True)
    add = parser.add_argument
    add("--methods", default="all", metavar="A,B,C", help="methods to compare (default: all)")
    add("--seeds", type=int, default=3, metavar="N", help="runs of each method, with seeds from --seed on (default: 3)")
    add("--jobs", type=int, metavar="N", help="runs beside each other (default: one a core; on a GPU one)")
    text = "folder for the run folders, the table and the picture (default: runs/ and a name from the settings)"
    add("--out", type=Path, metavar="DIR", help=text)
    add("--resume", action="store_true", help="leave finished runs alone and go on with the others")


def _add_labels(parser: Parser) -> None:
    _add_run_and_output(parser)
    add = parser.add_argument
    add("--suspects", action="store_true", help="only suspects, the most suspicious first")
    add("--top", type=int, metavar="N", help="only the N most suspicious, the most suspicious first")
    add("--format", default="csv", metavar="NAME", help=f"{', '.join(FORMATS)} (default: csv)")
    add("--data", metavar="NEW", help="label this data instead: a data set's name or an .npz file")
    add("--data-dir", type=Path, metavar="DIR", help="folder with the new data set's files")


def _add_predict(parser: Parser) -> None:
    _add_run_and_output(parser)
    add = parser.add_argument
    add("input", type=Path, nargs="+", metavar="INPUT", help="images, a folder of images, a table, an .npz file")
    add("--image", metavar="COL", help="column of image paths (default: as in training)")
    add("--text", metavar="COL", help="column of texts (default: as in training)")
    add("--id", metavar="COL", help="column of names (default: id, else the path or the row's number)")
    add("--on-error", choices=ON_ERROR, default="stop", help="what a broken sample does (default: stop)")
    _add_own_net(parser)
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, … (default: auto)")


def _add_export(parser: Parser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--onnx", type=Path, required=True, metavar="FILE", help="where to write the ONNX model")
    _add_own_net(parser)


def _add_report(parser: Parser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    text = "where to write (default: report.html)"
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help=text)


def _add_run_and_output(parser: Parser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    text = "where to write (default, and for -: standard output)"
    parser.add_argument("-o", "--output", type=_file, metavar="FILE", help=text)


def _file(text: str) -> Path | None:
    """A file to write; None is standard output."""
    return None if text == "-" else Path(text)


def _add_own_net(parser: Parser) -> None:
    text = (
        "where the run was trained with a network of your own: its name, MODULE:FUNCTION, which allows its code to run"
    )
    parser.add_argument("--net", metavar="NAME", help=text)
