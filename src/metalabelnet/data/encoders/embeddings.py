"""Samples as embeddings of a pretrained encoder (`--encoder`), computed in batches and cached by content."""

from __future__ import annotations

import dataclasses
import hashlib
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from metalabelnet.data.benchmarks.download import data_folder
from metalabelnet.data.disk_tensor import chunks
from metalabelnet.data.embeddings import FORMS, load_model
from metalabelnet.data.embeddings.cache import DIGEST_BYTES, EmbeddingCache
from metalabelnet.data.embeddings.image_models import RESIZE, SIDE
from metalabelnet.data.encoders.encoder import Encoder
from metalabelnet.data.encoders.images import map_in_threads
from metalabelnet.data.encoders.texts import MAX_WIDTH
from metalabelnet.errors import InputError
from metalabelnet.input_files.image_decoding import decode_center
from metalabelnet.input_files.image_files import describe_error
from metalabelnet.input_files.regular_files import open_regular_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from metalabelnet.data.embeddings.model import EmbeddingModel
    from metalabelnet.data.rows import DataSet, Rows

BATCH_SIZE = 64


class EmbeddingEncoder(Encoder):
    """Encodes samples by a pretrained encoder.

    Parameters
    ----------
    name : str
        The encoder, as in `--encoder`.
    column : str or None
        The column of paths or texts; None if images do not come from a table.
    width : int
        Length of an embedding.
    identity : str
        Digest of the encoder. If the encoder of that name has another one now, `encode` raises InputError.
    folder : Path or None
        The data folder, for the cache. Default: `data_folder()`.

    Attributes
    ----------
    device : torch.device
        Where embeddings are computed.
    """

    chunk_samples = BATCH_SIZE

    def __init__(self, name: str, column: str | None, width: int, identity: str, folder: Path | None = None) -> None:
        self.name, self.identity, self.shape = name, identity, (width,)
        self.columns = [] if column is None else [column]
        self.device = torch.device("cpu")
        self.cache = EmbeddingCache(data_folder(folder), identity, width)
        self._model: EmbeddingModel | None = None
        self._encoded = hashlib.blake2b(identity.encode(), digest_size=16)

    @classmethod
    def load(cls, name: str, column: str | None, folder: Path | None = None) -> Self:
        """Return the encoder of that name."""
        model = load_model(name, cls.kind)
        encoder = cls(name, column, model.width, model.identity, folder)
        encoder._model = model
        return encoder

    @property
    def encoded_digest(self) -> str:
        """A digest of the encoder and of the content of all samples encoded so far."""
        return self._encoded.hexdigest()

    @abstractmethod
    def _read(self, items: Sequence[Any]) -> Iterator[bytes | str]:
        """Yield the digest of the content of each item, or a phrase with the reason why it cannot be read."""

    @abstractmethod
    def _prepare(self, items: Sequence[Any]) -> tuple[list[int], Any, dict[int, str]]:
        """Return the positions of items that can be prepared, their batch for the model, and the others' failures."""

    def encode(self, items: Sequence[Any]) -> Iterator[Tensor | str]:
        """Yield the embedding of each item, from the cache where it is stored."""
        for start in range(0, len(items), BATCH_SIZE):
            yield from self._encode_batch(items[start : start + BATCH_SIZE])

    def _encode_batch(self, items: Sequence[Any]) -> list[Tensor | str]:
        digests = list(self._read(items))
        new: dict[bytes, Any] = {}
        results: dict[bytes | str, Tensor | str] = {}
        for digest, item in zip(digests, items, strict=True):
            if isinstance(digest, str):
                results[digest] = digest
                continue
            self._encoded.update(digest)
            if digest not in results and digest not in new:
                stored = self.cache.get(digest)
                if stored is None:
                    new[digest] = item
                else:
                    results[digest] = stored
        if new:
            keys = list(new)
            positions, batch, failures = self._prepare(list(new.values()))
            results |= {keys[k]: reason for k, reason in failures.items()}
            if positions:
                vectors = self._load_model().embed(batch, self.device)
                embedded = [keys[k] for k in positions]
                self.cache.add(embedded, vectors)
                results |= dict(zip(embedded, vectors, strict=True))
        return [results[digest] for digest in digests]

    def notes(self) -> list[str]:
        """Return a message about the length of embeddings and where they are cached."""
        where = f"not cached ({self.cache.problem})" if self.cache.problem else f"cached in {self.cache.path}"
        return [f"{self.name}: embeddings of {self.shape[0]} values, {where}"]

    def _load_model(self) -> EmbeddingModel:
        if self._model is None:
            model = load_model(self.name, self.kind)
            if model.identity != self.identity or model.width != self.shape[0]:
                raise InputError(
                    f"the encoder {self.name} is not the one of this run: its weights or settings have changed; "
                    "give the same encoder, or train again"
                )
            self._model = model
        return self._model

    def to_json(self) -> dict[str, Any]:
        """Return the encoder with its digest, and the column."""
        return {
            "kind": self.kind,
            "column": self.columns[0] if self.columns else None,
            "encoder": self.name,
            "width": self.shape[0],
            "digest": self.identity,
        }

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> Self:
        """Restore the encoder. Its model is loaded when it is needed."""
        column, name, width, identity = (config[key] for key in ("column", "encoder", "width", "digest"))
        if not isinstance(column, str | None) or not isinstance(name, str) or not name:
            raise TypeError("the column or the name of the encoder is not a text")
        if type(width) is not int or not 0 < width <= MAX_WIDTH:
            raise ValueError(f"the width is {width!r}, not an integer from 1 to {MAX_WIDTH}")
        if not isinstance(identity, str) or len(identity) != 2 * DIGEST_BYTES or not identity.isalnum():
            raise ValueError("the digest of the encoder is not one")
        return cls(name, column, width, identity)


