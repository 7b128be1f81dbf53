"""The method of a finished run, with the networks it left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from metalabelnet.data.problem import Problem
from metalabelnet.data.rows import Rows, make_rows
from metalabelnet.errors import InputError
from metalabelnet.nets.external import is_users
from metalabelnet.train.build_method import build
from metalabelnet.train.prepare import device_of

if TYPE_CHECKING:
    from metalabelnet.methods import Method
    from metalabelnet.train.run_folder import RunFolder


def load_method(files: RunFolder, rows: Rows | None = None, *, net: str | None = None, device: str = "auto") -> Method:
    """Build the method anew and load its networks.

    `rows` take the place of the training rows, where the method is asked about those. A network of the user's own is
    code, and a run folder must not be able to run any: whoever loads it names it again with `net`.
    """
    # Noise, device and weights to start from were matters of training: their files and cards need not be here.
    run = files.run(noise="none", noise_probs=None, device=device, pretrained=None)
    about = files.about()
    if about["own_net"] is not None:
        raise InputError(
            f"{files.path} was trained with a network of its own ({about['own_net']}), which cannot be rebuilt by "
            "name: load model.safetensors in Python"
        )
    if len(about["shape"]) == 3 and not about.get("bytes", True):
        raise InputError(
            f"{files.path} was trained on images that code of its own had made into floating-point numbers: how, the "
            "folder does not say; load model.safetensors in Python"
        )
    if is_users(run.net) and run.net != net:
        raise InputError(f"{files.path} was trained with your own network: allow its code to run with --net {run.net}")
    rows = (_nobody(tuple(about["shape"]), tuple(about["classes"])) if rows is None else rows).to(device_of(run))
    problem = Problem(
        train=rows, clean=rows, validation=rows, test=rows, noise_rate=float("nan"), inputs=files.inputs()
    )
    method = build(run, problem)
    try:
        method.load_model(files.model(device_of(run)))
    except (RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{files.path / 'model.safetensors'} is not the model of this run: {reason}") from error
    return method


def _nobody(shape: tuple[int, ...], classes: tuple[str, ...]) -> Rows:
    """Two empty samples a class, for a method that is asked about other samples than those it was built with."""
    dtype = torch.uint8 if len(shape) == 3 else torch.float32
    labels = torch.arange(2 * len(classes)) % len(classes)
    x = torch.zeros((len(labels), *shape), dtype=dtype)
    return make_rows(x, labels, true=labels, classes=classes, what="no samples")
