"""Batches: full, shuffled, repeatable from any step, each with a clean batch of the right size."""

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


def batches(train: Rows, clean: Rows, size: int = 8, **changes: object) -> Batches:
    fields = {"augment": "none", "augment_clean": False, "dtype": torch.float32, "seed": 0}
    return Batches(train=train, clean=clean, size=size, **{**fields, **changes})


def test_every_batch_is_full_and_no_row_comes_twice() -> None:
    made = batches(rows(30), rows(20))
    indices = torch.cat([b.index for b in made.epoch(0, labeled_only=False)])
    assert made.steps(labeled_only=False) == 3
    assert len(indices) == 24
    assert len(indices.unique()) == 24
    assert all(len(b.x) == len(b.given) == 8 for b in made.epoch(0, labeled_only=False))


def test_left_over_rows_get_their_turn() -> None:
    made = batches(rows(30), rows(20))
    seen = torch.cat([b.index for epoch in range(6) for b in made.epoch(epoch, labeled_only=False)])
    assert len(seen.unique()) == 30


def test_samples_labels_and_indices_belong_together() -> None:
    for b in batches(rows(30), rows(20)).epoch(3, labeled_only=False):
        torch.testing.assert_close(b.x[:, 0, 0, 0], b.index / 127.5 - 1)
        assert torch.equal(b.given, b.index % 2)
        assert torch.equal(((b.clean_x[:, 0, 0, 0] + 1) * 127.5).round().long() % 2, b.clean_y)


def test_the_clean_batch_is_as_large_as_the_training_batch() -> None:
    assert all(len(b.clean_x) == 8 for b in batches(rows(30), rows(20)).epoch(0, labeled_only=False))


def test_the_whole_clean_set_when_that_is_smaller() -> None:
    for b in batches(rows(30), rows(5)).epoch(0, labeled_only=False):
        assert sorted(((b.clean_x[:, 0, 0, 0] + 1) * 127.5).round().int().tolist()) == [0, 1, 2, 3, 4]


def test_clean_rows_are_gone_through_in_rounds() -> None:
    made = [b.clean_x[:, 0, 0, 0] for b in batches(rows(64), rows(16)).epoch(0, labeled_only=False)]
    assert len(torch.cat(made[:2]).unique()) == 16
    assert len(torch.cat(made[2:4]).unique()) == 16
    assert not torch.equal(made[0], made[2])


def test_few_rows_make_one_batch() -> None:
    made = batches(rows(5), rows(5))
    assert made.steps(labeled_only=False) == 1
    assert [len(b.x) for b in made.epoch(0, labeled_only=False)] == [5]


def test_unlabeled_rows_come_only_when_asked_for() -> None:
    made = batches(rows(40, unlabeled=20), rows(20))
    assert made.steps(labeled_only=True) == 2
    assert all((b.given >= 0).all() for b in made.epoch(0, labeled_only=True))
    assert any((b.given < 0).any() for b in made.epoch(0, labeled_only=False))


@pytest.mark.parametrize("start", [1, 4])
def test_an_epoch_can_be_entered_at_any_step(start: int) -> None:
    made = batches(rows(64), rows(20), augment="flip-crop", augment_clean=True)
    whole = list(made.epoch(2, labeled_only=False))[start:]
    for a, b in zip(whole, made.epoch(2, labeled_only=False, start=start), strict=True):
        assert all(torch.equal(getattr(a, k), getattr(b, k)) for k in ("x", "given", "index", "clean_x", "clean_y"))
        assert a.seed == b.seed


