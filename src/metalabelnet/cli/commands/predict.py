"""`metalabelnet predict`: predict the classes of new samples with a run."""

from __future__ import annotations

import csv
from contextlib import ExitStack
from typing import TYPE_CHECKING

from metalabelnet.cli.console import Console
from metalabelnet.cli.output_files import check_output_path, stdout_for_data, write_atomically
from metalabelnet.inference.predict import PredictOptions, Predictor

if TYPE_CHECKING:
    import argparse

MAX_FAILURES_IN_MESSAGE = 5


def predict(args: argparse.Namespace) -> None:
    """Write the predictions as CSV, row by row."""
    if args.output is not None:
        check_output_path(args.output)
    options = PredictOptions(image=args.image, text=args.text, id=args.id, on_error=args.on_error)
    predictor = Predictor(args.run, net=args.net, device=args.device)
    console = Console()
    failures: list[str] = []
    inputs = args.input[0] if len(args.input) == 1 else f"{len(args.input)} inputs"
    with ExitStack() as stack:
        display = stack.enter_context(console.progress())
        out = stdout_for_data() if args.output is None else stack.enter_context(write_atomically(args.output))
        writer = csv.writer(out, lineterminator="\n")
        count = 0

        def on_samples(done: int, total: int) -> None:
            display.samples(f"predicting {inputs}", done, total)

        def on_listed(count: int) -> None:
            display.samples(f"listing {inputs}", count, 0)

        for row in predictor.predict(args.input, options, on_samples, failures.append, on_listed):
            # The header is written with the first row: an error in the first sample leaves standard output empty.
            writer.writerows([row] if count else [predictor.columns(), row])
            count += 1
        if not count:
            writer.writerow(predictor.columns())
        out.flush()
    if failures:
        listed = [*failures[:MAX_FAILURES_IN_MESSAGE], *(["…"] if len(failures) > MAX_FAILURES_IN_MESSAGE else [])]
        console.log(f"{len(failures)} sample{'s' if len(failures) > 1 else ''} skipped: {'; '.join(listed)}")
    if args.output is not None:
        console.print(f"{count} rows written to {args.output}")
