"""The run that command-line arguments describe, and the default name of its folder."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metalabelnet.cli.unused_options import check_run_options
from metalabelnet.errors import InputError
from metalabelnet.inference.load import check_net_is_allowed
from metalabelnet.methods import METHODS
from metalabelnet.run_options import ALL, DATASET_DEFAULTS
from metalabelnet.train import Run, RunFolder, make_run

if TYPE_CHECKING:
    import argparse


def build_run(args: argparse.Namespace, **changes: Any) -> Run:
    """Return the run that these arguments describe, with fields changed as given."""
    values = {f.name: getattr(args, f.name, None) for f in dataclasses.fields(Run)}
    settings = dict(_name_and_value(text) for text in values["settings"] or ())
    # `compare` trains several methods: each takes the settings with its own prefix.
    values["settings"] = _settings_of_method(changes["method"], settings) if "methods" in args else settings
    if isinstance(values["clean"], str) and values["clean"] != ALL:
        values |= {"clean": None, "clean_file": values["clean"]}
    run = make_run(**{name: value for name, value in (values | changes).items() if value is not None})
    check_run_options(args, run)
    return run


def run_to_resume(args: argparse.Namespace) -> Run | None:
    """Return the run in the folder DATA; None if DATA is no run folder. `args.out` becomes that folder."""
    folder = RunFolder(args.data)
    if args.data in DATASET_DEFAULTS or not folder.has("run.json"):
        return None
    if not args.resume:
        raise InputError(f"{args.data} is a run folder: give data, or resume the run with --resume")
    if args.out not in (None, folder.path):
        raise InputError(f"--out {args.out}: the run in {args.data} is resumed there; leave out --out")
    for option in dataclasses.fields(Run):
        if option.name not in ("data", "net", "workers") and getattr(args, option.name, None) not in (None, []):
            name = "set" if option.name == "settings" else option.name.replace("_", "-")
            raise InputError(f"--{name}: the run in {args.data} is resumed with its own settings; leave out --{name}")
    if (own := folder.metadata()["own_net"]) is not None:
        raise InputError(f"{args.data} trains a module passed in Python ({own}): resume it there, with resume=True")
    run = folder.run()
    check_net_is_allowed(folder, run, args.net)
    args.out = folder.path
    return run if args.workers is None else dataclasses.replace(run, workers=args.workers)


def _settings_of_method(method: str, settings: dict[str, str]) -> dict[str, str]:
    """Return the settings of this method from METHOD.NAME=VALUE."""
    for name in settings:
        if name.partition(".")[0] not in METHODS:
            raise InputError(f"--set {name}={settings[name]}: write METHOD.NAME=VALUE, such as metalabelnet.beta=0.001")
    return {name.partition(".")[2]: value for name, value in settings.items() if name.partition(".")[0] == method}


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text}: write NAME=VALUE")
    return name, value


def run_folder_name(run: Run, *, with_method: bool = True) -> str:
    """Return a folder name made from the settings that usually differ between runs."""
    noise = run.noise.partition(":")[0] + (run.noise.partition(":")[2] if run.noise.count("/") == 0 else "")
    data = Path(os.path.abspath(run.data))  # noqa: PTH100  # `.` has no name of its own
    parts = [data.stem, run.method if with_method else "", noise, f"clean{run.clean_size or ''}"]
    parts += [f"limit{run.limit}"] if run.limit else []
    parts += [f"unlabeled{run.unlabeled}"] if run.unlabeled else []
    parts += [f"seed{run.seed}"] if with_method else []
    return "-".join(part for part in parts if part)
