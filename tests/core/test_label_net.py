"""The label net and its variants: sizes, dropout masks and running statistics."""

import pytest
import torch
from torch import nn

from metalabelnet.core.forward_pass import label_net_forward, predict
from metalabelnet.core.label_net import LABEL_NET_KINDS, LabelMLP, LabelNet, make_label_net
from metalabelnet.errors import InputError
from small_runs import StepRunner, small_problem, small_run

MLPS = [kind for kind in LABEL_NET_KINDS if kind != "single-layer"]


def build(kind: str) -> nn.Module:
    return make_label_net(kind, 8, 3, torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("kind", LABEL_NET_KINDS)
def test_output_is_log_probabilities(kind: str) -> None:
    v = torch.randn(16, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    log_y_hat = label_net_forward(build(kind), v, seed=0, update_statistics=False)
    torch.testing.assert_close(log_y_hat.exp().sum(1), torch.ones(16, dtype=torch.float64))


def test_numbers_of_weights() -> None:
    """One layer has d·C + C weights; a hidden layer of d units adds d² weights and d biases."""
    count = {kind: sum(p.numel() for p in build(kind).parameters()) for kind in LABEL_NET_KINDS}
    assert count == {"single-layer": 27, "mlp": 99, "mlp-batchnorm": 107, "mlp-batchnorm-dropout": 107}
    with pytest.raises(InputError, match="did you mean 'mlp'"):
        make_label_net("mlpp", 8, 3, torch.Generator())


def test_mlp_is_two_layers_with_relu() -> None:
    m = build("mlp")
    assert isinstance(m, LabelMLP)
    v = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    hidden = (v @ m.hidden_weight.T + m.hidden_bias).relu()
    torch.testing.assert_close(m(v), (hidden @ m.last.weight.T + m.last.bias).log_softmax(1))
    assert isinstance(m.last, LabelNet)


def test_seed_determines_dropout_mask_and_predict_uses_none() -> None:
    m = build("mlp-batchnorm-dropout")
    v = torch.randn(16, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    before = torch.get_rng_state()
    first, same, other = (label_net_forward(m, v, seed=seed, update_statistics=False) for seed in (5, 5, 6))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(predict(m, v), predict(m, v))
    assert m.training


def test_running_statistics_are_updated_once_per_iteration() -> None:
    runner = StepRunner(small_run("metalabelnet:mlp-batchnorm"), small_problem()).advance(9)
    assert int(runner.method.phase2.m.norm.num_batches_tracked) == 1
    runner.advance(3)
    assert int(runner.method.phase2.m.norm.num_batches_tracked) == 4


@pytest.mark.parametrize("kind", MLPS)
def test_soft_labels_have_no_side_effects(kind: str) -> None:
    runner = StepRunner(small_run(f"metalabelnet:{kind}"), small_problem()).advance(10)
    before = {name: tensor.clone() for name, tensor in runner.method.model_state_dict().items()}
    assert torch.equal(runner.method.soft_labels(), runner.method.soft_labels())
    assert all(torch.equal(tensor, before[name]) for name, tensor in runner.method.model_state_dict().items())


def test_single_layer_is_default() -> None:
    runner = StepRunner(small_run("metalabelnet"), small_problem()).advance(9)
    assert isinstance(runner.method.phase2.m, LabelNet)
