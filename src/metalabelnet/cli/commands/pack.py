"""`metalabelnet pack`: write the images of a data set into shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.cli.console import Console
from metalabelnet.cli.interrupt import ignore_closed_terminal, interruptible
from metalabelnet.data import ReadOptions
from metalabelnet.data.packed.index import FILES, PIXELS, is_pack, verify_shards
from metalabelnet.data.packed.source import list_images
from metalabelnet.data.packed.writer import write_pack
from metalabelnet.data.parts import CLEAN
from metalabelnet.errors import InputError
from metalabelnet.run_options import IMAGE_BENCHMARKS
from metalabelnet.train.folder_checks import check_output_folder

if TYPE_CHECKING:
    import argparse


def pack(args: argparse.Namespace) -> None:
    """Pack the images, or verify a finished pack, and print its size."""
    _check_options(args)
    console, folder = Console(), args.output
    if not folder.exists():
        check_output_folder(folder, "-o")
    options = ReadOptions(
        clean_file=args.clean, test=args.test, split=args.split, image_size=args.image_size, on_error=args.on_error
    )
    finished = is_pack(folder)
    with interruptible() as stop, ignore_closed_terminal(), console.progress() as display:
        source = list_images(args.data, options, args.data_dir, display.samples)
        index = write_pack(
            source,
            folder,
            store=PIXELS if args.decode else FILES,
            skip_errors=args.on_error == "skip",
            on_samples=lambda done, total: display.samples(f"packing {args.data}", done, total),
            stop=stop,
        )
    if finished:
        verify_shards(folder, index)
    for note in index.notes:
        console.log(note)
    size = sum(shard["bytes"] for shard in index.shards) / 2**20
    shards = f"{len(index.shards)} shard{'s' if len(index.shards) > 1 else ''}"
    state = "is complete, and its digests match" if finished else "is written"
    console.print(f"{folder} {state}: {size:,.1f} MiB in {shards}; train on it with")
    console.print(f"  metalabelnet train {_train_arguments(args, has_clean=bool((source.part == CLEAN).any()))}")


def _train_arguments(args: argparse.Namespace, *, has_clean: bool) -> str:
    """Return the arguments of `metalabelnet train` for the pack."""
    if args.data in IMAGE_BENCHMARKS:
        return f"{args.data} --data-dir {args.output} --split {args.split}"
    return str(args.output) + ("" if has_clean else " --clean FILE")


def _check_options(args: argparse.Namespace) -> None:
    """Raise InputError for options that have no effect."""
    if args.data in IMAGE_BENCHMARKS:
        for name in ("clean", "test"):
            if getattr(args, name) is not None:
                raise InputError(f"--{name} is for your own images, and {args.data} has its own: leave it out")
    elif args.data_dir is not None or args.split != "general":
        option = "--data-dir" if args.data_dir is not None else "--split"
        raise InputError(f"{option} is for a named data set ({', '.join(IMAGE_BENCHMARKS)}): leave it out")
    if args.image_size is not None and not 4 <= args.image_size <= 1024:
        raise InputError(f"image-size {args.image_size} is out of range: choose from 4 to 1024")
