"""The runner on small runs: time budget, resume, concurrent runs, failures."""

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from metalabelnet.engine import Engine
from metalabelnet.errors import InputError
from metalabelnet.launch.process_pool import Job, Outcome
from metalabelnet.launch.ray_cluster import connect
from metalabelnet.reproduction import runner as module
from metalabelnet.reproduction.experiment import RunSpec
from metalabelnet.reproduction.resources import Resources
from metalabelnet.reproduction.results import Results
from metalabelnet.reproduction.runner import Runner
from metalabelnet.reproduction.selection import Selection, run_specs
from metalabelnet.train import RunFolder, RunStopped
from metalabelnet.train.versions import versions
from ray_stand_in import RayStandIn
from sample_results import result_line

SMOKE = Selection(smoke=True, cells=("uniform:0.4",), methods=("cross-entropy", "clean-only", "fine-tune"))


def small_specs(experiment: str, selection: Selection) -> list[RunSpec]:
    """Return the runs of a smoke test with 9 steps instead of 32."""
    small = {"epochs": 3, "lr_milestones": (2,), "batch_size": 512}
    return [dataclasses.replace(one, fields={**one.fields, **small}) for one in run_specs(experiment, selection)]


def three_specs() -> list[RunSpec]:
    return small_specs("cifar10-table", SMOKE)


def loss_specs() -> list[RunSpec]:
    return run_specs("fig-losses", Selection(smoke=True, cells=("uniform:0.4",)))


class RunnerHarness:
    """A runner and its log messages, in its own folder."""

    def __init__(self, folder: Path, *, stop: Callable[[], bool] = lambda: False, **changes: Any) -> None:
        self.messages: list[str] = []
        self.results = Results(folder / "results")
        fields = {"concurrent": 1, "budget": None, "cheapest_first": False, **changes}
        self.out = folder / "out"
        resources = Resources(device="cpu")
        self.runner = Runner(self.results, resources, self.out, log=self.messages.append, stop=stop, **fields)

    def run(self, specs: Sequence[RunSpec]) -> int:
        return self.runner.run(specs)


def comparable_lines(results: Results) -> list[Any]:
    """The results without runtimes, sorted."""
    lines = []
    for one in results.lines:
        summary = {name: value for name, value in (one["summary"] or {}).items() if name != "seconds"}
        lines.append((one["settings"], summary, one.get("curves"), one.get("losses")))
    return sorted(lines, key=str)


def test_each_run_writes_a_line_and_is_not_repeated(tmp_path: Path) -> None:
    first = RunnerHarness(tmp_path)
    assert first.run(three_specs()) == 0
    assert len(first.results.lines) == 3
    assert [text.partition(" cross-entropy")[0] for text in first.messages[:1]] == ["[1/3]"]
    assert all(f"[{k}/3]" in text and "(last " in text for k, text in enumerate(first.messages, 1))
    again = RunnerHarness(tmp_path)
    assert again.run(three_specs()) == 0
    assert again.messages == []
    assert len(again.results.lines) == 3


def test_shared_run_is_trained_once(tmp_path: Path) -> None:
    twice = [*small_specs("fig-curves", Selection(smoke=True, cells=("uniform:0.4",))) * 2]
    harness = RunnerHarness(tmp_path)
    assert harness.run(twice) == 0
    assert len(harness.results.lines) == 1


def test_cluster_trains_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = RayStandIn()
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with connect("ray") as cluster:
        harness = RunnerHarness(tmp_path, cluster=cluster)
        assert harness.run(three_specs()[:2]) == 0
    assert [line["settings"]["method"] for line in harness.results.lines] == ["cross-entropy", "clean-only"]
    assert [text.partition(" ")[0] for text in harness.messages] == ["[1/2]", "[2/2]"]
    assert ray.options["_train_in_worker"]["num_cpus"] == 1


def test_resume_gives_same_results(tmp_path: Path) -> None:
    whole = RunnerHarness(tmp_path / "whole")
    whole.run(three_specs())
    stop_values = iter([False] * 13 + [True] * 10**6)
    with pytest.raises(RunStopped):
        RunnerHarness(tmp_path / "parts", stop=lambda: next(stop_values)).run(three_specs())
    part = Results(tmp_path / "parts" / "results")
    assert 0 < len(part.lines) < 3
    assert any((folder / "checkpoint").exists() for folder in (tmp_path / "parts" / "out").iterdir())
    again = RunnerHarness(tmp_path / "parts")
    assert again.run(three_specs()) == 0
    assert comparable_lines(again.results) == comparable_lines(whole.results)


