"""Write CIFAR-10 as embeddings of a ResNet from a weights file, reduced to principal components, for `linear.py`.

    OMP_NUM_THREADS=1 python benchmarks/embed_cifar10.py CIFAR10.npz --weights model.pth -o features.npz [--side 64]

CIFAR10.npz has x_train, y_train, x_test, y_test: uint8 images of 32×32 pixels in the original order. They are resized
to SIDE pixels (bilinear) and normalized by ImageNet's mean and deviation. `metalabelnet embed cifar10 --encoder
WEIGHTS` embeds them at 224 pixels, which takes a CPU core several hours. The principal components are those of the
training rows.
Parts of the result are stored in the folder of --parts; an interrupted run continues from there.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from metalabelnet.data.embeddings.image_models import IMAGENET_MEAN, IMAGENET_STD
from metalabelnet.data.embeddings.resnet import build_resnet
from metalabelnet.input_files.weights_file import read_weights

BATCH, PART = 64, 2000


def prepare(images: np.ndarray, side: int) -> torch.Tensor:
    """Return normalized images, (n, 3, side, side)."""
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    x = functional.interpolate(x, size=side, mode="bilinear", align_corners=False)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return ((x - mean) / std).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def embed(images: np.ndarray, weights: Path, side: int, folder: Path) -> np.ndarray:
    """Return the embeddings of all images, with the batches that are stored already."""
    net = build_resnet(read_weights(weights, ""), str(weights), None).eval().to(memory_format=torch.channels_last)
    net = torch.jit.freeze(torch.jit.trace(net, prepare(images[:BATCH], side)))  # fuses BatchNorm
    torch.jit.run_frozen_optimizations(net)
    found = []
    for start in range(0, len(images), PART):
        file = folder / f"{start}.npy"
        if not file.exists():
            part = images[start : start + PART]
            vectors = [net(prepare(part[k : k + BATCH], side)).numpy() for k in range(0, len(part), BATCH)]
            np.save(file, np.concatenate(vectors))
            print(start, f"{time.process_time():.0f} s", flush=True)
        found.append(np.load(file))
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--components", type=int, default=512)
    parser.add_argument("--parts", type=Path, default=Path("parts"))
    args = parser.parse_args()
    args.parts.mkdir(parents=True, exist_ok=True)
    with np.load(args.cifar10) as file:
        arrays = {name: file[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    images = np.concatenate([arrays["x_train"], arrays["x_test"]])
    embedded = embed(images, args.weights, args.side, args.parts).astype(np.float64)
    n = len(arrays["x_train"])
    centered = embedded - embedded[:n].mean(0)
    axes = np.linalg.eigh(centered[:n].T @ centered[:n])[1][:, ::-1][:, : args.components]
    reduced = (centered @ axes).astype(np.float32)
    np.savez(args.output, x_train=reduced[:n], y_train=arrays["y_train"], x_test=reduced[n:], y_test=arrays["y_test"])


if __name__ == "__main__":
    main()
