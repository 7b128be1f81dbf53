"""Options without effect: combinations that a command refuses, and options that a linear fit ignores.

Each check raises an `InputError` with the reason. The test `tests/attacks/test_command_line.py` lists every option with
the combinations in which it has no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.errors import InputError
from metalabelnet.run_options import DATASET_DEFAULTS, NETWORK_OPTIONS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from metalabelnet.data.problem import Problem
    from metalabelnet.reproduction.experiment import RunSpec
    from metalabelnet.train import Run

# What `reproduce` uses for training only, with the default of each option.
TRAINING_OPTIONS = {
    **dict.fromkeys(("data_dir", "noise_probs", "pretrained", "budget", "concurrent", "jobs", "out", "commit")),
    **dict.fromkeys(("cluster", "gpus_per_run")),
    "order": "given",
    "device": "auto",
}
OUTPUT_OPTIONS = {"figures": None, "doc": None, "tables_only": False}  # what `reproduce --list` has no use for
REAL_DATA_OPTIONS = ("data_dir", "noise_probs", "pretrained")  # what `reproduce --smoke` replaces


def check_run_options(args: argparse.Namespace, run: Run) -> None:
    """Raise InputError if an option of `train` or `compare` has no effect on this run."""
    if args.head is not None and ":" not in run.net:
        net = "the network is chosen automatically" if run.net == "auto" else f"{run.net} is built in"
        raise InputError(f"--head {args.head}: {net}, and its last layer is known; leave --head out")
    if args.noise_probs is not None and not run.noise.startswith("feature:"):
        raise InputError(
            f"--noise-probs {args.noise_probs}: only feature noise uses class probabilities, and the noise is "
            f"{run.noise}; choose --noise feature:RATE, or leave --noise-probs out"
        )
    if args.data_dir is not None and run.data_format == "npz":
        raise InputError(f"--data-dir {args.data_dir}: {run.data} is a file of its own; leave --data-dir out")
    if isinstance(args.clean, str) and run.clean_file == args.clean and args.clean_file not in (None, args.clean):
        raise InputError(f"--clean {args.clean} and --clean-file {args.clean_file} name two files: give one of them")
    if isinstance(args.clean, int) and run.data_format == "folder" and not run.clean_file:
        raise InputError(
            f"--clean {args.clean}: a number draws samples with known true labels, and a folder of images has none; "
            f"give a file of clean labels with --clean FILE; `metalabelnet review {run.data}` helps to build one"
        )
    if run.split == "paper" and (run.clean_file or run.clean_column):
        option = f"--clean {run.clean_file}" if run.clean_file else f"--clean-column {run.clean_column}"
        raise InputError(f"{option}: the split 'paper' takes the clean set from the test part; leave out one of them")


def linear_fit_notes(args: argparse.Namespace, run: Run, problem: Problem) -> list[str]:
    """Return a note that names the options that have no effect, because a linear layer is fitted; else nothing."""
    from metalabelnet.methods import LogisticMethod
    from metalabelnet.train.build_method import find_method_class

    ignored = [f"--{name.replace('_', '-')}" for name in NETWORK_OPTIONS if getattr(args, name) is not None]
    if not ignored or not issubclass(find_method_class(run, problem), LogisticMethod):
        return []
    have = "has" if len(ignored) == 1 else "have"
    network = "" if run.method.startswith("logistic") else "; --net mlp trains a network"
    return [f"{', '.join(ignored)} {have} no effect: {run.method} fits a linear layer to these samples{network}"]


def check_compared(methods: Sequence[str], settings: Sequence[str]) -> None:
    """Raise InputError for METHOD.NAME=VALUE whose method is not compared."""
    for text in settings:
        method = text.partition(".")[0]
        if method not in methods:
            raise InputError(
                f"--set {text}: {method} is not compared; leave it out, or choose METHOD from {', '.join(methods)}"
            )


def check_cluster_options(args: argparse.Namespace) -> None:
    """Raise InputError if an option of `compare` or `reproduce` has no effect with, or without, a cluster."""
    if args.cluster is None:
        if args.gpus_per_run is not None:
            raise InputError(f"--gpus-per-run {args.gpus_per_run:g}: it is for --cluster; leave it out")
        return
    for option in ("jobs", "concurrent"):
        if getattr(args, option, None) is not None:
            raise InputError(f"--{option}: the resources of --cluster {args.cluster} decide; leave out --{option}")
    if args.gpus_per_run is not None and args.device == "cpu":
        raise InputError(f"--gpus-per-run {args.gpus_per_run:g}: --device cpu uses no GPU; leave out one of them")


def check_labels_options(args: argparse.Namespace) -> None:
    """Raise InputError if an option of `labels` has no effect."""
    if args.data_dir is None or args.data in DATASET_DEFAULTS:
        return
    why = "it is for --data NAME" if args.data is None else f"{args.data} is not one of {', '.join(DATASET_DEFAULTS)}"
    raise InputError(f"--data-dir {args.data_dir}: it is the folder of a named data set, and {why}; leave it out")


def check_reproduce_options(args: argparse.Namespace) -> None:
    """Raise InputError if an option of `reproduce` has no effect."""
    if args.smoke and args.doc is not None:
        raise InputError(f"doc {args.doc}: --smoke trains on other data; leave out --smoke or --doc")
    unused: dict[str, object] = {}
    why = ""
    if args.list:
        unused, why = TRAINING_OPTIONS | OUTPUT_OPTIONS, "--list trains and writes nothing"
    elif args.tables_only:
        unused, why = TRAINING_OPTIONS, "--tables-only trains nothing"
    elif args.smoke:
        unused, why = dict.fromkeys(REAL_DATA_OPTIONS), "--smoke trains on digits with noise of its own"
    for name, default in unused.items():
        if getattr(args, name) != default:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option}: {why}; leave out {option} or {why.partition(' ')[0]}")


def check_reproduce_files(args: argparse.Namespace, specs: Sequence[RunSpec]) -> None:
    """Raise InputError for a file that none of the selected runs of `reproduce` reads."""
    if args.noise_probs is not None and not any(spec.needs_noise_probs for spec in specs):
        raise InputError(f"--noise-probs {args.noise_probs}: none of these runs reads this file; leave it out")
    if args.pretrained is not None and not any(spec.needs_pretrained for spec in specs):
        raise InputError(f"--pretrained {args.pretrained}: none of these runs starts from such weights; leave it out")