def test_resume_gives_same_step_losses(tmp_path: Path) -> None:
    losses = loss_specs()
    whole = RunnerHarness(tmp_path / "whole")
    whole.run(losses)
    stop_values = iter([False] * 12 + [True] * 10**6)
    with pytest.raises(RunStopped):
        RunnerHarness(tmp_path / "parts", stop=lambda: next(stop_values)).run(losses)
    again = RunnerHarness(tmp_path / "parts")
    assert again.run(losses) == 0
    assert comparable_lines(again.results) == comparable_lines(whole.results)


def test_run_in_progress_stops_when_budget_is_used_up(tmp_path: Path) -> None:
    """Without an estimate the run is started; the next call resumes it."""
    clock = iter(range(10**6))
    harness = RunnerHarness(tmp_path, budget=25)
    harness.runner.deadline = 25
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(clock))}))
        left = harness.run(three_specs())
    assert left == 3 - len(harness.results.lines) > 0
    again = RunnerHarness(tmp_path)
    assert again.run(three_specs()) == 0
    assert len(again.results.lines) == 3


def test_run_longer_than_budget_is_not_started(tmp_path: Path) -> None:
    harness = RunnerHarness(tmp_path, budget=60)
    slow, quick = three_specs()[0], three_specs()[1]
    for one, seconds in ((slow, 1000.0), (quick, 1.0)):
        finished = result_line(dataclasses.replace(one, fields={**one.fields, "seed": 9}))
        finished["versions"] = versions()
        finished["summary"]["seconds"] = seconds
        harness.results.add(finished)
        harness.runner.estimator.add(finished)
    assert harness.run([slow, quick]) == 1
    assert harness.results.find(slow) is None
    assert harness.results.find(quick) is not None
    assert len(list(harness.out.iterdir())) == 1


def test_cheapest_first(tmp_path: Path) -> None:
    mixed = [*small_specs("fig-curves", Selection(smoke=True, cells=("uniform:0.4",))), three_specs()[0]]
    harness = RunnerHarness(tmp_path, cheapest_first=True)
    finished = result_line(dataclasses.replace(three_specs()[0], fields={**three_specs()[0].fields, "seed": 9}))
    finished["versions"] = versions()
    harness.runner.estimator.add(finished)
    harness.run(mixed)
    assert "cross-entropy" in harness.messages[0]
    assert "metalabelnet" in harness.messages[1]


def test_diverged_run_is_stored_and_others_continue(tmp_path: Path) -> None:
    diverging, *others = three_specs()
    diverging = dataclasses.replace(diverging, fields={**diverging.fields, "lr": 1e30})
    harness = RunnerHarness(tmp_path)
    assert harness.run([diverging, *others]) == 0
    assert len(harness.results.lines) == 3
    failure = harness.results.find(diverging)["failure"]
    assert "learning rate" in failure
    assert str(tmp_path) not in failure
    assert "failed: " in harness.messages[0]
    assert RunnerHarness(tmp_path).run([diverging]) == 0  # it is not repeated


def test_failed_group_is_retried_with_fewer_concurrent_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._train_group
    failing_method = three_specs()[1].method

    group_sizes: list[tuple[int, int]] = []

    def out_of_memory(jobs: Sequence[Job], **more: Any) -> list[Outcome]:
        group_sizes.append((len(jobs), more["concurrent"]))
        if len(jobs) > 1 or jobs[0].run.method == failing_method:
            raise RuntimeError("CUDA out of memory")
        return real(jobs, **more)

    monkeypatch.setattr(module, "_train_group", out_of_memory)
    harness = RunnerHarness(tmp_path, concurrent=8)
    harness.run(three_specs())
    assert group_sizes == [(3, 3), (3, 1), (1, 1), (1, 1), (1, 1)]
    assert "retrying with 1" in harness.messages[0]
    assert len(harness.results.lines) == 2
    assert harness.runner.failures == [f"{three_specs()[1]}: RuntimeError: CUDA out of memory"]


