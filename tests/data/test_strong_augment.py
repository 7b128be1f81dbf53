"""Strong augmentation equals a naive loop over pixels, and samples do not influence each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from metalabelnet.data import strong_augment as module
from metalabelnet.data.batches import to_input
from metalabelnet.data.strong_augment import (
    DRAW_LEVELS,
    DRAWS_PER_SAMPLE,
    augment_strongly,
    can_augment_strongly,
    draw_strong_augmentation,
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=rng(1), dtype=torch.uint8)


def identity_draws(count: int) -> Tensor:
    """Return draws that change nothing: the middle of every range, no flips, an empty cutout."""
    draws = torch.full((DRAWS_PER_SAMPLE, count), DRAW_LEVELS // 2)
    draws[[5, 6, 14]] = 0
    return draws


def naive_augmentation(image: Tensor, numbers: Tensor, *, flips: bool) -> np.ndarray:
    """Augment one image pixel by pixel, from the description of the module."""
    channels, height, width = image.shape
    u = [(int(n) + 0.5) / DRAW_LEVELS for n in numbers]
    spread = [2 * value - 1 for value in u]
    angle, scale = module.MAX_ROTATION * spread[2], math.exp(module.MAX_LOG_SCALE * spread[4])
    out = np.zeros((channels, height, width))
    for row in range(height):
        for column in range(width):
            i, j = row - (height - 1) / 2, column - (width - 1) / 2
            i, j = (-i if flips and u[5] > 0.5 else i), (-j if flips and u[6] > 0.5 else j)
            j += module.MAX_SHEAR * spread[3] * i
            y = scale * (math.cos(angle) * i - math.sin(angle) * j) + height * module.MAX_SHIFT * spread[0]
            x = scale * (math.sin(angle) * i + math.cos(angle) * j) + width * module.MAX_SHIFT * spread[1]
            y, x = y + (height - 1) / 2, x + (width - 1) / 2
            for c in range(channels):
                value = 0.0
                for a in (math.floor(y), math.floor(y) + 1):
                    for b in (math.floor(x), math.floor(x) + 1):
                        if 0 <= a < height and 0 <= b < width:
                            value += float(image[c, a, b]) * (1 - abs(y - a)) * (1 - abs(x - b))
                value = value / 127.5 - 1
                value = (1 + module.MAX_CONTRAST * spread[7]) * value + module.MAX_BRIGHTNESS * spread[8]
                if channels == 3:
                    value = (value + 1) * (1 + module.MAX_CHANNEL_GAIN * spread[9 + c]) - 1
                out[c, row, column] = min(1.0, max(-1.0, value))
            half = module.MAX_CUTOUT / 2 * u[14]
            down, right = row + 0.5 - height * u[12], column + 0.5 - width * u[13]
            if abs(down) < half * height and abs(right) < half * width:
                out[:, row, column] = 0
    return out


@pytest.mark.parametrize("flips", [False, True])
@pytest.mark.parametrize("shape", [(3, 6, 9), (1, 8, 8)])
def test_equals_a_naive_loop_over_pixels(shape: tuple[int, int, int], flips: bool) -> None:
    x, draws = images(12, *shape), draw_strong_augmentation(12, rng())
    before = x.clone()
    out = augment_strongly(x, draws, flips=flips, dtype=torch.float64)
    assert torch.equal(x, before)
    assert (out.shape, out.dtype) == (x.shape, torch.float64)
    for image, numbers, got in zip(x, draws.T, out, strict=True):
        np.testing.assert_allclose(got.numpy(), naive_augmentation(image, numbers, flips=flips), atol=1e-9)


def test_identity_draws_change_nothing() -> None:
    x = images(4, 3, 8, 8)
    torch.testing.assert_close(
        augment_strongly(x, identity_draws(4), flips=True, dtype=torch.float32),
        to_input(x, torch.float32),
        atol=2e-3,
        rtol=0,
    )


@pytest.mark.parametrize(("which", "dims"), [([5], [2]), ([6], [3]), ([5, 6], [2, 3])])
def test_flips_only_if_requested(which: list[int], dims: list[int]) -> None:
    x, draws = images(4, 1, 8, 8), identity_draws(4)
    draws[which] = DRAW_LEVELS - 1
    flipped, unflipped = (augment_strongly(x, draws, flips=flips, dtype=torch.float32) for flips in (True, False))
    torch.testing.assert_close(flipped, to_input(x, torch.float32).flip(dims), atol=2e-3, rtol=0)
    torch.testing.assert_close(unflipped, to_input(x, torch.float32), atol=2e-3, rtol=0)


def test_samples_are_independent() -> None:
    x, draws = images(6, 3, 8, 8), draw_strong_augmentation(6, rng())
    batched = augment_strongly(x, draws, flips=True, dtype=torch.float32)
    single = torch.cat(
        [augment_strongly(x[k : k + 1], draws[:, k : k + 1], flips=True, dtype=torch.float32) for k in range(6)]
    )
    assert torch.equal(batched, single)


def test_draws_are_uniform() -> None:
    draws = draw_strong_augmentation(4000, rng())
    assert draws.shape == (DRAWS_PER_SAMPLE, 4000)
    assert torch.equal(draws, draw_strong_augmentation(4000, rng()))
    u = draws.double() / DRAW_LEVELS
    assert (u.mean(1) - 0.5).abs().max() < 4.5 * math.sqrt(1 / 12 / 4000)
    assert u.min() < 0.01
    assert u.max() > 0.99


def test_only_uint8_images_can_be_augmented_strongly() -> None:
    assert can_augment_strongly(images(2, 1, 8, 8))
    assert not can_augment_strongly(torch.zeros(2, 4))
    assert not can_augment_strongly(torch.zeros(2, 1, 8, 8))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_gpu_augments_without_synchronizing() -> None:
    x, draws = images(8, 3, 8, 8), draw_strong_augmentation(8, rng())
    on_gpu = x.cuda(), draws.cuda()
    augment_strongly(*on_gpu, flips=True, dtype=torch.float32)
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = augment_strongly(*on_gpu, flips=True, dtype=torch.float32)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(
        out.cpu(), augment_strongly(x, draws, flips=True, dtype=torch.float32), atol=1e-3, rtol=0
    )
