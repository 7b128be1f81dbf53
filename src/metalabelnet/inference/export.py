"""Export the model of a finished run to ONNX, checked against PyTorch."""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import metalabelnet
from metalabelnet.atomic_write import write_atomically
from metalabelnet.core.calibration import softmax_at_temperature
from metalabelnet.data.batches import to_input
from metalabelnet.data.encoders import EmbeddingEncoder
from metalabelnet.errors import InputError, missing_package_error
from metalabelnet.inference.predict import Predictor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from metalabelnet.data.encoders import Encoder
    from metalabelnet.methods import Method

MAX_PROBABILITY_DIFFERENCE = 1e-4  # float32 implementations differ in the last digits
TEST_BATCH_SIZES = (2, 5)  # the second differs from the exported one, to check that the batch size is dynamic


class ProbabilityModel(nn.Module):
    """A method's classifier from encoded samples to calibrated probabilities."""

    def __init__(self, method: Method, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.net = method.classifier().requires_grad_(requires_grad=False).float()  # many runtimes lack float64

    def forward(self, samples: Tensor) -> Tensor:
        """Return the probability of each class."""
        return softmax_at_temperature(self.net(to_input(samples, torch.float32)), self.temperature)


def export_onnx(folder: Path, target: Path, *, net: str | None = None) -> float:
    """Write the model of a run as ONNX.

    The input `samples` is uint8 images (N, channels, height, width), or float32 rows as encoder.json describes them.
    The output is `probabilities` (N, classes). The metadata of the file has the classes and the preprocessing.

    Parameters
    ----------
    folder : Path
        Folder of a finished run.
    target : Path
        File to write.
    net : str, optional
        MODULE:FUNCTION of the user's network, if the run was trained with one.

    Returns
    -------
    float
        Largest difference to PyTorch in a probability.

    Raises
    ------
    InputError
        If a package is missing, or the difference is larger than 1e-4.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # otherwise its import writes to the home folder
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  (required by torch.onnx.export)
    except ImportError as error:
        raise missing_package_error("onnx, onnxruntime and onnxscript", "onnx", "exporting to ONNX") from error
    predictor = Predictor(folder, net=net, device="cpu")
    module = ProbabilityModel(predictor.method, predictor.files.temperature()).eval()
    first, second = (_random_samples(rows, predictor.shape) for rows in TEST_BATCH_SIZES)
    with _without_messages():
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
        exported = session.run(None, {"samples": x.numpy()})[0]
        difference = max(difference, float(np.abs(exported - module(x).numpy()).max()))
    if not difference <= MAX_PROBABILITY_DIFFERENCE:
        raise InputError(
            f"the exported model differs from PyTorch by {difference:.2g} in a probability, more than "
            f"{MAX_PROBABILITY_DIFFERENCE:g}: {target} was not written"
        )
    if target.is_symlink() or (target.exists() and not target.is_file()):  # renaming would replace a link or a pipe
        target.write_bytes(content)
    else:
        write_atomically(target, content)
    return difference


def _random_samples(rows: int, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    if len(shape) == 3:
        return torch.randint(0, 256, (rows, *shape), dtype=torch.uint8, generator=generator)
    return torch.randn((rows, *shape), generator=generator)


def _metadata(predictor: Predictor) -> dict[str, str]:
    encoder = predictor.encoder
    return {
        "producer": f"metalabelnet {metalabelnet.__version__}",
        "classes": json.dumps(predictor.classes, ensure_ascii=False),
        "encoder": json.dumps(None if encoder is None else encoder.to_json(), ensure_ascii=False),
        "preprocessing": PREPROCESSING[_kind(encoder)],
    }


def _kind(encoder: Encoder | None) -> str:
    if encoder is None:
        return "numbers"
    return "embedding" if isinstance(encoder, EmbeddingEncoder) else encoder.kind


PREPROCESSING = {
    "image": "samples: uint8 (N, channels, height, width), RGB or gray. Rotate by EXIF, put transparent pixels on "
    "white, resize the whole image to height × width (bicubic). The model scales the values itself.",
    "table": "samples: float32 (N, columns), see encoder. A numeric column: (value − mean) / deviation, 0 if "
    "missing, followed by a 0/1 indicator of missing values if gaps is true. A category: one-hot over values.",
    "text": "samples: float32 (N, terms), see encoder. TF-IDF over lower-case words and bigrams: "
    "(1 + log count) · idf, scaled to unit length.",
    "embedding": "samples: float32 (N, width), embeddings of the encoder, which is not part of this model.",
    "numbers": "samples: float32 (N, columns), as in the .npz file.",
}


@contextmanager
def _without_messages() -> Iterator[Any]:
    """Suppress output and warnings of the exporter; the result is checked afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
