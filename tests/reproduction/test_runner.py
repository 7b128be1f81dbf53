"""Runs on digits, through the runner: within a budget, stopped and continued, one failing beside others."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from made import line
from metalabelnet.engine import Engine
from metalabelnet.errors import InputError
from metalabelnet.launch.process_pool import Job, Outcome
from metalabelnet.reproduction import runner as module
from metalabelnet.reproduction.entries import Selection, entries
from metalabelnet.reproduction.recipes import Entry
from metalabelnet.reproduction.resources import Places
from metalabelnet.reproduction.results import Results
from metalabelnet.reproduction.runner import Runner
from metalabelnet.train import RunFolder, Stopped
from metalabelnet.train.run_folder import versions

SMOKE = Selection(smoke=True, cells=("uniform:0.4",), methods=("cross-entropy", "clean-only", "fine-tune"))


def three() -> list[Entry]:
    return entries("cifar10-table", SMOKE)


class Made:
    """A runner with what it said, in a folder of its own."""

    def __init__(self, folder: Path, *, stop: Callable[[], bool] = lambda: False, **changes: Any) -> None:
        self.said: list[str] = []
        self.results = Results(folder / "results")
        fields = {"concurrent": 1, "budget": None, "cheapest": False, **changes}
        self.out = folder / "out"
        places = Places(device="cpu")
        self.runner = Runner(self.results, places, self.out, say=self.said.append, stop=stop, **fields)

    def run(self, what: Sequence[Entry]) -> int:
        return self.runner.run(what)


def outcome(results: Results) -> list[Any]:
    """What must not depend on how the runs were made."""
    timeless = []
    for one in results.lines:
        summary = {name: value for name, value in (one["summary"] or {}).items() if name != "seconds"}
        timeless.append((one["settings"], summary, one.get("curves"), one.get("losses")))
    return sorted(timeless, key=str)


def test_each_run_leaves_a_line_and_is_not_made_again(tmp_path: Path) -> None:
    first = Made(tmp_path)
    assert first.run(three()) == 0
    assert len(first.results.lines) == 3
    assert [text.partition(" cross-entropy")[0] for text in first.said[:1]] == ["[1/3]"]
    assert all(f"[{k}/3]" in text and "(last " in text for k, text in enumerate(first.said, 1))
    again = Made(tmp_path)
    assert again.run(three()) == 0
    assert again.said == []
    assert len(again.results.lines) == 3


def test_a_run_that_two_need_is_made_once(tmp_path: Path) -> None:
    twice = [*entries("fig-curves", Selection(smoke=True, cells=("uniform:0.4",))) * 2]
    made = Made(tmp_path)
    assert made.run(twice) == 0
    assert len(made.results.lines) == 1


def test_stopped_it_goes_on_to_the_same_end(tmp_path: Path) -> None:
    whole = Made(tmp_path / "whole")
    whole.run(three())
    asked = iter([False] * 40 + [True] * 10**6)
    with pytest.raises(Stopped):
        Made(tmp_path / "parts", stop=lambda: next(asked)).run(three())
    part = Results(tmp_path / "parts" / "results")
    assert 0 < len(part.lines) < 3
    assert any((folder / "checkpoint").exists() for folder in (tmp_path / "parts" / "out").iterdir())
    again = Made(tmp_path / "parts")
    assert again.run(three()) == 0
    assert outcome(again.results) == outcome(whole.results)


def test_losses_along_a_step_stopped_and_continued(tmp_path: Path) -> None:
    losses = entries("fig-losses", Selection(smoke=True, cells=("uniform:0.4",)))
    whole = Made(tmp_path / "whole")
    whole.run(losses)
    asked = iter([False] * 12 + [True] * 10**6)
    with pytest.raises(Stopped):
        Made(tmp_path / "parts", stop=lambda: next(asked)).run(losses)
    again = Made(tmp_path / "parts")
    assert again.run(losses) == 0
    assert outcome(again.results) == outcome(whole.results)


def test_the_end_of_the_budget_stops_what_is_under_way(tmp_path: Path) -> None:
    """Nothing is known about how long it takes, so it is begun; next time it goes on."""
    clock = iter(range(10**6))
    made = Made(tmp_path, budget=25)
    made.runner.deadline = 25
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(clock))}))
        left = made.run(three())
    assert left == 3 - len(made.results.lines) > 0
    again = Made(tmp_path)
    assert again.run(three()) == 0
    assert len(again.results.lines) == 3


def test_a_run_that_would_not_end_within_the_budget_is_not_begun(tmp_path: Path) -> None:
    made = Made(tmp_path, budget=60)
    slow, quick = three()[0], three()[1]
    for one, seconds in ((slow, 1000.0), (quick, 1.0)):
        known = line(dataclasses.replace(one, fields={**one.fields, "seed": 9}))
        known["versions"] = versions()
        known["summary"]["seconds"] = seconds
        made.results.add(known)
        made.runner.estimate.learn(known)
    assert made.run([slow, quick]) == 1
    assert made.results.of(slow) is None
    assert made.results.of(quick) is not None
    assert len(list(made.out.iterdir())) == 1


def test_the_cheapest_comes_first_if_asked_for(tmp_path: Path) -> None:
    mixed = [*entries("fig-curves", Selection(smoke=True, cells=("uniform:0.4",))), three()[0]]
    made = Made(tmp_path, cheapest=True)
    known = line(dataclasses.replace(three()[0], fields={**three()[0].fields, "seed": 9}))
    known["versions"] = versions()
    made.runner.estimate.learn(known)
    made.run(mixed)
    assert "cross-entropy" in made.said[0]
    assert "metalabelnet" in made.said[1]


def test_a_diverging_run_is_said_and_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    wild, *others = three()
    wild = dataclasses.replace(wild, fields={**wild.fields, "lr": 1e30})
    made = Made(tmp_path)
    assert made.run([wild, *others]) == 0
    assert len(made.results.lines) == 3
    failure = made.results.of(wild)["failure"]
    assert "learning rate" in failure
    assert str(tmp_path) not in failure
    assert "failed: " in made.said[0]
    assert Made(tmp_path).run([wild]) == 0  # not tried again


def test_a_group_that_breaks_goes_on_with_fewer_then_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module._train_group
    bad = three()[1].method

    asked: list[tuple[int, int]] = []

    def memory_is_short(jobs: Sequence[Job], **more: Any) -> list[Outcome]:
        asked.append((len(jobs), more["concurrent"]))
        if len(jobs) > 1 or jobs[0].run.method == bad:
            raise RuntimeError("CUDA out of memory")
        return real(jobs, **more)

    monkeypatch.setattr(module, "_train_group", memory_is_short)
    made = Made(tmp_path, concurrent=8)
    made.run(three())
    assert asked == [(3, 3), (3, 1), (1, 1), (1, 1), (1, 1)]
    assert "going on with 1" in made.said[0]
    assert len(made.results.lines) == 2
    assert made.runner.failures == [f"{three()[1]}: RuntimeError: CUDA out of memory"]


def test_a_group_that_breaks_half_way_leaves_its_folders_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run holds its folder while it is under way; the one by one that follows must not find it held."""
    real, steps = Engine.step, iter(range(10**6))

    def breaking(self: Engine, *given: Any) -> Any:
        if next(steps) == 12:
            raise RuntimeError("CUDA error")
        return real(self, *given)

    monkeypatch.setattr(Engine, "step", breaking)
    made = Made(tmp_path, concurrent=2)
    made.run(entries("cifar10-table", dataclasses.replace(SMOKE, seeds=2, methods=("fine-tune",))))
    assert len(made.results.lines) == 2
    assert made.runner.failures == []


