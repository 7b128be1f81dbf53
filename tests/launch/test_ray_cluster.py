"""Runs on a Ray cluster have the bytes of the process pool; lost workers are replaced; errors are one line.

The fast tests use a stand-in for Ray. The slow ones start a local Ray with two worker processes and kill one of them.
"""

import contextlib
import dataclasses
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_runner import Spawned, count_finished_epochs, run_cli, wait_for
from metalabelnet.errors import InputError, RunStopped
from metalabelnet.launch import ray_cluster
from metalabelnet.launch.process_pool import Job, train_all
from metalabelnet.launch.ray_cluster import RayCluster, connect
from metalabelnet.train import Progress, RunFolder, train
from ray_stand_in import RayError, RayStandIn
from tiny_data import folder_contents, run_outputs, tiny_run, write_npz

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: Patch) -> list[Job]:
    """Jobs with relative paths, which workers must resolve as the command does."""
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "tiny.npz")
    names = ("cross-entropy", "clean-only", "fine-tune")
    return [Job(run=tiny_run(Path("tiny.npz"), name, epochs=3), folder=Path("runs") / name) for name in names]


def cluster_of(ray: RayStandIn, **changes: Any) -> RayCluster:
    fields = {"name": "ray", "cpus_per_run": 1, "gpus_per_run": 0.0, "runs_by_node": [2]}
    return RayCluster(ray, **{**fields, **changes})


@pytest.fixture
def ray(monkeypatch: Patch) -> RayStandIn:
    stand_in = RayStandIn()
    monkeypatch.setitem(sys.modules, "ray", stand_in)  # type: ignore[arg-type]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    return stand_in


def in_pool(jobs: list[Job]) -> dict[str, Any]:
    """The outputs of the same jobs in the process pool."""
    others = [dataclasses.replace(job, folder=Path("pool") / job.folder.name) for job in jobs]
    train_all(others)
    return {job.folder.name: run_outputs(job.folder) for job in others}


def test_cluster_gives_same_bytes_and_progress_as_pool(jobs: list[Job], ray: RayStandIn) -> None:
    reports: list[tuple[int, Progress | None]] = []
    cluster = cluster_of(ray, cpus_per_run=2, gpus_per_run=0.25)
    jobs = jobs[:2]
    outcomes = cluster.train_all(jobs, on_progress=lambda number, progress: reports.append((number, progress)))
    assert {job.folder.name: run_outputs(job.folder) for job in jobs} == in_pool(jobs)
    for number, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True)):
        assert outcome.summary == RunFolder(job.folder).summary()
        mine = [progress for n, progress in reports if n == number]
        assert [p and p.metrics and p.metrics["epoch"] for p in mine] == [0, 1, 2, None]
    assert ray.options["_train_in_worker"] == {"num_cpus": 2, "num_gpus": 0.25, "max_retries": 3}
    assert ray.options["Mailbox"]["num_cpus"] == 0


def test_killed_run_resumes_to_the_same_bytes(jobs: list[Job], ray: RayStandIn) -> None:
    ray.kills = {2, 5}  # messages in the middle of training, and after the first resume
    epochs: list[Any] = []

    def report(number: int, progress: Progress | None) -> None:
        if progress is not None and progress.metrics is not None:
            epochs.append(progress.metrics["epoch"])

    (outcome,) = cluster_of(ray).train_all(jobs[:1], checkpoint_seconds=0, on_progress=report)
    assert outcome.summary is not None
    assert next(ray.posts) > 6
    assert epochs == sorted(set(epochs))  # finished epochs are not trained again
    assert {jobs[0].folder.name: run_outputs(jobs[0].folder)} == in_pool(jobs[:1])


def test_run_that_is_killed_again_and_again_is_reported(jobs: list[Job], ray: RayStandIn) -> None:
    ray.kills = {*range(ray_cluster.MAX_RETRIES + 1)}
    first, second = cluster_of(ray).train_all(jobs[:2])
    assert first.failure == (
        "its worker process was killed 4 times, perhaps because memory ran out: resume it with fewer runs per node"
    )
    assert first.killed
    assert second.summary is not None


