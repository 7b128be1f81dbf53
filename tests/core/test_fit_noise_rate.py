"""Noise rates from clean samples, and from predictions for training samples that clean samples correct."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from metalabelnet.core.noise_rate import Predicted, fit_noise_rate


def draw(n: int, seed: int, *, slope: float = -0.8) -> tuple[Tensor, Tensor, Tensor]:
    """Return margins, noise rates that follow them, and which given labels are wrong."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(n, generator=generator, dtype=torch.float64)
    rate = torch.sigmoid(0.5 + slope * u)
    return u, rate, (torch.rand(n, generator=generator, dtype=torch.float64) < rate).double()


def test_solution_is_where_the_gradient_is_zero() -> None:
    (u, _, wrong), (u_train, _, _) = draw(30, 0), draw(400, 1)
    f, f_train = torch.rand(30).double(), torch.rand(400).double()
    solution = fit_noise_rate(u, wrong, Predicted(u_train=u_train, train=f_train, clean=f))
    b, w = (value.clone().requires_grad_() for value in solution)
    loss = 30 * functional.binary_cross_entropy_with_logits(b + w * u_train, f_train)
    loss = loss - ((wrong - f) * (b + w * u)).sum()
    loss = loss + functional.softplus(b) + functional.softplus(-b) + w**2 / 2
    gradient = torch.stack(torch.autograd.grad(loss, (b, w)))
    torch.testing.assert_close(gradient, torch.zeros(2).double(), rtol=0, atol=1e-9)


def test_without_slope_it_is_the_prediction_powered_mean() -> None:
    wrong, f, f_train = (torch.rand(n).double() for n in (20, 20, 300))
    zero = torch.zeros(20).double()
    b, w = fit_noise_rate(zero, wrong, Predicted(u_train=torch.zeros(300).double(), train=f_train, clean=f))
    mean = f_train.mean() + wrong.mean() - f.mean()
    assert float(torch.sigmoid(b)) == pytest.approx((20 * float(mean) + 1) / 22)
    assert float(w) == 0


def errors(f_of: object, draws: int = 60) -> tuple[Tensor, Tensor]:
    """Return errors of the mean noise rate, by clean samples alone and with training samples."""
    alone, powered = [], []
    for seed in range(draws):
        (u, rate, wrong), (u_train, rate_train, wrong_train) = draw(100, seed), draw(4000, 1000 + seed)
        predicted = Predicted(u_train=u_train, train=f_of(rate_train, wrong_train), clean=f_of(rate, wrong))  # type: ignore[operator]
        for fits, given in ((alone, None), (powered, predicted)):
            b, w = fit_noise_rate(u, wrong, given)
            fits.append(torch.sigmoid(b + w * u_train).mean() - rate_train.mean())
    return torch.stack(alone), torch.stack(powered)


def test_good_predictions_reduce_the_error() -> None:
    alone, powered = errors(lambda rate, wrong: 0.8 * wrong + 0.2 * rate)
    assert powered.square().mean().sqrt() < 0.5 * alone.square().mean().sqrt()


def test_biased_predictions_are_corrected() -> None:
    alone, powered = errors(lambda rate, wrong: 0.3 * wrong)
    assert powered.mean().abs() < 0.01
    assert powered.square().mean() < alone.square().mean()


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_correction_beyond_the_possible_is_limited(value: float) -> None:
    """Clean samples that are all right where the predictions expect more errors than among training samples."""
    u, u_train = torch.zeros(50).double(), torch.zeros(900).double()
    f, f_train = torch.full((50,), 0.5).double(), torch.full((900,), 0.5 + 0.4 * (value - 0.5)).double()
    b, w = fit_noise_rate(u, torch.full((50,), value).double(), Predicted(u_train=u_train, train=f_train, clean=f))
    assert float(torch.sigmoid(b)) == pytest.approx((50 * value + 1) / 52)
    assert torch.isfinite(w)
