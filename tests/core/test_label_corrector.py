"""The label correction network against a loop, and its initialization."""

import math

import torch

from metalabelnet.core.label_corrector import LabelCorrector


def corrector(seed: int = 0, **sizes: int) -> LabelCorrector:
    sizes = {"features": 5, "classes": 3, "embedding": 4, "hidden": 8} | sizes
    return LabelCorrector(**sizes, generator=torch.Generator().manual_seed(seed)).double()


def test_output_equals_a_loop() -> None:
    net, v = corrector(), torch.randn(2, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for row, label, log_y_hat in zip(v.tolist(), (2, 0), net(v, torch.tensor([2, 0])).tolist(), strict=True):
        values = row + net.embedding[label].tolist()
        layers = ((net.first_weight, net.first_bias), (net.second_weight, net.second_bias))
        for weight, bias in layers:
            values = [
                math.tanh(sum(w * x for w, x in zip(ws, values, strict=True)) + b)
                for ws, b in zip(weight.tolist(), bias.tolist(), strict=True)
            ]
        logits = [sum(w * x for w, x in zip(ws, values, strict=True)) for ws in net.last_weight.tolist()]
        total = math.log(sum(math.exp(z) for z in logits))
        torch.testing.assert_close(torch.tensor(log_y_hat), torch.tensor([z - total for z in logits]))


@torch.no_grad()
def test_initialization_is_xavier() -> None:
    net = corrector(features=72, classes=10, embedding=128, hidden=128)
    assert abs(float(net.first_weight.std()) / (2 / (72 + 128 + 128)) ** 0.5 - 1) < 0.02
    bound = (6 / 138) ** 0.5
    assert 0.95 * bound < float(net.embedding.abs().max()) <= bound
    assert all(float(bias.abs().max()) == 0 for bias in (net.first_bias, net.second_bias, net.last_bias))
    assert torch.equal(corrector().embedding, corrector().embedding)
    assert not torch.equal(corrector().embedding, corrector(1).embedding)
