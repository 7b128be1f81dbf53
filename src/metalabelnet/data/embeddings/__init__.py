"""Pretrained encoders by name (`--encoder`), and the file in which their embeddings are cached."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metalabelnet.data.embeddings import image_models, text_models
from metalabelnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from metalabelnet.data.embeddings.model import EmbeddingModel

FORMS = {
    "image": "timm:NAME, torchvision:NAME, a file of ResNet weights (FILE, or resnet50:FILE)",
    "text": "sentence-transformers:NAME, model2vec:NAME, wordllama",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """Encoders of one package: the kind of samples they take, and a function from a name to the model."""

    kind: str
    load: Callable[[str], EmbeddingModel]


FAMILIES = {
    "timm": Family(kind="image", load=image_models.load_timm),
    "torchvision": Family(kind="image", load=image_models.load_torchvision),
    "sentence-transformers": Family(kind="text", load=text_models.load_sentence_transformer),
    "model2vec": Family(kind="text", load=text_models.load_model2vec),
    "wordllama": Family(kind="text", load=text_models.load_wordllama),
}


@functools.lru_cache(1)
def load_model(name: str, kind: str) -> EmbeddingModel:
    """Return the encoder of that name for images or texts.

    A name without a family is a file of weights for images, and a sentence-transformers model for texts.
    """
    family, _, rest = name.partition(":")
    if family not in FAMILIES:
        load = image_models.load_weights_file if kind == "image" else text_models.load_sentence_transformer
        return load(name)
    if FAMILIES[family].kind != kind:
        raise InputError(
            f"--encoder {name} is for {FAMILIES[family].kind}s, and these samples are {kind}s: choose from "
            f"{FORMS[kind]}"
        )
    return FAMILIES[family].load(rest)