def test_finished_runs_are_kept_and_others_are_resumed(jobs: list[Job], ray: RayStandIn) -> None:
    train(jobs[0].run, folder=jobs[0].folder)
    with pytest.raises(RunStopped):
        train(jobs[1].run, folder=jobs[1].folder, stop=lambda: True)
    before = folder_contents(jobs[0].folder)
    with pytest.raises(InputError, match="already holds a run"):
        cluster_of(ray).train_all(jobs)
    outcomes = cluster_of(ray).train_all(jobs[:2], resume=True)
    assert folder_contents(jobs[0].folder) == before
    assert all(outcome.summary for outcome in outcomes)


def test_stop_cancels_runs_that_have_not_started(jobs: list[Job], ray: RayStandIn) -> None:
    with pytest.raises(RunStopped):
        cluster_of(ray).train_all(jobs, stop=lambda: True)
    assert [job.folder.exists() for job in jobs] == [True, False, False]


def test_stop_saves_progress_of_a_run(jobs: list[Job], ray: RayStandIn, monkeypatch: Patch) -> None:
    def stop_after_an_epoch(_: object, messages: list[Any]) -> bool:
        return any(progress is not None for _, progress in messages)

    stop_after_an_epoch.__name__ = "post"
    monkeypatch.setattr(ray_cluster.Mailbox, "post", stop_after_an_epoch)
    with pytest.raises(RunStopped):
        cluster_of(ray).train_all(jobs[:1])
    assert RunFolder(jobs[0].folder).checkpoint.exists()


def test_failed_runs_are_reported_and_others_continue(jobs: list[Job], ray: RayStandIn, monkeypatch: Patch) -> None:
    run_job = ray_cluster.run_job

    def fail_first(number: int, job: Job, **how: Any) -> Any:
        if number == 0:
            raise RuntimeError("CUDA error:\n  unspecified launch failure")
        return run_job(number, job, **how)

    monkeypatch.setattr(ray_cluster, "run_job", fail_first)
    jobs[1] = dataclasses.replace(jobs[1], run=dataclasses.replace(jobs[1].run, net="timm:no_such_net"))
    first, second, third = cluster_of(ray).train_all(jobs)
    assert first.failure == "RuntimeError: CUDA error: unspecified launch failure"
    assert first.killed
    assert "no_such_net" in str(second.failure)
    assert second.rejected
    assert third.summary is not None


def test_task_that_ray_cannot_run(jobs: list[Job], ray: RayStandIn, monkeypatch: Patch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RayError("No module\nnamed 'metalabelnet'")

    monkeypatch.setattr(ray_cluster, "torch", type("NoTorch", (), {"set_num_threads": fail}))
    (outcome,) = cluster_of(ray).train_all(jobs[:1])
    assert "No module named 'metalabelnet'" in str(outcome.failure)


def test_node_without_the_folders(jobs: list[Job], ray: RayStandIn, monkeypatch: Patch) -> None:
    folder = Path.cwd()

    def chdir(path: str) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "chdir", chdir)
    (outcome,) = cluster_of(ray).train_all(jobs[:1])
    node = socket.gethostname()
    assert str(outcome.failure).startswith(f"the node {node} does not see {folder}: put run folders and data on a file")
    assert outcome.rejected


def test_run_folder_that_is_not_shared(jobs: list[Job], ray: RayStandIn, monkeypatch: Patch) -> None:
    monkeypatch.setattr(ray_cluster, "VISIBLE_SECONDS", 0.0)
    monkeypatch.setattr(ray_cluster, "run_job", lambda *_, **__: ray_cluster.Outcome(summary={}))
    (outcome,) = cluster_of(ray).train_all(jobs[:1])
    assert f"does not see {jobs[0].folder}" in str(outcome.failure)


