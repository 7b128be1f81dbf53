"""Batches are full, shuffled and reproducible from any step, each with a clean batch of the right size."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from metalabelnet.data import batches as module
from metalabelnet.data.batches import Batches, to_input
from metalabelnet.data.rows import Rows, make_rows


def rows(count: int, unlabeled: int = 0) -> Rows:
    x = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(count, 1, 4, 4)
    labels = torch.arange(count) % 2
    given = torch.where(torch.arange(count) < unlabeled, -1, labels)
    return make_rows(x, given, true=labels, classes=("a", "b"), what="rows")


def make_batches(train: Rows, clean: Rows, size: int = 8, **changes: object) -> Batches:
    fields = {"augment": "none", "augment_clean": False, "dtype": torch.float32, "seed": 0}
    return Batches(train=train, clean=clean, size=size, **{**fields, **changes})


def test_batches_are_full_and_rows_unique_within_an_epoch() -> None:
    batches = make_batches(rows(30), rows(20))
    indices = torch.cat([b.index for b in batches.epoch(0, labeled_only=False)])
    assert batches.steps(labeled_only=False) == 3
    assert len(indices) == 24
    assert len(indices.unique()) == 24
    assert all(len(b.x) == len(b.given) == 8 for b in batches.epoch(0, labeled_only=False))


def test_left_over_rows_appear_in_other_epochs() -> None:
    batches = make_batches(rows(30), rows(20))
    seen = torch.cat([b.index for epoch in range(6) for b in batches.epoch(epoch, labeled_only=False)])
    assert len(seen.unique()) == 30


def test_samples_labels_and_indices_match() -> None:
    for b in make_batches(rows(30), rows(20)).epoch(3, labeled_only=False):
        torch.testing.assert_close(b.x[:, 0, 0, 0], b.index / 127.5 - 1)
        assert torch.equal(b.given, b.index % 2)
        assert torch.equal(((b.clean_x[:, 0, 0, 0] + 1) * 127.5).round().long() % 2, b.clean_y)


def test_clean_batch_has_the_batch_size() -> None:
    assert all(len(b.clean_x) == 8 for b in make_batches(rows(30), rows(20)).epoch(0, labeled_only=False))


def test_clean_batch_is_the_whole_clean_set_if_it_is_smaller() -> None:
    for b in make_batches(rows(30), rows(5)).epoch(0, labeled_only=False):
        assert sorted(((b.clean_x[:, 0, 0, 0] + 1) * 127.5).round().int().tolist()) == [0, 1, 2, 3, 4]


def test_clean_rows_are_cycled_through() -> None:
    batches = [b.clean_x[:, 0, 0, 0] for b in make_batches(rows(64), rows(16)).epoch(0, labeled_only=False)]
    assert len(torch.cat(batches[:2]).unique()) == 16
    assert len(torch.cat(batches[2:4]).unique()) == 16
    assert not torch.equal(batches[0], batches[2])


def test_fewer_rows_than_batch_size_make_one_batch() -> None:
    batches = make_batches(rows(5), rows(5))
    assert batches.steps(labeled_only=False) == 1
    assert [len(b.x) for b in batches.epoch(0, labeled_only=False)] == [5]


def test_labeled_only_excludes_unlabeled_rows() -> None:
    batches = make_batches(rows(40, unlabeled=20), rows(20))
    assert batches.steps(labeled_only=True) == 2
    assert all((b.given >= 0).all() for b in batches.epoch(0, labeled_only=True))
    assert any((b.given < 0).any() for b in batches.epoch(0, labeled_only=False))


@pytest.mark.parametrize("start", [1, 4])
def test_epoch_can_start_at_any_step(start: int) -> None:
    batches = make_batches(rows(64), rows(20), augment="flip-crop", augment_clean=True)
    whole = list(batches.epoch(2, labeled_only=False))[start:]
    for a, b in zip(whole, batches.epoch(2, labeled_only=False, start=start), strict=True):
        assert all(torch.equal(getattr(a, k), getattr(b, k)) for k in ("x", "given", "index", "clean_x", "clean_y"))
        assert a.seed == b.seed


def test_plan_is_drawn_when_requested_not_when_iterated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next epoch is drawn while the GPU is busy."""
    batches = make_batches(rows(40, unlabeled=20), rows(20), strong_augment_from=0)
    expected = [plan.train for plan in batches.plan_epoch(1, labeled_only=True)]
    plans = batches.plan_epoch(1, labeled_only=True)
    for name in ("draw_augmentation", "draw_strong_augmentation", "generator"):
        monkeypatch.setattr(module, name, None)
    assert all(torch.equal(plan.train, train) for plan, train in zip(plans, expected, strict=True))


def test_plan_reads_nothing_back_from_the_device() -> None:
    """Reading a value from a tensor on the device `meta` raises an error."""
    train = rows(40, unlabeled=20)
    batches = make_batches(train, rows(20))
    on_meta = dataclasses.replace(train, x=train.x.to("meta"), given=train.given.to("meta"))
    elsewhere = dataclasses.replace(batches, train=on_meta)
    vars(elsewhere)["_labeled"] = batches._labeled  # cached before training
    for labeled_only in (False, True):
        plans = list(elsewhere.plan_epoch(1, labeled_only=labeled_only))
        assert len(plans) == batches.steps(labeled_only=labeled_only)
        assert {plan.train.device.type for plan in plans} == {"meta"}


