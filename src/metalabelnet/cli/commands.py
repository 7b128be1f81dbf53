"""What each command does."""

from __future__ import annotations

import csv
import dataclasses
import math
import os
import signal
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, get_args, get_type_hints

from metalabelnet import train as training
from metalabelnet.cli import comparison
from metalabelnet.cli.arguments import run_from
from metalabelnet.cli.console import Console
from metalabelnet.cli.output_files import check_folder, for_data, whole
from metalabelnet.cli.run_description import announce, describe
from metalabelnet.data import DATASETS
from metalabelnet.data.read_cache import ReadCache
from metalabelnet.errors import InputError, unknown
from metalabelnet.inference.export import to_onnx
from metalabelnet.inference.predict import Predictor, Reader
from metalabelnet.inference.relabel import relabel
from metalabelnet.labels.export_formats import FORMATS, choose, read_table
from metalabelnet.labels.memorization_check import by_heart
from metalabelnet.launch.process_pool import Job, train_all
from metalabelnet.methods import METHODS
from metalabelnet.noise import NOISES
from metalabelnet.report import tool_samples
from metalabelnet.train import RunFolder, Stopped
from metalabelnet.train.prepare import device_of, prepare

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from metalabelnet.methods import Method
    from metalabelnet.train import Progress, Run


def train(args: argparse.Namespace) -> None:
    """Train one method."""
    run = run_from(args)
    if not (math.isfinite(args.checkpoint_seconds) and args.checkpoint_seconds >= 0):
        raise InputError(f"checkpoint-seconds {args.checkpoint_seconds} is not a number that is 0 or more")
    files = RunFolder(args.out or Path("runs") / run_name(run))
    files.check(run, resume=args.resume)
    console = Console()
    if files.finished:
        console.say(f"{files.path} is finished already")
    else:
        with interruptible() as stop, console.progress() as progress:
            problem = prepare(run, progress.download, progress.samples, stop=stop)
            for note in problem.notes:
                console.say(note)
            about = [describe(run, problem)]
            if stop():  # compiling the first step may take minutes
                raise Stopped

            def tell(come: Progress) -> None:
                if about:  # said when network, samples and settings are known to go together
                    console.say(about.pop())
                progress.update(0, run.method, come)

            result = training.train(
                run,
                folder=files.path,
                resume=args.resume,
                problem=problem,
                on_progress=tell,
                stop=stop,
                checkpoint_seconds=args.checkpoint_seconds,
            )
        if warning := by_heart(problem, result.labels):
            console.say(warning)
    comparison.show_summary(console, files)


def compare(args: argparse.Namespace) -> None:
    """Train several methods and show them side by side."""
    names = list(METHODS) if args.methods == "all" else list(dict.fromkeys(filter(None, args.methods.split(","))))
    if not names:
        raise InputError(f"methods {args.methods!r} names none: give some of {', '.join(METHODS)}, or all")
    for name in names:
        if name not in METHODS:
            raise unknown("method", name, [*METHODS, "all"])
    if args.seeds < 1:
        raise InputError(f"seeds {args.seeds} is too small: the least is 1")
    first = run_from(args, method=names[0])
    out = args.out or Path("runs") / f"compare-{run_name(first, with_method=False)}"
    jobs = [
        Job(run=run_from(args, method=name, seed=first.seed + k), folder=out / f"{name}-seed{first.seed + k}")
        for k in range(args.seeds)
        for name in names
    ]
    on_cpu = device_of(first).type == "cpu"
    workers = ((os.cpu_count() or 1) if on_cpu else 1) if args.jobs is None else args.jobs
    if workers < 1:
        raise InputError(f"jobs {workers} is too small: the least is 1")
    console = Console()
    console.say(f"{len(jobs)} runs of {len(names)} methods on {first.data}, noise {first.noise}, {workers} at a time")
    with interruptible() as stop, console.progress(total=len(jobs)) as progress:
        read_cache = ReadCache(at_a_time=min(workers, len(jobs)))
        announce(console, jobs, workers, progress, read_cache, resume=args.resume)
        outcomes = train_all(
            jobs,
            resume=args.resume,
            workers=workers,
            read_cache=read_cache,
            on_progress=lambda n, p: progress.update(n, jobs[n].folder.name, p),
            stop=stop,
            go_on=True,
        )
    comparison.show(console, out, jobs, outcomes)


def labels(args: argparse.Namespace) -> None:
    """Write a label table."""
    files = RunFolder(args.run)
    if args.format not in FORMATS:
        raise unknown("format", args.format, FORMATS)
    if args.data is None:
        files.summary()  # refuses what is not a finished run
        text = _label_table(files.path / "labels.csv")
    else:
        text = relabel(args.run, args.data, args.data_dir).to_csv()
    rows = read_table(text)
    chosen = choose(rows, suspects=args.suspects, top=args.top)
    if args.format in ("label-studio", "fiftyone") and args.data is None:
        chosen, notes = tool_samples.of_rows(args.run, chosen, args.format)
        for note in notes:
            Console().say(note)
    if chosen is not rows or args.format != "csv":
        text = FORMATS[args.format](chosen, list(rows[0]), files.about()["classes"])
    if args.output is None:
        out = for_data()
        out.write(text)
        out.flush()
    else:
        with whole(args.output) as file:
            file.write(text)
        print(f"{len(chosen)} rows written to {args.output}")


