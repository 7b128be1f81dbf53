"""Co-teaching: sample selection, the cross-update, and the source of the noise rate."""

import functools
import io
import math

import pytest
import torch

from metalabelnet.core.forward_pass import forward, trainable_parameters
from metalabelnet.core.losses import cross_entropy
from metalabelnet.data.batches import Batch
from metalabelnet.data.problem import Problem
from metalabelnet.methods.co_teaching import keep_rate, small_loss_weights
from metalabelnet.train.settings import Run
from metalabelnet.train.train_run import train
from small_runs import StepRunner, column_images, small_problem, small_run


def co_run(**settings: object) -> Run:
    return small_run("co-teaching", epochs=12, settings=settings)


def first_batch(runner: StepRunner) -> Batch:
    return next(runner.batches.epoch(0, labeled_only=True))


def test_smallest_losses_are_selected() -> None:
    losses = torch.tensor([3.0, 1.0, 2.0, 1.0, 9.0, 4.0, 5.0, 6.0, 7.0, 8.0])

    def selected(share: float) -> list[int]:
        weights = small_loss_weights(losses, torch.tensor(share, dtype=torch.float64))
        assert float(weights.sum()) == pytest.approx(1)
        assert len(set(weights[weights > 0].tolist())) == 1
        return weights.nonzero()[:, 0].tolist()

    assert selected(0.3) == [1, 2, 3]
    assert selected(0.1) == [1]  # ties go to the first
    assert len(selected(0.7)) == 7  # 0.7·10 is 6.999… or 7.000…
    assert selected(1.0) == list(range(10))
    assert selected(0.0) == [1]


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_extreme_logits_give_no_nan(size: float) -> None:
    z = torch.tensor([[size, -size, 0.0], [-size, -size, size], [0.0, 0.0, size]], requires_grad=True)
    losses = cross_entropy(z, torch.tensor([1, 2, 2]))
    weights = small_loss_weights(losses.detach(), torch.tensor(0.7, dtype=torch.float64))
    assert weights.tolist() == [0.0, 0.5, 0.5]
    (weights * losses).sum().backward()
    assert torch.isfinite(z.grad).all()


def test_keep_rate_falls_from_1_to_1_minus_tau() -> None:
    assert [keep_rate(0.4, t, 10) for t in (0, 5, 10, 100)] == pytest.approx([1.0, 0.8, 0.6, 0.6])
    assert keep_rate(0.0, 50, 10) == 1.0


def test_ramp_scales_with_the_schedule() -> None:
    runner = StepRunner(small_run("co-teaching", epochs=24, settings={"noise_rate": 0.5}), small_problem())
    shares = []
    for epoch in range(4):
        runner.method.begin_epoch(epoch)
        shares.append(float(runner.method.share))
    assert shares == [1.0, 0.75, 0.5, 0.5]  # 10 epochs of 120 are 2 of 24


def test_each_network_is_trained_on_the_selection_of_the_other() -> None:
    """Compared with a step written out; the loss is the mean over the selected samples."""
    run = small_run("co-teaching", epochs=12, settings={"noise_rate": 0.5}, momentum=0.0, weight_decay=0.0)
    runner = StepRunner(run, small_problem())
    method, batch = runner.method, first_batch(runner)
    method.begin_epoch(11)
    assert float(method.share) == 0.5
    nets = (method.net, method.peer)
    thetas = [trainable_parameters(net) for net in nets]
    losses = [
        cross_entropy(forward(net, batch.x, theta, seed=batch.seed + k, update_statistics=False), batch.given)
        for k, (net, theta) in enumerate(zip(nets, thetas, strict=True))
    ]
    expected = []
    for mine, others, theta in zip(losses, losses[::-1], thetas, strict=True):
        loss = sum(mine[i] for i in others.argsort()[:6].tolist()) / 6
        d = torch.autograd.grad(loss, list(theta.values()))
        expected.append([w.detach() - method.lr_at(11) * dw for w, dw in zip(theta.values(), d, strict=True)])
    assert set(losses[0].argsort()[:6].tolist()) != set(losses[1].argsort()[:6].tolist())
    loss = method.step(batch)
    selected = [mine[others.argsort()[:6]].mean() for mine, others in zip(losses, losses[::-1], strict=True)]
    torch.testing.assert_close(loss, sum(selected).detach() / 2)
    for theta, weights in zip(thetas, expected, strict=True):
        for w, e in zip(theta.values(), weights, strict=True):
            torch.testing.assert_close(w.detach(), e)


