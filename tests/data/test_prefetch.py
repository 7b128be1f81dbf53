"""Prefetching: in order, a bounded number ahead, in a thread that ends with the generator."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from metalabelnet.data import disk_tensor as module
from metalabelnet.data.disk_tensor import DiskTensor, chunks
from metalabelnet.data.prefetch import PREFETCH_DEPTH, prefetch
from metalabelnet.train import RunStopped, train
from metalabelnet.train.build_method import build_method
from metalabelnet.train.train_run import training_steps
from small_runs import make_batches, small_problem, small_run


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.fixture(autouse=True)
def no_thread_remains() -> Iterator[None]:
    assert threads() == []
    yield
    assert threads() == []


def on_disk(x: torch.Tensor, folder: Path) -> DiskTensor:
    stored = DiskTensor.empty(len(x), tuple(x.shape[1:]), x.dtype, folder)
    stored[0] = x
    return stored


def test_results_are_in_order() -> None:
    assert list(prefetch(lambda k: k * k, range(20))) == [k * k for k in range(20)]
    assert list(prefetch(lambda k: k, [])) == []


def test_prefetch_depth() -> None:
    started = [threading.Event() for _ in range(10)]
    results = prefetch(lambda k: started[k].set() or k, range(10))
    for k in results:
        for event in started[k : k + PREFETCH_DEPTH + 1]:
            assert event.wait(10)
        assert not any(event.is_set() for event in started[k + PREFETCH_DEPTH + 1 :])


def test_exception_is_raised_where_its_result_is_consumed() -> None:
    def read(k: int) -> int:
        if k == 3:
            raise OSError("the disk failed")
        return k

    got = []
    with pytest.raises(OSError, match="the disk failed"):
        got.extend(prefetch(read, range(10)))  # keeps the results before the error
    results = prefetch(read, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="the disk failed"):
        next(results)


def test_closing_the_generator_ends_the_thread() -> None:
    results = prefetch(lambda k: k, range(1000))
    assert next(results) == 0
    assert len(threads()) == 1
    results.close()


def test_several_threads_read_one_file(tmp_path: Path) -> None:
    """An evaluation may read while a batch is prefetched: reads do not share a file position."""
    x = torch.arange(300 * 1000).view(300, 1000)
    stored = on_disk(x, tmp_path)
    wrong: list[int] = []

    def read(seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        for _ in range(40):
            which = torch.randint(0, 300, (50,), generator=g)
            wrong.extend(which[(stored[which] != x[which]).any(1)].tolist())

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in readers:
        thread.start()
    for thread in readers:
        thread.join()
    assert wrong == []


def test_truncated_file_raises_when_read(tmp_path: Path) -> None:
    stored = on_disk(torch.zeros(5000, 1, 8, 8, dtype=torch.uint8), tmp_path)
    stored._file.raw.truncate(3000 * 64)
    with pytest.raises(OSError, match="was truncated"):
        list(chunks(stored))


def problem_on_disk(folder: Path) -> Any:
    problem = small_problem()
    moved = {part: getattr(problem, part) for part in ("train", "clean")}
    return replace(problem, **{part: replace(rows, x=on_disk(rows.x, folder)) for part, rows in moved.items()})


def test_interrupted_runs_leave_no_thread(tmp_path: Path) -> None:
    run, problem = small_run("gce"), problem_on_disk(tmp_path)
    with pytest.raises(RunStopped):
        train(run, problem=problem, stop=iter([False] * 5 + [True]).__next__)
    assert threads() == []

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, problem=problem, on_progress=interrupt)
    assert threads() == []
    steps = training_steps(run, problem=problem)
    next(steps)
    assert len(threads()) == 1
    steps.close()


class TestOnGpu:
    """Pinned memory and asynchronous copies, with fakes for a GPU."""

    def test_rows_are_read_into_pinned_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pinned: list[bool] = []
        empty = torch.empty

        def recording_empty(*shape: Any, pin_memory: bool, **more: Any) -> torch.Tensor:
            pinned.append(pin_memory)
            return empty(*shape, **more)

        x = torch.arange(12).view(4, 3)
        disk_tensor = on_disk(x, tmp_path)
        monkeypatch.setattr(module.torch, "empty", recording_empty)
        assert torch.equal(disk_tensor.to("cuda").read(torch.tensor([2, 0])), x[[2, 0]])
        assert torch.equal(disk_tensor.read(slice(1, 3)), x[1:3])
        assert pinned == [True, False]

    def test_copies_to_the_gpu_are_asynchronous(self, tmp_path: Path) -> None:
        class Rows:
            def to(self, *args: Any, **kwargs: Any) -> Any:
                return args, kwargs

        on_gpu = on_disk(torch.zeros(4, 3), tmp_path).to("cuda:1")
        assert on_gpu.to_device(Rows()) == ((torch.device("cuda:1"),), {"non_blocking": True})  # type: ignore[arg-type,comparison-overlap]

    def test_rows_to_read_are_known_without_reading_from_the_device(self, tmp_path: Path) -> None:
        """Reading a value from a tensor on the device `meta` raises an error."""
        run, problem = (
            small_run("metalabelnet-plus", augment="flip-crop", strong_augment="supervised"),
            problem_on_disk(tmp_path),
        )
        batches = make_batches(run, problem, build_method(run, problem))
        on_meta = {
            part: replace(rows, x=rows.x.to("meta"))
            for part, rows in (("train", batches.train), ("clean", batches.clean))
        }
        elsewhere = replace(batches, **on_meta)
        plans = list(
            zip(elsewhere.plan_epoch(4, labeled_only=False), batches.plan_epoch(4, labeled_only=False), strict=True)
        )
        assert plans
        for one, other in plans:
            assert torch.equal(one.train, other.train)
            assert one.strong is not None
            assert {tensor.device.type for tensor in (one.train, one.clean, one.strong)} == {"cpu"}
            assert {
                t.device.type for t in vars(one.to(torch.device("meta"))).values() if isinstance(t, torch.Tensor)
            } == {"meta"}
        _, x, clean_x = elsewhere._read((plans[0][0], slice(None), slice(None)))
        assert x is not None
        assert clean_x is not None
        assert torch.equal(x, problem.train.x[plans[0][0].train[0]])
        assert elsewhere.train.x.to_device(x).device.type == "meta"