@pytest.mark.parametrize(
    ("nodes", "how", "runs_by_node", "gpus"),
    [
        ([{"CPU": 8.0}, {"CPU": 2.0}], {}, [8, 2], 0),
        ([{"CPU": 8.0}, {"CPU": 16.0, "GPU": 4.0}], {}, [4], 1),
        ([{"CPU": 8.0}, {"CPU": 16.0, "GPU": 4.0}], {"device": "cpu"}, [8, 16], 0),
        ([{"CPU": 16.0, "GPU": 2.0}], {"gpus_per_run": 0.25}, [8], 0.25),
        ([{"CPU": 16.0, "GPU": 2.0}], {"gpus_per_run": 0.4}, [4], 0.4),
        ([{"CPU": 16.0, "GPU": 2.0}], {"gpus_per_run": 0.25, "cpus_per_run": 4}, [4], 0.25),
    ],
)
def test_runs_of_each_node(
    ray: RayStandIn, nodes: list[dict[str, float]], how: dict[str, Any], runs_by_node: list[int], gpus: float
) -> None:
    ray.resources = tuple(nodes)
    with connect("ray", **how) as cluster:
        assert cluster is not None
        assert (cluster.runs_by_node, cluster.gpus_per_run) == (runs_by_node, gpus)
        assert str(cluster).startswith(f"up to {sum(runs_by_node)} in parallel on {len(runs_by_node)} node")
        assert ray.initialized is not None
        assert ray.initialized["address"] is None
    assert ray.initialized is None