def test_together_they_come_to_what_each_comes_to_alone(tmp_path: Path) -> None:
    two = entries("cifar10-table", dataclasses.replace(SMOKE, seeds=2, methods=("metalabelnet",)))
    alone, beside = Made(tmp_path / "alone"), Made(tmp_path / "beside", concurrent=8)
    for made in (alone, beside):
        assert made.run(two) == 0
    assert outcome(alone.results) == outcome(beside.results)
    assert [one.get("concurrent") for one in beside.results.lines] == [2, 2]
    assert [one.get("concurrent") for one in alone.results.lines] == [None, None]


def test_together_they_are_stopped_and_go_on(tmp_path: Path) -> None:
    asked = iter([False] * 40 + [True] * 10**6)
    two = entries("cifar10-table", dataclasses.replace(SMOKE, seeds=2, methods=("fine-tune",)))
    with pytest.raises(Stopped):
        Made(tmp_path / "parts", stop=lambda: next(asked), concurrent=2).run(two)
    assert sum((folder / "checkpoint").exists() for folder in (tmp_path / "parts" / "out").iterdir()) == 2
    again, alone = Made(tmp_path / "parts", concurrent=2), Made(tmp_path / "alone")
    assert again.run(two) == alone.run(two) == 0
    assert outcome(again.results) == outcome(alone.results)


def test_processes_give_what_one_gives(tmp_path: Path) -> None:
    """Runs of all shapes beside each other, each with its core to itself."""
    alone, beside = Made(tmp_path / "alone"), Made(tmp_path / "beside", workers=2)
    assert alone.run(three()) == beside.run(three()) == 0
    assert outcome(beside.results) == outcome(alone.results)
    assert all("concurrent" not in one for one in beside.results.lines)


