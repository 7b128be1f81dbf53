"""Encoders that turn images, table rows and texts into tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metalabelnet.data.encoders.embeddings import EmbeddingEncoder, ImageEmbedding, TextEmbedding
from metalabelnet.data.encoders.encoder import Encoder, encode_all
from metalabelnet.data.encoders.images import ImageEncoder
from metalabelnet.data.encoders.tables import TableEncoder
from metalabelnet.data.encoders.texts import TextEncoder
from metalabelnet.errors import InputError, unknown_name_error

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "ENCODERS",
    "EmbeddingEncoder",
    "Encoder",
    "ImageEmbedding",
    "ImageEncoder",
    "TableEncoder",
    "TextEmbedding",
    "TextEncoder",
    "encode_all",
    "encoder_from_json",
]

ENCODERS: dict[str, type[Encoder]] = {encoder.kind: encoder for encoder in (ImageEncoder, TableEncoder, TextEncoder)}
EMBEDDINGS: dict[str, type[EmbeddingEncoder]] = {encoder.kind: encoder for encoder in (ImageEmbedding, TextEmbedding)}


def encoder_from_json(config: dict[str, Any], source: Path) -> Encoder:
    """Return the encoder of a configuration that `Encoder.to_json` made. `source` names its file in errors."""
    if not isinstance(config, dict) or not isinstance(config.get("kind"), str) or config["kind"] not in ENCODERS:
        raise InputError(f"{source}: {unknown_name_error('kind of encoder', str(config)[:40], ENCODERS)}")
    try:
        encoders = EMBEDDINGS if config.get("encoder") else ENCODERS
        return encoders[config["kind"]].from_json(config)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        reason = repr(error)[:150]
        raise InputError(f"{source} is damaged, or was written by another version: {reason}") from error
