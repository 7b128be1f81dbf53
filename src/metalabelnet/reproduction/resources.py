"""Where this machine keeps what the runs need: the data, the authors' noise, the labels people gave."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet import nets
from metalabelnet.data import load
from metalabelnet.errors import InputError
from metalabelnet.noise.cifar10n import read_human_labels
from metalabelnet.train.checkpoint import write_atomically
from metalabelnet.train.noise_probe import log_probabilities
from metalabelnet.train.settings import Run, recipe

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from metalabelnet.reproduction.recipes import Entry

AUTHORS_SHA256 = "4b0c63b40af899b28aa704418ae4ae799ff9588a3c3d0ef8f046f2ea676cc537"


@dataclass(frozen=True, kw_only=True)
class Places:
    """Folders and files of this machine, and how it computes.

    noise_probs  the authors' class probabilities, from which their feature-dependent noise comes
    human        a folder with the labels people gave, one .npy file a set
    dtype        None: bf16 on CUDA, float32 elsewhere
    commit       what to write down, where the package does not run from a checkout of it
    """

    data_dir: Path | None = None
    noise_probs: Path | None = None
    human: Path | None = None
    device: str = "auto"
    dtype: str | None = None
    commit: str | None = None

    def lacks(self, entry: Entry) -> str | None:
        """What the entry needs and this machine has not been told of."""
        if entry.needs_probs and self.noise_probs is None:
            return "--noise-probs FILE (the authors' student_logits.npy)"
        if entry.needs_human and self.human is None:
            return "--human-labels FILE (CIFAR-10_human.pt of CIFAR-10N)"
        return None

    def run(self, entry: Entry) -> Run:
        """The run of an entry on this machine."""
        noise = str(entry.fields["noise"])
        if entry.needs_human and self.human is not None:
            noise = f"file:{self.human / noise.removeprefix('file:')}.npy"
        return recipe(
            **{
                **entry.fields,
                "noise": noise,
                "noise_probs": str(self.noise_probs) if entry.needs_probs else None,
                "data_dir": None if self.data_dir is None else str(self.data_dir),
                "device": self.device,
                "dtype": self.dtype or ("bf16" if self.on_cuda else "float32"),
                "snapshots": 0,  # nobody reads these runs' label tables
            }
        )

    @property
    def on_cuda(self) -> bool:
        """Whether the runs are on a card."""
        return self.device.startswith("cuda") or (self.device == "auto" and torch.cuda.is_available())


def check_probs(path: Path) -> Path:
    """Take the authors' file and no other: with another the numbers would stand beside the paper's wrongly."""
    if not path.is_file():
        raise InputError(f"noise-probs: there is no file {str(path)!r}")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != AUTHORS_SHA256:
        raise InputError(
            f"noise-probs {path} is not the file the paper's noise was made from (sha256 {found[:12]}…, not "
            f"{AUTHORS_SHA256[:12]}…): it is cifar10/dataset/student_logits.npy of gorkemalgan/MetaLabelNet"
        )
    return path


def smoke_probs(file: Path) -> Path:
    """Class probabilities of digits from a network trained once for all runs of a smoke test."""
    if not file.exists():
        data = load("digits")
        net = nets.build("mlp", tuple(data.train.x.shape[1:]), len(data.classes), seed=0)
        _save(file, log_probabilities(net, data.train, augment="none", seed=0).numpy())
    return file


def unpack_human_labels(path: Path, folder: Path) -> Path:
    """Write each set of labels as a file that the noise `file:FILE` reads; gives the folder."""
    labels = read_human_labels(path)
    for name, values in labels.items():
        _save(folder / f"cifar10n-{name}.npy", values)
    return folder


def _save(file: Path, array: npt.NDArray[Any]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array)
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_bytes() != buffer.getvalue():
        write_atomically(file, buffer.getvalue())
