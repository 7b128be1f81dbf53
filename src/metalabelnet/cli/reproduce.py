"""`metalabelnet reproduce`: run what is missing of the paper's tables and figures, and write them."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from metalabelnet.cli.commands import interruptible
from metalabelnet.cli.console import Console
from metalabelnet.errors import InputError, unknown
from metalabelnet.reproduction import document
from metalabelnet.reproduction.entries import Selection, check, entries
from metalabelnet.reproduction.figures import draw
from metalabelnet.reproduction.recipes import READY, WHATS
from metalabelnet.reproduction.resources import Places, check_probs, smoke_probs, unpack_human_labels
from metalabelnet.reproduction.results import Results
from metalabelnet.reproduction.runner import Runner
from metalabelnet.reproduction.tables import tables
from metalabelnet.train import Diverged
from metalabelnet.train.settings import DTYPES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


EXAMPLES = """examples:
  metalabelnet reproduce --list                                    what there is, and what has been run
  metalabelnet reproduce cifar10-table --methods metalabelnet --noise-probs student_logits.npy --budget 60
  metalabelnet reproduce ablation-beta --points 0.001,0.01 --noise-probs student_logits.npy
  metalabelnet reproduce cifar10n --cells worst --human-labels CIFAR-10_human.pt
  metalabelnet reproduce all --tables-only --doc docs/reproduction.md
  metalabelnet reproduce fig-curves --smoke                        the same in seconds, on digits
"""


def add_reproduce(parser: argparse.ArgumentParser) -> None:
    """The arguments of `reproduce`."""
    add = parser.add_argument
    add("what", nargs="*", metavar="WHAT", help="tables and figures by name (see --list), or all")
    add("--list", action="store_true", help="show what there is, or the runs of WHAT, and how much has been run")
    add(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="where the data sets' files are (without: METALABELNET_DATA, else ~/.cache/metalabelnet)",
    )
    add(
        "--noise-probs",
        type=Path,
        metavar="FILE",
        help="student_logits.npy of the paper's authors, for feature-dependent noise",
    )
    add("--human-labels", type=Path, metavar="FILE", help="CIFAR-10_human.pt, the labels of CIFAR-10N")
    add("--seeds", type=int, metavar="N", help="runs of each kind, with seeds from 0 on (default: as the paper has it)")
    add("--methods", metavar="A,B", help="only these methods")
    add(
        "--cells",
        metavar="A,B",
        help="only these noises, such as uniform:0.4,feature:0.6, worst or (beyond) digits/uniform:0.4",
    )
    add("--points", metavar="A,B", help="only these values of what a figure or ablation varies")
    add("--budget", type=float, metavar="MINUTES", help="stop after this time; the same command goes on where it was")
    add(
        "--order",
        choices=("given", "cheapest"),
        default="given",
        help="which run comes first: as listed, or the cheapest (default: given)",
    )
    add("--concurrent", type=int, metavar="N", help="runs beside each other on a device (default: 8 on CUDA, else 1)")
    add(
        "--jobs",
        type=int,
        metavar="N",
        help="on a CPU: runs beside each other, in processes of one thread (default: 1)",
    )
    add("--results", type=Path, metavar="DIR", help="folder with a line for each run (default: results)")
    add("--out", type=Path, metavar="DIR", help="folder for the run folders (default: runs/reproduce)")
    add("--figures", type=Path, metavar="DIR", help="where tables and figures go (default: docs/reproduction)")
    add("--doc", type=Path, metavar="FILE", help="fill in the parts of this page that come from the results")
    add("--smoke", action="store_true", help="the same runs, tiny, on digits: shows in seconds that all is in place")
    add("--tables-only", action="store_true", help="run nothing, build from what there is")
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda, … (default: auto)")
    add("--commit", metavar="ID", help="the commit to write down where the package does not run from a checkout")
    add("--dtype", metavar="NAME", help="float32, float64 or bf16 (default: bf16 on CUDA; for the tables any)")


def reproduce(args: argparse.Namespace) -> None:
    """Run what the results do not hold yet, then write tables and figures."""
    console = Console()
    if args.list:
        show(console, args)
        return
    names = _names(args.what)
    selection = selection_of(args)
    check(names, selection)
    if args.smoke and args.doc is not None:
        raise InputError(f"doc {args.doc}: a page is filled in from real runs: leave out --smoke, or --doc")
    work = _folder(args)
    folder = args.results or (work or Path()) / "results"
    if not args.tables_only:
        out = args.out or (work or Path("runs")) / "reproduce"
        _run(console, args, names, selection, Results(folder, args.dtype), out)
    results = Results(folder, args.dtype)  # with what another process has added meanwhile
    figures = args.figures or (work or Path("docs")) / "reproduction"
    write(console, names, results, figures, selection)
    if args.doc is not None:
        changed = document.update(args.doc, results)
        console.print(f"{args.doc}: {'filled in' if changed else 'is as the results have it'}")


def _run(
    console: Console,
    args: argparse.Namespace,
    names: Sequence[str],
    selection: Selection,
    results: Results,
    out: Path,
) -> None:
    asked = [entry for name in names for entry in entries(name, selection)]
    probs = None if args.noise_probs is None else check_probs(args.noise_probs)
    if args.smoke:
        probs = smoke_probs(out / "noise" / "digits.npy") if any(entry.needs_probs for entry in asked) else None
    places = Places(
        data_dir=args.data_dir,
        noise_probs=probs,
        human=None if args.human_labels is None else unpack_human_labels(args.human_labels, out / "noise"),
        device=args.device,
        dtype=args.dtype,
        commit=args.commit,
    )
    concurrent = (8 if places.on_cuda else 1) if args.concurrent is None else args.concurrent
    if args.jobs not in (None, 1) and (places.on_cuda or args.concurrent is not None):
        raise InputError(f"jobs {args.jobs} is for runs on a CPU: on a device use --concurrent alone")
    with interruptible() as stop:
        runner = Runner(
            results,
            places,
            out,
            concurrent=concurrent,
            workers=args.jobs or 1,
            budget=None if args.budget is None else 60 * args.budget,
            cheapest=args.order == "cheapest",
            say=console.say,
            stop=stop,
        )
        console.say(f"{len(runner.open(asked))} of {len(asked)} runs are to be made; {out} keeps what is under way")
        left = runner.run(asked)
    if left:
        console.say(f"the budget of {args.budget:g} min is used up: {left} runs are left; the same command goes on")
    if runner.failures:
        raise Diverged("; ".join(runner.failures))


def write(console: Console, names: Sequence[str], results: Results, folder: Path, asked: Selection) -> None:
    """Write tables and figures; show the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    without_figure: InputError | None = None
    for name in names:
        made = tables(name, results, asked)
        for table in made:
            console.print(table.title)
            console.table(table.columns, table.rows)
        (folder / f"{name}.md").write_text("\n".join(table.markdown() for table in made), encoding="utf-8")
        (folder / f"{name}.tex").write_text("\n".join(table.latex() for table in made), encoding="utf-8")
        try:
            draw(name, results, folder, asked)
        except InputError as error:  # matplotlib is an extra: a table without a figure is still a table
            without_figure = error
    if without_figure is not None:
        console.say(f"no figures: {without_figure}")
    console.print(f"tables and figures: {folder}")


