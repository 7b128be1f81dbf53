"""The commands and their options. This module does not import PyTorch, so that `--help` is fast."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import metalabelnet
from metalabelnet.cli.arguments import add_run_arguments
from metalabelnet.errors import InputError
from metalabelnet.run_options import ON_ERROR, PATH_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LABEL_FORMATS = ("csv", "cleanlab", "label-studio", "fiftyone")
REVIEW_EXPORTS = ("clean", "labels", "verdicts", "annotations")
SPREADSHEET_SAFE = "put an apostrophe before cells that a spreadsheet would evaluate as formulas"

TRAIN_EXAMPLES = """examples:
  metalabelnet train digits --noise uniform:0.4 --clean 100
  metalabelnet train digits --method fine-tune --noise feature:0.4 --seed 1 --out runs/mine
  metalabelnet train cifar10 --split paper --protocol paper --noise uniform:0.6
  metalabelnet train mine.npz --method metalabelnet --unlabeled 500 --set beta=0.001 --set loss_scale=sum
  metalabelnet train digits --noise uniform:0.4 --resume          resume an interrupted run
  metalabelnet train runs/mine --resume                           resume the run in this folder with its settings
  metalabelnet train photos/ --clean clean.csv                    one subfolder per class; clean labels in a table
  metalabelnet train mine.npz --clean clean.csv                   ids are row numbers, from 0
  metalabelnet train table.csv --label kind --clean-column checked   rows marked in column `checked` are clean
  metalabelnet train texts.csv --clean clean.csv --annotations annotations.csv    several labels for each sample
  metalabelnet train photos/ --clean clean.csv --net timm:resnet18 --pretrained
  metalabelnet train photos/ --clean clean.csv --encoder timm:resnet50    embeddings, and a linear classifier in seconds
  metalabelnet train digits --log tensorboard:logs                view with: tensorboard --logdir logs
"""
COMPARE_EXAMPLES = """examples:
  metalabelnet compare digits --noise uniform:0.4 --seeds 3
  metalabelnet compare digits --methods cross-entropy,metalabelnet --noise feature:0.2 --jobs 2
  metalabelnet compare digits --set mlnt.synthetic=2 --set metalabelnet.beta=0.001
"""
LABELS_EXAMPLES = """examples:
  metalabelnet labels runs/mine -o labels.csv              label table of the training samples
  metalabelnet labels runs/mine --suspects --top 200       the 200 most suspicious labels, most suspicious first
  metalabelnet labels runs/mine --suspects --format label-studio -o tasks.json
  metalabelnet labels runs/mine --data new.npz -o new.csv  labels for new data
"""
PREDICT_EXAMPLES = """examples:
  metalabelnet predict runs/mine new_photos/ -o predictions.csv
  metalabelnet predict runs/mine one.jpg another.jpg
  metalabelnet predict runs/mine new.csv -o predictions.csv --on-error skip
"""
EMBED_EXAMPLES = """examples:
  metalabelnet embed photos/ --encoder timm:resnet50 -o features.npz     then: train features.npz --clean clean.csv
  metalabelnet embed photos/ --encoder weights.pth -o features.npz       a ResNet with torchvision's names
  metalabelnet embed comments.csv --text text --encoder wordllama -o features.npz
"""
EXPORT_EXAMPLES = """examples:
  metalabelnet export runs/mine --onnx model.onnx
  metalabelnet export runs/mine --onnx model.onnx --net my_nets:make
"""
PACK_EXAMPLES = """examples:
  metalabelnet pack photos/ -o photos.packed                       one subfolder per class; the files as they are
  metalabelnet pack photos/ -o photos.packed --decode --image-size 224    decoded images: no decoding in training
  metalabelnet pack clothing1m --data-dir DIR --split paper -o clothing1m.packed
