"""Texts as vectors: TF-IDF by scikit-learn, or an encoder of sentence-transformers."""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.data.encoders.encoder import Inputs
from metalabelnet.errors import InputError, missing_package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

MOST_TERMS = 4096
BATCH = 512


class Texts(Inputs):
    """A column of texts.

    With `encoder` its vectors. Else TF-IDF over the commonest terms (words and pairs of words that at least two
    training texts have), logarithmic counts, length 1. Vocabulary and weights are all there is to it, so that they are
    kept as JSON.
    """

    kind = "text"

    def __init__(self, column: str, *, terms: list[str], idf: list[float], encoder: str | None, width: int) -> None:
        self.columns, self.shape = [column], (width,)
        self.terms, self.idf, self.encoder = terms, idf, encoder
        self._call: Callable[[list[str]], Any] | None = None

    @classmethod
    def fit(cls, column: str, rows: Sequence[Sequence[str]], encoder: str | None) -> Texts:
        """Learn the vocabulary and its weights from these texts, or ask the encoder for its width."""
        if encoder is not None:
            model = _load_encoder(encoder)
            width = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
            return cls(column, terms=[], idf=[], encoder=encoder, width=int(width() or 0))
        vectorizer = _vectorizer(min_df=2 if len(rows) > 20 else 1, max_features=MOST_TERMS)
        try:
            vectorizer.fit(text for (text,) in rows)
        except ValueError as error:
            raise InputError(f"the texts of column {column!r} have no words in common: {error}") from error
        terms = [str(term) for term in vectorizer.get_feature_names_out()]
        return cls(column, terms=terms, idf=vectorizer.idf_.tolist(), encoder=None, width=len(terms))

    def encode(self, items: Sequence[Sequence[str]]) -> Iterator[Tensor | str]:
        """Each text's vector; an empty text's is 0."""
        self._call = self._call or self._make()
        for start in range(0, len(items), BATCH):
            vectors = self._call([text for (text,) in items[start : start + BATCH]])
            yield from torch.from_numpy(np.asarray(vectors, np.float32))

    def _make(self) -> Callable[[list[str]], Any]:
        if self.encoder is not None:
            model = _load_encoder(self.encoder)
            return lambda texts: model.encode(texts, convert_to_numpy=True, show_progress_bar=False)
        vectorizer = _vectorizer(vocabulary=self.terms)
        vectorizer.idf_ = np.array(self.idf)
        return lambda texts: vectorizer.transform(texts).toarray()

    def to_json(self) -> dict[str, Any]:
        """Column, vocabulary and weights, or the encoder's name."""
        about: dict[str, Any] = {"kind": self.kind, "column": self.columns[0], "width": self.shape[0]}
        return about | ({"encoder": self.encoder} if self.encoder else {"terms": self.terms, "idf": self.idf})

    @classmethod
    def from_json(cls, about: dict[str, Any]) -> Texts:
        """The same vocabulary and weights, or the same encoder."""
        terms, idf = list(about.get("terms", [])), list(map(float, about.get("idf", [])))
        if len(terms) != len(idf) or (terms and len(terms) != about["width"]):
            raise ValueError("terms and weights do not go together")
        return cls(about["column"], terms=terms, idf=idf, encoder=about.get("encoder"), width=int(about["width"]))


def _vectorizer(**settings: Any) -> Any:
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ImportError as error:
        raise missing_package("scikit-learn", "text", "TF-IDF of texts") from error
    return TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), dtype=np.float64, **settings)


@functools.lru_cache(1)
def _load_encoder(name: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except (ImportError, RuntimeError) as error:
        if importlib.util.find_spec("sentence_transformers") is None:
            raise missing_package("sentence-transformers", "encoder", f"the encoder {name}") from error
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"sentence-transformers is installed but cannot be imported: {reason}") from error
    try:
        return SentenceTransformer(name)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the encoder {name!r} cannot be loaded: {reason}") from error