def test_what_processes_are_given_fits_into_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 seconds on two cores: two runs of 25, not a third, and none of 40."""
    groups: list[list[int]] = []

    def note(jobs: Sequence[Job], **more: Any) -> list[Outcome]:
        assert more["workers"] == 2
        groups.append([job.run.seed for job in jobs])
        raise Stopped

    monkeypatch.setattr(module, "_train_group", note)
    many = entries("cifar10-table", dataclasses.replace(SMOKE, seeds=4, methods=("fine-tune",)))
    made = Made(tmp_path, budget=30, workers=2)
    monkeypatch.setattr(made.runner.estimate, "seconds", lambda entry: 40.0 if entry.seed == 1 else 25.0)
    assert made.run(many) == 4
    assert groups == [[0, 2]]


def test_a_run_whose_process_was_killed_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Outcome(failure="a process was killed", lost=True)
    monkeypatch.setattr(module, "_train_group", lambda jobs, **_: [lost for _ in jobs])
    made = Made(tmp_path, workers=2)
    made.run(three())
    assert made.results.lines == []
    assert len(made.runner.failures) == 3


def test_runs_on_one_data_set_go_together_whatever_their_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[tuple[int, list[tuple[str, str]]]] = []

    def note(jobs: Sequence[Job], **more: Any) -> list[Outcome]:
        groups.append((more["concurrent"], [(Path(job.run.data).stem, job.run.method) for job in jobs]))
        return [Outcome() for _ in jobs]

    monkeypatch.setattr(module, "_train_group", note)
    monkeypatch.setattr(module, "read", lambda run, read_cache: None)
    digits = entries("cifar10-table", dataclasses.replace(SMOKE, methods=("cross-entropy", "fine-tune", "gce")))
    other = [dataclasses.replace(one, fields={**one.fields, "data": "other.npz"}) for one in digits[:1]]
    Made(tmp_path, concurrent=2).run([digits[0], *other, *digits[1:]])
    methods = [("digits", method) for method in ("cross-entropy", "fine-tune", "gce")]
    assert groups == [(2, methods), (1, [("other", "cross-entropy")])]


def test_where_one_ends_the_next_begins(tmp_path: Path) -> None:
    """Three runs, two at a time: what they come to is what each comes to alone."""
    alone, beside = Made(tmp_path / "alone"), Made(tmp_path / "beside", concurrent=2)
    assert alone.run(three()) == beside.run(three()) == 0
    assert outcome(alone.results) == outcome(beside.results)
    assert [one.get("concurrent") for one in beside.results.lines] == [2, 2, 2]


def test_a_folder_that_was_finished_before_its_line_was_written(tmp_path: Path) -> None:
    Made(tmp_path).run(three()[:1])
    (tmp_path / "results" / "digits.jsonl").unlink()
    began = time.monotonic()
    made = Made(tmp_path)
    made.run(three()[:1])
    assert len(made.results.lines) == 1
    assert time.monotonic() - began < 5


def begin(folder: Path, what: Sequence[Entry]) -> RunFolder:
    """The folder of the first of these, with a run in it that was stopped."""
    asked = iter([False] * 5 + [True] * 10**6)
    with pytest.raises(Stopped):
        Made(folder, stop=lambda: next(asked)).run(what[:1])
    (begun,) = (folder / "out").iterdir()
    return RunFolder(begun)


@pytest.mark.parametrize("how", [{"concurrent": 1}, {"concurrent": 2}, {"workers": 2}], ids=str)
def test_a_run_that_another_process_is_at_work_on_is_left_to_it(
    tmp_path: Path, how: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = three()
    made = Made(tmp_path, **how)
    groups: list[int] = []
    real = module._train_group
    monkeypatch.setattr(module, "_train_group", lambda jobs, **more: groups.append(len(jobs)) or real(jobs, **more))
    with begin(tmp_path, [first]).held():
        groups.clear()
        assert made.run([first, *others]) == 0
    assert sum(groups) == 3, "none is begun twice"
    assert [text for text in made.said if "another process" in text] == [
        f"{first}: another process is at work on it, and it is left to that one"
    ]
    assert {one["settings"]["method"] for one in made.results.lines} == {other.method for other in others}
    assert made.runner.failures == []
    assert Made(tmp_path).run([first]) == 0
    assert len(Results(tmp_path / "results").lines) == 3


def test_losses_that_another_process_is_at_work_on_are_left_to_it(tmp_path: Path) -> None:
    losses = entries("fig-losses", Selection(smoke=True, cells=("uniform:0.4",)))
    made = Made(tmp_path)
    with begin(tmp_path, losses).held():
        assert made.run([*losses, three()[0]]) == 0
    assert "left to that one" in made.said[0]
    assert len(made.results.lines) == 1


def test_a_run_that_another_process_has_ended_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = module._train_group, iter(range(10))

    def late(jobs: Sequence[Job], **more: Any) -> list[Outcome]:
        if next(calls) == 0:
            Made(tmp_path).run(three()[:1])
            raise InputError(f"{jobs[0].folder} is finished already")
        return real(jobs, **more)

    monkeypatch.setattr(module, "_train_group", late)
    made = Made(tmp_path, concurrent=8)
    assert made.run(three()) == 0
    assert len(made.results.lines) == len(Results(tmp_path / "results").lines) == 3


def test_what_is_refused_is_not_tried_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(jobs: Sequence[Job], **_: Any) -> list[Outcome]:
        raise InputError(f"{jobs[0].run.data} cannot be read")

    monkeypatch.setattr(module, "_train_group", refuse)
    made = Made(tmp_path, concurrent=8)
    assert made.run(three()) == 0
    assert made.runner.failures == [f"{one}: digits cannot be read" for one in three()]


@pytest.mark.parametrize("how", [{"concurrent": 1}, {"concurrent": 2}, {"concurrent": 8}, {"workers": 2}], ids=str)
def test_a_run_that_is_refused_is_named_and_the_others_go_on(tmp_path: Path, how: dict[str, int]) -> None:
    first, second, third = three()
    wrong = dataclasses.replace(second, fields={**second.fields, "clean": 10**5})
    made = Made(tmp_path, **how)
    assert made.run([first, wrong, third]) == 0
    assert [one["settings"]["method"] for one in made.results.lines] == [first.method, third.method]
    (failure,) = made.runner.failures
    assert failure.startswith(f"{wrong}: a clean set of 100000 is too large")
    assert sum("failed: a clean set of 100000" in text for text in made.said) == 1
    again = Made(tmp_path)
    assert again.run([second]) == 0
    assert again.runner.failures == []


def test_losses_that_are_refused_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    (losses,) = entries("fig-losses", Selection(smoke=True, cells=("uniform:0.4",)))
    losses = dataclasses.replace(losses, fields={**losses.fields, "clean": 10**5})
    made = Made(tmp_path)
    assert made.run([losses, three()[0]]) == 0
    assert len(made.results.lines) == len(made.runner.failures) == 1


def test_data_that_cannot_be_read_fails_its_runs_in_one_sentence(tmp_path: Path) -> None:
    """They are not tried one by one: each would try to download it."""
    first, *others = three()
    gone = [dataclasses.replace(one, fields={**one.fields, "data": "gone.npz"}) for one in others]
    made = Made(tmp_path)
    assert made.run([first, *gone]) == 0
    assert len(made.results.lines) == 1
    assert made.runner.failures == ["2 runs on gone.npz: gone.npz: there is no such file"]
    with pytest.raises(InputError, match=r"nothing can be run: gone.npz: there is no such file"):
        Made(tmp_path / "other").run(gone)


def test_a_folder_that_holds_something_else_is_said_and_left_alone(tmp_path: Path) -> None:
    made = Made(tmp_path)
    name = module.folder_name(three()[0], "float32")
    (made.out / name).mkdir(parents=True)
    (made.out / name / "mine.txt").write_text("mine")
    made.run(three()[:2])
    assert "holds no run" in made.said[0]
    assert len(made.results.lines) == 1
    assert [f.name for f in (made.out / name).iterdir()] == ["mine.txt"]


def test_without_the_authors_file_only_what_does_not_need_it_is_run(tmp_path: Path) -> None:
    chosen = Selection(methods=("cross-entropy",), cells=("uniform:0.4", "feature:0.4"), seeds=1)
    made = Made(tmp_path)
    tasks = made.runner._tasks(entries("cifar10-table", chosen))
    assert [task.entry.cell for task in tasks] == ["uniform:0.4"]
    assert made.said == ["left out: 1 runs need --noise-probs FILE (the authors' student_logits.npy)"]
    with pytest.raises(InputError, match="nothing can be run: 1 runs need --noise-probs FILE"):
        made.run(entries("cifar10-table", dataclasses.replace(chosen, cells=("feature:0.4",))))
    with pytest.raises(InputError, match="3 runs need --human-labels FILE"):
        made.run(entries("cifar10n", Selection(methods=("gce",))))


def test_the_commit_is_named_by_hand_where_there_is_no_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metalabelnet.train.run_folder.commit", lambda: None)
    made = Made(tmp_path)
    made.runner.places = Places(device="cpu", commit="0123abc")
    made.run(three()[:1])
    assert made.results.lines[0]["commit"] == "0123abc"


def test_a_finished_run_keeps_its_folder(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.run(three()[:1])
    (folder,) = made.out.iterdir()
    assert RunFolder(folder).finished