def test_noise_rate_0_is_cross_entropy() -> None:
    runner = StepRunner(co_run(noise_rate=0), small_problem()).advance(8)
    plain = StepRunner(small_run("cross-entropy", epochs=12), small_problem()).advance(8)
    ours, theirs = runner.method.net.state_dict(), plain.method.net.state_dict()
    assert all(torch.allclose(ours[key], theirs[key]) for key in ours)


def test_prediction_is_the_mean_of_both_networks() -> None:
    runner = StepRunner(co_run(noise_rate=0.2), small_problem()).advance(6)
    m, x = runner.method, column_images(5, seed=8).x
    for net in (m.net, m.peer):
        net.eval()
    inputs = x.double() / 127.5 - 1
    mean = (m.net(inputs).softmax(1) + m.peer(inputs).softmax(1)) / 2
    for net in (m.net, m.peer):
        net.train()
    torch.testing.assert_close(m.logits(x).softmax(1), mean)
    torch.testing.assert_close(m.logits(x).exp().sum(1), torch.ones(5, dtype=torch.float64))
    assert m.net.training
    assert m.peer.training


def counted_problem(wrong: int, clean: int = 60) -> Problem:
    rows = column_images(clean, seed=5)
    given = torch.where(torch.arange(clean) < wrong, (rows.true + 1) % 3, rows.true)
    return type(small_problem())(**{**vars(small_problem()), "clean": rows.with_given_labels(given)})


def test_noise_rate_is_counted_on_clean_samples_with_both_labels() -> None:
    runner = StepRunner(co_run(), counted_problem(wrong=15)).advance(1)
    assert (runner.method.epochs, runner.method.candidates_from) == (12, 0)
    assert float(runner.method.estimates.noise_rate) == pytest.approx(0.25, abs=0.02)
    few_clean = StepRunner(co_run(), counted_problem(wrong=3, clean=12))
    assert few_clean.method.candidates_from == 2  # too few to count


def test_noise_rate_is_estimated_in_a_first_stage_otherwise() -> None:
    runner = StepRunner(co_run(), small_problem())
    assert (runner.method.epochs, runner.method.candidates_from) == (14, 2)
    initial = {k: t.clone() for k, t in runner.method.net.state_dict().items()}
    runner.advance(8)
    assert all(torch.equal(t, initial[k]) for k, t in runner.method.net.state_dict().items())
    runner.advance(1)
    assert 0 <= float(runner.method.estimates.noise_rate) < 0.67
    assert "fold0" not in runner.method.components()
    with_milestone = StepRunner(small_run("co-teaching", epochs=12, lr_milestones=(3,)), small_problem()).method
    assert [with_milestone.lr_at(e) for e in (4, 5)] == pytest.approx([0.05, 0.005])


@functools.cache
def finished() -> StepRunner:
    return StepRunner(co_run(), small_problem()).advance()


@pytest.mark.parametrize(
    "after", [7, 9, 30, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
def test_resume_in_both_stages_gives_same_bits(after: int) -> None:
    whole, half = finished(), StepRunner(co_run(), small_problem()).advance(after)
    file = io.BytesIO()
    torch.save(half.method.state_dict(), file)
    file.seek(0)
    resumed = StepRunner(co_run(), small_problem())
    resumed.method.load_state_dict(torch.load(file, weights_only=True))
    resumed.epoch, resumed.step = half.epoch, half.step
    assert half.losses + resumed.advance().losses == whole.losses
    assert all(torch.equal(t, whole.method.model_state_dict()[k]) for k, t in resumed.method.model_state_dict().items())


@pytest.mark.slow
def test_true_noise_rate_beats_cross_entropy() -> None:
    """On digits with 40 % uniform noise, in the last epoch, by two standard errors over 5 seeds."""
    gains = []
    for seed in range(5):
        common = {"data": "digits", "noise": "uniform:0.4", "seed": seed, "device": "cpu", "epochs": 12}
        common |= {"lr_milestones": (4, 8)}
        ours = train(Run(**common, method="co-teaching", settings={"noise_rate": 0.4})).summary
        plain = train(Run(**common, method="cross-entropy")).summary
        gains.append(ours["test_accuracy_last"] - plain["test_accuracy_last"])
    gain = torch.tensor(gains)
    assert float(gain.mean()) > 2 * float(gain.std()) / math.sqrt(5), gains


def test_noise_rate_is_exact_in_float32() -> None:
    runner = StepRunner(small_run("co-teaching", settings={"noise_rate": 0.3}, dtype="float32"), small_problem())
    runner.method.begin_epoch(runner.method.epochs - 1)
    assert int((small_loss_weights(torch.arange(10.0), runner.method.share) > 0).sum()) == 7