class ImageEmbedding(EmbeddingEncoder):
    """Encodes images: files, or arrays (channels, height, width) of uint8."""

    kind = "image"

    def _read(self, items: Sequence[Any]) -> Iterator[bytes | str]:
        for result in map_in_threads(_image_digest, items):
            yield describe_error(result) if isinstance(result, Exception) else result

    def _prepare(self, items: Sequence[Any]) -> tuple[list[int], Any, dict[int, str]]:
        images, failures = {}, {}
        for k, result in enumerate(map_in_threads(_decode, items)):
            if isinstance(result, Exception):
                failures[k] = describe_error(result)
            else:
                images[k] = torch.from_numpy(result)
        return list(images), torch.stack([*images.values()]) if images else None, failures


class TextEmbedding(EmbeddingEncoder):
    """Encodes a column of texts."""

    kind = "text"

    def _read(self, items: Sequence[Any]) -> Iterator[bytes | str]:
        for (text,) in items:
            yield hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()

    def _prepare(self, items: Sequence[Any]) -> tuple[list[int], Any, dict[int, str]]:
        return list(range(len(items))), [text for (text,) in items], {}


def _image_digest(item: Any) -> bytes:
    if isinstance(item, np.ndarray):
        digest = hashlib.blake2b(f"{item.shape}".encode(), digest_size=DIGEST_BYTES)
        digest.update(np.ascontiguousarray(item).data)
        return digest.digest()
    with open_regular_file(item, subject="") as file:
        return hashlib.blake2b(file.read(), digest_size=DIGEST_BYTES).digest()


def _decode(item: Any) -> Any:
    return decode_center(item, RESIZE, SIDE)


def embed_images(
    data: DataSet,
    name: str,
    *,
    folder: Path | None,
    device: torch.device,
    on_samples: Callable[[str, int, int], None] | None = None,
) -> DataSet:
    """Return a data set of images with their embeddings in place of the pixels."""
    if not data.train.is_image:
        raise InputError(f"--encoder {name} is for images and texts, and {data.name} has none; leave it out")
    encoder = make_embedding_encoder("image", name, None, folder, device)
    parts: dict[str, Rows | None] = {part: getattr(data, part) for part in ("train", "clean", "test", "second_test")}
    total, done = sum(len(rows) for rows in parts.values() if rows is not None), 0
    embedded: dict[str, Any] = {}
    for part, rows in parts.items():
        if rows is None:
            continue
        vectors: list[Tensor] = []
        for chunk in chunks(rows.x):
            for start in range(0, len(chunk), BATCH_SIZE):
                for result in encoder.encode(list(chunk[start : start + BATCH_SIZE].cpu().numpy())):
                    if isinstance(result, str):
                        raise InputError(f"{data.name}: sample {rows.ids[len(vectors)]} {result}")
                    vectors.append(result)
                if on_samples is not None:
                    on_samples(f"embedding {data.name}", done + len(vectors), total)
        done += len(rows)
        embedded[part] = dataclasses.replace(rows, x=torch.stack(vectors))
    return dataclasses.replace(
        data,
        **embedded,
        encoder_config=encoder.to_json(),
        cells_digest=encoder.encoded_digest,
        notes=(*data.notes, *encoder.notes()),
    )


def make_embedding_encoder(
    kind: str, name: str, column: str | None, folder: Path | None, device: torch.device
) -> EmbeddingEncoder:
    """Return the encoder for samples of this kind, image or text."""
    if kind == "table":
        raise InputError(f"--encoder {name} is for images ({FORMS['image']}) and texts ({FORMS['text']}); leave it out")
    encoder = (ImageEmbedding if kind == "image" else TextEmbedding).load(name, column, folder)
    encoder.device = device
    return encoder
