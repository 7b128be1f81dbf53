"""The cost estimate: what time and memory depend on, and its format."""

from dataclasses import replace

import pytest
import torch

from metalabelnet import nets
from metalabelnet.nets.head import find_head
from metalabelnet.train import cost_estimate
from metalabelnet.train.cost_estimate import CostEstimate, estimate_cost
from small_runs import small_problem, small_run


def test_estimate_scales_with_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    # Two timed steps take one tick: half a second each.
    monkeypatch.setattr("metalabelnet.train.cost_estimate._now", lambda _device: float(next(ticks)))
    problem, run = small_problem(), small_run("cross-entropy", snapshots=0)
    plain = estimate_cost(run, problem)
    evaluation = 0.5 / 3 * 6 * 99 / 12  # of 48 training, 12 clean, 9 validation and 30 test images in batches of 12
    assert plain.seconds == pytest.approx(0.5 * 6 * 4 + evaluation)  # epochs of four full batches
    assert estimate_cost(replace(run, epochs=60), problem).seconds == 10 * plain.seconds
    expected = 2.9 * 0.5 * 6 * 4 + evaluation
    assert estimate_cost(replace(run, method="metalabelnet"), problem).seconds == pytest.approx(expected)
    compiled = replace(run, execution="compiled")
    assert estimate_cost(compiled, problem).seconds == pytest.approx(60 + 0.25 * plain.seconds)
    assert estimate_cost(replace(compiled, dtype="bf16"), problem).seconds == pytest.approx(60 + 0.13 * plain.seconds)
    assert estimate_cost(replace(run, method="metalabelnet"), problem).bytes > 2 * plain.bytes
    assert estimate_cost(replace(run, batch_size=48), problem).bytes > 2 * plain.bytes


def test_estimate_counts_strongly_augmented_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr("metalabelnet.train.cost_estimate._now", lambda _device: float(next(ticks)))
    problem, run = small_problem(), small_run("cross-entropy", snapshots=0)
    plain, strong = (estimate_cost(replace(run, strong_augment=s), problem) for s in ("none", "supervised"))
    step = 0.5 * 6 * 4  # half a second for each of four batches in six epochs
    assert strong.seconds == pytest.approx(plain.seconds + step)
    assert strong.bytes > plain.bytes
    look_ahead = [estimate_cost(replace(run, method="mslg", strong_augment=s), problem) for s in ("none", "supervised")]
    assert look_ahead[1].seconds == pytest.approx(look_ahead[0].seconds + step)
    floats = replace(problem, train=replace(problem.train, x=problem.train.x.float()))  # have no strong augmentation
    assert estimate_cost(replace(run, strong_augment="supervised"), floats).seconds == pytest.approx(plain.seconds)


@pytest.mark.parametrize(
    ("seconds", "size", "text"),
    [
        (0.2, 10, "about 1 s and 1 MiB"),
        (59, 43 << 20, "about 59 s and 43 MiB"),
        (61, 1234 << 20, "about 2 min and 1.2 GiB"),
        (7300, 567 << 20, "about 3 h and 570 MiB"),
    ],
)
def test_format_has_few_digits(seconds: float, size: int, text: str) -> None:
    assert str(CostEstimate(seconds=seconds, bytes=size)) == text


def test_estimate_includes_the_refit_of_the_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same time for every timing, the products of the refit in units of the timed one, 256 × w²."""
    problem, run = small_problem(), small_run("cross-entropy")
    net = nets.build("small-cnn", (1, 8, 8), 3, seed=0)
    w = net.get_submodule(find_head(net, torch.zeros(2, 1, 8, 8), 3, None)).in_features

    def refit_seconds(**constants: int) -> float:
        with monkeypatch.context() as patch:
            ticks = iter(range(100))
            patch.setattr(cost_estimate, "_now", lambda _device: float(next(ticks)))
            for name, value in constants.items():
                patch.setattr(cost_estimate, name, value)
            return estimate_cost(run, problem).seconds - estimate_cost(replace(run, snapshots=0), problem).seconds

    product = 1 / 5 / (256 * w**2)  # five products take one tick
    assert refit_seconds() == pytest.approx(product * (2 * 48 * w**2 + 10 * w**3))
    projected = refit_seconds(MAX_FEATURES_OF_FIT=w - 1, PROJECTED_FEATURES=4, ROWS_OF_PROJECTION=20)
    expected = 4 * w * (3 * 20 + 4 * 4 + 2 * 48) + 2 * 48 * 4**2 + 10 * 4**3
    assert projected == pytest.approx(product * expected)
    assert refit_seconds(MAX_FEATURES=w - 1) == pytest.approx(0)


def test_estimate_of_a_linear_fit_counts_products_with_the_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    """The products are those of the solver on the features as it has them; five of them take one tick."""
    problem, products = small_problem(), []
    n, m = len(problem.train), len(problem.clean)

    def row_products(method: str, **limits: int) -> float:
        """Return how many products with one row the estimate is."""
        with monkeypatch.context() as patch:
            ticks = iter(range(100))
            patch.setattr(cost_estimate, "_now", lambda _device: float(next(ticks)))
            patch.setattr(cost_estimate, "hessian_product", lambda X, *_: products.append((X.shape, X.dtype)))
            for name, value in limits.items():
                patch.setattr(cost_estimate, name, value)
            return estimate_cost(small_run(method, net="auto"), problem).seconds * 5 * n

    assert row_products("logistic-given") == pytest.approx(230 * (n + m))
    assert products == [((n, 64), "float64")] * 6
    few = {"SELECTION_ROWS": 20, "STUDENT_ROWS": 50}
    assert row_products("logistic-both", **few) == pytest.approx(230 * 20 + 120 * 30 + 65 * (n + m - 50))
    assert row_products("logistic-clean") == pytest.approx(200 * m + 15 * n)
    products.clear()
    row_products("logistic-given", MAX_FLOAT64_VALUES=0)
    assert products[0][1] == "float32"