def test_a_plan_is_drawn_when_it_is_asked_for_and_not_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it can be drawn while a card is at work."""
    made = batches(rows(40, unlabeled=20), rows(20), strong_from=0)
    expected = [picks.train for picks in made.plan(1, labeled_only=True)]
    plan = made.plan(1, labeled_only=True)
    for name in ("draw", "draw_strong", "generator"):
        monkeypatch.setattr(module, name, None)
    assert all(torch.equal(picks.train, train) for picks, train in zip(plan, expected, strict=True))


def test_a_card_at_work_is_not_asked() -> None:
    """`meta` is a device that, like a card, would have to be asked, and has no answer at all."""
    train = rows(40, unlabeled=20)
    made = batches(train, rows(20))
    there = dataclasses.replace(train, x=train.x.to("meta"), given=train.given.to("meta"))
    away = dataclasses.replace(made, train=there)
    vars(away)["_labeled"] = made._labeled  # asked before there was work
    for labeled_only in (False, True):
        planned = list(away.plan(1, labeled_only=labeled_only))
        assert len(planned) == made.steps(labeled_only=labeled_only)
        assert {picks.train.device.type for picks in planned} == {"meta"}


def test_a_card_at_work_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda plan: sent.append("pinned") or plan)
    monkeypatch.setattr(torch.Tensor, "to", lambda plan, *where, **how: sent.append((where, how)) or plan)
    card = torch.device("cuda")
    there = SimpleNamespace(x=SimpleNamespace(device=card))
    dataclasses.replace(batches(rows(8), rows(8)), train=there)._sent(torch.zeros(3))
    assert sent == ["pinned", ((card,), {"non_blocking": True})]


def test_nothing_is_shuffled_when_the_order_is_given() -> None:
    made = batches(rows(30), rows(20), order="given", augment="crop")
    for epoch in (0, 1):
        assert torch.cat([b.index for b in made.epoch(epoch, labeled_only=False)]).tolist() == list(range(24))
        clean = [b.clean_y for b in made.epoch(epoch, labeled_only=False)]
        assert torch.equal(clean[0], torch.arange(8) % 2)
        assert torch.equal(clean[0], clean[2])  # two full batches in a round


def test_epochs_and_seeds_differ() -> None:
    first = next(batches(rows(64), rows(20)).epoch(0, labeled_only=False))
    later = next(batches(rows(64), rows(20)).epoch(1, labeled_only=False))
    other = next(batches(rows(64), rows(20), seed=1).epoch(0, labeled_only=False))
    assert not torch.equal(first.index, later.index)
    assert not torch.equal(first.index, other.index)
    assert len({first.seed, later.seed, other.seed}) == 3


def test_clean_images_are_augmented_only_when_asked_for() -> None:
    plain = next(batches(rows(64), rows(8), augment="crop").epoch(0, labeled_only=False)).clean_x
    moved = next(batches(rows(64), rows(8), augment="crop", augment_clean=True).epoch(0, labeled_only=False)).clean_x
    assert (plain[:, :, :1, :1] == plain).all()
    assert not (moved[:, :, :1, :1] == moved).all()


def test_scaling_is_from_minus_one_to_one_and_leaves_tables_alone() -> None:
    assert to_input(torch.tensor([0, 255], dtype=torch.uint8), torch.float32).tolist() == [-1.0, 1.0]
    table = torch.tensor([[1.5, -300.0]])
    assert torch.equal(to_input(table, torch.float32), table)


def test_strong_views_come_when_they_are_asked_for_and_change_nothing_else() -> None:
    train = dataclasses.replace(rows(30), x=torch.randint(0, 256, (30, 1, 8, 8), dtype=torch.uint8))
    plain, made = batches(train, rows(20)), batches(train, rows(20), strong_from=2)
    assert all(b.strong_x is None for epoch in (0, 1) for b in made.epoch(epoch, labeled_only=False))
    seen = []
    for one, other in zip(plain.epoch(2, labeled_only=False), made.epoch(2, labeled_only=False), strict=True):
        assert one.strong_x is None
        assert other.strong_x is not None
        assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("x", "index", "clean_x"))
        assert one.seed == other.seed
        assert other.strong_x.shape == other.x.shape
        seen.append(other.strong_x)
    again = [b.strong_x for b in made.epoch(2, labeled_only=False, start=1)]
    assert all(torch.equal(a, b) for a, b in zip(seen[1:], again, strict=True))
    later = next(iter(made.epoch(3, labeled_only=False))).strong_x
    assert not torch.equal(seen[0], later)


@pytest.mark.parametrize(("augment", "flips"), [("none", False), ("crop", False), ("flip-crop", True)])
def test_strong_views_are_mirrored_where_the_others_are(
    augment: str, flips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(module, "strong", lambda x, how, **kwargs: asked.append(kwargs["flips"]) or x)
    next(iter(batches(rows(30), rows(20), augment=augment, strong_from=0).epoch(0, labeled_only=False)))
    assert asked == [flips]
