"""Labels for data a run has never seen, by the model it left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metalabelnet.core.calibration import at_temperature
from metalabelnet.data import load
from metalabelnet.errors import InputError
from metalabelnet.train.evaluate import logits_of
from metalabelnet.train.folder import RunFolder
from metalabelnet.train.labels import LabelTable
from metalabelnet.train.loop import build
from metalabelnet.train.prepare import Problem, device_of

if TYPE_CHECKING:
    from pathlib import Path

    from metalabelnet.data import Rows


def relabel(folder: Path, data: str, data_dir: Path | None = None) -> LabelTable:
    """The label table of another data set's training rows."""
    files = RunFolder(folder)
    about = files.about()
    classes = tuple(about["classes"])
    rows = load(data, data_dir, classes=classes).train
    if rows.classes != classes:
        raise InputError(f"{data} has the classes {_some(rows.classes)}, but {folder} knows {_some(classes)}")
    return label_rows(files, rows)


def label_rows(files: RunFolder, rows: Rows) -> LabelTable:
    """The label table of these rows: new ones have no history, so that it is the calibrated classifier's."""
    # Noise and device were matters of training: their files and cards need not be here.
    run, about = files.run(noise="none", noise_probs=None, device="auto"), files.about()
    if about["own_net"] is not None:
        raise InputError(
            f"{files.path} was trained with a network of its own ({about['own_net']}), which cannot be rebuilt by "
            "name: load model.safetensors in Python"
        )
    shape = tuple(rows.x.shape[1:])
    if shape != tuple(about["shape"]):
        raise InputError(f"samples of shape {shape} do not fit {files.path}, which takes {tuple(about['shape'])}")
    device = device_of(run)
    rows = rows.to(device)
    problem = Problem(train=rows, clean=rows, select=rows, test=rows, noise_rate=float("nan"))
    method = build(run, problem)
    try:
        method.load_model(files.model(device))
    except (RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{files.path / 'model.safetensors'} is not the model of this run: {reason}") from error
    p = at_temperature(logits_of(method, rows.x), files.temperature())
    return LabelTable(rows=rows, probabilities=p, soft_labels=method.soft_labels())


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
