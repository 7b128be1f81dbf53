"""3×3 convolutions by a kernel of our own: what can be held without a card, and the kernel itself on one."""

from __future__ import annotations

from operator import getitem

import pytest
import torch
from torch import fx
from torch.nn.functional import conv2d, conv_transpose2d

from metalabelnet.engine import hopper
from metalabelnet.engine.cuda import SHARED

LAYERS = [  # height, width, inputs, outputs
    (32, 32, 64, 64),
    (32, 32, 8, 64),
    (16, 16, 64, 128),
    (16, 16, 128, 64),
    (16, 16, 128, 128),
    (8, 8, 128, 200),
    (8, 8, 200, 128),
    (8, 8, 200, 200),
    (56, 56, 64, 64),
    (24, 40, 72, 24),
    (8, 16, 16, 8),
]


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_plan_fits_the_card_and_covers_the_layer(layer: tuple[int, int, int, int], *, back: bool) -> None:
    """Shared memory is enough, tiles cover the image, and blocks the outputs."""
    way = hopper.plan(*layer, back=back)
    assert way is not None
    assert way.shared <= SHARED
    assert layer[0] % way.rows == 0
    assert layer[1] % way.columns == 0
    assert way.block * way.blocks >= layer[3]
    assert way.block % 8 == 0
    assert way.wide(128, 132) * way.blocks <= 132


@pytest.mark.parametrize("layer", [(28, 28, 64, 64), (32, 32, 3, 64), (32, 32, 64, 60), (7, 7, 512, 512)])
def test_other_layers_are_left_to_the_library(layer: tuple[int, int, int, int]) -> None:
    """Sides and channels that are no multiples of eight, and more channels than there is room for."""
    assert hopper.plan(*layer, back=False) is None


def test_no_other_convolution_is_taken() -> None:
    """On a CPU none at all."""
    x, weight = torch.zeros(1, 64, 8, 8, dtype=torch.bfloat16), torch.zeros(64, 64, 3, 3, dtype=torch.bfloat16)
    assert not hopper.takes(x, weight, [1, 1], [1, 1], [1, 1], back=False)


def test_totals_nobody_reads_are_not_added_up() -> None:
    """A recording says for each convolution whether they are wanted."""
    operator = torch.ops.metalabelnet.conv3x3.default
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    one = graph.call_function(operator, (x, w, 8, False, True))
    two = graph.call_function(operator, (x, w, 8, False, True))
    taken = [graph.call_function(getitem, (one, 0)), graph.call_function(getitem, (two, 0))]
    graph.output((*taken, graph.call_function(getitem, (two, 1))))
    hopper.without_idle_totals(graph)
    assert (one.args[-1], two.args[-1]) == (False, True)


@pytest.fixture
def card() -> torch.Generator:
    """Random numbers on a card of this kind."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("a card of another kind")
    return torch.Generator("cuda").manual_seed(0)


def _draw(card: torch.Generator, *shape: int) -> torch.Tensor:
    numbers = torch.randn(*shape, device="cuda", generator=card).bfloat16()
    return numbers.contiguous(memory_format=torch.channels_last)


def _near(found: torch.Tensor, true: torch.Tensor) -> bool:
    """The same but for the rounding of what comes out."""
    return torch.allclose(found.float(), true.float(), rtol=2**-8, atol=1e-3 * true.abs().max().item())


AROUND = [1, 1], [1, 1], [1, 1]  # stride, padding, dilation


@pytest.mark.gpu
@pytest.mark.parametrize("images", [128, 5])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_kernel_convolves(card: torch.Generator, layer: tuple[int, int, int, int], images: int) -> None:
    """As PyTorch does in float32; totals are those of what it gives."""
    height, width, inputs, outputs = layer
    x, weight = _draw(card, images, inputs, height, width), _draw(card, outputs, inputs, 3, 3)
    assert hopper.takes(x, weight, *AROUND, back=False)
    with torch.backends.cudnn.flags(allow_tf32=False):
        true = conv2d(x.float(), weight.float(), padding=1)
    for _ in range(2):
        y, totals = hopper.convolution(x, weight)
        assert _near(y, true)
        total, squares = totals.double().sum(0)
        size = y.double().abs().sum((0, 2, 3)).max().item()
        assert torch.allclose(total, y.double().sum((0, 2, 3)), rtol=0, atol=1e-5 * size)
        assert torch.allclose(squares, y.double().square().sum((0, 2, 3)), rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("images", [128, 5])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_kernel_goes_back(card: torch.Generator, layer: tuple[int, int, int, int], images: int) -> None:
    """The gradient by what went in, as PyTorch finds it in float32."""
    height, width, outputs, inputs = layer
    grad, weight = _draw(card, images, outputs, height, width), _draw(card, outputs, inputs, 3, 3)
    assert hopper.takes(grad, weight, *AROUND, back=True)
    with torch.backends.cudnn.flags(allow_tf32=False):
        true = conv_transpose2d(grad.float(), weight.float(), padding=1)
    for _ in range(2):
        assert _near(hopper.back(grad, weight), true)


@pytest.mark.gpu
@pytest.mark.parametrize("images", [128, 5])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_kernel_finds_the_gradient_by_weights(
    card: torch.Generator, layer: tuple[int, int, int, int], images: int
) -> None:
    """As PyTorch does in float32."""
    height, width, inputs, outputs = layer
    x, grad = _draw(card, images, inputs, height, width), _draw(card, images, outputs, height, width)
    weight = _draw(card, outputs, inputs, 3, 3)
    if not hopper.takes_by_weight(x, weight, *AROUND):
        pytest.skip("left to the library")
    with torch.backends.cudnn.flags(allow_tf32=False):
        true = torch.nn.grad.conv2d_weight(x.float(), weight.shape, grad.float(), padding=1)
    for _ in range(2):
        found = hopper.by_weight(x, grad)
        assert torch.allclose(found, true, rtol=1e-4, atol=1e-4 * true.abs().max().item())
