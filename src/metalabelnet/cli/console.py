"""Console output: rich tables and progress bars on a terminal with rich installed, plain lines otherwise.

Status and progress go to standard error, results to standard output.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from metalabelnet.cli.printable import escape_control_characters
from metalabelnet.cli.standard_streams import print_status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from metalabelnet.train import Progress

SECONDS_BETWEEN_LINES = 10  # of progress, where there are no bars
MAX_LAST_RULE_CHARACTERS = 40  # below the name of the last column of a table


class Console:
    """Prints results, status lines, tables and progress, with or without rich."""

    def __init__(self) -> None:
        try:
            import rich.console

            self.rich_out: Any = rich.console.Console(highlight=False)
            self.rich_err: Any = rich.console.Console(stderr=True, highlight=False)
        except ImportError:
            self.rich_out = self.rich_err = None

    def print(self, text: str) -> None:
        """Print a line of the result on standard output."""
        print(escape_control_characters(text), flush=True)

    def log(self, text: str) -> None:
        """Print a status line on standard error."""
        print_status(text)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table: with borders on a terminal, as aligned text elsewhere."""
        columns = [escape_control_characters(name) for name in columns]
        rows = [[escape_control_characters(cell) for cell in row] for row in rows]
        if self.rich_out is not None and self.rich_out.is_terminal:
            from rich.table import Table
            from rich.text import Text

            table = Table()
            for place, name in enumerate(columns):
                table.add_column(Text(name), no_wrap=place == 0)  # the first column holds names, to be copied whole
            for row in rows:
                table.add_row(*(Text(cell) for cell in row))
            self.rich_out.print(table)
        else:
            print(format_table(columns, rows), flush=True)

    @contextmanager
    def progress(self, runs: int = 1) -> Iterator[ProgressDisplay]:
        """Show the progress of one run or several."""
        if self.rich_err is not None and self.rich_err.is_terminal:
            from rich import progress as rich_progress

            columns = (
                rich_progress.TextColumn("{task.description}", markup=False),
                rich_progress.BarColumn(),
                rich_progress.TextColumn("{task.fields[status]}", markup=False),
                rich_progress.TimeRemainingColumn(),
            )
            with rich_progress.Progress(*columns, console=self.rich_err, transient=True) as bars:
                yield ProgressDisplay(runs, bars)
        else:
            yield ProgressDisplay(runs, None)


class ProgressDisplay:
    """The progress of runs, downloads and readers: a bar each, or occasional lines where `bars` is None."""

    def __init__(self, runs: int, bars: Any) -> None:
        self.runs, self.bars = runs, bars
        self.tasks: dict[int | str, Any] = {}
        self.finished: set[int] = set()
        self.start: dict[str, tuple[float, int]] = {}  # time and count of a reader's first report
        self.last_line = time.monotonic()
        if bars is not None and runs > 1:
            self.tasks["all"] = bars.add_task("all runs", total=runs, status="")

    def update(self, number: int, name: str, progress: Progress | None) -> None:
        """Show the progress of a run; None means that it has finished."""
        if progress is None:
            self._finish(number, name)
            return
        share, status = _describe_progress(progress)
        if self.bars is not None:
            if number not in self.tasks:
                self.tasks[number] = self.bars.add_task(escape_control_characters(name), total=1.0, status="")
            fields = {"status": status} if status else {}
            self.bars.update(self.tasks[number], completed=share, **fields)
        elif status and (self.runs == 1 or self._line_is_due()):
            self._print_line(f"{name}: {status}")

    def _finish(self, number: int, name: str) -> None:
        if number in self.finished:
            return
        self.finished.add(number)
        if self.bars is not None:
            if number in self.tasks:
                self.bars.remove_task(self.tasks.pop(number))
            if "all" in self.tasks:
                self.bars.update(self.tasks["all"], completed=len(self.finished))
        elif self.runs > 1:
            print_status(f"{name}: finished ({len(self.finished)} of {self.runs})")

    def download(self, name: str, done: int, total: int) -> None:
        """Show the progress of a download, in bytes; a total of 0 is unknown."""
        self._count(name, done, total, f"{done / 2**20:.0f}", f"{total / 2**20:.0f} MiB" if total else "MiB")

    def samples(self, name: str, done: int, total: int) -> None:
        """Show how many samples are read; a total of 0 is unknown."""
        now = time.monotonic()
        start_time, start_count = self.start.setdefault(name, (now, done))
        rate = (done - start_count) / (now - start_time) if now > start_time else 0.0
        unit = f"{total} samples" if total else "samples"
        left = f", {format_duration((total - done) / rate)} left" if rate and total > done else ""
        self._count(name, done, total, f"{done}", unit + (f", {rate:.0f} per second{left}" if rate else ""))

    def _count(self, name: str, done: int, total: int, count: str, unit: str) -> None:
        status = f"{count} of {unit}" if total else f"{count} {unit}"
        if self.bars is not None:
            if name not in self.tasks:
                description = escape_control_characters(name)
                self.tasks[name] = self.bars.add_task(description, total=total or None, status="")
            self.bars.update(self.tasks[name], completed=done, status=status)
        elif 0 < done == total or self._line_is_due():
            self._print_line(f"{name}: {status}")

    def _line_is_due(self) -> bool:
        return time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES

    def _print_line(self, text: str) -> None:
        self.last_line = time.monotonic()
        print_status(text)


def _describe_progress(progress: Progress) -> tuple[float, str]:
    """Return the completed share of a run and, at the end of an epoch, its metrics as text."""
    share = (progress.epoch + progress.step / max(1, progress.steps)) / progress.epochs
    if progress.metrics is None:
        return share, ""
    m = progress.metrics
    test = "" if m["test_accuracy"] is None else f", test accuracy {m['test_accuracy']:.1f} %"
    text = f"epoch {progress.epoch}/{progress.epochs}: loss {m['loss']:.4f}, clean accuracy {m['clean_accuracy']:.1f} %"
    return share, text + test


def format_duration(seconds: float) -> str:
    """Return a time rounded up to whole hours, minutes or seconds."""
    for size, name in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{math.ceil(seconds / size)} {name}"
    return f"{math.ceil(seconds)} s"


def format_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as aligned plain text; a long last cell does not lengthen the line below the head."""
    cells = [list(columns), *map(list, rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    widths[-1] = min(widths[-1], max(len(columns[-1]), MAX_LAST_RULE_CHARACTERS))
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
