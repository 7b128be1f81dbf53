"""MLNT: losses, synthetic labels, the step compared with one written out, teacher and ramp-up."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from metalabelnet.core.forward_pass import forward, trainable_parameters
from metalabelnet.core.losses import cross_entropy
from metalabelnet.data.batches import Batch, to_input
from metalabelnet.errors import InputError
from metalabelnet.methods.mlnt import MLNT, MLNTSettings, consistency_loss, synthetic_labels
from metalabelnet.nets.head import FeatureExtractor
from metalabelnet.train.settings import make_run
from small_runs import StepRunner, column_images, small_problem, small_run


def pairs(seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    z, t = (torch.randn(6, 4, dtype=torch.float64, generator=g) for _ in range(2))
    return z, t


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def runner(steps: int, **settings: object) -> StepRunner:
    return StepRunner(small_run("mlnt", settings={"synthetic": 2, **settings}), small_problem()).advance(steps)


def after_warm_up(steps: int = 14, **settings: object) -> tuple[MLNT, Batch]:
    """Return a method after warm-up and its next batch."""
    w = runner(steps, **settings)
    w.method.begin_epoch(w.epoch)
    return w.method, next(w.batches.epoch(w.epoch, labeled_only=True, start=w.step))


def test_consistency_is_zero_in_agreement_and_cross_entropy_for_a_one_hot_teacher() -> None:
    z, t = pairs()
    torch.testing.assert_close(consistency_loss(t + 3.0, t), torch.zeros(6, dtype=torch.float64))
    assert (consistency_loss(z, t) > 0).all()
    label = torch.arange(6) % 4
    one_hot = 1e4 * nn.functional.one_hot(label, 4).double()
    torch.testing.assert_close(consistency_loss(z, one_hot), cross_entropy(z, label))


def test_consistency_equals_a_naive_loop() -> None:
    z, t = pairs()
    expected = []
    for student, teacher in zip(z.tolist(), t.tolist(), strict=True):
        p = [math.exp(value) / sum(map(math.exp, student)) for value in student]
        q = [math.exp(value) / sum(map(math.exp, teacher)) for value in teacher]
        expected.append(sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)))
    torch.testing.assert_close(consistency_loss(z, t), torch.tensor(expected, dtype=torch.float64))


def test_gradient_of_consistency_is_p_minus_q() -> None:
    z, t = pairs()
    z.requires_grad_()
    (by_z,) = torch.autograd.grad(consistency_loss(z, t).sum(), z)
    torch.testing.assert_close(by_z, (z.softmax(1) - t.softmax(1)).detach())
    assert torch.autograd.gradcheck(lambda z: consistency_loss(z, t), z)


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_extreme_logits_are_finite(size: float) -> None:
    z = (size * torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 1.0]])).requires_grad_()
    t = size * torch.tensor([[-1.0, 1.0, 0.0], [1.0, 0.0, -1.0]])
    loss = consistency_loss(z, t)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(torch.autograd.grad(loss.sum(), z)[0]).all()


@pytest.mark.parametrize(("share", "changed"), [(0.0, 0), (0.5, 10), (0.33, 7), (1.0, 20)])
def test_share_of_the_batch_gets_a_neighbors_label(share: float, changed: int) -> None:
    given = torch.arange(20) % 4
    labels = synthetic_labels(given, given[:, None].expand(20, 3) + 10, share, torch.rand(2, 20, generator=random()))
    assert int((labels != given).sum()) == changed
    assert torch.equal(labels[labels >= 10] - 10, given[labels >= 10])
    assert torch.equal(given, torch.arange(20) % 4)


def test_samples_and_neighbors_are_drawn_uniformly() -> None:
    """4000 draws of half of 6 samples with 5 neighbors: each pair 400 times, within four standard errors."""
    given, neighbors = torch.full((6,), -1), torch.arange(30).reshape(6, 5)
    counts = torch.zeros(30)
    g = random()
    for _ in range(4000):
        labels = synthetic_labels(given, neighbors, 0.5, torch.rand(2, 6, generator=g))
        counts[labels[labels >= 0]] += 1
    assert float(counts.sum()) == 4000 * 3
    assert float((counts - 400).abs().max()) < 4 * math.sqrt(4000 * 0.1 * 0.9)


def test_largest_draw_chooses_the_last_neighbor() -> None:
    """In float32, 10 times the largest number below 1 is 10."""
    draws = torch.tensor([[0.0], [math.nextafter(1.0, 0.0)]]).clamp_max(1 - 2**-24)
    assert synthetic_labels(torch.tensor([0]), torch.arange(10)[None], 1.0, draws).tolist() == [9]


def test_every_epoch_has_its_own_draws() -> None:
    """They follow from the seed, so that a resumed run has the same."""
    runs = [StepRunner(small_run("mlnt", epochs=4, warmup=1), small_problem()).method for _ in range(2)]
    for epoch in (1, 2):
        runs[0].begin_epoch(epoch)
        if epoch == 1:
            first = runs[0].draws.clone()
    runs[1].begin_epoch(2)
    assert not torch.equal(first, runs[0].draws)
    assert torch.equal(runs[0].draws, runs[1].draws)


@pytest.mark.parametrize("differentiation", ["exact", "double-backward"])
def test_step_equals_the_method_written_out(differentiation: str) -> None:
    """By autograd through every look-ahead, in one backward pass, with BatchNorm in train mode."""
    method, batch = after_warm_up(differentiation=differentiation, synthetic=3)
    assert method.net.training
    other = copy.deepcopy(method)
    net, theta = other.net, trainable_parameters(other.net)

    def f(weights: dict[str, Tensor]) -> Tensor:
        return forward(net, batch.x, weights, seed=batch.seed, update_statistics=False)

    given = other.task.train.given
    q = forward(other.teacher, batch.x, {}, seed=batch.seed, update_statistics=False).softmax(1)
    loss = cross_entropy(f(theta), batch.given).mean()
    for m in range(3):
        draws = other.draws[:, m, batch.index]
        y_m = synthetic_labels(batch.given, given[other.neighbors.rows[batch.index]], 0.5, draws)
        d = torch.autograd.grad(cross_entropy(f(theta), y_m).mean(), list(theta.values()), create_graph=True)
        ahead = {k: w - 0.2 * dw for (k, w), dw in zip(theta.items(), d, strict=True)}
        loss = loss + 2.0 / 3 * (q * (q.log() - f(ahead).log_softmax(1))).sum(1).mean()
    other.sgd.zero_grad()
    loss.backward(inputs=list(theta.values()))
    other.sgd.step()
    updated_teacher = [0.999 * a + 0.001 * b for a, b in zip(other.teacher.parameters(), net.parameters(), strict=True)]

    torch.testing.assert_close(method.step(batch), loss.detach(), rtol=1e-10, atol=0)
    for mine, theirs in zip(method.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    for mine, theirs in zip(method.teacher.parameters(), updated_teacher, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-10, atol=1e-12)


def test_teacher_starts_as_the_network_at_the_end_of_warm_up_and_predicts() -> None:
    w = runner(8)
    assert w.method.teacher is None
    x = column_images(6, seed=9).x
    before = w.method.logits(x)
    w.method.begin_epoch(2)
    assert torch.equal(before, w.method.logits(x))
    student = {k: t.clone() for k, t in w.method.net.state_dict().items()}
    assert all(torch.equal(student[k], t) for k, t in w.method.teacher.state_dict().items())
    w.advance(2)
    logits = w.method.logits(x)
    assert torch.equal(logits, w.method.teacher.eval()(to_input(x, torch.float64)))
    assert not torch.equal(logits, w.method.net.eval()(to_input(x, torch.float64)))
    assert not any(weight.requires_grad for weight in w.method.teacher.parameters())


def test_teacher_statistics_come_from_its_own_forward_passes() -> None:
    method, batch = after_warm_up()
    by_hand = copy.deepcopy(method.teacher).train()
    with torch.no_grad():
        by_hand(batch.x)
    method.step(batch)
    for name, buffer in method.teacher.named_buffers():
        torch.testing.assert_close(buffer, by_hand.get_buffer(name))


def test_student_statistics_are_updated_once_per_step() -> None:
    method, batch = after_warm_up()
    before = int(method.net[1].num_batches_tracked)
    method.step(batch)
    assert int(method.net[1].num_batches_tracked) == before + 1


def test_weight_and_ema_decay_ramp_up_after_warm_up() -> None:
    """20 of 120 epochs, scaled to the run: with 30 epochs and 11 of warm-up, epochs 11 to 15."""
    method = StepRunner(small_run("mlnt", epochs=30, warmup=11), small_problem()).method
    weights, gammas = [], []
    for epoch in range(11, 18):
        method.begin_epoch(epoch)
        weights.append(float(method.weight))
        gammas.append(float(method.gamma))
    expected = [2 * math.exp(-5 * (1 - k / 5) ** 2) for k in range(5)] + [2.0, 2.0]
    assert weights == pytest.approx(expected)
    assert gammas == [0.99] * 5 + [0.999] * 2


def test_neighbors_are_the_nearest_labeled_rows_in_feature_space() -> None:
    w = StepRunner(small_run("mlnt", settings={"neighbors": 4}), small_problem(unlabeled=5)).advance(6)
    assert w.method.neighbors is None
    w.method.begin_epoch(2)
    rows, train = w.method.neighbors.rows, w.problem.train
    assert torch.equal(rows[:5], torch.full((5, 4), -1))
    v = FeatureExtractor(w.method.net, w.method.head)(to_input(train.x, torch.float64))
    for i in range(5, 48):
        by_distance = sorted((float((v[i] - v[j]).square().sum()), j) for j in range(5, 48) if j != i)
        assert rows[i].tolist() == [j for _, j in by_distance[:4]]


def test_neighbors_are_computed_once() -> None:
    w = runner(9)
    before = w.method.neighbors.rows.clone()
    w.advance()
    assert torch.equal(before, w.method.neighbors.rows)


def test_consistency_0_trains_the_student_as_in_warm_up() -> None:
    method, batch = after_warm_up(consistency=0.0)
    other = copy.deepcopy(method)
    method.step(batch)
    other.cross_entropy_step(batch.views, batch.given, batch.seed)
    for mine, theirs in zip(method.net.parameters(), other.net.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


def test_defaults_are_the_papers_and_values_out_of_range_are_rejected() -> None:
    s = MLNTSettings()
    assert (s.synthetic, s.neighbors, s.share, s.look_ahead, s.ema, s.ema_later) == (10, 10, 0.5, 0.2, 0.99, 0.999)
    run = make_run("digits", method="mlnt", recipe="own")
    assert (run.epochs, run.lr, run.lr_milestones, run.batch_size) == (120, 0.2, (80,), 128)
    for name, value, word in (("synthetic", 0, "1 or more"), ("share", 1.5, "from 0 to 1"), ("ema", 2, "from 0 to 1")):
        with pytest.raises(InputError, match=word):
            make_run("digits", recipe="paper", method="mlnt", settings={name: value})