def _label_table(file: Path) -> str:
    """The label table of a run; refuses one that is cut off."""
    try:
        text = file.read_text(encoding="utf-8")
        rows = read_table(text)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} cannot be read ({error}): copy the run folder again, or train again") from error
    columns = {"index", "id", "given", "label", "confidence", "suspect"}
    if not rows or not rows[0].keys() >= columns or None in rows[-1].values():
        raise InputError(f"{file} is not a whole label table: copy the run folder again, or train again")
    return text


def predict(args: argparse.Namespace) -> None:
    """Write what a run says about new samples, as they come."""
    if args.output is not None:
        check_folder(args.output)
    reader = Reader(image=args.image, text=args.text, id=args.id, on_error=args.on_error)
    predictor = Predictor(args.run, net=args.net, device=args.device)
    console = Console()
    failures: list[str] = []
    what = args.input[0] if len(args.input) == 1 else f"{len(args.input)} inputs"
    with ExitStack() as opened:
        bars = opened.enter_context(console.progress())
        out = for_data() if args.output is None else opened.enter_context(whole(args.output))
        writer = csv.writer(out, lineterminator="\n")
        count = 0

        def tell(done: int, total: int) -> None:
            bars.samples(f"predicting {what}", done, total)

        for row in predictor.rows(args.input, reader, tell, failures.append):
            writer.writerows(
                [row] if count else [predictor.header(), row]
            )  # nothing where the first sample is an error
            count += 1
        if not count:
            writer.writerow(predictor.header())
        out.flush()
    if failures:
        console.say(f"{len(failures)} samples left out: {'; '.join(failures[:5])}{' …' if len(failures) > 5 else ''}")
    if args.output is not None:
        print(f"{count} rows written to {args.output}")


def export(args: argparse.Namespace) -> None:
    """Write a run's model for other programs."""
    check_folder(args.onnx)
    difference = to_onnx(args.run, args.onnx, net=args.net)
    print(f"{args.onnx} written; probabilities differ from torch by {difference:.1g} at most")


def methods(args: argparse.Namespace) -> None:
    """List the methods, or the settings of one."""
    console = Console()
    if args.name is None:
        rows = [[name, m.summary, m.unlabeled, m.reference] for name, m in METHODS.items()]
        console.table(["method", "what it does", "unlabeled rows", "from"], rows)
        return
    if args.name not in METHODS:
        raise unknown("method", args.name, METHODS)
    method = METHODS[args.name]
    console.print(f"{args.name}: {method.summary} ({method.reference})")
    fields = dataclasses.fields(method.Settings)
    rows = [
        [field.name, str(field.default), str(field.metadata["help"]) + _choices(method, field.name)] for field in fields
    ]
    console.table(["--set NAME=VALUE", "default", "meaning"], rows or [["–", "–", "nothing to set"]])


def _choices(method: type[Method], name: str) -> str:
    """The words that a setting can be, where it is one of a few."""
    words = [word for word in get_args(get_type_hints(method.Settings)[name]) if isinstance(word, str)]
    return f" ({', '.join(words)})" if words else ""


def datasets(_args: argparse.Namespace) -> None:
    """List the data sets."""
    Console().table(["data set", "what it is", "from"], [[n, s.summary, s.reference] for n, s in DATASETS.items()])


def noises(_args: argparse.Namespace) -> None:
    """List the kinds of noise."""
    Console().table(["noise", "what it does", "from"], [[n.usage, n.summary, n.reference] for n in NOISES.values()])


def run_name(run: Run, *, with_method: bool = True) -> str:
    """A folder name that tells runs apart."""
    noise = run.noise.partition(":")[0] + (run.noise.partition(":")[2] if run.noise.count("/") == 0 else "")
    data = Path(os.path.abspath(run.data))  # noqa: PTH100  # `.` has no name of its own
    parts = [data.stem, run.method if with_method else "", noise, f"clean{run.clean or ''}"]
    parts += [f"limit{run.limit}"] if run.limit else []
    parts += [f"unlabeled{run.unlabeled}"] if run.unlabeled else []
    parts += [f"seed{run.seed}"] if with_method else []
    return "-".join(part for part in parts if part)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C and a polite kill ask the run to stop after its step; a second Ctrl-C stops at once."""
    asked: list[int] = []

    def ask(number: int, _frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        os.write(2, b"stopping after this step\n")  # print is not safe here: the signal may come within another print

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