def test_failed_group_releases_its_folder_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run locks its folder; the retry must find the folder unlocked."""
    real, steps = Engine.step, iter(range(10**6))

    def failing_step(self: Engine, *given: Any) -> Any:
        if next(steps) == 12:
            raise RuntimeError("CUDA error")
        return real(self, *given)

    monkeypatch.setattr(Engine, "step", failing_step)
    harness = RunnerHarness(tmp_path, concurrent=2)
    harness.run(small_specs("cifar10-table", dataclasses.replace(SMOKE, seeds=2, methods=("fine-tune",))))
    assert len(harness.results.lines) == 2
    assert harness.runner.failures == []


def test_concurrent_runs_give_same_results_as_single_runs(tmp_path: Path) -> None:
    two = small_specs("cifar10-table", dataclasses.replace(SMOKE, seeds=2, methods=("metalabelnet",)))
    alone, concurrent = RunnerHarness(tmp_path / "alone"), RunnerHarness(tmp_path / "concurrent", concurrent=8)
    for harness in (alone, concurrent):
        assert harness.run(two) == 0
    assert comparable_lines(alone.results) == comparable_lines(concurrent.results)
    assert [one.get("concurrent") for one in concurrent.results.lines] == [2, 2]
    assert [one.get("concurrent") for one in alone.results.lines] == [None, None]


def test_concurrent_runs_resume(tmp_path: Path) -> None:
    stop_values = iter([False] * 5 + [True] * 10**6)
    two = small_specs("cifar10-table", dataclasses.replace(SMOKE, seeds=2, methods=("fine-tune",)))
    with pytest.raises(RunStopped):
        RunnerHarness(tmp_path / "parts", stop=lambda: next(stop_values), concurrent=2).run(two)
    assert sum((folder / "checkpoint").exists() for folder in (tmp_path / "parts" / "out").iterdir()) == 2
    again, alone = RunnerHarness(tmp_path / "parts", concurrent=2), RunnerHarness(tmp_path / "alone")
    assert again.run(two) == alone.run(two) == 0
    assert comparable_lines(again.results) == comparable_lines(alone.results)


@pytest.mark.slow
def test_worker_processes_give_same_results(tmp_path: Path) -> None:
    """Runs with different methods, in worker processes."""
    alone, concurrent = RunnerHarness(tmp_path / "alone"), RunnerHarness(tmp_path / "concurrent", workers=2)
    assert alone.run(three_specs()) == concurrent.run(three_specs()) == 0
    assert comparable_lines(concurrent.results) == comparable_lines(alone.results)
    assert all("concurrent" not in one for one in concurrent.results.lines)


def test_runs_for_workers_fit_into_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 seconds for two workers: two runs of 25 seconds fit, a third does not, nor does one of 40 seconds."""
    groups: list[list[int]] = []

    def record_group(jobs: Sequence[Job], **more: Any) -> list[Outcome]:
        assert more["workers"] == 2
        groups.append([job.run.seed for job in jobs])
        raise RunStopped

    monkeypatch.setattr(module, "_train_group", record_group)
    many = small_specs("cifar10-table", dataclasses.replace(SMOKE, seeds=4, methods=("fine-tune",)))
    harness = RunnerHarness(tmp_path, budget=30, workers=2)
    monkeypatch.setattr(harness.runner.estimator, "seconds", lambda run_spec: 40.0 if run_spec.seed == 1 else 25.0)
    assert harness.run(many) == 4
    assert groups == [[0, 2]]


def test_run_of_a_killed_worker_has_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = Outcome(failure="a process was killed", killed=True)
    monkeypatch.setattr(module, "_train_group", lambda jobs, **_: [killed for _ in jobs])
    harness = RunnerHarness(tmp_path, workers=2)
    harness.run(three_specs())
    assert harness.results.lines == []
    assert len(harness.runner.failures) == 3


def test_runs_are_grouped_by_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[tuple[int, list[tuple[str, str]]]] = []

    def record_group(jobs: Sequence[Job], **more: Any) -> list[Outcome]:
        groups.append((more["concurrent"], [(Path(job.run.data).stem, job.run.method) for job in jobs]))
        return [Outcome() for _ in jobs]

    monkeypatch.setattr(module, "_train_group", record_group)
    monkeypatch.setattr(module, "read_data", lambda run, read_cache: None)
    digits = small_specs("cifar10-table", dataclasses.replace(SMOKE, methods=("cross-entropy", "fine-tune", "gce")))
    other = [dataclasses.replace(one, fields={**one.fields, "data": "other.npz"}) for one in digits[:1]]
    RunnerHarness(tmp_path, concurrent=2).run([digits[0], *other, *digits[1:]])
    methods = [("digits", method) for method in ("cross-entropy", "fine-tune", "gce")]
    assert groups == [(2, methods), (1, [("other", "cross-entropy")])]


