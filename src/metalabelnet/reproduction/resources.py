"""Files and devices of this machine that the runs use: data sets, the authors' noise, human labels."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet import nets
from metalabelnet.atomic_write import write_atomically
from metalabelnet.data import load
from metalabelnet.data.benchmarks.download import data_folder
from metalabelnet.engine.cuda import device_name
from metalabelnet.errors import InputError
from metalabelnet.noise.cifar_n import FILES
from metalabelnet.train.noise_probe import log_probabilities
from metalabelnet.train.prepare import select_device
from metalabelnet.train.settings import Run, make_run

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from metalabelnet.reproduction.experiment import RunSpec

AUTHORS_FILE_SHA256 = "4b0c63b40af899b28aa704418ae4ae799ff9588a3c3d0ef8f046f2ea676cc537"


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Folders, files and device of this machine.

    Attributes
    ----------
    data_dir : Path or None
        Folder of the data sets.
    noise_probs : Path or None
        The authors' class probabilities, from which their feature-dependent noise is drawn.
    pretrained : Path or None
        File with the weights of ResNet-50 trained on ImageNet; None: they are downloaded.
    device : str
        "auto", "cpu", "cuda", …
    dtype : str or None
        None means bf16 on CUDA and float32 elsewhere.
    commit : str or None
        The commit to store if the package does not run from a git checkout.
    """

    data_dir: Path | None = None
    noise_probs: Path | None = None
    pretrained: Path | None = None
    device: str = "auto"
    dtype: str | None = None
    commit: str | None = None

    def missing(self, spec: RunSpec) -> str | None:
        """The file that the run needs and that was not given, with the option that provides it, or None."""
        if spec.needs_noise_probs and self.noise_probs is None:
            return "--noise-probs FILE (the authors' student_logits.npy)"
        if spec.needs_human_labels:
            file = data_folder(self.data_dir) / FILES["cifar10n"].name
            return None if file.is_file() else f"{file.name} of CIFAR-10N in the data folder {file.parent} (--data-dir)"
        return None

    def run(self, spec: RunSpec) -> Run:
        """The settings of a run on this machine."""
        return make_run(
            **{
                **spec.fields,
                "noise_probs": str(self.noise_probs) if spec.needs_noise_probs else None,
                "data_dir": None if self.data_dir is None else str(self.data_dir),
                "device": self.device,
                "dtype": self.dtype or ("bf16" if self.on_cuda else "float32"),
                "snapshots": 0,  # the tables do not use label tables
                **({"pretrained": str(self.pretrained)} if self.pretrained and spec.needs_pretrained else {}),
            }
        )

    @property
    def on_cuda(self) -> bool:
        """Whether the runs use a GPU."""
        return self.device.startswith("cuda") or (self.device == "auto" and torch.cuda.is_available())

    @property
    def device_name(self) -> str:
        """The name of the device that the runs use, as in their result lines."""
        return device_name(select_device(make_run("digits", device=self.device)))


def check_noise_probs(path: Path) -> Path:
    """Return the path if it is the authors' file; with another file the noise would not be the paper's.

    Raises
    ------
    InputError
        If the file does not exist or is another file.
    """
    if not path.is_file():
        raise InputError(f"noise-probs {path}: no such file; correct the path")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != AUTHORS_FILE_SHA256:
        raise InputError(
            f"noise-probs {path} is not the authors' file (sha256 {digest[:12]}…, expected "
            f"{AUTHORS_FILE_SHA256[:12]}…): "
            "use cifar10/dataset/student_logits.npy of github.com/gorkemalgan/MetaLabelNet"
        )
    return path


def write_smoke_noise_probs(file: Path) -> Path:
    """Write the class probabilities of a network trained on digits, once for all runs of a smoke test."""
    if not file.exists():
        data = load("digits")
        net = nets.build("mlp", tuple(data.train.x.shape[1:]), len(data.classes), seed=0)
        _save(file, log_probabilities(net, data.train, augment="none", seed=0).numpy())
    return file


def _save(file: Path, array: npt.NDArray[Any]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array)
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_bytes() != buffer.getvalue():
        write_atomically(file, buffer.getvalue())
