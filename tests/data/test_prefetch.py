"""Reading ahead: in order, a little and no more, in a thread that is gone when it is not needed."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from metalabelnet.data import disk_tensor as stored_module
from metalabelnet.data.disk_tensor import DiskTensor, chunks
from metalabelnet.data.prefetch import AHEAD, ahead
from metalabelnet.train import Stopped, train
from metalabelnet.train.build_method import build
from metalabelnet.train.loop import training
from small import batches, small_problem, small_run


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("reading ahead")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    assert threads() == []
    yield
    assert threads() == []


def on_disk(x: torch.Tensor, folder: Path) -> DiskTensor:
    stored = DiskTensor.empty(len(x), tuple(x.shape[1:]), x.dtype, folder)
    stored[0] = x
    return stored


def test_everything_comes_in_order() -> None:
    assert list(ahead(lambda k: k * k, range(20))) == [k * k for k in range(20)]
    assert list(ahead(lambda k: k, [])) == []


def test_the_next_is_read_while_one_is_worked_on_and_no_more_than_a_few() -> None:
    begun = [threading.Event() for _ in range(10)]
    results = ahead(lambda k: begun[k].set() or k, range(10))
    for k in results:
        for further in begun[k : k + AHEAD + 1]:
            assert further.wait(10)  # without being asked for
        assert not any(event.is_set() for event in begun[k + AHEAD + 1 :])


def test_an_error_of_the_thread_is_raised_where_the_result_is_asked_for() -> None:
    def read(k: int) -> int:
        if k == 3:
            raise OSError("the disk has gone")
        return k

    got = []
    with pytest.raises(OSError, match="the disk has gone"):
        got.extend(ahead(read, range(10)))  # extends by what came before the error
    results = ahead(read, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="the disk has gone"):
        next(results)


def test_the_thread_goes_when_nobody_goes_on() -> None:
    results = ahead(lambda k: k, range(1000))
    assert next(results) == 0
    assert len(threads()) == 1
    results.close()


def test_several_threads_read_one_file(tmp_path: Path) -> None:
    """An evaluation may read while a batch is read ahead: neither moves the place at which the other reads."""
    x = torch.arange(300 * 1000).view(300, 1000)
    stored = on_disk(x, tmp_path)
    wrong: list[int] = []

    def read(seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        for _ in range(40):
            which = torch.randint(0, 300, (50,), generator=g)
            wrong.extend(which[(stored[which] != x[which]).any(1)].tolist())

    beside = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in beside:
        thread.start()
    for thread in beside:
        thread.join()
    assert wrong == []


def test_a_file_that_was_cut_off_is_an_error_where_the_batch_is_asked_for(tmp_path: Path) -> None:
    stored = on_disk(torch.zeros(5000, 1, 8, 8, dtype=torch.uint8), tmp_path)
    stored._file.raw.truncate(3000 * 64)
    with pytest.raises(OSError, match="has become shorter"):
        list(chunks(stored))


def streamed(folder: Path) -> Any:
    problem = small_problem()
    moved = {part: getattr(problem, part) for part in ("train", "clean")}
    return replace(problem, **{part: replace(rows, x=on_disk(rows.x, folder)) for part, rows in moved.items()})


def test_a_run_that_stops_breaks_or_is_dropped_leaves_no_thread(tmp_path: Path) -> None:
    run, problem = small_run("gce"), streamed(tmp_path)
    with pytest.raises(Stopped):
        train(run, problem=problem, stop=iter([False] * 5 + [True]).__next__)
    assert threads() == []

    def break_off(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, problem=problem, on_progress=break_off)
    assert threads() == []
    steps = training(run, problem=problem)
    next(steps)
    assert len(threads()) == 1
    steps.close()


class TestOnACard:
    """What a card needs, with fakes: which memory is asked for, and what is not waited for."""

    def test_rows_are_read_into_pinned_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pinned: list[bool] = []
        empty = torch.empty

        def watched(*shape: Any, pin_memory: bool, **more: Any) -> torch.Tensor:
            pinned.append(pin_memory)
            return empty(*shape, **more)

        x = torch.arange(12).view(4, 3)
        here = on_disk(x, tmp_path)
        monkeypatch.setattr(stored_module.torch, "empty", watched)
        assert torch.equal(here.to("cuda").read(torch.tensor([2, 0])), x[[2, 0]])
        assert torch.equal(here.read(slice(1, 3)), x[1:3])
        assert pinned == [True, False]

    def test_copies_to_the_card_are_not_waited_for(self, tmp_path: Path) -> None:
        class Rows:
            def to(self, *how: Any, **more: Any) -> Any:
                return how, more

        there = on_disk(torch.zeros(4, 3), tmp_path).to("cuda:1")
        assert there.arrive(Rows()) == ((torch.device("cuda:1"),), {"non_blocking": True})  # type: ignore[arg-type,comparison-overlap]

    def test_which_rows_to_read_is_known_without_asking_the_card(self, tmp_path: Path) -> None:
        """`meta` is a device that, like a card, would have to be asked, and has no answer at all."""
        run, problem = small_run("metalabelnet-plus", augment="flip-crop"), streamed(tmp_path)
        made = batches(run, problem, build(run, problem))
        there = {
            part: replace(rows, x=rows.x.to("meta")) for part, rows in (("train", made.train), ("clean", made.clean))
        }
        away = replace(made, **there)
        planned = list(zip(away.plan(4, labeled_only=False), made.plan(4, labeled_only=False), strict=True))
        assert planned
        for one, other in planned:
            assert torch.equal(one.train, other.train)
            assert one.strong is not None
            assert {tensor.device.type for tensor in (one.train, one.clean, one.strong)} == {"cpu"}
            assert {
                t.device.type for t in vars(one.to(torch.device("meta"))).values() if isinstance(t, torch.Tensor)
            } == {"meta"}
        _, x, clean_x = away._read(planned[0][0])
        assert x is not None
        assert clean_x is not None
        assert torch.equal(x, problem.train.x[planned[0][0].train[0]])
        assert away.train.x.arrive(x).device.type == "meta"