def test_plan_is_copied_to_the_gpu_asynchronously(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda plan: sent.append("pinned") or plan)
    monkeypatch.setattr(torch.Tensor, "to", lambda plan, *args, **kwargs: sent.append((args, kwargs)) or plan)
    gpu = torch.device("cuda")
    on_gpu = SimpleNamespace(x=SimpleNamespace(device=gpu))
    dataclasses.replace(make_batches(rows(8), rows(8)), train=on_gpu)._send(torch.zeros(3))
    assert sent == ["pinned", ((gpu,), {"non_blocking": True})]


def test_order_given_shuffles_nothing() -> None:
    batches = make_batches(rows(30), rows(20), order="given", augment="crop")
    for epoch in (0, 1):
        assert torch.cat([b.index for b in batches.epoch(epoch, labeled_only=False)]).tolist() == list(range(24))
        clean = [b.clean_y for b in batches.epoch(epoch, labeled_only=False)]
        assert torch.equal(clean[0], torch.arange(8) % 2)
        assert torch.equal(clean[0], clean[2])  # two full batches per cycle


def test_epochs_and_seeds_differ() -> None:
    first = next(make_batches(rows(64), rows(20)).epoch(0, labeled_only=False))
    later = next(make_batches(rows(64), rows(20)).epoch(1, labeled_only=False))
    other = next(make_batches(rows(64), rows(20), seed=1).epoch(0, labeled_only=False))
    assert not torch.equal(first.index, later.index)
    assert not torch.equal(first.index, other.index)
    assert len({first.seed, later.seed, other.seed}) == 3


def test_augment_clean() -> None:
    plain = next(make_batches(rows(64), rows(8), augment="crop").epoch(0, labeled_only=False)).clean_x
    moved = next(
        make_batches(rows(64), rows(8), augment="crop", augment_clean=True).epoch(0, labeled_only=False)
    ).clean_x
    assert (plain[:, :, :1, :1] == plain).all()
    assert not (moved[:, :, :1, :1] == moved).all()


def test_to_input_scales_images_and_keeps_tables() -> None:
    assert to_input(torch.tensor([0, 255], dtype=torch.uint8), torch.float32).tolist() == [-1.0, 1.0]
    table = torch.tensor([[1.5, -300.0]])
    assert torch.equal(to_input(table, torch.float32), table)


def test_strong_augmentation_starts_at_its_epoch_and_changes_nothing_else() -> None:
    train = dataclasses.replace(rows(30), x=torch.randint(0, 256, (30, 1, 8, 8), dtype=torch.uint8))
    plain, batches = make_batches(train, rows(20)), make_batches(train, rows(20), strong_augment_from=2)
    assert all(b.views.strong is None for epoch in (0, 1) for b in batches.epoch(epoch, labeled_only=False))
    seen = []
    for one, other in zip(plain.epoch(2, labeled_only=False), batches.epoch(2, labeled_only=False), strict=True):
        assert one.views.strong is None
        assert other.views.strong is not None
        assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("x", "index", "clean_x"))
        assert one.seed == other.seed
        assert other.views.strong.shape == other.x.shape
        seen.append(other.views.strong)
    again = [b.views.strong for b in batches.epoch(2, labeled_only=False, start=1)]
    assert all(torch.equal(a, b) for a, b in zip(seen[1:], again, strict=True))
    later = next(iter(batches.epoch(3, labeled_only=False))).views.strong
    assert not torch.equal(seen[0], later)


def test_second_view_is_augmented_anew_and_changes_nothing_else() -> None:
    train = dataclasses.replace(rows(30), x=torch.randint(0, 256, (30, 1, 8, 8), dtype=torch.uint8))
    plain, batches = (make_batches(train, rows(20), augment="crop", second_view=two) for two in (False, True))
    for one, other in zip(plain.epoch(0, labeled_only=False), batches.epoch(0, labeled_only=False), strict=True):
        assert one.views.second is None
        assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("x", "index", "clean_x"))
        assert other.views.second.shape == other.x.shape
        assert not torch.equal(other.views.second, other.x)
    without_augmentation = make_batches(train, rows(20), augment="none", second_view=True)
    assert next(iter(without_augmentation.epoch(0, labeled_only=False))).views.second is None


@pytest.mark.parametrize(("augment", "flips"), [("none", False), ("crop", False), ("flip-crop", True)])
def test_strong_augmentation_flips_if_weak_augmentation_does(
    augment: str, flips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = []
    monkeypatch.setattr(module, "augment_strongly", lambda x, draws, **options: flags.append(options["flips"]) or x)
    next(iter(make_batches(rows(30), rows(20), augment=augment, strong_augment_from=0).epoch(0, labeled_only=False)))
    assert flags == [flips]
