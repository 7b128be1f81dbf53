"""Every augmented image is one of the crops and flips of a naive loop, and all are equally likely."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from metalabelnet.data.augment import AUGMENTATIONS, crop, draw_augmentation, flip_crop
from metalabelnet.errors import InputError

quick = settings(max_examples=50, deadline=None)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    return torch.randint(1, 256, (n, channels, height, width), generator=rng(seed), dtype=torch.uint8)


def naive_crops(image: Tensor, padding: int, *, flips: bool) -> list[Tensor]:
    """Return every possible result: flipped, padded with zeros pixel by pixel, cropped at every place."""
    channels, height, width = image.shape
    out = []
    for up in (False, True)[: 1 + flips]:
        for across in (False, True)[: 1 + flips]:
            flipped = torch.zeros_like(image)
            for i in range(height):
                for j in range(width):
                    flipped[:, i, j] = image[:, height - 1 - i if up else i, width - 1 - j if across else j]
            padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
            padded[:, padding : padding + height, padding : padding + width] = flipped
            for top in range(2 * padding + 1):
                for left in range(2 * padding + 1):
                    out.append(padded[:, top : top + height, left : left + width])  # noqa: PERF401
    return out


@quick
@given(
    st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)),
    st.integers(0, 2),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_every_output_is_a_naive_crop(shape: tuple[int, int, int, int], padding: int, flips: bool, seed: int) -> None:
    x = images(*shape, seed=seed)
    before = x.clone()
    augment = flip_crop if flips else crop
    out = augment(x, draw_augmentation(len(x), rng(seed), padding), padding)
    assert torch.equal(x, before)
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    assert torch.equal(out, augment(x, draw_augmentation(len(x), rng(seed), padding), padding))
    for image, result in zip(x, out, strict=True):
        assert any(torch.equal(result, one) for one in naive_crops(image, padding, flips=flips))


@pytest.mark.parametrize("flips", [False, True])
def test_every_naive_crop_is_equally_likely(flips: bool) -> None:
    """Each of the 9 crops, or 36 with flips, within 4.5 standard errors of its share of 9000 samples."""
    image, n = images(1, 1, 3, 4), 9000
    out = (flip_crop if flips else crop)(image.expand(n, -1, -1, -1), draw_augmentation(n, rng(), 1), 1)
    possible = naive_crops(image[0], 1, flips=flips)
    counts = torch.tensor([int((out == one).flatten(1).all(1).sum()) for one in possible])
    p = 1 / len(possible)
    assert int(counts.sum()) == n  # the possible outputs all differ
    assert (counts - n * p).abs().max() < 4.5 * math.sqrt(n * p * (1 - p))


def test_each_sample_is_augmented_differently() -> None:
    x = images(1, 3, 32, 32).expand(64, -1, -1, -1)
    out = flip_crop(x, draw_augmentation(len(x), rng()))
    assert len({bytes(image.flatten().tolist()) for image in out}) > 50


def test_without_padding_there_are_only_flips() -> None:
    x = images(40, 2, 3, 3)
    assert torch.equal(crop(x, draw_augmentation(len(x), rng(), 0), 0), x)
    for image, result in zip(x, flip_crop(x, draw_augmentation(len(x), rng(), 0), 0), strict=True):
        assert any(torch.equal(result, image.flip(d)) for d in ((), (1,), (2,), (1, 2)))


def test_augmentations() -> None:
    assert list(AUGMENTATIONS) == ["none", "flip", "crop", "flip-crop"]
    x, table, draws = images(5, 3, 8, 8), torch.randn(5, 4, generator=rng()), draw_augmentation(5, rng(2))
    assert torch.equal(AUGMENTATIONS["none"](x, draws), x)
    assert torch.equal(AUGMENTATIONS["none"](table, draws), table)
    assert torch.equal(AUGMENTATIONS["crop"](x, draws), crop(x, draws, padding=4))
    assert torch.equal(AUGMENTATIONS["flip-crop"](x, draws), flip_crop(x, draws, padding=4))


@pytest.mark.parametrize("name", ["crop", "flip-crop"])
def test_samples_other_than_images_are_refused(name: str) -> None:
    sentence = "need uint8 images (N, channels, height, width), not torch.float32 of shape (5, 4); use the"
    with pytest.raises(InputError, match=re.escape(sentence)):
        AUGMENTATIONS[name](torch.zeros(5, 4), draw_augmentation(5, rng()))
    with pytest.raises(InputError, match=r"not torch\.float32 of shape"):
        AUGMENTATIONS[name](torch.zeros(5, 3, 8, 8), draw_augmentation(5, rng()))


def test_negative_padding_is_refused() -> None:
    with pytest.raises(InputError, match="padding is -1 pixels; give 0 or more"):
        draw_augmentation(1, rng(), -1)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_gpu_crops_without_synchronizing() -> None:
    x, draws = images(8, 3, 4, 4).cuda(), draw_augmentation(8, rng(), 2).cuda()
    flip_crop(x, draws, 2)
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = flip_crop(x, draws, 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for image, result in zip(x.cpu(), out.cpu(), strict=True):
        assert any(torch.equal(result, one) for one in naive_crops(image, 2, flips=True))