def test_next_run_starts_when_one_ends(tmp_path: Path) -> None:
    """Three runs, two at a time, give the results of single runs."""
    alone, concurrent = RunnerHarness(tmp_path / "alone"), RunnerHarness(tmp_path / "concurrent", concurrent=2)
    assert alone.run(three_specs()) == concurrent.run(three_specs()) == 0
    assert comparable_lines(alone.results) == comparable_lines(concurrent.results)
    assert [one.get("concurrent") for one in concurrent.results.lines] == [2, 2, 2]


def test_finished_folder_without_a_line_is_added(tmp_path: Path) -> None:
    RunnerHarness(tmp_path).run(three_specs()[:1])
    (tmp_path / "results" / "digits.jsonl").unlink()
    start = time.monotonic()
    harness = RunnerHarness(tmp_path)
    harness.run(three_specs()[:1])
    assert len(harness.results.lines) == 1
    assert time.monotonic() - start < 5


def start_and_stop(folder: Path, specs: Sequence[RunSpec]) -> RunFolder:
    """Start the first of these runs and stop it; returns its folder."""
    stop_values = iter([False] * 5 + [True] * 10**6)
    with pytest.raises(RunStopped):
        RunnerHarness(folder, stop=lambda: next(stop_values)).run(specs[:1])
    (run_folder,) = (folder / "out").iterdir()
    return RunFolder(run_folder)


