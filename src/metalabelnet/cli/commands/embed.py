"""`metalabelnet embed`: write the embeddings of images or texts into an .npz file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from metalabelnet.cli.console import Console
from metalabelnet.cli.interrupt import ignore_closed_terminal
from metalabelnet.cli.output_files import check_output_path
from metalabelnet.data import ReadOptions
from metalabelnet.data.files.feature_file import check_feature_file_name, embed_data, write_features

if TYPE_CHECKING:
    import argparse


def embed(args: argparse.Namespace) -> None:
    """Compute the embeddings that are not cached, and write all of them."""
    check_feature_file_name(args.output)
    check_output_path(args.output)
    console = Console()
    options = ReadOptions(
        encoder=args.encoder,
        test=args.test,
        image=args.image,
        text=args.text,
        label=args.label,
        id=args.id,
        true_label=args.true_label,
        on_error=args.on_error,
        external_net=True,
    )
    if torch.cuda.is_available():
        options = dataclasses.replace(options, gpu_free_bytes=torch.cuda.mem_get_info()[0])
    with ignore_closed_terminal(), console.progress() as display:
        data = embed_data(args.data, Path(args.data), options, args.data_dir, display.samples)
    for note in data.notes:
        console.log(note)
    write_features(data, args.output)
    count = sum(len(rows) for rows in (data.train, data.clean, data.test) if rows is not None)
    width = data.train.x.shape[1]
    console.print(f"{args.output} is written: {count:,} samples of {width:,} values; train on it with")
    console.print(f"  metalabelnet train {args.output}" + ("" if data.clean is not None else " --clean FILE"))
