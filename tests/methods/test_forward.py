"""Forward correction: identities of its loss, where T comes from, and its two stages."""

import io
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from metalabelnet.core.losses import cross_entropy
from metalabelnet.core.transition_matrix import anchor
from metalabelnet.data.problem import Problem
from metalabelnet.errors import InputError
from metalabelnet.methods.forward import ForwardSettings, forward_cross_entropy
from metalabelnet.train.build_method import build
from metalabelnet.train.loop import train
from metalabelnet.train.settings import Run
from small import Walk, small_problem, small_run

Y = torch.tensor([0, 3, 1, 2, 0, 1])
T3 = torch.tensor([[0.8, 0.2, 0.0], [0.0, 0.8, 0.2], [0.2, 0.0, 0.8]], dtype=torch.float64)


def logits(seed: int = 0) -> Tensor:
    return 2 * torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make_T() -> Tensor:
    return (3 * torch.eye(4) + torch.rand(4, 4, generator=torch.Generator().manual_seed(1))).double().softmax(1)


def naive(z: Tensor, y: Tensor, T: Tensor) -> list[float]:
    """−log Σ_i p_i T_iy, number by number."""
    result = []
    for row, label in zip(z.tolist(), y.tolist(), strict=True):
        p = [math.exp(x) / sum(map(math.exp, row)) for x in row]
        result.append(-math.log(sum(p[i] * float(T[i, label]) for i in range(len(p)))))
    return result


def test_it_is_the_papers_formula_and_not_that_of_the_transpose() -> None:
    expected = torch.tensor(naive(logits(), Y, make_T()), dtype=torch.float64)
    torch.testing.assert_close(forward_cross_entropy(logits(), Y, make_T()), expected)
    assert not torch.allclose(forward_cross_entropy(logits(), Y, make_T().T), expected)


def test_identities() -> None:
    z = logits()
    eye, flat = torch.eye(4, dtype=torch.float64), torch.full((4, 4), 0.25, dtype=torch.float64)
    torch.testing.assert_close(forward_cross_entropy(z, Y, eye), cross_entropy(z, Y))
    torch.testing.assert_close(forward_cross_entropy(z, Y, flat), torch.full((6,), math.log(4), dtype=torch.float64))
    swap = eye[[1, 0, 3, 2]]  # every class is given another's label, always
    torch.testing.assert_close(forward_cross_entropy(z, Y, swap), cross_entropy(z, torch.tensor([1, 2, 0, 3, 1, 0])))


def test_its_expectation_is_least_at_the_true_posterior() -> None:
    """Over labels drawn from pT, no other prediction does better than p itself: what makes the correction right."""
    p, T = logits().softmax(1), make_T()
    drawn = p @ T

    def expected_loss(z: Tensor) -> Tensor:
        each = [forward_cross_entropy(z, torch.full((6,), y), T) for y in range(4)]
        return (drawn * torch.stack(each, 1)).sum()

    z = p.log().requires_grad_()
    (gradient,) = torch.autograd.grad(expected_loss(z), z)
    assert float(gradient.abs().max()) < 1e-12
    assert all(expected_loss(p.log() + logits(seed)) > expected_loss(z) for seed in range(1, 6))


def test_gradients_are_right() -> None:
    assert gradcheck(lambda z: forward_cross_entropy(z, Y, make_T()), (logits().requires_grad_(),))


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_extreme_logits_and_zeros_in_T_give_no_nan(size: float) -> None:
    z = torch.tensor([[size, -size, 0.0], [-size, -size, size], [size, 0.0, 0.0]], requires_grad=True)
    never = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    losses = forward_cross_entropy(z, torch.tensor([1, 1, 2]), never)
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(z.grad).all()
    assert float(z.grad[2].abs().max()) < 1e-6  # a label that T rules out for every class teaches nothing


def forward_run(transition: str = "anchor", **changes: object) -> Run:
    return small_run("forward", epochs=4, settings={"transition": transition}, **changes)


def with_given(problem: Problem) -> Problem:
    """Clean rows that carry a given label too, one in four wrong."""
    clean = problem.clean
    given = torch.where(torch.arange(len(clean)) % 4 == 0, (clean.true + 1) % 3, clean.true)
    return type(problem)(**{**vars(problem), "clean": clean.with_given(given)})


def matrix_file(folder: Path, T: Tensor = T3) -> str:
    path = folder / "T.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in T.tolist()))
    return str(path)


def test_the_first_stage_is_the_cross_entropy_run_and_the_second_starts_anew() -> None:
    walk = Walk(forward_run(), small_problem())
    assert (walk.method.epochs, walk.method.candidates_from) == (8, 4)
    plain = Walk(small_run("cross-entropy", epochs=4), small_problem()).go()
    walk.go(16)
    assert walk.losses == plain.losses
    p = walk.method.logits(walk.problem.train.x).softmax(1)
    walk.go(1)
    torch.testing.assert_close(walk.method.found.T, anchor(p))
    first, second = walk.losses[0], walk.losses[16]
    assert second > 0.5 * first  # a new network knows nothing yet
    assert [walk.method.lr_at(e) for e in (0, 4)] == [0.05, 0.05]
    assert Walk(forward_run(lr_milestones=(2,)), small_problem()).method.lr_at(5) == 0.05
    assert Walk(forward_run(lr_milestones=(2,)), small_problem()).method.lr_at(6) == pytest.approx(0.005)


