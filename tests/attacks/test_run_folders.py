"""Run folders from strangers: links, damaged and forged files. And runs that are killed at any file operation."""

import csv
import json
import os
import pty
import select
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cli_runner import Forker, count_finished_epochs, run_cli, wait_for
from metalabelnet.atomic_write import open_atomically, write_atomically
from metalabelnet.engine.hopper import nvrtc
from metalabelnet.errors import InputError
from metalabelnet.inference.predict import Predictor
from metalabelnet.report import make_report
from metalabelnet.report.annotation_tools import add_sample_content
from metalabelnet.train import Run, RunFolder, RunStopped, checkpoint, make_run, train
from small_runs import FAST_SETTINGS, TRAINED_METHODS
from tiny_data import folder_contents, run_outputs, table_samples, tiny_run, write_npz

Capture = pytest.CaptureFixture[str]
MAX_MESSAGE = 300


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_npz(tmp_path_factory.mktemp("data") / "tiny.npz")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "table.csv")


def write_table(file: Path) -> Path:
    """Write 80 rows, 18 of them clean; a run on them has an encoder.json."""
    x, y = table_samples(80, seed=0)
    cells = [[*(f"{value:.4f}" for value in row), "abc"[label]] for row, label in zip(x, y, strict=True)]
    lines = [",".join([*row, str(int(number < 18))]) for number, row in enumerate(cells)]
    file.write_text("\n".join(["u,v,w,z,label,checked", *lines]) + "\n")
    return file


def table_run(table: Path) -> Run:
    return make_run(
        str(table),
        recipe="paper",
        method="cross-entropy",
        clean_column="checked",
        epochs=2,
        batch_size=24,
        device="cpu",
    )