"""
REPORT_EXAMPLES = """examples:
  metalabelnet report runs/mine -o report.html
  metalabelnet report runs/compare-digits-uniform0.4-clean100/*-seed* -o report.html     compare several runs
"""
REVIEW_EXAMPLES = """examples:
  metalabelnet review runs/mine                                 review suspects, build a clean set
  metalabelnet review photos/                                   build a clean set before the first run
  metalabelnet review runs/mine --export clean -o clean.csv     reviewed labels, for train --clean clean.csv
  metalabelnet review runs/mine --export labels -o labels.csv
  metalabelnet review runs/mine --export verdicts -o verdicts.csv
  metalabelnet review runs/mine --export annotations -o annotations.csv   with verdicts, for train --annotations
"""
REPRODUCE_EXAMPLES = """examples:
  metalabelnet reproduce --list                                    tables and figures, and finished runs
  metalabelnet reproduce cifar10-table --methods metalabelnet --noise-probs student_logits.npy --budget 60
  metalabelnet reproduce ablation-beta --points 0.001,0.01 --noise-probs student_logits.npy
  metalabelnet reproduce cifar10n --cells worst --data-dir DIR
  metalabelnet reproduce all --tables-only --doc docs/results/reproduction.md
  metalabelnet reproduce fig-curves --smoke                        a test in seconds, on digits
"""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in one line and takes no abbreviated options."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; an option that does not exist is an error of the command that it was given to."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [word for word in unknown if word.startswith("--")]
            name = options[0].partition("=")[0] if options else ""
            closest = difflib.get_close_matches(name, self._option_string_actions, n=1) if name else []
            hint = f": did you mean {closest[0]}?" if closest else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return parsed, unknown

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse the arguments; `words` of the result are the arguments as typed."""
        words = list(sys.argv[1:] if args is None else args)
        for word in words:
            if word == "-o--" or (word.startswith("--") and word.endswith("=--")):  # argparse drops the value
                self.error(f"argument {word.removesuffix('--').removesuffix('=')}: -- is not a value")
        parsed = super().parse_args(words, namespace)
        parsed.words = words
        return parsed

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or version; unlike the method of the base class, raise an error if it cannot be written."""
        print(message, file=file or sys.stderr, end="", flush=True)

    def error(self, message: str) -> Any:
        """Raise an error that names the option --help."""
        raise InputError(f"{message} (see {self.prog} --help)")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `metalabelnet`."""
    parser = Parser(prog="metalabelnet", description=metalabelnet.__doc__.partition("\n")[0])
    parser.add_argument("--version", action="version", version=f"metalabelnet {metalabelnet.__version__}")
    add = parser.add_subparsers(title="commands", required=True, metavar="COMMAND").add_parser

    def command(
        name: str, text: str, examples: str = "", *, module: str | None = None, usage: str | None = None
    ) -> Parser:
        sub: Parser = add(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=examples,
            usage=usage,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(command=_import_on_call(module or name, name))
        return sub

    _add_train(
        command("train", "train one method and write a run folder", TRAIN_EXAMPLES, usage="%(prog)s DATA [OPTIONS]")
    )
    _add_compare(
        command(
            "compare",
            "train several methods and compare them in one table",
            COMPARE_EXAMPLES,
            usage="%(prog)s DATA [OPTIONS]",
        )
    )
    _add_labels(command("labels", "write the label table of a run, or label new data", LABELS_EXAMPLES))
    _add_predict(
        command("predict", "predict the classes of images, of rows of a table or of an .npz file", PREDICT_EXAMPLES)
    )
    _add_pack(command("pack", "write the images of a large data set into a few files to train from", PACK_EXAMPLES))
    _add_embed(
        command("embed", "write the embeddings of images or texts by a pretrained encoder as .npz", EMBED_EXAMPLES)
    )
    _add_export(command("export", "write the model of a run as ONNX", EXPORT_EXAMPLES))
    _add_report(command("report", "write an HTML report of runs: results, curves, suspects", REPORT_EXAMPLES))
    _add_review(command("review", "review labels in a browser and export the verdicts", REVIEW_EXAMPLES))
    _add_reproduce(command("reproduce", "rebuild the tables and figures of the paper", REPRODUCE_EXAMPLES))
    methods = command("methods", "list the methods, or the settings of one", module="lists")
    methods.add_argument("name", nargs="?", metavar="METHOD", help="show the settings of this method")
    datasets = command("datasets", "list the data sets known by name, or the files of one", module="lists")
    datasets.add_argument("name", nargs="?", metavar="NAME", help="show where to get this data set and its layout")
    command("noises", "list the kinds of label noise", module="lists")
    return parser


def _import_on_call(module: str, function: str) -> Callable[[argparse.Namespace], None]:
    """Return a function that imports a command's module when it is called."""

    def run_command(args: argparse.Namespace) -> None:
        getattr(importlib.import_module(f"metalabelnet.cli.commands.{module}"), function)(args)

    return run_command


def _add_train(parser: Parser) -> None:
    add_run_arguments(parser)
    add = parser.add_argument
    text = "run folder (default: runs/ and a name made from the settings)"
    add("-o", "--out", type=Path, metavar="DIR", help=text)
    text = "resume the run in that folder, or in the folder DATA, whose settings are then used"
    add("--resume", action="store_true", help=text)
    _add_log(parser)
    text = "seconds between checkpoints: the most work a crash can cost (default: 10)"
    add("--checkpoint-seconds", type=float, default=10.0, metavar="X", help=text)


def _add_compare(parser: Parser) -> None:
    add_run_arguments(parser, several_methods=True)
    add = parser.add_argument
    add(
        "--methods",
        default="all",
        metavar="A,B,C",
        help="methods to compare; see `metalabelnet methods` (default: all of them)",
    )
    add("--seeds", type=int, default=3, metavar="N", help="runs per method, with seeds from --seed on (default: 3)")
    add("--jobs", type=int, metavar="N", help="parallel runs (default: one per CPU core; 1 on a GPU)")
    _add_cluster(parser)
    text = "folder for the run folders, the table and the plot (default: runs/ and a name made from the settings)"
    add("-o", "--out", type=Path, metavar="DIR", help=text)
    add("--resume", action="store_true", help="keep finished runs and resume the others")
    _add_log(parser)


def _add_cluster(parser: Parser) -> None:
    add = parser.add_argument
    text = "train the runs on a Ray cluster: ray (that of this machine, else a local one) or ray:HOST:PORT"
    add("--cluster", metavar="ray[:ADDRESS]", help=text)
    text = "with --cluster: share of a GPU for each run, such as 0.25 (default: 1 if the cluster has GPUs)"
    add("--gpus-per-run", type=float, metavar="X", help=text)


def _add_log(parser: Parser) -> None:
    text = "log curves and results: tensorboard:DIR, mlflow:DIR, wandb:DIR (all of them offline); repeatable"
    parser.add_argument("--log", action="append", default=[], metavar="KIND:DIR", help=text)


def _add_labels(parser: Parser) -> None:
    _add_run_and_output(parser)
    add = parser.add_argument
    add("--suspects", action="store_true", help="only suspects, most suspicious first")
    add("--top", type=int, metavar="N", help="only the N most suspicious rows, most suspicious first")
    add("--format", default="csv", metavar="NAME", help=f"{', '.join(LABEL_FORMATS)} (default: csv)")
    add("--spreadsheet-safe", action="store_true", help=f"{SPREADSHEET_SAFE}; for the formats csv and cleanlab")
    add("--data", metavar="NEW", help="label this data instead: a data set name, or an .npz file")
    add("--data-dir", type=Path, metavar="DIR", help="folder with the files of a named data set")


def _add_predict(parser: Parser) -> None:
    _add_run_and_output(parser)
    add = parser.add_argument
    add("input", type=Path, nargs="+", metavar="INPUT", help="images, a folder of images, a table, or an .npz file")
    add("--image", metavar="COL", help="column of image paths (default: as in training)")
    add("--text", metavar="COL", help="column of texts (default: as in training)")
    add("--id", metavar="COL", help="column of sample ids (default: id, else the path or the row number)")
    add("--on-error", choices=ON_ERROR, default="stop", help="what to do when a sample cannot be read (default: stop)")
    _add_net(parser)
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1, … (default: auto)")


def _add_pack(parser: Parser) -> None:
    add = parser.add_argument
    text = "folder of images, table with a column of images, or name of a data set of images"
    add("data", metavar="DATA", help=text)
    text = "folder to write; if it holds an unfinished pack of DATA it is continued, and a finished one is verified"
    add("-o", "--output", type=Path, required=True, metavar="DIR", help=text)
    add("--decode", action="store_true", help="store decoded images (uint8), not the files: larger, faster to read")
    add("--image-size", type=int, metavar="N", help="side in pixels of the decoded images (default: by size)")
    add("--clean", metavar="PATH", help="table or folder of clean labels (or give it to train)")
    add("--test", metavar="PATH", help="folder or table with true labels to test on")
    add("--split", choices=("general", "paper"), default="general", help="split of a named data set (default: general)")
    add("--data-dir", type=Path, metavar="DIR", help="folder with the files of a named data set")
    add("--on-error", choices=ON_ERROR, default="stop", help="what to do when a sample cannot be read (default: stop)")


def _add_embed(parser: Parser) -> None:
    add = parser.add_argument
    add("data", metavar="DATA", help=f"name of a data set of images, or path of {PATH_KINDS}")
    text = (
        "images: timm:NAME, torchvision:NAME, FILE (ResNet weights); texts: sentence-transformers:NAME, "
        "model2vec:NAME, wordllama"
    )
    add("--encoder", required=True, metavar="NAME", help=text)
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="file to write, .npz")
    add("--test", metavar="PATH", help="folder or table with true labels to test on")
    for name, text in (
        ("label", "given labels"),
        ("true-label", "true labels, where known"),
        ("image", "image paths"),
        ("text", "texts"),
        ("id", "sample ids"),
    ):
        add(f"--{name}", metavar="COL", help=f"column of {text} (default: detected)")
    add("--data-dir", type=Path, metavar="DIR", help="folder with the files of a named data set")
    add("--on-error", choices=ON_ERROR, default="stop", help="what to do when a sample cannot be read (default: stop)")


def _add_export(parser: Parser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--onnx", type=Path, required=True, metavar="FILE", help="file to write")
    _add_net(parser)


def _add_report(parser: Parser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    text = "file to write (default: report.html)"
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help=text)


def _add_review(parser: Parser) -> None:
    add = parser.add_argument
    add("source", metavar="RUN|DATA", help="folder of a finished run; or data, to build a clean set for it")
    add("--port", type=int, default=0, metavar="N", help="port on localhost (default: any free port)")
    add("--open", action="store_true", help="open the page in a browser")
    text = "write the clean set, corrected labels, verdicts or annotations instead of starting the server"
    add("--export", choices=REVIEW_EXPORTS, help=text)
    text = "with --export clean: only samples drawn at random, not those reviewed because they were suspects"
    add("--drawn", action="store_true", help=text)
    text = f"with --export: {SPREADSHEET_SAFE} (downloads from the page always are); train --clean removes it"
    add("--spreadsheet-safe", action="store_true", help=text)
    _add_output(parser)
    add("--db", type=Path, metavar="FILE", help="database of verdicts (default: review.sqlite in the run folder)")
    add("--data", metavar="PATH", help="new location of the run's data, if it was moved")
    add("--clean", metavar="PATH", help="new location of the run's clean set, if it was moved")
    for name, text in (
        ("label", "column of given labels"),
        ("image", "column of image paths"),
        ("text", "column of texts"),
        ("features", "numeric and categorical columns, separated by commas"),
        ("id", "column of sample ids"),
    ):
        metavar = "COL,COL" if name == "features" else "COL"
        add(f"--{name}", metavar=metavar, help=f"for DATA: {text} (default: detected)")


def _add_reproduce(parser: Parser) -> None:
    add = parser.add_argument
    add("what", nargs="*", metavar="WHAT", help="names of tables and figures (see --list), or all")
    add("--list", action="store_true", help="list the tables and figures, or the runs of WHAT, and what is finished")
    text = "folder with the data sets' files (default: $METALABELNET_DATA, else ~/.cache/metalabelnet)"
    add("--data-dir", type=Path, metavar="DIR", help=text)
    text = "the authors' student_logits.npy, for feature-dependent noise"
    add("--noise-probs", type=Path, metavar="FILE", help=text)
    text = "weights of torchvision's ResNet-50 trained on ImageNet (default: downloaded)"
    add("--pretrained", type=Path, metavar="FILE", help=text)
    add("--seeds", type=int, metavar="N", help="seeds per cell, from 0 on (default: as in the paper)")
    add("--methods", metavar="A,B", help="only these methods")
    text = "only these noises, such as uniform:0.4,feature:0.6, worst or (beyond) digits/uniform:0.4"
    add("--cells", metavar="A,B", help=text)
    add("--points", metavar="A,B", help="only these values of the setting that a figure or ablation varies")
    add("--budget", type=float, metavar="MINUTES", help="stop after this time; run the same command again to resume")
    text = "order of the runs: given (as listed) or cheapest first (default: given)"
    add("--order", choices=("given", "cheapest"), default="given", help=text)
    add("--concurrent", type=int, metavar="N", help="concurrent runs on one device (default: 8 on CUDA, else 1)")
    add("--jobs", type=int, metavar="N", help="on CPU: parallel runs, in processes with one thread each (default: 1)")
    _add_cluster(parser)
    add("--results", type=Path, metavar="DIR", help="folder of the result files, one line per run (default: results)")
    add("-o", "--out", type=Path, metavar="DIR", help="folder for the run folders (default: runs/reproduce)")
    add("--figures", type=Path, metavar="DIR", help="folder for tables, figures (default: docs/results/reproduction)")
    add("--doc", type=Path, metavar="FILE", help="update the generated parts of this Markdown page")
    add("--smoke", action="store_true", help="run everything in small, on digits or a stand-in of the data")
    add("--tables-only", action="store_true", help="train nothing; build tables and figures from stored results")
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1, … (default: auto)")
    add("--commit", metavar="ID", help="commit to store with the results, if the package is not run from a checkout")
    add("--dtype", metavar="NAME", help="float32, float64 or bf16 (default: bf16 on CUDA; for tables: any)")


def _add_run_and_output(parser: Parser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    _add_output(parser)


def _add_output(parser: Parser) -> None:
    text = "file to write (default, or -: standard output)"
    parser.add_argument("-o", "--output", type=_path_or_stdout, metavar="FILE", help=text)


def _path_or_stdout(text: str) -> Path | None:
    """Return the file to write; None is standard output."""
    return None if text == "-" else Path(text)


def _add_net(parser: Parser) -> None:
    text = "MODULE:FUNCTION, if the run was trained with your own network; this runs the code of that module"
    parser.add_argument("--net", metavar="NAME", help=text)
