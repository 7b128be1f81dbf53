"""What an encoder's model is to the rest of the package: a function from samples to vectors, and its identity."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class EmbeddingModel:
    """A pretrained model.

    Attributes
    ----------
    width : int
        Length of an embedding.
    identity : str
        Digest of its weights and of how samples are prepared: two models with one identity give the same embeddings, up
        to rounding.
    embed : callable
        Takes a batch, which is images as uint8 (N, 3, height, width) or a list of texts, and a device. Returns the
        embeddings, (N, width) float32 on the CPU.
    """

    width: int
    identity: str
    embed: Callable[[Any, torch.device], Tensor]


def weights_digest(preparation: str, weights: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> str:
    """Return a digest of named tensors, arrays or texts, and of how samples are prepared."""
    digest = hashlib.blake2b(preparation.encode(errors="surrogatepass"), digest_size=16)
    for name, value in weights.items() if isinstance(weights, Mapping) else weights:
        digest.update(name.encode())
        if isinstance(value, str):
            digest.update(value.encode())
            continue
        array = value.detach().cpu().float().numpy() if isinstance(value, Tensor) else np.asarray(value)
        digest.update(f"{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.hexdigest()