@pytest.mark.parametrize(
    "options", [{"concurrent": 1}, {"concurrent": 2}, pytest.param({"workers": 2}, marks=pytest.mark.slow)], ids=str
)
def test_run_of_another_process_is_skipped(
    tmp_path: Path, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = three_specs()
    harness = RunnerHarness(tmp_path, **options)
    groups: list[int] = []
    real = module._train_group
    monkeypatch.setattr(module, "_train_group", lambda jobs, **more: groups.append(len(jobs)) or real(jobs, **more))
    with start_and_stop(tmp_path, [first]).lock():
        groups.clear()
        assert harness.run([first, *others]) == 0
    assert sum(groups) == 3, "no run is started twice"
    assert [text for text in harness.messages if "another process" in text] == [
        f"{first}: skipped, another process is running it"
    ]
    assert {one["settings"]["method"] for one in harness.results.lines} == {other.method for other in others}
    assert harness.runner.failures == []
    assert RunnerHarness(tmp_path).run([first]) == 0
    assert len(Results(tmp_path / "results").lines) == 3


def test_step_losses_of_another_process_are_skipped(tmp_path: Path) -> None:
    losses = loss_specs()
    harness = RunnerHarness(tmp_path)
    with start_and_stop(tmp_path, losses).lock():
        assert harness.run([*losses, three_specs()[0]]) == 0
    assert "another process is running it" in harness.messages[0]
    assert len(harness.results.lines) == 1


def test_run_finished_by_another_process_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = module._train_group, iter(range(10))

    def train_group_late(jobs: Sequence[Job], **more: Any) -> list[Outcome]:
        if next(calls) == 0:
            RunnerHarness(tmp_path).run(three_specs()[:1])
            raise InputError(f"{jobs[0].folder} is finished already")
        return real(jobs, **more)

    monkeypatch.setattr(module, "_train_group", train_group_late)
    harness = RunnerHarness(tmp_path, concurrent=8)
    assert harness.run(three_specs()) == 0
    assert len(harness.results.lines) == len(Results(tmp_path / "results").lines) == 3


def test_rejected_group_is_not_retried_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(jobs: Sequence[Job], **_: Any) -> list[Outcome]:
        raise InputError(f"{jobs[0].run.data} cannot be read")

    monkeypatch.setattr(module, "_train_group", reject)
    harness = RunnerHarness(tmp_path, concurrent=8)
    assert harness.run(three_specs()) == 0
    assert harness.runner.failures == [f"{one}: digits cannot be read" for one in three_specs()]


@pytest.mark.parametrize(
    "options",
    [{"concurrent": 1}, {"concurrent": 2}, {"concurrent": 8}, pytest.param({"workers": 2}, marks=pytest.mark.slow)],
    ids=str,
)
def test_rejected_run_is_reported_and_others_continue(tmp_path: Path, options: dict[str, int]) -> None:
    first, second, third = three_specs()
    wrong = dataclasses.replace(second, fields={**second.fields, "clean": 10**5})
    harness = RunnerHarness(tmp_path, **options)
    assert harness.run([first, wrong, third]) == 0
    assert [one["settings"]["method"] for one in harness.results.lines] == [first.method, third.method]
    (failure,) = harness.runner.failures
    assert failure.startswith(f"{wrong}: a clean set of 100000 is too large")
    assert sum("failed: a clean set of 100000" in text for text in harness.messages) == 1
    again = RunnerHarness(tmp_path)
    assert again.run([second]) == 0
    assert again.runner.failures == []


def test_rejected_step_losses_are_reported_and_others_continue(tmp_path: Path) -> None:
    (losses,) = loss_specs()
    losses = dataclasses.replace(losses, fields={**losses.fields, "clean": 10**5})
    harness = RunnerHarness(tmp_path)
    assert harness.run([losses, three_specs()[0]]) == 0
    assert len(harness.results.lines) == len(harness.runner.failures) == 1


def test_unreadable_data_is_reported_once(tmp_path: Path) -> None:
    """The data set is tried once, as each try may download it."""
    first, *others = three_specs()
    unreadable = [dataclasses.replace(one, fields={**one.fields, "data": "unreadable.npz"}) for one in others]
    harness = RunnerHarness(tmp_path)
    assert harness.run([first, *unreadable]) == 0
    assert len(harness.results.lines) == 1
    assert harness.runner.failures == ["2 runs on unreadable.npz: unreadable.npz: no such file"]
    with pytest.raises(InputError, match=r"nothing can be run: unreadable.npz: no such file"):
        RunnerHarness(tmp_path / "other").run(unreadable)


def test_folder_with_other_files_is_reported_and_unchanged(tmp_path: Path) -> None:
    harness = RunnerHarness(tmp_path)
    name = module.folder_name(three_specs()[0], "float32")
    (harness.out / name).mkdir(parents=True)
    (harness.out / name / "mine.txt").write_text("mine")
    harness.run(three_specs()[:2])
    assert "has no run.json" in harness.messages[0]
    assert len(harness.results.lines) == 1
    assert [f.name for f in (harness.out / name).iterdir()] == ["mine.txt"]


def test_runs_without_their_noise_file_are_skipped(tmp_path: Path) -> None:
    selection = Selection(methods=("cross-entropy",), cells=("uniform:0.4", "feature:0.4"), seeds=1)
    harness = RunnerHarness(tmp_path)
    tasks = harness.runner._tasks(run_specs("cifar10-table", selection))
    assert [task.spec.cell for task in tasks] == ["uniform:0.4"]
    assert harness.messages == ["skipped: 1 runs need --noise-probs FILE (the authors' student_logits.npy)"]
    with pytest.raises(InputError, match="nothing can be run: 1 runs need --noise-probs FILE"):
        harness.run(run_specs("cifar10-table", dataclasses.replace(selection, cells=("feature:0.4",))))
    with pytest.raises(InputError, match=r"3 runs need CIFAR-10_human\.pt of CIFAR-10N in the data folder"):
        harness.run(run_specs("cifar10n", Selection(methods=("gce",))))


def test_commit_can_be_passed_without_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metalabelnet.train.versions.commit", lambda: None)
    harness = RunnerHarness(tmp_path)
    harness.runner.resources = Resources(device="cpu", commit="0123abc")
    harness.run(three_specs()[:1])
    assert harness.results.lines[0]["commit"] == "0123abc"


def test_a_run_of_a_checkout_keeps_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metalabelnet.train.versions.commit", lambda: "4567def")
    harness = RunnerHarness(tmp_path)
    harness.runner.resources = Resources(device="cpu", commit="0123abc")
    harness.run(three_specs()[:1])
    assert harness.results.lines[0]["commit"] == "4567def"


def test_finished_run_keeps_its_folder(tmp_path: Path) -> None:
    harness = RunnerHarness(tmp_path)
    harness.run(three_specs()[:1])
    (folder,) = harness.out.iterdir()
    assert RunFolder(folder).finished