def test_ray_does_not_change_signal_handlers(ray: RayStandIn, monkeypatch: Patch) -> None:
    monkeypatch.setattr(ray, "init", lambda **_: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    before = signal.getsignal(signal.SIGTERM)
    with connect("ray"):
        assert signal.getsignal(signal.SIGTERM) is before


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


@pytest.mark.parametrize(
    ("cluster", "how", "says"),
    [
        ("slurm", {}, "unknown cluster 'slurm': choose ray, or ray:ADDRESS"),
        ("ray", {"gpus_per_run": 2.0}, "gpus-per-run 2 is not in (0, 1]: a run uses one GPU or a share of it"),
        ("ray", {"gpus_per_run": float("nan")}, "gpus-per-run nan is not in (0, 1]"),
        ("ray:here", {}, "'here' is not an address of a Ray cluster: write ray:HOST:PORT, such as ray:node1:6379"),
        ("ray:h:99999999", {}, "no Ray cluster at h:99999999 ("),
        ("ray:127.0.0.1:FREE", {}, "(Connection refused): start one there with `ray start --head`, or correct the a"),
        ("ray", {"gpus_per_run": 1.0}, "a run takes 1 CPU cores and 1 GPUs, and no node has as many: choose smaller"),
        ("ray", {"cpus_per_run": 3}, "a run takes 3 CPU cores and 0 GPUs, and no node has as many: choose smaller"),
    ],
)
def test_cluster_that_cannot_be_used(ray: RayStandIn, cluster: str, how: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error, connect(cluster.replace("FREE", str(free_port())), **how):
        pass
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert ray.initialized is None


def test_ray_that_does_not_start(ray: RayStandIn) -> None:
    ray.init_error = RuntimeError("Version mismatch:\n Ray 2.9")
    says = r"Ray cannot be reached or started \(Version mismatch: Ray 2\.9\)"
    with pytest.raises(InputError, match=says), connect("ray"):
        pass


def test_missing_package_names_the_extra(monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    says = r"--cluster ray needs ray: pip install 'metalabelnet\[cluster\]'"
    with pytest.raises(InputError, match=says), connect("ray"):
        pass


COMPARE = "--methods cross-entropy,fine-tune --seeds 1 --noise uniform:0.4 --clean 18 --batch-size 12 --device cpu"


def test_compare_on_a_cluster(ray: RayStandIn, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "tiny.npz")
    result = run_cli(f"compare tiny.npz {COMPARE} --epochs 1 --cluster ray --out a".split(), capsys)
    assert result.code == 0
    assert "2 runs of 2 methods, up to 2 in parallel on 1 node of ray" in result.err
    assert "fine-tune-seed0: finished (2 of 2)" in result.err
    assert "fine-tune  " in result.out


@pytest.fixture(scope="module")
def local_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Ray cluster of this machine that trains two runs at the same time."""
    port = free_port()
    options = f"--head --block --num-cpus 2 --port {port} --include-dashboard=false --disable-usage-stats"
    program = [sys.executable, "-m", "ray.scripts.scripts", "start", *options.split()]
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("RAY_AUTH_MODE", "token")  # nobody else may use this cluster; read when ray is imported
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        pytest.importorskip("ray")
        output = tmp_path_factory.mktemp("ray") / "output.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(program, stdout=file, stderr=file)
        stack.callback(process.wait, 60)
        stack.callback(process.terminate)
        wait_for(lambda: b"Ray runtime started" in output.read_bytes(), 120)
        yield f"127.0.0.1:{port}"


def worker_of(folder: Path) -> int:
    """The process that holds the lock of a run folder."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it has ended, or is of another user
            if descriptor.readlink() == folder.resolve() / "checkpoint" / "lock":
                return int(descriptor.parts[2])
    raise AssertionError(f"no process trains in {folder}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_worker_of_ray(local_ray: str, jobs: list[Job]) -> None:
    """Two runs are trained at a time; a worker is killed in the middle of each of the first two."""
    jobs = [dataclasses.replace(job, run=dataclasses.replace(job.run, epochs=60)) for job in jobs]
    killed: dict[int, int] = {}
    epochs: list[tuple[int, int]] = []

    def report(number: int, progress: Progress | None) -> None:
        if progress is None or progress.metrics is None:
            return
        epochs.append((number, progress.metrics["epoch"]))
        if number < 2 and number not in killed and progress.metrics["epoch"] >= 5:
            killed[number] = worker_of(jobs[number].folder)
            os.kill(killed[number], signal.SIGKILL)

    with connect(f"ray:{local_ray}", device="cpu") as cluster:
        assert cluster is not None
        assert cluster.workers == 2
        outcomes = cluster.train_all(jobs, checkpoint_seconds=0, on_progress=report)
    assert killed.keys() == {0, 1}
    assert len(set(killed.values()) - {os.getpid()}) == 2
    assert all(outcome.summary for outcome in outcomes)
    assert len(epochs) <= 3 * 60 + len(killed)  # of each, at most the epoch whose checkpoint was not written yet
    others = [dataclasses.replace(job, folder=Path("pool") / job.folder.name) for job in jobs]
    train_all(others, workers=2)
    for job, other in zip(jobs, others, strict=True):
        assert run_outputs(job.folder) == run_outputs(other.folder)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stop_and_resume_on_ray(local_ray: str, tmp_path: Path, capsys: Capture) -> None:
    data = write_npz(tmp_path / "tiny.npz")
    # Workers start seconds apart: a run must not end before the other one begins.
    words = ["compare", str(data), *COMPARE.split(), "--epochs", "1000"]
    on_ray = [*words, "--cluster", f"ray:{local_ray}", "--out", str(tmp_path / "a")]
    authentication = {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    process = Spawned(on_ray, tmp_path, **authentication)
    folders = [tmp_path / "a" / name for name in ("cross-entropy-seed0", "fine-tune-seed0")]
    wait_for(lambda: min(map(count_finished_epochs, folders)) >= 5, 120)
    process.send(signal.SIGTERM)
    assert process.wait() == 130
    line = process.err.read_text().splitlines()[-1]
    assert line.startswith("metalabelnet: stopped; progress saved; resume with: metalabelnet compare ")
    assert all((folder / "checkpoint").exists() for folder in folders)
    resumed = Spawned(shlex.split(line.partition("resume with: metalabelnet ")[2]), tmp_path, **authentication)
    assert resumed.process.wait(300) == 0, resumed.err.read_text()
    assert run_cli([*words, "--jobs", "2", "--out", str(tmp_path / "b")], capsys).code == 0
    for folder in folders:
        assert run_outputs(folder) == run_outputs(tmp_path / "b" / folder.name)
