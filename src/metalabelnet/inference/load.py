"""Load the method of a finished run with its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metalabelnet.core.calibration import softmax_at_temperature
from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import Rows, make_rows
from metalabelnet.errors import InputError
from metalabelnet.nets.external import is_user_function
from metalabelnet.train.build_method import build_method
from metalabelnet.train.prepare import select_device

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.methods import Method
    from metalabelnet.train import Run
    from metalabelnet.train.run_folder import RunFolder


def load_method(files: RunFolder, rows: Rows | None = None, *, net: str | None = None, device: str = "auto") -> Method:
    """Build the method of a run and load its weights.

    rows  used in place of the training rows, for the method's soft labels; default: placeholders
    net   MODULE:FUNCTION of the user's network; see check_net_is_allowed
    """
    # Noise, device and pretrained weights matter for training only: their files and GPUs need not exist here.
    run = files.run(noise="none", noise_probs=None, device=device, pretrained=None)
    metadata = files.metadata()
    if metadata["own_net"] is not None:
        raise InputError(
            f"{files.path} was trained with a module passed in Python ({metadata['own_net']}), which cannot be rebuilt "
            "by name: load model.safetensors in Python"
        )
    if len(metadata["shape"]) == 3 and not metadata.get("bytes", True):
        raise InputError(
            f"{files.path} was trained on floating-point images, and the folder does not record how they were made "
            "from image files: load model.safetensors in Python"
        )
    check_net_is_allowed(files, run, net)
    if rows is None:
        rows = _placeholder_rows(tuple(metadata["shape"]), tuple(metadata["classes"]))
    rows = rows.to(select_device(run))
    encoder = files.encoder()
    problem = Problem(
        train=rows,
        clean=rows,
        validation=rows,
        test=rows,
        holds_out=False,
        noise_rate=float("nan"),
        encoder_config=None if encoder is None else encoder.to_json(),
    )
    method = build_method(run, problem)
    try:
        method.load_model_state_dict(files.weights(select_device(run)))
    except (RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{files.path / 'model.safetensors'} does not fit the run ({reason}): copy the run folder again, or train "
            "again"
        ) from error
    return method


def check_net_is_allowed(files: RunFolder, run: Run, net: str | None) -> None:
    """Raise InputError unless `net` is the MODULE:FUNCTION of the user's network, or None for a built-in network.

    It must be repeated, because reading a run folder must not execute code that the folder names.
    """
    if net is not None and not is_user_function(run.net):
        raise InputError(
            f"--net {net}: {files.path} was trained with --net {run.net}, not with a network of your own; leave it out"
        )
    if is_user_function(run.net) and run.net != net:
        raise InputError(f"{files.path} was trained with your own network: allow its code to run with --net {run.net}")


def calibrated_probabilities(files: RunFolder, logits: Tensor) -> Tensor:
    """Return the calibrated probabilities of a run's logits; raise an error if its weights give no probabilities."""
    p = softmax_at_temperature(logits, files.temperature())
    if not bool(torch.isfinite(p).all()):
        raise InputError(
            f"{files.path / 'model.safetensors'} is damaged, or the samples are extreme: it predicts NaN; copy the run "
            "folder again, or train again"
        )
    return p


def _placeholder_rows(shape: tuple[int, ...], classes: tuple[str, ...]) -> Rows:
    """Return two zero samples per class, to build a method that only predicts other samples."""
    dtype = torch.uint8 if len(shape) == 3 else torch.float32
    labels = torch.arange(2 * len(classes)) % len(classes)
    x = torch.zeros((len(labels), *shape), dtype=dtype)
    return make_rows(x, labels, true=labels, classes=classes, what="placeholder samples")
