"""Co-teaching: which samples are kept, who learns from them, and where the noise rate comes from."""

import io
import math

import pytest
import torch

from metalabelnet.core.forward_pass import forward, trainable
from metalabelnet.core.losses import cross_entropy
from metalabelnet.data.batches import Batch
from metalabelnet.data.problem import Problem
from metalabelnet.methods.co_teaching import remembered, small_loss
from metalabelnet.train.loop import train
from metalabelnet.train.settings import Run
from small import Walk, blobs, small_problem, small_run


def co_run(**settings: object) -> Run:
    return small_run("co-teaching", epochs=12, settings=settings)


def first_batch(walk: Walk) -> Batch:
    return next(walk.batches.epoch(0, labeled_only=True))


def test_small_losses_are_chosen_by_count() -> None:
    losses = torch.tensor([3.0, 1.0, 2.0, 1.0, 9.0, 4.0, 5.0, 6.0, 7.0, 8.0])

    def chosen(share: float) -> list[int]:
        weights = small_loss(losses, torch.tensor(share, dtype=torch.float64))
        assert float(weights.sum()) == pytest.approx(1)
        assert len(set(weights[weights > 0].tolist())) == 1
        return weights.nonzero()[:, 0].tolist()

    assert chosen(0.3) == [1, 2, 3]
    assert chosen(0.1) == [1]  # of equal losses the first
    assert len(chosen(0.7)) == 7  # 0.7·10 is 6.999… or 7.000…
    assert chosen(1.0) == list(range(10))
    assert chosen(0.0) == [1]


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_extreme_logits_give_no_nan(size: float) -> None:
    z = torch.tensor([[size, -size, 0.0], [-size, -size, size], [0.0, 0.0, size]], requires_grad=True)
    losses = cross_entropy(z, torch.tensor([1, 2, 2]))
    weights = small_loss(losses.detach(), torch.tensor(0.7, dtype=torch.float64))
    assert weights.tolist() == [0.0, 0.5, 0.5]
    (weights * losses).sum().backward()
    assert torch.isfinite(z.grad).all()


def test_the_share_falls_from_all_to_the_right_ones() -> None:
    assert [remembered(0.4, t, 10) for t in (0, 5, 10, 100)] == pytest.approx([1.0, 0.8, 0.6, 0.6])
    assert remembered(0.0, 50, 10) == 1.0


def test_the_ramp_scales_with_the_schedule() -> None:
    walk = Walk(small_run("co-teaching", epochs=24, settings={"noise_rate": 0.5}), small_problem())
    shares = []
    for epoch in range(4):
        walk.method.begin_epoch(epoch)
        shares.append(float(walk.method.share))
    assert shares == [1.0, 0.75, 0.5, 0.5]  # 10 epochs of 120 are 2 of 24


def test_each_network_learns_from_the_others_choice_alone() -> None:
    """By hand: the kept samples of one network teach the other, and the mean is over the kept."""
    run = small_run("co-teaching", epochs=12, settings={"noise_rate": 0.5}, momentum=0.0, weight_decay=0.0)
    walk = Walk(run, small_problem())
    method, batch = walk.method, first_batch(walk)
    method.begin_epoch(11)
    assert float(method.share) == 0.5
    nets = (method.net, method.peer)
    thetas = [trainable(net) for net in nets]
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
    kept = [mine[others.argsort()[:6]].mean() for mine, others in zip(losses, losses[::-1], strict=True)]
    torch.testing.assert_close(loss, sum(kept).detach() / 2)
    for theta, weights in zip(thetas, expected, strict=True):
        for w, e in zip(theta.values(), weights, strict=True):
            torch.testing.assert_close(w.detach(), e)


def test_without_noise_it_is_two_runs_of_cross_entropy() -> None:
    walk = Walk(co_run(noise_rate=0), small_problem()).go(8)
    plain = Walk(small_run("cross-entropy", epochs=12), small_problem()).go(8)
    ours, theirs = walk.method.net.state_dict(), plain.method.net.state_dict()
    assert all(torch.allclose(ours[key], theirs[key]) for key in ours)


def test_the_prediction_is_the_mean_of_both() -> None:
    walk = Walk(co_run(noise_rate=0.2), small_problem()).go(6)
    m, x = walk.method, blobs(5, seed=8).x
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
    rows = blobs(clean, seed=5)
    given = torch.where(torch.arange(clean) < wrong, (rows.true + 1) % 3, rows.true)
    return type(small_problem())(**{**vars(small_problem()), "clean": rows.with_given(given)})


def test_where_clean_samples_have_both_labels_the_rate_is_counted() -> None:
    walk = Walk(co_run(), counted_problem(wrong=15)).go(1)
    assert (walk.method.epochs, walk.method.candidates_from) == (12, 0)
    assert float(walk.method.found.noise_rate) == pytest.approx(0.25, abs=0.02)
    few = Walk(co_run(), counted_problem(wrong=3, clean=12))
    assert few.method.candidates_from == 2  # too few to count


def test_elsewhere_it_is_estimated_in_a_stage_before() -> None:
    walk = Walk(co_run(), small_problem())
    assert (walk.method.epochs, walk.method.candidates_from) == (14, 2)
    untouched = {k: t.clone() for k, t in walk.method.net.state_dict().items()}
    walk.go(8)
    assert all(torch.equal(t, untouched[k]) for k, t in walk.method.net.state_dict().items())
    walk.go(1)
    assert 0 <= float(walk.method.found.noise_rate) < 0.67
    assert "half0" not in walk.method.parts()
    drops = Walk(small_run("co-teaching", epochs=12, lr_milestones=(3,)), small_problem()).method
    assert [drops.lr_at(e) for e in (4, 5)] == pytest.approx([0.05, 0.005])


@pytest.mark.parametrize("after", [4, 7, 8, 9, 30])
def test_it_resumes_to_the_bit_in_both_stages(after: int) -> None:
    whole, half = Walk(co_run(), small_problem()).go(), Walk(co_run(), small_problem()).go(after)
    file = io.BytesIO()
    torch.save(half.method.state(), file)
    file.seek(0)
    resumed = Walk(co_run(), small_problem())
    resumed.method.load_state(torch.load(file, weights_only=True))
    resumed.epoch, resumed.step = half.epoch, half.step
    assert half.losses + resumed.go().losses == whole.losses
    assert all(torch.equal(t, whole.method.model()[k]) for k, t in resumed.method.model().items())


@pytest.mark.slow
def test_with_the_true_rate_it_beats_cross_entropy() -> None:
    """Digits, uniform noise of 40 %, the last epoch: by two standard errors over 5 seeds."""
    gains = []
    for seed in range(5):
        common = {"data": "digits", "noise": "uniform:0.4", "seed": seed, "device": "cpu", "epochs": 12}
        common |= {"lr_milestones": (4, 8)}
        ours = train(Run(**common, method="co-teaching", settings={"noise_rate": 0.4})).summary
        plain = train(Run(**common, method="cross-entropy")).summary
        gains.append(ours["test_accuracy_last"] - plain["test_accuracy_last"])
    gain = torch.tensor(gains)
    assert float(gain.mean()) > 2 * float(gain.std()) / math.sqrt(5), gains


def test_a_round_rate_is_kept_to_the_last_digit_in_single_precision() -> None:
    walk = Walk(small_run("co-teaching", settings={"noise_rate": 0.3}, dtype="float32"), small_problem())
    walk.method.begin_epoch(walk.method.epochs - 1)
    assert int((small_loss(torch.arange(10.0), walk.method.share) > 0).sum()) == 7
