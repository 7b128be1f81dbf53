"""Weights of small random ResNets with torchvision's names, as files for --encoder."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


def resnet_weights(*, convolutions: int = 2, blocks: int = 1, width: int = 4, prefix: str = "") -> dict[str, Tensor]:
    """Return random weights of a ResNet of four stages, with a last layer of 7 outputs."""
    generator = torch.Generator().manual_seed(0)
    weights: dict[str, Tensor] = {}

    def add(conv: str, norm: str, outputs: int, inputs: int, kernel: int) -> None:
        shape = (outputs, inputs, kernel, kernel)
        weights[f"{conv}.weight"] = torch.randn(shape, generator=generator) * (2 / (inputs * kernel**2)) ** 0.5
        weights[f"{norm}.weight"] = 1 + 0.1 * torch.randn(outputs, generator=generator)
        weights[f"{norm}.bias"] = 0.1 * torch.randn(outputs, generator=generator)
        weights[f"{norm}.running_mean"] = 0.1 * torch.randn(outputs, generator=generator)
        weights[f"{norm}.running_var"] = 1 + torch.rand(outputs, generator=generator)
        weights[f"{norm}.num_batches_tracked"] = torch.tensor(0)

    add("conv1", "bn1", width, 3, 7)
    inputs, factor = width, 4 if convolutions == 3 else 1
    for stage in range(1, 5):
        channels = width * 2 ** (stage - 1)
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            kernels = (3, 3) if convolutions == 2 else (1, 3, 1)
            sizes = [inputs, *[channels] * (convolutions - 1), factor * channels]
            for k, kernel in enumerate(kernels, start=1):
                add(f"{name}.conv{k}", f"{name}.bn{k}", sizes[k], sizes[k - 1], kernel)
            if block == 0 and (stage > 1 or inputs != sizes[-1]):
                add(f"{name}.downsample.0", f"{name}.downsample.1", sizes[-1], inputs, 1)
            inputs = sizes[-1]
    weights["fc.weight"], weights["fc.bias"] = torch.zeros(7, inputs), torch.zeros(7)
    return {f"{prefix}{name}": tensor for name, tensor in weights.items()}


def write_resnet(path: Path, **shape: int) -> str:
    """Write a small ResNet; return the path."""
    weights = resnet_weights(**shape)  # type: ignore[arg-type]
    if path.suffix == ".safetensors":
        save_file(weights, path)
    else:
        torch.save(weights, path)
    return str(path)


def write_sentence_transformer(folder: Path) -> str:
    """Write a small random BERT as a model of sentence-transformers (mean of 16 values per token); return the path."""
    from sentence_transformers import SentenceTransformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "bad", "film", "good", "is", "the"]
    plain = folder / "bert"  # a folder without the files of sentence-transformers: the default is the mean
    plain.mkdir(parents=True)
    (plain / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(plain / "vocab.txt"), model_max_length=64).save_pretrained(plain)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(words), max_position_embeddings=64, initializer_range=0.5, **sizes)
    BertModel(config).save_pretrained(plain)
    SentenceTransformer(str(plain), device="cpu").save(str(folder / "model"))
    return str(folder / "model")
