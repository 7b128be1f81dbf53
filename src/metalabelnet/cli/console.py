"""What is seen while it runs: with rich bars and tables; without it, or without a terminal, plain lines.

Progress goes to standard error, results to standard output.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from metalabelnet.train import Progress


class Console:
    """Prints, with or without rich."""

    def __init__(self) -> None:
        try:
            import rich.console

            self.rich: Any = rich.console.Console(highlight=False)
            self.err: Any = rich.console.Console(stderr=True, highlight=False)
        except ImportError:
            self.rich = self.err = None

    def print(self, text: str) -> None:
        """A line of the result."""
        print(text, flush=True)

    def say(self, text: str) -> None:
        """A line about what is going on."""
        print(text, file=sys.stderr, flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table: drawn on a terminal, aligned text elsewhere."""
        if self.rich is not None and self.rich.is_terminal:
            from rich.table import Table
            from rich.text import Text

            table = Table()
            for place, name in enumerate(columns):
                table.add_column(name, no_wrap=place == 0)  # a name cut short is no name
            for row in rows:
                table.add_row(*(Text(cell) for cell in row))
            self.rich.print(table)
        else:
            self.print(aligned(columns, rows))

    @contextmanager
    def progress(self, total: int = 1) -> Iterator[Bars]:
        """Bars for the time of a run, or of several."""
        if self.err is not None and self.err.is_terminal:
            from rich import progress as bars

            columns = (
                bars.TextColumn("{task.description}"),
                bars.BarColumn(),
                bars.TextColumn("{task.fields[told]}"),
                bars.TimeRemainingColumn(),
            )
            with bars.Progress(*columns, console=self.err, transient=True) as shown:
                yield Bars(total, shown)
        else:
            yield Bars(total, None)


class Bars:
    """How far each run is: a bar a run, or now and then a line."""

    def __init__(self, total: int, shown: Any) -> None:
        self.total, self.shown = total, shown
        self.tasks: dict[int | str, Any] = {}
        self.ended: set[int] = set()
        self.began: dict[str, tuple[float, int]] = {}
        self.last = time.monotonic()
        if shown is not None and total > 1:
            self.tasks["all"] = shown.add_task("all runs", total=total, told="")

    def update(self, number: int, name: str, progress: Progress | None) -> None:
        """A run has come this far (None: to its end)."""
        if progress is None:
            self._end(number, name)
            return
        done, told = _told(progress)
        if self.shown is not None:
            if number not in self.tasks:
                self.tasks[number] = self.shown.add_task(name, total=1.0, told="")
            fields = {"told": told} if told else {}
            self.shown.update(self.tasks[number], completed=done, **fields)
        elif told and (self.total == 1 or time.monotonic() - self.last > 10):
            self.last = time.monotonic()
            print(f"{name}: {told}", file=sys.stderr, flush=True)

    def _end(self, number: int, name: str) -> None:
        if number in self.ended:
            return
        self.ended.add(number)
        if self.shown is not None:
            if number in self.tasks:
                self.shown.remove_task(self.tasks.pop(number))
            if "all" in self.tasks:
                self.shown.update(self.tasks["all"], completed=len(self.ended))
        elif self.total > 1:
            print(f"{name}: done ({len(self.ended)} of {self.total})", file=sys.stderr, flush=True)

    def download(self, what: str, done: int, total: int) -> None:
        """A download has come this far."""
        self._count(what, done, total, f"{done / 2**20:.0f}", f"{total / 2**20:.0f} MiB" if total else "MiB")

    def samples(self, what: str, done: int, total: int) -> None:
        """So many samples are read."""
        now = time.monotonic()
        began = self.began.setdefault(what, (now, done))
        rate = (done - began[1]) / (now - began[0]) if now > began[0] else 0.0
        of = f"{total} samples" if total else "samples"
        self._count(what, done, total, f"{done}", of + (f", {rate:.0f} a second" if rate else ""))

    def _count(self, what: str, done: int, total: int, said: str, of: str) -> None:
        if self.shown is not None:
            if what not in self.tasks:
                self.tasks[what] = self.shown.add_task(what, total=total or None, told="")
            self.shown.update(self.tasks[what], completed=done, told=_of(said, of, total))
        elif 0 < done == total or time.monotonic() - self.last > 10:
            self.last = time.monotonic()
            print(f"{what}: {_of(said, of, total)}", file=sys.stderr, flush=True)


def _of(done: str, of: str, total: int) -> str:
    return f"{done} of {of}" if total else f"{done} {of}"


def _told(progress: Progress) -> tuple[float, str]:
    """The share that is done, and at the end of an epoch its line."""
    done = (progress.epoch + progress.step / max(1, progress.steps)) / progress.epochs
    if progress.metrics is None:
        return done, ""
    m = progress.metrics
    test = "" if m["test_accuracy"] is None else f", test {m['test_accuracy']:.1f} %"
    return (
        done,
        f"epoch {progress.epoch}/{progress.epochs}: loss {m['loss']:.4f}, clean {m['clean_accuracy']:.1f} %{test}",
    )


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in plain text."""
    cells = [list(columns), *map(list, rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
