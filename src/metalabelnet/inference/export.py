"""A finished run as an ONNX file, checked against the network it came from."""

from __future__ import annotations

import io
import json
import logging
import warnings
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import metalabelnet
from metalabelnet.core.calibration import at_temperature
from metalabelnet.data.batches import to_input
from metalabelnet.errors import InputError, missing_package
from metalabelnet.inference.predict import Predictor
from metalabelnet.train.checkpoint import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from metalabelnet.methods import Method

TOLERANCE = 1e-4  # of a probability: two implementations of float32 differ in the last digits
BATCHES = (2, 5)  # the second shows that any number of samples goes through


class Probabilities(nn.Module):
    """A method's classifier as one module: samples as they are stored in, calibrated probabilities out."""

    def __init__(self, method: Method, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.net = method.classifier().requires_grad_(requires_grad=False).float()  # in float64 much cannot be run

    def forward(self, samples: Tensor) -> Tensor:
        """The probability of each class."""
        return at_temperature(self.net(to_input(samples, torch.float32)), self.temperature)


def to_onnx(folder: Path, target: Path, *, net: str | None = None) -> float:
    """Write the model of a run as ONNX; give the largest difference to torch in a probability.

    Input `samples`: uint8 images (N, channels, height, width), or float32 rows as inputs.json encodes them. Output
    `probabilities` (N, classes). The metadata tell the classes and how a sample becomes the input.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  (what torch's exporter needs)
    except ImportError as error:
        raise missing_package("onnx, onnxruntime and onnxscript", "onnx", "exporting to ONNX") from error
    predictor = Predictor(folder, net=net, device="cpu")
    module = Probabilities(predictor.method, predictor.files.temperature()).eval()
    first, second = (_samples(rows, predictor.shape) for rows in BATCHES)
    with _quiet():
        program: Any = torch.onnx.export(
            module,
            (first,),
            input_names=["samples"],
            output_names=["probabilities"],
            dynamic_shapes={"samples": {0: torch.export.Dim("rows", min=1, max=1 << 30)}},
            dynamo=True,
        )
    model = program.model_proto
    onnx.helper.set_model_props(model, _metadata(predictor))
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    difference = 0.0
    for x in (first, second):
        theirs = session.run(None, {"samples": x.numpy()})[0]
        difference = max(difference, float(np.abs(theirs - module(x).numpy()).max()))
    if not difference <= TOLERANCE:
        raise InputError(f"the exported model differs from the run's by {difference:.2g} in a probability: not written")
    if target.is_symlink() or (target.exists() and not target.is_file()):  # a link or a pipe keeps its place
        target.write_bytes(content)
    else:
        write_atomically(target, content)
    return difference


def _samples(rows: int, shape: tuple[int, ...]) -> Tensor:
    randomness = torch.Generator().manual_seed(rows)
    if len(shape) == 3:
        return torch.randint(0, 256, (rows, *shape), dtype=torch.uint8, generator=randomness)
    return torch.randn((rows, *shape), generator=randomness)


def _metadata(predictor: Predictor) -> dict[str, str]:
    inputs = predictor.inputs
    return {
        "producer": f"metalabelnet {metalabelnet.__version__}",
        "classes": json.dumps(predictor.classes, ensure_ascii=False),
        "inputs": json.dumps(None if inputs is None else inputs.to_json(), ensure_ascii=False),
        "preprocessing": HOW["numbers" if inputs is None else inputs.kind],
    }


HOW = {
    "image": "samples: uint8 (N, channels, height, width), RGB or grey. Turn by EXIF, put transparent parts on white, "
    "resize the whole image to height × width (bicubic). Scaling of the values is part of the model.",
    "table": "samples: float32 (N, columns), see inputs. A column of numbers: (value − mean) / deviation, 0 where "
    "missing, then 1 or 0 for missing where gaps is true. A category: a 1 at its place among values, else zeros.",
    "text": "samples: float32 (N, terms), see inputs. TF-IDF over words and pairs of words in lower case: "
    "(1 + log count) · idf, scaled to length 1; or the vector of the encoder.",
    "numbers": "samples: float32 (N, columns), as they were given in the .npz file.",
}


@contextmanager
def _quiet() -> Iterator[Any]:
    """Keep the exporter's remarks to itself: what matters is whether the result is right."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
