"""The networks, and the last layer of anybody's."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from metalabelnet.errors import InputError
from metalabelnet.nets import NETS, another, auto, build
from metalabelnet.nets.head import Extractor, find_head

SHAPES = [
    ("cnn8", (3, 32, 32)),
    ("cnn8", (3, 40, 24)),
    ("small-cnn", (1, 8, 8)),
    ("small-cnn", (1, 28, 28)),
    ("mlp", (7,)),
    ("mlp", (1, 8, 8)),
]


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_logits_head_and_features(name: str, shape: tuple[int, ...]) -> None:
    net = build(name, shape, 5, seed=0)
    x = torch.randn(4, *shape)
    head = find_head(net, x, 5)
    last = net.get_submodule(head)
    assert net(x).shape == (4, 5)
    v = Extractor(net, head)(x)
    net.eval()
    torch.testing.assert_close(last(v), net(x))


def test_the_papers_network_layer_by_layer() -> None:
    net = build("cnn8", (3, 32, 32), 10, seed=0)
    convolutions = [(m.in_channels, m.out_channels) for m in net if isinstance(m, nn.Conv2d)]
    assert convolutions == [(3, 64), (64, 64), (64, 128), (128, 128), (128, 196), (196, 196)]
    assert [(m.in_features, m.out_features) for m in net if isinstance(m, nn.Linear)] == [(196 * 16, 256), (256, 10)]
    assert sum(isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d) for m in net) == 7
    assert sum(isinstance(m, nn.MaxPool2d) for m in net) == 3
    assert [type(m).__name__ for m in net][6] == "MaxPool2d"


def test_weights_follow_from_the_seed_alone() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    a, b, c = (build("small-cnn", (1, 8, 8), 3, seed=seed)[0].weight for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(state, torch.get_rng_state())


def test_auto_picks_by_shape() -> None:
    assert [auto(shape) for shape in ((12,), (1, 8, 8), (1, 28, 28), (3, 32, 32), (1, 2, 2))] == [
        "mlp", "small-cnn", "small-cnn", "cnn8", "mlp"
    ]  # fmt: skip


def test_wrong_names_and_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'cnn8'"):
        build("cnn9", (3, 32, 32), 10, seed=0)
    for name, shape in (("cnn8", (5,)), ("cnn8", (3, 4, 4)), ("small-cnn", (1, 2, 2))):
        with pytest.raises(InputError, match=f"network {name} does not take samples of shape"):
            build(name, shape, 10, seed=0)
    assert all(kind.summary for kind in NETS.values())


class Backwards(nn.Module):
    """Lists its layers in another order than it runs them, and has a layer it never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.hidden, self.never = nn.Linear(6, 3), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x).relu()).log_softmax(1)


def test_the_head_is_the_last_to_run_not_the_last_in_the_list() -> None:
    net, x = Backwards(), torch.randn(5, 4)
    assert find_head(net, x, 3) == "out"
    torch.testing.assert_close(Extractor(net, "out")(x), net.hidden(x).relu())


def test_a_named_head_is_taken_or_refused() -> None:
    net, x = Backwards(), torch.randn(5, 4)
    assert find_head(net, x, 3, "out") == "out"
    with pytest.raises(InputError, match="did you mean 'out'"):
        find_head(net, x, 3, "outt")
    with pytest.raises(InputError, match="'hidden' does not give one number for each of the 3 classes"):
        find_head(net, x, 3, "hidden")


def test_a_network_without_a_last_linear_layer_is_refused_with_a_sentence() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(InputError, match=r"no last linear layer with 3 outputs.*let it end in nn\.Linear"):
        find_head(net, torch.randn(2, 1, 4, 4), 3)


def test_logits_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"gives \(5, 4\) for 5 samples, not logits of shape \(5, 3\)"):
        find_head(nn.Linear(2, 4), torch.randn(5, 2), 3)


def test_looking_for_the_head_changes_nothing() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()
    before = {k: t.clone() for k, t in net.state_dict().items()}
    find_head(net, torch.randn(5, 4), 3)
    assert net.training
    assert not any(module._forward_hooks for module in net.modules())
    assert all(torch.equal(before[k], t) for k, t in net.state_dict().items())


def test_another_network_has_the_weights_of_this_one_but_a_last_layer_of_its_own() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.1), nn.Linear(5, 3), nn.Softplus())
    net(torch.randn(8, 4))  # moves the running statistics
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, again, other = (another(net, seed=seed) for seed in (1, 1, 2))
    assert str(first) == str(net)
    assert torch.equal(first[0].weight, net[0].weight)
    assert torch.equal(first[1].running_mean, net[1].running_mean)
    assert torch.equal(first[3].weight, again[3].weight)
    assert not torch.equal(first[3].weight, other[3].weight)
    assert not torch.equal(first[3].weight, net[3].weight)
    assert torch.equal(state, torch.get_rng_state())


def test_what_is_frozen_or_made_of_other_weights_is_not_drawn_anew() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 5), parametrizations.weight_norm(nn.Linear(5, 3, bias=False)))
    net[1].requires_grad_(requires_grad=False)
    made = another(net, seed=1)
    assert not torch.equal(made[0].weight, net[0].weight)  # the last that can be
    assert torch.equal(made[1].weight, net[1].weight)
    assert torch.equal(made[2].weight, net[2].weight)