def test_a_given_matrix_needs_no_first_stage_and_the_identity_is_cross_entropy(tmp_path: Path) -> None:
    walk = Walk(forward_run(matrix_file(tmp_path, torch.eye(3))), small_problem()).go()
    assert walk.method.epochs == 4
    torch.testing.assert_close(walk.losses, Walk(small_run("cross-entropy", epochs=4), small_problem()).go().losses)
    walk = Walk(forward_run(matrix_file(tmp_path)), small_problem()).go(1)
    torch.testing.assert_close(walk.method.found.T, T3)


def test_a_count_needs_clean_samples_with_both_labels() -> None:
    walk = Walk(forward_run("counted"), with_given(small_problem())).go(1)
    clean = walk.problem.clean
    assert walk.method.epochs == 4
    wrong = ((clean.true == 0) & (clean.given == 1)).sum() / (clean.true == 0).sum()
    assert float(walk.method.found.T[0, 1]) == pytest.approx(float(wrong))
    with pytest.raises(InputError, match="none of the 12 does: use transition=estimated"):
        Walk(forward_run("counted"), small_problem()).go(1)


def test_an_estimate_takes_a_stage_of_its_own() -> None:
    walk = Walk(forward_run("estimated"), small_problem())
    assert (walk.method.epochs, walk.method.candidates_from) == (5, 1)
    walk.go(5)
    T = walk.method.found.T
    torch.testing.assert_close(T.sum(1), torch.ones(3, dtype=torch.float64))
    assert "half0" not in walk.method.parts()


@pytest.mark.parametrize("transition", ["anchor", "estimated", "counted", "file"])
@pytest.mark.parametrize("after", [3, 4, 5, 16, 18, 20])
def test_it_resumes_to_the_bit_in_every_stage(transition: str, after: int, tmp_path: Path) -> None:
    way = matrix_file(tmp_path) if transition == "file" else transition
    problem = with_given(small_problem()) if transition == "counted" else small_problem()
    whole, half = Walk(forward_run(way), problem).go(), Walk(forward_run(way), problem).go(after)
    file = io.BytesIO()
    torch.save(half.method.state(), file)
    file.seek(0)
    resumed = Walk(forward_run(way), problem)
    resumed.method.load_state(torch.load(file, weights_only=True))
    resumed.epoch, resumed.step = half.epoch, half.step
    assert half.losses + resumed.go().losses == whole.losses
    assert all(torch.equal(t, whole.method.model()[k]) for k, t in resumed.method.model().items())


def test_unlabeled_rows_have_no_part_in_the_anchors() -> None:
    """Nor in an estimate: what their samples are must not matter."""
    problem = small_problem(unlabeled=24)
    x = problem.train.x.clone()
    x[:24] = 255 - x[:24]
    spoilt = type(problem)(**{**vars(problem), "train": type(problem.train)(**{**vars(problem.train), "x": x})})
    for way in ("anchor", "estimated"):
        found = [Walk(forward_run(way), p).go(9).method.found for p in (problem, spoilt)]
        assert torch.equal(found[0].T, found[1].T)


def test_what_is_no_way_and_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'anchor'"):
        ForwardSettings(transition="anker")
    with pytest.raises(InputError, match=r"T\.csv"):
        Walk(forward_run(matrix_file(tmp_path, torch.full((2, 2), 0.5))), small_problem()).go(1)


@pytest.mark.slow
def test_with_the_true_matrix_it_beats_cross_entropy(tmp_path: Path) -> None:
    """Digits, 45 % of every class given the next one's label, the last epoch: by two standard errors over 5 seeds."""
    T = 0.55 * torch.eye(10, dtype=torch.float64) + 0.45 * torch.eye(10, dtype=torch.float64).roll(1, 1)
    path = matrix_file(tmp_path, T)
    gains = []
    for seed in range(5):
        common = {"data": "digits", "noise": f"matrix:{path}", "seed": seed, "device": "cpu", "epochs": 10}
        common |= {"lr_milestones": (4, 8)}
        ours = train(Run(**common, method="forward", settings={"transition": path})).summary
        plain = train(Run(**common, method="cross-entropy")).summary
        gains.append(ours["test_accuracy_last"] - plain["test_accuracy_last"])
    gain = torch.tensor(gains)
    assert float(gain.mean()) > 2 * float(gain.std()) / math.sqrt(5), gains


class Scaled(nn.Module):
    """A network with a bare parameter, which nothing can draw anew."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(())), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.scale * x.flatten(1))


def test_a_second_network_of_ones_own_has_learned_nothing() -> None:
    net = Scaled()
    method = build(forward_run(), small_problem(), net)
    with torch.no_grad():
        net.scale.fill_(5.0)
    assert method.task.make_net(1).scale.item() == 1.0