def show(console: Console, args: argparse.Namespace) -> None:
    """What there is, and how much of it has been run; or the runs of one, one by one."""
    selection = selection_of(args)
    names = _names(args.what, ready=False) if args.what else list(WHATS)
    check(names, selection)
    results = Results(args.results or Path("results"), args.dtype)
    if not args.what:
        rows = []
        for name, what in WHATS.items():
            if what.needs_data:
                rows.append([name, "–", f"{what.summary} (needs data: {what.needs_data})"])
                continue
            asked = entries(name, selection)
            rows.append([name, f"{sum(results.of(e) is not None for e in asked)}/{len(asked)}", what.summary])
        console.table(["what", "runs done", "content"], rows)
        return
    for name in names:
        rows = []
        for entry in entries(name, selection):
            ready = not WHATS[name].needs_data
            line = results.of(entry) if ready else None
            done = "" if line is None else "failed" if line.get("failure") else _accuracy(line)
            fields = {k: v for k, v in entry.fields.items() if k not in ("method", "seed")}
            told = ", ".join(f"{k}={v}" for k, v in fields.items() if v not in (None, {}, ()))
            rows.append([str(entry), done, "" if entry.paper is None else str(entry.paper), told])
        console.print(f"{name}: {WHATS[name].summary}" + (" (needs data)" if WHATS[name].needs_data else ""))
        console.table(["run", "ours", "paper", "recipe"], rows)


def _accuracy(line: dict[str, object]) -> str:
    summary = line["summary"]
    return f"{summary['test_accuracy']:.2f}" if isinstance(summary, dict) else "done"


def selection_of(args: argparse.Namespace) -> Selection:
    """The runs that these arguments mean."""
    for name, least in (("seeds", 1), ("concurrent", 1), ("jobs", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise InputError(f"{name} {value} is too small: the least is {least}")
    if args.budget is not None and not (math.isfinite(args.budget) and args.budget > 0):
        raise InputError(f"budget {args.budget} is not a positive number of minutes")
    if args.dtype is not None and args.dtype not in DTYPES:
        raise unknown("dtype", args.dtype, DTYPES)
    return Selection(
        methods=_listed(args.methods),
        cells=_listed(args.cells),
        points=_listed(args.points),
        seeds=args.seeds,
        smoke=args.smoke,
    )


def _listed(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(filter(None, text.split(",")))


def _names(asked: Sequence[str], *, ready: bool = True) -> list[str]:
    if not asked:
        raise InputError(f"name what to reproduce: {', '.join(READY)}, or all; see metalabelnet reproduce --list")
    names = list(dict.fromkeys(name for a in asked for name in (READY if a == "all" else (a,))))
    for name in names:
        if name not in WHATS:
            raise unknown("table or figure", name, [*WHATS, "all"])
        if ready and WHATS[name].needs_data:
            raise InputError(
                f"{name} needs the data set {WHATS[name].needs_data}, which cannot be read yet; "
                f"its recipe is shown by: metalabelnet reproduce {name} --list"
            )
    return names


def _folder(args: argparse.Namespace) -> Path | None:
    """A smoke test leaves nothing in the project: what it is not told goes to a folder of its own."""
    if not args.smoke or (args.results and args.out and args.figures):
        return None
    return Path(tempfile.mkdtemp(prefix="metalabelnet-smoke-"))
