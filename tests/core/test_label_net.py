"""The label net and its variants: sizes, and which pass uses and updates what."""

import pytest
import torch
from torch import nn

from metalabelnet.core.forward_pass import generate, predict
from metalabelnet.core.label_net import KINDS, LabelMLP, LabelNet, make_label_net
from metalabelnet.errors import InputError
from small import Walk, small_problem, small_run

MLPS = [kind for kind in KINDS if kind != "single-layer"]


def made(kind: str) -> nn.Module:
    return make_label_net(kind, 8, 3, torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("kind", KINDS)
def test_gives_logarithms_of_probabilities(kind: str) -> None:
    v = torch.randn(16, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    log_y_hat = generate(made(kind), v, seed=0, update_statistics=False)
    torch.testing.assert_close(log_y_hat.exp().sum(1), torch.ones(16, dtype=torch.float64))


def test_sizes() -> None:
    """One layer has d·C + C weights; a hidden layer as wide as the features adds d² and a bias."""
    count = {kind: sum(p.numel() for p in made(kind).parameters()) for kind in KINDS}
    assert count == {"single-layer": 27, "mlp": 99, "mlp-batchnorm": 107, "mlp-batchnorm-dropout": 107}
    with pytest.raises(InputError, match="did you mean 'mlp'"):
        make_label_net("mlpp", 8, 3, torch.Generator())


def test_an_mlp_is_two_layers_with_relu_between() -> None:
    m = made("mlp")
    assert isinstance(m, LabelMLP)
    v = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    hidden = (v @ m.hidden_weight.T + m.hidden_bias).relu()
    torch.testing.assert_close(m(v), (hidden @ m.last.weight.T + m.last.bias).log_softmax(1))
    assert isinstance(m.last, LabelNet)


def test_one_seed_one_dropout_mask_and_none_when_predicting() -> None:
    m = made("mlp-batchnorm-dropout")
    v = torch.randn(16, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    before = torch.get_rng_state()
    first, same, other = (generate(m, v, seed=seed, update_statistics=False) for seed in (5, 5, 6))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(predict(m, v), predict(m, v))
    assert m.training


def test_running_statistics_are_updated_once_an_iteration() -> None:
    walk = Walk(small_run("metalabelnet:mlp-batchnorm"), small_problem()).go(9)
    assert int(walk.method.phase2.m.norm.num_batches_tracked) == 1
    walk.go(3)
    assert int(walk.method.phase2.m.norm.num_batches_tracked) == 4


@pytest.mark.parametrize("kind", MLPS)
def test_reading_the_soft_labels_changes_nothing(kind: str) -> None:
    walk = Walk(small_run(f"metalabelnet:{kind}"), small_problem()).go(10)
    before = {name: tensor.clone() for name, tensor in walk.method.model().items()}
    assert torch.equal(walk.method.soft_labels(), walk.method.soft_labels())
    assert all(torch.equal(tensor, before[name]) for name, tensor in walk.method.model().items())


def test_the_single_layer_is_the_default() -> None:
    walk = Walk(small_run("metalabelnet"), small_problem()).go(9)
    assert isinstance(walk.method.phase2.m, LabelNet)
