"""Text encoders: sentence-transformers, and static embeddings (the mean of word vectors) of model2vec and WordLlama.

sentence-transformers chooses the device itself: a GPU if there is one. Static embeddings are computed on the CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metalabelnet.data.embeddings.model import EmbeddingModel, weights_digest
from metalabelnet.errors import InputError, import_package, shorten_reason
from metalabelnet.input_files.weights_download import quiet_download

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def load_sentence_transformer(name: str) -> EmbeddingModel:
    """Return a model of sentence-transformers, by name or folder."""
    full_name = f"sentence-transformers:{name}"
    package = import_package("sentence_transformers", "encoders", f"the encoder {full_name}")
    model = _load(full_name, lambda: package.SentenceTransformer(name))
    width = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
    return EmbeddingModel(
        width=int(width() or 0),
        identity=weights_digest(_describe_preparation(model), model.state_dict()),
        embed=lambda texts, _device: _as_tensor(model.encode(texts, convert_to_numpy=True, show_progress_bar=False)),
    )


def load_model2vec(name: str) -> EmbeddingModel:
    """Return a static model of model2vec, by name or folder."""
    package = import_package("model2vec", "encoders", f"the encoder model2vec:{name}")
    model = _load(f"model2vec:{name}", lambda: package.StaticModel.from_pretrained(name))
    weights = [("embedding", model.embedding), ("tokenizer", model.tokenizer.to_str())]
    return EmbeddingModel(
        width=int(model.dim),
        identity=weights_digest("model2vec", weights),
        embed=lambda texts, _device: _as_tensor(model.encode(texts, show_progress_bar=False)),
    )


def load_wordllama(name: str) -> EmbeddingModel:
    """Return WordLlama with the weights in its package (256 dimensions)."""
    if name:
        raise InputError(f"the encoder wordllama:{name}: only its default is supported; write --encoder wordllama")
    package = import_package("wordllama", "encoders", "the encoder wordllama")
    folder = Path(package.__file__).parent  # it would look for the tokenizer elsewhere, and download it
    model = _load("wordllama", lambda: package.WordLlama.load(cache_dir=folder, disable_download=True))
    weights = [("embedding", model.embedding), ("tokenizer", model.tokenizer.to_str())]
    return EmbeddingModel(
        width=int(model.embedding.shape[1]),
        identity=weights_digest("wordllama", weights),
        embed=lambda texts, _device: _as_tensor(model.embed(texts)),
    )


def _describe_preparation(model: Any) -> str:
    """Return what decides an embedding besides the weights: tokens, number of them, prompt, pooling.

    Models of one set of weights may differ in these. Only settings that all versions of the package have are named.
    """
    modules = [type(module).__name__ for module in model]
    pooling = [mode for module in model if (mode := _pooling_mode(module))]
    prompt = (model.prompts or {}).get(model.default_prompt_name, "")
    vocabulary = sorted(getattr(model.tokenizer, "get_vocab", dict)().items())
    return f"sentence-transformers {modules} {pooling} {model.max_seq_length} {prompt!r} {vocabulary}"


def _pooling_mode(module: Any) -> str:
    """Return how a module of sentence-transformers makes one vector of those of the tokens; "" if it does not."""
    if hasattr(module, "get_pooling_mode_str"):  # before version 6
        return str(module.get_pooling_mode_str())
    mode = getattr(module, "pooling_mode", "")
    return mode if isinstance(mode, str) else "+".join(map(str, mode))


def _as_tensor(vectors: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(vectors, np.float32))


def _load(name: str, load: Callable[[], Any]) -> Any:
    try:
        with quiet_download():
            return load()
    except Exception as error:  # of any kind: a name that is unknown, no network, a file that is cut off
        raise InputError(
            f"the encoder {name} cannot be loaded ({shorten_reason(error)}); check the name, or give the folder of a "
            "downloaded model"
        ) from error
