"""Texts as vectors: TF-IDF by scikit-learn, or embeddings of a sentence-transformers model."""

from __future__ import annotations

import functools
import importlib.util
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.data.encoders.encoder import Encoder
from metalabelnet.errors import InputError, missing_package_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

MAX_TERMS = 4096
MAX_WIDTH = 1 << 20  # values of an encoded text; embeddings have a few thousand
BATCH_TEXTS = 512
MAX_ROWS_FOR_ALL_TERMS = 20  # with more training texts, a term must occur in two of them


class TextEncoder(Encoder):
    """Encodes a column of texts.

    With `encoder`, the name of a sentence-transformers model, texts become its embeddings. Otherwise they become TF-IDF
    vectors with sublinear term frequency and unit length, over the most frequent words and word pairs that occur in at
    least two training texts. Vocabulary and weights are the whole state, so that it is stored as JSON.
    """

    kind = "text"

    def __init__(self, column: str, *, terms: list[str], idf: list[float], encoder: str | None, width: int) -> None:
        self.columns, self.shape = [column], (width,)
        self.terms, self.idf, self.encoder = terms, idf, encoder
        self._vectorize: Callable[[list[str]], Any] | None = None

    @classmethod
    def fit(cls, column: str, rows: Sequence[Sequence[str]], encoder: str | None) -> TextEncoder:
        """Fit vocabulary and weights to these texts, or read the width of the model's embeddings."""
        if encoder is not None:
            model = _load_model(encoder)
            width = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
            return cls(column, terms=[], idf=[], encoder=encoder, width=int(width() or 0))
        vectorizer = _make_vectorizer(min_df=2 if len(rows) > MAX_ROWS_FOR_ALL_TERMS else 1, max_features=MAX_TERMS)
        try:
            vectorizer.fit(text for (text,) in rows)
        except ValueError as error:
            raise InputError(f"the texts of column {column!r} have no words in common: {error}") from error
        terms = [str(term) for term in vectorizer.get_feature_names_out()]
        return cls(column, terms=terms, idf=vectorizer.idf_.tolist(), encoder=None, width=len(terms))

    def encode(self, items: Sequence[Sequence[str]]) -> Iterator[Tensor | str]:
        """Yield the vector of each text; with TF-IDF that of an empty text is 0."""
        self._vectorize = self._vectorize or self._load()
        for start in range(0, len(items), BATCH_TEXTS):
            vectors = self._vectorize([text for (text,) in items[start : start + BATCH_TEXTS]])
            yield from torch.from_numpy(np.asarray(vectors, np.float32))

    def _load(self) -> Callable[[list[str]], Any]:
        """Return the function from texts to vectors."""
        if self.encoder is not None:
            model = _load_model(self.encoder)
            return lambda texts: model.encode(texts, convert_to_numpy=True, show_progress_bar=False)
        vectorizer = _make_vectorizer(vocabulary=self.terms)
        vectorizer.idf_ = np.array(self.idf)
        return lambda texts: vectorizer.transform(texts).toarray()

    def to_json(self) -> dict[str, Any]:
        """Return the column with the vocabulary and its weights, or with the name of the model."""
        config: dict[str, Any] = {"kind": self.kind, "column": self.columns[0], "width": self.shape[0]}
        return config | ({"encoder": self.encoder} if self.encoder else {"terms": self.terms, "idf": self.idf})

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> TextEncoder:
        """Restore the encoder."""
        terms, idf = list(config.get("terms", [])), list(map(float, config.get("idf", [])))
        if len(terms) != len(idf) or (terms and len(terms) != config["width"]):
            raise ValueError("terms and weights differ in number")
        if not isinstance(config["column"], str) or not all(isinstance(term, str) for term in terms):
            raise ValueError("the column or a term is not a text")
        if len({*terms}) < len(terms) or not all(map(math.isfinite, idf)):
            raise ValueError("a term occurs twice, or a weight is not finite")
        if type(config["width"]) is not int or not 0 < config["width"] <= MAX_WIDTH:
            raise ValueError(f"the width is {config['width']!r}, not an integer from 1 to {MAX_WIDTH}")
        if not isinstance(config.get("encoder"), str | None):
            raise TypeError("the name of the encoder is not a text")
        if not terms and not config.get("encoder"):
            raise ValueError("there are neither terms nor an encoder")
        return cls(config["column"], terms=terms, idf=idf, encoder=config.get("encoder"), width=int(config["width"]))


def _make_vectorizer(**settings: Any) -> Any:
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ImportError as error:
        raise missing_package_error("scikit-learn", "text", "TF-IDF of texts") from error
    return TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), dtype=np.float64, **settings)


@functools.lru_cache(1)
def _load_model(name: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except (ImportError, RuntimeError) as error:
        if importlib.util.find_spec("sentence_transformers") is None:
            raise missing_package_error("sentence-transformers", "encoder", f"the encoder {name}") from error
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"sentence-transformers is installed but cannot be imported: {reason}") from error
    try:
        return SentenceTransformer(name)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the encoder {name!r} cannot be loaded: {reason}") from error
