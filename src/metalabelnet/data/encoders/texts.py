"""Texts as TF-IDF vectors by scikit-learn."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from metalabelnet.data.encoders.encoder import Encoder
from metalabelnet.data.sparse_tensor import SparseTensor
from metalabelnet.errors import InputError, missing_package_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

MAX_TERMS = 4096  # of dense vectors
MAX_SPARSE_TERMS = 1 << 18
MAX_WIDTH = 1 << 20  # values of an encoded text; embeddings have a few thousand
BATCH_TEXTS = 512
MAX_ROWS_FOR_ALL_TERMS = 20  # with more training texts, a term must occur in two of them
_JSON_KEYS = {"word": ("terms", "idf"), "char": ("char_terms", "char_idf")}  # of the terms and weights of an analyzer


class Vocabulary(NamedTuple):
    """Terms and the inverse document frequency of each."""

    terms: list[str]
    idf: list[float]


class TextEncoder(Encoder):
    """Encodes a column of texts.

    Texts become TF-IDF vectors with sublinear term frequency and unit length, over the most frequent terms that occur
    in at least two training texts: words and word pairs, character n-grams within words (2 to 5 characters), or both,
    where each half is scaled by √½. Vocabulary and weights are the whole state, so that it is stored as JSON.

    Parameters
    ----------
    column : str
        The column of texts.
    vocabularies : mapping
        Terms and their weights by analyzer, "word" or "char".
    sparse : bool, default False
        Whether all samples of a data set are kept in a sparse matrix.
    """

    kind = "text"

    def __init__(self, column: str, *, vocabularies: dict[str, Vocabulary], sparse: bool = False) -> None:
        self.columns, self.vocabularies, self.sparse = [column], vocabularies, sparse
        self.shape = (sum(len(vocabulary.terms) for vocabulary in vocabularies.values()),)
        self._vectorize: Callable[[list[str]], Any] | None = None

    @classmethod
    def fit(
        cls,
        column: str,
        rows: Sequence[Sequence[str]],
        *,
        analyzers: Sequence[str] = ("word",),
        sparse: bool = False,
    ) -> TextEncoder:
        """Fit vocabulary and weights to these texts."""
        min_df, max_terms = 2 if len(rows) > MAX_ROWS_FOR_ALL_TERMS else 1, MAX_SPARSE_TERMS if sparse else MAX_TERMS
        vocabularies = {}
        for analyzer in analyzers:
            vectorizer = _make_vectorizer(analyzer, min_df=min_df, max_features=max_terms // len(analyzers))
            try:
                vectorizer.fit(text for (text,) in rows)
            except ValueError as error:
                raise InputError(f"the texts of column {column!r} have no words in common: {error}") from error
            terms = [str(term) for term in vectorizer.get_feature_names_out()]
            vocabularies[analyzer] = Vocabulary(terms, vectorizer.idf_.tolist())
        return cls(column, vocabularies=vocabularies, sparse=sparse)

    def encode(self, items: Sequence[Sequence[str]]) -> Iterator[Tensor | str]:
        """Yield the vector of each text; that of an empty text is 0."""
        for start in range(0, len(items), BATCH_TEXTS):
            vectors = self._vectors([text for (text,) in items[start : start + BATCH_TEXTS]])
            yield from torch.from_numpy(np.asarray(vectors.toarray(), np.float32))

    def encode_sparse(self, items: Sequence[Sequence[str]]) -> SparseTensor:
        """Return the TF-IDF vectors of all texts."""
        return SparseTensor(self._vectors([text for (text,) in items]).astype(np.float32).tocsr())

    def _vectors(self, texts: list[str]) -> Any:
        self._vectorize = self._vectorize or self._load()
        return self._vectorize(texts)

    def _load(self) -> Callable[[list[str]], Any]:
        """Return the function from texts to vectors."""
        vectorizers = []
        for analyzer, vocabulary in self.vocabularies.items():
            vectorizer = _make_vectorizer(analyzer, vocabulary=vocabulary.terms)
            vectorizer.idf_ = np.array(vocabulary.idf)
            vectorizers.append(vectorizer)
        if len(vectorizers) == 1:
            return lambda texts: vectorizers[0].transform(texts)
        from scipy.sparse import hstack

        scale = math.sqrt(1 / len(vectorizers))
        return lambda texts: hstack([scale * vectorizer.transform(texts) for vectorizer in vectorizers])

    def to_json(self) -> dict[str, Any]:
        """Return the column with the vocabularies and their weights."""
        config: dict[str, Any] = {"kind": self.kind, "column": self.columns[0], "width": self.shape[0]}
        for analyzer, vocabulary in self.vocabularies.items():
            terms, idf = _JSON_KEYS[analyzer]
            config |= {terms: vocabulary.terms, idf: vocabulary.idf}
        return config

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> TextEncoder:
        """Restore the encoder."""
        vocabularies = {name: _read_vocabulary(config, *keys) for name, keys in _JSON_KEYS.items() if keys[0] in config}
        if not isinstance(config["column"], str):
            raise TypeError("the column is not a text")
        if type(config["width"]) is not int or not 0 < config["width"] <= MAX_WIDTH:
            raise ValueError(f"the width is {config['width']!r}, not an integer from 1 to {MAX_WIDTH}")
        if sum(len(vocabulary.terms) for vocabulary in vocabularies.values()) != config["width"]:
            raise ValueError("terms and width differ in number")
        return cls(config["column"], vocabularies=vocabularies)


def _read_vocabulary(config: dict[str, Any], terms_key: str, idf_key: str) -> Vocabulary:
    """Return a vocabulary of a configuration, checked."""
    terms, idf = list(config[terms_key]), list(map(float, config[idf_key]))
    if len(terms) != len(idf):
        raise ValueError("terms and weights differ in number")
    if not terms or not all(isinstance(term, str) for term in terms):
        raise ValueError("there are no terms, or one is not a text")
    if len({*terms}) < len(terms) or not all(map(math.isfinite, idf)):
        raise ValueError("a term occurs twice, or a weight is not finite")
    return Vocabulary(terms, idf)


def _make_vectorizer(analyzer: str, **settings: Any) -> Any:
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ImportError as error:
        raise missing_package_error("scikit-learn", "text", "TF-IDF of texts") from error
    if analyzer == "char":
        return TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, dtype=np.float64, **settings)
    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, dtype=np.float64, **settings)