@pytest.fixture(scope="module")
def finished(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with every kind of JSON file."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(table_run(table), folder=folder)
    return folder


@pytest.fixture(scope="module")
def stopped(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped in the second phase, with two checkpoints."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    stop_run(tiny_run(data), folder, after=15)
    return folder


@pytest.fixture(scope="module")
def uninterrupted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    train(tiny_run(data), folder=folder)
    return run_outputs(folder)


def stop_run(run: Run, folder: Path, *, after: int) -> None:
    """Train this many steps, with a checkpoint at each."""
    left = iter(range(after - 1, -1, -1))
    with pytest.raises(RunStopped):
        train(run, folder=folder, stop=lambda: next(left) == 0, checkpoint_seconds=0)


def copy_run(folder: Path, to: Path) -> RunFolder:
    shutil.copytree(folder, to, symlinks=True)
    return RunFolder(to)


def check_message(error: pytest.ExceptionInfo[InputError], *parts: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    assert len(message.replace(str(Path(message.split()[0]).parent), "")) <= MAX_MESSAGE
    for part in parts:
        assert part in message


def flip_bit(file: Path, at: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(at * (len(content) - 1))] ^= 4
    file.write_bytes(content)


# Links


LINKS = ["run.json", "metrics.jsonl", "summary.json", "encoder.json", "model.safetensors", "labels.csv", "digests.json"]
LINKS += ["clean_set.json"]
LINKS += ["checkpoint", "checkpoint/state.pt", "checkpoint/previous.pt", "checkpoint/lock"]


@pytest.mark.parametrize("name", LINKS)
def test_link_in_a_run_folder_is_rejected(name: str, stopped: Path, data: Path, tmp_path: Path) -> None:
    """The target, outside the folder, stays as it is."""
    folder = copy_run(stopped, tmp_path / "run").path
    (tmp_path / "outside").mkdir()
    target = tmp_path / "outside" / "target"
    if (folder / name).exists():
        (folder / name).rename(target)
    else:
        target.write_text("mine")
    (folder / name).symlink_to(target)
    before = folder_contents(tmp_path)
    with pytest.raises(InputError, match="is a symbolic link") as error:
        train(tiny_run(data), folder=folder, resume=True)
    check_message(error, str(folder / name))
    assert folder_contents(tmp_path) == before


@pytest.mark.parametrize("name", ["summary.json", "run.json", "labels.csv", "confusion.json", "digests.json"])
def test_link_in_a_finished_run_is_not_read(name: str, finished: Path, tmp_path: Path) -> None:
    folder = copy_run(finished, tmp_path / "run").path
    (folder / name).rename(tmp_path / "target")
    (folder / name).symlink_to(tmp_path / "target")
    with pytest.raises(InputError, match="is a symbolic link") as error:
        make_report([folder])
    check_message(error, str(folder / name))


def test_linked_run_folder_is_accepted(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(finished)
    assert RunFolder(tmp_path / "latest").summary()["method"] == "cross-entropy"


@pytest.mark.parametrize("kind", ["link", "pipe", "file"])
def test_planted_temporary_file_is_not_used(
    kind: str, stopped: Path, data: Path, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    """The names that a predictable scheme would use lead out of the folder."""
    folder = copy_run(stopped, tmp_path / "run").path
    target = tmp_path / "target"
    target.write_text("mine")
    names = ["metrics.jsonl", "run.json", "labels.csv", "summary.json", "checkpoint/state.pt", "model.safetensors"]
    planted = [folder / name for name in names]
    planted = [path.with_name(f".{path.name}.tmp") for path in planted]
    for path in planted:
        plant(path, kind, target)
    train(tiny_run(data), folder=folder, resume=True, checkpoint_seconds=0)
    assert target.read_text() == "mine"
    for path in planted:
        path.unlink(missing_ok=True)
    assert run_outputs(folder) == uninterrupted


def plant(path: Path, kind: str, target: Path) -> None:
    if kind == "link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        os.link(target, path)


def test_lock_is_not_truncated(stopped: Path, data: Path, tmp_path: Path) -> None:
    """Also a hard link to a file elsewhere."""
    folder = copy_run(stopped, tmp_path / "run").path
    (tmp_path / "target").write_text("mine")
    (folder / "checkpoint" / "lock").unlink()
    os.link(tmp_path / "target", folder / "checkpoint" / "lock")
    train(tiny_run(data), folder=folder, resume=True)
    assert (tmp_path / "target").read_text() == "mine"


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoint/state.pt"])
def test_pipe_in_a_run_folder_is_named(name: str, stopped: Path, data: Path, tmp_path: Path) -> None:
    files = copy_run(stopped, tmp_path / "run")
    (files.path / name).unlink()
    os.mkfifo(files.path / name)
    with pytest.raises(InputError, match="is a named pipe"):
        files.metrics() if name == "metrics.jsonl" else train(tiny_run(data), folder=files.path, resume=True)


def test_temporary_file_is_created_exclusively(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if its name is guessed."""
    monkeypatch.setattr("secrets.token_hex", lambda _: "0" * 16)
    (tmp_path / "target").write_text("mine")
    planted = tmp_path / f".out.csv.{'0' * 16}.tmp"
    planted.symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "out.csv", b"theirs")
    with pytest.raises(FileExistsError), open_atomically(tmp_path / "out.csv") as file:
        file.write("theirs")
    assert (tmp_path / "target").read_text() == "mine"
    assert planted.is_symlink()
    assert not (tmp_path / "out.csv").exists()


def test_output_file_ignores_planted_temporary_file(finished: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / ".out.csv.tmp").symlink_to(tmp_path / "target")
    assert run_cli(["labels", str(finished), "-o", str(tmp_path / "out.csv")], capsys).code == 0
    assert (tmp_path / "target").read_text() == "mine"
    assert (tmp_path / "out.csv").read_bytes() == (finished / "labels.csv").read_bytes()
    (tmp_path / "link.csv").symlink_to(tmp_path / "target")  # a link that the user names is written to
    assert run_cli(["labels", str(finished), "-o", str(tmp_path / "link.csv")], capsys).code == 0
    assert (tmp_path / "target").read_bytes() == (finished / "labels.csv").read_bytes()
    assert (tmp_path / "link.csv").is_symlink()


def test_comparison_does_not_write_through_links(data: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("table.txt", "curves.png"):
        (tmp_path / name).write_text("mine")
        (out / name).symlink_to(tmp_path / name)
    command = (
        f"compare {data} --methods cross-entropy --seeds 1 --jobs 1 --epochs 1 --clean 18 --device cpu --out {out}"
    )
    assert run_cli(command.split(), capsys).code == 0
    assert [(tmp_path / name).read_text() for name in ("table.txt", "curves.png")] == ["mine", "mine"]


# Damage


READERS: dict[str, Callable[[RunFolder], Any]] = {
    "run.json": lambda files: files.run(),
    "summary.json": lambda files: files.summary(),
    "metrics.jsonl": lambda files: files.metrics(),
    "calibration.json": lambda files: files.temperature(),
    "encoder.json": lambda files: files.encoder(),
    "confusion.json": lambda files: make_report([files.path]),
    "labels.csv": lambda files: make_report([files.path]),
    "model.safetensors": lambda files: files.weights(torch.device("cpu")),
}


def test_digests_of_all_files(finished: Path) -> None:
    digests = json.loads((finished / "digests.json").read_text())
    assert set(digests) == {file.name for file in finished.iterdir()} - {"digests.json"}
    assert set(digests) == set(READERS)


@pytest.mark.parametrize("name", READERS)
def test_flipped_bit_in_a_finished_run_is_noticed(name: str, finished: Path, tmp_path: Path) -> None:
    files = copy_run(finished, tmp_path / "run")
    READERS[name](files)
    flip_bit(files.path / name, 0.9)
    with pytest.raises(InputError, match="has changed since the run wrote it") as error:
        READERS[name](files)
    check_message(error, str(files.path / name), "delete", "digests.json")


@pytest.mark.parametrize("command", ["labels", "report", "review"])
def test_changed_labels_are_named(command: str, finished: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = copy_run(finished, tmp_path / "run").path
    text = (folder / "labels.csv").read_text()
    (folder / "labels.csv").write_text(text.replace(",0.", ",0.0", 1))
    more = {"labels": [], "report": ["-o", str(tmp_path / "x.html")], "review": ["--export", "labels"]}[command]
    output = run_cli([command, str(folder), *more], capsys)
    assert output.code == 2
    assert f"{folder / 'labels.csv'} has changed since the run wrote it" in output.err
    (folder / "digests.json").unlink()
    assert run_cli([command, str(folder), *more], capsys).code == 0


def test_deleted_files_are_not_needed(finished: Path, tmp_path: Path, capsys: Capture) -> None:
    """A user may delete the model to save space."""
    folder = copy_run(finished, tmp_path / "run").path
    (folder / "model.safetensors").unlink()
    assert run_cli(["labels", str(folder)], capsys).code == 0


@pytest.mark.parametrize("at", [0.0, 0.02, 0.3, 0.6, 0.97, 1.0])
def test_damaged_checkpoint_is_named_and_the_one_before_is_used(
    at: float, stopped: Path, data: Path, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    files = copy_run(stopped, tmp_path / "run")
    assert checkpoint.previous(files.checkpoint).exists()
    flip_bit(files.checkpoint, at)
    with pytest.warns(checkpoint.DamagedCheckpointWarning, match=r"state\.pt is damaged"):
        train(tiny_run(data), folder=files.path, resume=True)
    assert run_outputs(files.path) == uninterrupted


def test_crash_after_a_damaged_checkpoint_keeps_the_good_one(
    stopped: Path, data: Path, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    """The damaged checkpoint does not become the one before the next."""
    files = copy_run(stopped, tmp_path / "run")
    flip_bit(files.checkpoint, 0.5)
    with pytest.warns(checkpoint.DamagedCheckpointWarning), pytest.raises(RunStopped):
        train(tiny_run(data), folder=files.path, resume=True, stop=lambda: True)
    flip_bit(files.checkpoint, 0.5)
    with pytest.warns(checkpoint.DamagedCheckpointWarning):
        train(tiny_run(data), folder=files.path, resume=True)
    assert run_outputs(files.path) == uninterrupted


@pytest.mark.parametrize("content", [b"", b"x", checkpoint.HEADER])
def test_two_damaged_checkpoints_are_an_error(content: bytes, stopped: Path, data: Path, tmp_path: Path) -> None:
    files = copy_run(stopped, tmp_path / "run")
    for file in (files.checkpoint, checkpoint.previous(files.checkpoint)):
        file.write_bytes(content)
    before = folder_contents(files.path)
    with pytest.raises(InputError, match="is not a metalabelnet checkpoint") as error:
        train(tiny_run(data), folder=files.path, resume=True)
    check_message(error, str(files.checkpoint), f"remove {files.checkpoint.parent}")
    del before[str(files.path)]  # the lock was taken
    assert {name: value for name, value in folder_contents(files.path).items() if name in before} == before


@pytest.mark.parametrize("content", [b"", b"x", b"PK\x03\x04"])
def test_empty_payload_with_a_right_digest(content: bytes, tmp_path: Path) -> None:
    import hashlib

    (tmp_path / "state.pt").write_bytes(checkpoint.HEADER + hashlib.sha256(content).digest() + content)
    with pytest.raises(InputError, match="is not a metalabelnet checkpoint") as error:
        checkpoint.load(tmp_path / "state.pt", torch.device("cpu"))
    check_message(error)


# Forged checkpoints

State = dict[str, Any]


def setting(*path: str, value: Any) -> Callable[[State], None]:
    def change(state: State) -> None:
        for name in path[:-1]:
            state = state[name]
        state[path[-1]] = value(state[path[-1]]) if callable(value) else value

    return change


def deleting(*path: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        for name in path[:-1]:
            state = state[name]
        del state[path[-1]]

    return change


FORGED: dict[str, tuple[Callable[[State], None], str]] = {
    "negative epoch": (setting("epoch", value=-1), "epoch is -1"),
    "late epoch": (setting("epoch", value=5), "epoch is 5"),
    "epoch as text": (setting("epoch", value="3"), "epoch is 3"),
    "epoch as bool": (setting("epoch", value=True), "epoch is True"),
    "huge step": (setting("step", value=10**9), "step is 1000000000"),
    "step 0": (setting("step", value=0), "step is 0"),
    "name of a method": (setting("check_finite", value=None), "has 'check_finite', which is unknown"),
    "no history": (deleting("history"), "has no 'history'"),
    "short history": (setting("history", value=lambda lines: lines[:-1]), "history"),
    "history of texts": (setting("history", value=lambda lines: ["x"] * len(lines)), "history"),
    "history with wrong types": (
        setting("history", value=lambda lines: [line | {"loss": "x"} for line in lines]),
        "loss is 'x'",
    ),
    "negative seconds": (setting("seconds", value=-1.0), "seconds is -1.0"),
    "NaN seconds": (setting("seconds", value=float("nan")), "seconds is nan"),
    "losses of another length": (setting("losses", value=torch.zeros(99)), "losses has the shape (99,)"),
    "losses as text": (setting("losses", value="x"), "losses is a str"),
    "best of another epoch": (setting("best", "epoch", value=99), "best.epoch is 99"),
    "best without a model": (setting("best", "model", value={}), "best.model has no"),
    "best as text": (setting("best", value="x"), "best is a str"),
    "soft labels of another size": (setting("soft_labels", value=torch.zeros(1, 3)), "soft_labels has the shape"),
    "soft labels of integers": (setting("soft_labels", value=lambda x: x.long()), "soft_labels is of type torch.int64"),
    "no snapshots": (setting("snapshots", value=None), "snapshots is a NoneType"),
    "snapshots of another size": (setting("snapshots", "train_sum", value=torch.zeros(2, 2)), "snapshots.train_sum"),
    "snapshots without a count": (deleting("snapshots", "count"), "snapshots has no 'count'"),
    "huge count of snapshots": (setting("snapshots", "count", value=10**9), "snapshots.count is 1000000000"),
    "best snapshot with a name": (setting("snapshots", "best", "__class__", value=1), "snapshots.best"),
    "best snapshot of another size": (setting("snapshots", "best", "losses", value=torch.zeros(1)), "snapshots.best"),
    "method as text": (setting("method", value="x"), "method is a str"),
    "method without weights": (setting("method", "net", value={}), "method.net has no"),
    "method without an optimizer": (deleting("method", "sgd"), "method has no 'sgd'"),
    "method with another part": (setting("method", "x", value={}), "has 'x', which is unknown"),
    "optimizer of another type": (setting("method", "sgd", "lr", value=0.5), "method.sgd.lr is a float"),
    "momentum of another shape": (setting("method", "sgd", "momentum.0", value=torch.zeros(1)), "momentum.0 has the"),
    "momentum of another dtype": (setting("method", "sgd", "momentum.0", value=lambda x: x.double()), "float64"),
    "sparse momentum": (setting("method", "sgd", "momentum.0", value=lambda x: x.to_sparse()), "not a dense tensor"),
}


@pytest.mark.filterwarnings("ignore:.*[Ss]parse.*:UserWarning")
@pytest.mark.parametrize("case", FORGED)
def test_forged_checkpoint_is_rejected(case: str, stopped: Path, data: Path, tmp_path: Path) -> None:
    """Its digest is right."""
    change, message = FORGED[case]
    files = copy_run(stopped, tmp_path / "run")
    state = checkpoint.load(files.checkpoint, torch.device("cpu"))
    change(state)
    checkpoint.save(files.checkpoint, state)
    before = files.checkpoint.read_bytes(), (files.path / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match="is no checkpoint of this run") as error:
        train(tiny_run(data), folder=files.path, resume=True)
    check_message(error, str(files.checkpoint), message)
    assert (files.checkpoint.read_bytes(), (files.path / "metrics.jsonl").read_bytes()) == before


def test_list_as_checkpoint_is_rejected(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "state.pt", [1])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="it has a list, not a dict"):
        checkpoint.load(tmp_path / "state.pt", torch.device("cpu"))


def leaves(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value of a nested state, the first four of each dict."""
    yield path
    if isinstance(state, dict):
        for name in list(state)[:4]:
            yield from leaves(state[name], (*path, name))


# A method for each kind of state: momentum, a label net, extra networks, tables of labels, an estimated matrix.
FAST = ("cross-entropy", "metalabelnet", "co-teaching", "sop", "glc")


@pytest.mark.parametrize(
    "method", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in sorted(TRAINED_METHODS)]
)
def test_no_forged_method_state_gives_a_traceback(method: str, data: Path, tmp_path: Path) -> None:
    """Every part of the state of every method, replaced by something else."""
    run = tiny_run(data, method, settings=FAST_SETTINGS.get(method, {}), epochs=4, warmup=1, net="mlp")
    stop_run(run, tmp_path / "run", after=12)
    files = RunFolder(tmp_path / "run")
    state = checkpoint.load(files.checkpoint, torch.device("cpu"))
    paths = list(leaves(state["method"], ("method",)))
    assert len(paths) > 2
    from metalabelnet.train.loop import TrainingLoop
    from metalabelnet.train.prepare import prepare

    problem = prepare(run)
    for number, path in enumerate(paths):
        state = checkpoint.load(files.checkpoint, torch.device("cpu"))
        setting(*path, value=[None, torch.zeros(2, 5, dtype=torch.int64), "x", {"y": 1}, -1][number % 5])(state)
        with pytest.raises(InputError):
            restore_state(TrainingLoop(run, problem, None, files), state)


def restore_state(loop: Any, state: State) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "load_latest", lambda *_: (state, Path("state.pt")))
        loop.restore()


def test_forged_neighbors_are_rejected(data: Path, tmp_path: Path) -> None:
    """MLNT reads the table's size from the checkpoint, and uses its numbers as row numbers."""
    run = tiny_run(data, "mlnt", settings={"synthetic": 1}, epochs=3, warmup=1)
    stop_run(run, tmp_path / "run", after=7)
    files = RunFolder(tmp_path / "run")
    for value in (lambda rows: rows + 10**6, lambda rows: rows - 5, lambda rows: rows[:3], lambda rows: rows.float()):
        copied = copy_run(files.path, tmp_path / "copy")
        state = checkpoint.load(copied.checkpoint, torch.device("cpu"))
        setting("method", "neighbors", "rows", value=value)(state)
        checkpoint.save(copied.checkpoint, state)
        with pytest.raises(InputError, match=r"neighbors\.rows"):
            train(run, folder=copied.path, resume=True)
        shutil.rmtree(copied.path)


# JSON


NESTED = "[" * 100_000


@pytest.mark.parametrize("name", [name for name in READERS if name.endswith(("json", "jsonl"))])
@pytest.mark.parametrize(
    "content", [NESTED, '{"a":' * 100_000, "", "[]", "null", "{}", "\x00", '{"epoch": 1' + "0" * 5000 + "}"]
)
def test_json_that_is_no_object_of_a_run(name: str, content: str, finished: Path, tmp_path: Path) -> None:
    files = copy_run(finished, tmp_path / "run")
    (files.path / "digests.json").unlink()
    (files.path / name).write_text(content)
    if name == "metrics.jsonl" and not content:
        return  # no epochs yet
    with pytest.raises(InputError) as error:
        READERS[name](files)
    check_message(error, str(files.path / name))


@pytest.mark.parametrize("content", [NESTED, "[]", '{"labels.csv": 3}', "x"])
def test_digests_that_cannot_be_read_are_named(content: str, finished: Path, tmp_path: Path) -> None:
    files = copy_run(finished, tmp_path / "run")
    (files.path / "digests.json").write_text(content)
    with pytest.raises(InputError) as error:
        files.summary()
    check_message(error, str(files.path / "digests.json"))


WRONG_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**30,
    1e308,
    float("nan"),
    "x",
    [],
    [[]],
    {},
    {"a": None},
    [None, "x"],
)


def check_resume(folder: Path, table: Path) -> None:
    RunFolder(folder).check(table_run(table), resume=True)


def predict_with(folder: Path, _table: Path) -> None:
    predictor = Predictor(folder, device="cpu")
    predictor.probabilities(torch.zeros((2, *predictor.shape)))


def export_to_label_studio(folder: Path, _table: Path) -> None:
    with (folder / "labels.csv").open() as file:
        add_sample_content(folder, [{"true": "", **row} for row in csv.DictReader(file)], "label-studio")


# Each reads a run as a command does. What one of them rejects, the others must not stumble over.
COMMANDS = (check_resume, predict_with, lambda folder, _: make_report([folder]), export_to_label_studio)


@pytest.mark.parametrize("name", ["run.json", "summary.json", "metrics.jsonl", "encoder.json"])
def test_wrong_types_in_json_files(name: str, finished: Path, table: Path, tmp_path: Path) -> None:
    """Every value of every file, replaced by a value of another type or size, is accepted or named in one line."""
    files = copy_run(finished, tmp_path / "run")
    (files.path / "digests.json").unlink()
    lines = (
        (files.path / name).read_text().splitlines() if name == "metrics.jsonl" else [(files.path / name).read_text()]
    )
    content = json.loads(lines[0])
    messages: list[str] = []
    for number, path in enumerate(list(json_paths(content))):
        for value in (WRONG_VALUES[number % len(WRONG_VALUES)], WRONG_VALUES[(number + 5) % len(WRONG_VALUES)]):
            changed = replace_at(content, path, value)
            (files.path / name).write_text("\n".join([json.dumps(changed), *lines[1:]]))
            for read in COMMANDS:
                try:
                    read(files.path, table)
                except InputError as error:
                    messages.append(str(error))
    assert len(messages) > 5
    assert not any("\n" in message for message in messages)


def json_paths(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, part in list(parts)[:40]:
        yield from json_paths(part, (*path, name))


def replace_at(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = json.loads(json.dumps(content))
    part = changed
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    "value", [{"counts": 3}, {"counts": [[0, 0]]}, {"counts": [[0, 0, "x"]]}, {"counts": [3]}, {"part": []}]
)
def test_wrong_confusion_is_named(value: dict[str, Any], finished: Path, tmp_path: Path) -> None:
    files = copy_run(finished, tmp_path / "run")
    (files.path / "digests.json").unlink()
    content = json.loads((files.path / "confusion.json").read_text()) | value
    (files.path / "confusion.json").write_text(json.dumps(content))
    with pytest.raises(InputError) as error:
        make_report([files.path])
    check_message(error, "confusion.json")


@pytest.mark.parametrize("config", [{"kind": "all"}, {"kind": "text"}, {"kind": "table", "columns": []}])
def test_damaged_encoder_ends_in_one_line(
    config: dict[str, Any], finished: Path, tmp_path: Path, capsys: Capture
) -> None:
    files = copy_run(finished, tmp_path / "run")
    (files.path / "digests.json").unlink()
    (files.path / "encoder.json").write_text(json.dumps(config))
    for words in (f"report {files.path} -o {tmp_path / 'x.html'}", f"labels {files.path} --format label-studio"):
        result = run_cli(words.split(), capsys)
        assert result.code == (0 if config.get("columns") == [] else 2)
        assert "encoder.json" in (result.err or (tmp_path / "x.html").read_text())


@pytest.mark.parametrize("value", ["x", [], None, 0, -1, float("nan"), float("inf"), True])
def test_wrong_temperature_is_named(value: Any, finished: Path, tmp_path: Path) -> None:
    files = copy_run(finished, tmp_path / "run")
    (files.path / "digests.json").unlink()
    (files.path / "calibration.json").write_text(json.dumps({"temperature": value}))
    with pytest.raises(InputError, match=r"calibration\.json"):
        files.temperature()


@pytest.mark.parametrize(("name", "value"), [("classes", ["a", "b", "c"]), ("shape", [5]), ("bytes", True)])
def test_resume_rejects_changed_facts(name: str, value: Any, stopped: Path, data: Path, tmp_path: Path) -> None:
    files = copy_run(stopped, tmp_path / "run")
    metadata = json.loads((files.path / "run.json").read_text())
    (files.path / "run.json").write_text(json.dumps(metadata | {name: value}))
    with pytest.raises(InputError, match=f"{name} is ") as error:
        train(tiny_run(data), folder=files.path, resume=True)
    check_message(error, "run.json")


@pytest.mark.parametrize("command", ["labels", "report", "review"])
def test_class_that_is_not_unicode_is_named(command: str, finished: Path, tmp_path: Path, capsys: Capture) -> None:
    """Half of a character cannot be written to any file."""
    files = copy_run(finished, tmp_path / "run")
    (files.path / "digests.json").unlink()
    metadata = json.loads((files.path / "run.json").read_text())
    (files.path / "run.json").write_text(json.dumps(metadata | {"classes": ["a", "b", "\ud800"]}))
    more = ["--export", "labels"] if command == "review" else []
    result = run_cli([command, str(files.path), "-o", str(tmp_path / "out"), *more], capsys)
    assert result.code == 2
    assert "run.json cannot be read (a text is not valid Unicode)" in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("shape", [[], [0], [-3], [3, 0, 4], [2**40, 2**40]])
def test_odd_shape_is_named(shape: list[int], finished: Path, tmp_path: Path, capsys: Capture) -> None:
    files = copy_run(finished, tmp_path / "run")
    (files.path / "digests.json").unlink()
    metadata = json.loads((files.path / "run.json").read_text())
    (files.path / "run.json").write_text(json.dumps(metadata | {"shape": shape}))
    for words in (["report", str(files.path), "-o", str(tmp_path / "report.html")], ["labels", str(files.path)]):
        result = run_cli(words, capsys)
        assert result.code == 2
        assert f"run.json: shape is {shape}, not that of a sample" in result.err
        assert len(result.err.splitlines()) == 1
    assert not (tmp_path / "report.html").exists()


# Compiled kernels


@pytest.fixture
def kernel_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "shared"))
    monkeypatch.setattr("torch.cuda._utils._nvrtc_compile", lambda *_, **__: (b"own code", "_Zname"))
    assert nvrtc._load_or_compile("text", "name") == (b"own code", "_Zname")
    return tmp_path / "cache" / "metalabelnet" / "kernels"


def test_kernel_cache_is_private(kernel_cache: Path, tmp_path: Path) -> None:
    assert stat.S_IMODE(kernel_cache.stat().st_mode) == 0o700
    assert len(list(kernel_cache.iterdir())) == 1
    assert not (tmp_path / "shared").exists()


@pytest.mark.parametrize(
    "attack", ["file mode", "folder mode", "link", "linked folder", "pipe", "owner", "folder owner"]
)
def test_kernel_of_somebody_else_is_not_loaded(
    attack: str, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = kernel_cache.iterdir()
    file.write_bytes(b"_Zname\nforeign code")
    assert nvrtc._load_or_compile("text", "name") == (b"foreign code", "_Zname")  # it is this user's own file
    if attack.endswith("mode"):
        (file if attack == "file mode" else kernel_cache).chmod(0o777)
    elif attack == "link":
        file.rename(kernel_cache.parent / "elsewhere")
        file.symlink_to(kernel_cache.parent / "elsewhere")
    elif attack == "linked folder":
        kernel_cache.rename(kernel_cache.parent / "elsewhere")
        kernel_cache.symlink_to(kernel_cache.parent / "elsewhere")
    elif attack == "pipe":
        file.unlink()
        os.mkfifo(file)
    else:
        inode = (file if attack == "owner" else kernel_cache).stat().st_ino
        is_own = nvrtc._is_own
        monkeypatch.setattr(nvrtc, "_is_own", lambda status: status.st_ino != inode and is_own(status))
    assert nvrtc._load_or_compile("text", "name") == (b"own code", "_Zname")


def test_owner_and_mode_of_a_status() -> None:
    def status(uid: int, mode: int) -> os.stat_result:
        return os.stat_result((mode, 0, 0, 1, uid, 0, 0, 0, 0, 0))

    user = os.geteuid()
    assert nvrtc._is_own(status(user, 0o644))
    assert not nvrtc._is_own(status(user + 1, 0o644))
    assert not nvrtc._is_own(status(user, 0o664))
    assert not nvrtc._is_own(status(user, 0o646))


def test_kernel_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("torch.cuda._utils._nvrtc_compile", lambda *_, **__: (b"own code", "_Zname"))
    assert nvrtc._load_or_compile("text", "name") == (b"own code", "_Zname")


# Signals and kills


@pytest.fixture(scope="module")
def forker(data: Path) -> Iterator[Forker]:
    forker = Forker(data)
    yield forker
    forker.close()


def train_command(data: Path, out: Path, method: str = "metalabelnet", epochs: int = 2) -> list[str]:
    clean = "--clean-column checked" if data.suffix == ".csv" else "--clean 18"
    settings = f"--method {method} {clean} --epochs {epochs} --warmup 1 --batch-size 24 --lr 0.05 --device cpu"
    return ["train", str(data), *settings.split(), "--checkpoint-seconds", "0", "--resume", "--out", str(out)]


def test_closed_terminal_saves_progress(forker: Forker, data: Path, tmp_path: Path) -> None:
    """The kernel sends SIGHUP, and each write to the terminal fails."""
    command = [*train_command(data, tmp_path / "run", epochs=200), "--checkpoint-seconds", "1000"]
    terminal, other_end = pty.openpty()
    process = forker.start(command, tmp_path, out=os.ttyname(other_end), err=os.ttyname(other_end))

    def has_trained() -> bool:
        while select.select([terminal], [], [], 0)[0]:
            os.read(terminal, 4096)  # a full terminal would block the run
        return count_finished_epochs(tmp_path / "run") >= 2

    wait_for(has_trained)
    os.close(other_end)
    os.close(terminal)
    assert process.wait() == 130
    files = RunFolder(tmp_path / "run")
    assert not files.finished
    assert checkpoint.load(files.checkpoint, torch.device("cpu"))["epoch"] >= 2


def test_hangup_is_ignored_under_nohup(forker: Forker, data: Path, tmp_path: Path) -> None:
    process = forker.start(train_command(data, tmp_path / "run", epochs=15), tmp_path, ignore_hangup=True)
    wait_for(lambda: count_finished_epochs(tmp_path / "run") >= 2)
    process.send(signal.SIGHUP)
    assert process.wait() == 0
    assert RunFolder(tmp_path / "run").finished


class Kills:
    """Kills a run at a file operation and resumes it; the result must be that of an uninterrupted run."""

    def __init__(self, forker: Forker, data: Path, method: str, folder: Path) -> None:
        self.forker, self.data, self.method, self.folder = forker, data, method, folder
        assert self.run("whole") == 0
        self.whole = run_outputs(folder / "whole")

    def run(self, name: str, **how: Any) -> int:
        return self.forker.start(train_command(self.data, self.folder / name, self.method), self.folder, **how).wait()

    def count(self, start: Path | None) -> int:
        """Return the number of file operations of a run from a copy of this folder."""
        self.copy(start, "counted")
        assert self.run("counted", count=str(self.folder / "count")) == 0
        return int((self.folder / "count").read_text())

    def copy(self, start: Path | None, name: str) -> None:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        if start is not None:
            shutil.copytree(start, self.folder / name)

    def check(self, start: Path | None, at: int) -> None:
        self.copy(start, "killed")
        assert self.run("killed", kill_at=at) == -signal.SIGKILL, at
        assert self.run("killed", kill_at=0) == 0, ((self.folder / "err.txt").read_text(), at)
        shutil.rmtree(self.folder / "killed" / "checkpoint", ignore_errors=True)  # if it was killed while removing it
        assert run_outputs(self.folder / "killed") == self.whole, at


def kill_at_operations(kills: Kills, step: int) -> int:
    """Kill a new run and a resumed run at every `step`-th operation; return the number of kills."""
    done = 0
    total = kills.count(None)
    kills.copy(None, "half")
    assert kills.run("half", kill_at=total // 2) == -signal.SIGKILL
    for start in (None, kills.folder / "half"):
        for at in range(1 + done % step, kills.count(start) + 1, step):
            kills.check(start, at)
            done += 1
    return done


def test_killed_at_some_file_operations(forker: Forker, table: Path, tmp_path: Path) -> None:
    assert kill_at_operations(Kills(forker, table, "cross-entropy", tmp_path), step=35) > 5


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["table", "arrays"])
@pytest.mark.parametrize("method", ["metalabelnet", "cross-entropy", "fine-tune"])
def test_killed_at_every_file_operation(
    method: str, kind: str, forker: Forker, data: Path, table: Path, tmp_path: Path
) -> None:
    done = kill_at_operations(Kills(forker, {"table": table, "arrays": data}[kind], method, tmp_path), step=1)
    assert done >= 200  # of each method and kind of data: at least 1,200 in all
