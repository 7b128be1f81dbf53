"""Wrong input gives one line on standard error, exit code 2, and writes no file. Also help, version and lists."""

import errno
import json
import os
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import metalabelnet
from cli_runner import TINY, run_cli
from metalabelnet.data import DATASETS
from metalabelnet.errors import unknown_name_error
from metalabelnet.methods import METHODS
from metalabelnet.methods.cross_entropy import CrossEntropy
from metalabelnet.noise import NOISE_KINDS
from metalabelnet.train import RunFolder, RunStopped, train
from tiny_data import folder_contents, table_samples, tiny_run, write_npz

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with small.npz in it, so that unexpected files are noticed."""
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "small.npz")
    return tmp_path


def input_error(arguments: list[str], capsys: Capture, work_dir: Path) -> str:
    """Run a command that must fail as wrong input; return its message."""
    before = folder_contents(work_dir)
    output = run_cli(arguments, capsys)
    assert output.code == 2
    assert output.out == ""
    assert output.err.startswith("metalabelnet: ")
    assert output.err.count("\n") == 1
    assert output.err.endswith("\n")
    assert "Traceback" not in output.err
    assert folder_contents(work_dir) == before
    return output.err


WRONG_ARGUMENTS = {
    "": "required: COMMAND",
    "trane digits": "invalid choice: 'trane'",
    "train": "required: DATA",
    "train digts": "unknown data set 'digts': did you mean 'digits'?",
    "train nowhere.npz": "nowhere.npz: no such file",
    "train digits --method metalabelnt": "unknown method 'metalabelnt': did you mean 'metalabelnet'?",
    "train digits --noise unifrom:0.4": "unknown noise 'unifrom': did you mean 'uniform'?",
    "train digits --noise uniform:1": r"noise rate 1.0 is not in \[0, 1\)",
    "train digits --noise uniform:-0.1": r"noise rate -0.1 is not in \[0, 1\)",
    "train digits --noise uniform:nan": r"noise rate nan is not in \[0, 1\)",
    "train digits --noise uniform": "has no rate; write uniform:RATE",
    "train digits --noise file:none.npy": "there is no file 'none.npy'",
    "train digits --split papr": "unknown split 'papr': did you mean 'paper'?",
    "train digits --protocol papers": "unknown protocol 'papers': did you mean 'paper'?",
    "train digits --recipe ownn": "unknown recipe 'ownn': did you mean 'own'?",
    "train digits --net cnn": "unknown network 'cnn': did you mean 'cnn8'?",
    "train digits --augment flip-corp": "unknown augmentation 'flip-corp': did you mean 'flip-crop'?",
    "train digits --dtype float16": "unknown dtype 'float16'",
    "train digits --method metalabelnet --set bta=1": "unknown setting of metalabelnet 'bta': did you mean 'beta'?",
    "train digits --method metalabelnet --set beta=x": "beta=x: give a number",
    "train digits --method metalabelnet --set beta=-1": "beta=-1: give a number that is 0 or more, at most 1e",
    "train digits --method metalabelnet --set beta=1e30": "beta=1e30: give a number that is 0 or more, at most 1e",
    "train digits --method metalabelnet --set beta=inf": "beta=inf: give a number that is 0 or more, at most 1e",
    "train digits --set sharpening": "write NAME=VALUE",
    "train digits --method metalabelnet --set loss_scale=sums": "for loss_scale 'sums': did you mean 'sum'?",
    "train digits --method metalabelnet --set clean_updates_statistics=maybe": "choose from true, false",
    "train digits --method cross-entropy --set beta=1": "unknown setting of cross-entropy 'beta'",
    "train digits --epochs 0": "epochs 0 is too small: the minimum is 1",
    "train digits --epochs -3": "epochs -3 is too small",
    "train digits --epochs many": "invalid int value: 'many'",
    "train digits --warmup 30": "warmup 30 is too large for 30 epochs of metalabelnet-plus: the maximum is 29",
    "train digits --warmup -1": "warmup -1 is too small",
    "train digits --batch-size 1": "batch-size 1 is too small: the minimum is 2",
    "train digits --clean 0": "clean 0 is too small: the minimum is 1",
    "train digits --clean all": "clean all: digits marks no samples as clean; give a number, or a file",
    "train digits --limit 1": "limit 1 is too small: the minimum is 2",
    "train digits --clean 5": "a clean set of 5 is too small for 10 classes",
    "train digits --unlabeled -1": "unlabeled -1 is too small",
    "train digits --seed -1": "seed -1 is too small",
    "train digits --lr 0": "lr 0.0 is out of range: give a number above 0",
    "train digits --lr -1": "lr -1.0 is out of range: give a number above 0",
    "train digits --lr nan": "lr nan is out of range: give a number above 0",
    "train digits --lr-milestones 4,x": "is not a list of integers such as 40,80",
    "train digits --lr-milestones=-4": "lr-milestones -4 is out of range: choose from 0 to 1000000",
    f"train digits --lr-milestones {10**30}": "lr-milestones 10+ is out of range: choose from 0 to 1000000",
    "train digits --momentum 1": "momentum 1.0 is out of range: give a number from 0 to below 1",
    "train digits --momentum -0.1": "momentum -0.1 is out of range: give a number from 0 to below 1",
    "train digits --weight-decay -1": "weight-decay -1.0 is out of range: choose from 0 to 1",
    "train digits --weight-decay 1e30": r"weight-decay 1e\+30 is out of range: choose from 0 to 1",
    "train digits --mixup 1e30": r"mixup 1e\+30 is out of range: choose from 0 to 1000",
    "train photos/ --memory-limit 1e300": r"memory-limit 1e\+300 is out of range: choose from 0 to 1e\+09",
    "train digits --checkpoint-seconds -1": "checkpoint-seconds -1.0: give a number that is 0 or more",
    "train digits --no-such-thing": r"unrecognized arguments: --no-such-thing \(see metalabelnet train --help\)",
    "train digits --epoch 3": r"unrecognized arguments: --epoch 3: did you mean --epochs\? \(see metalabelnet train",
    "compare digits --seed=3 --job=2": r"unrecognized arguments: --job=2: did you mean --jobs\?",
    "train nowhere": "nowhere: no such file, folder, run or data set; give a folder of images",
    "train runs/none --resume": "runs/none: no such file, folder or run; give a folder of images",
    "embed small.npz --encoder none -o features.csv": "features.csv: the name of a file of features ends with .npz",
    "train small.npz --clean 90": "a clean set of 90 is too large: there are 80 training rows",
    "train small.npz --clean 3": "a clean set of 3 is too small to hold out samples",
    "train small.npz --clean 18 --unlabeled 60": "cannot remove the labels of 60 rows",
    "train small.npz --clean 18 --device nowhere": "device 'nowhere' cannot be used",
    "train small.npz --clean 18 --device meta": "device 'meta' cannot be used",
    "train small.npz --clean 18 --net cnn8": "the network cnn8 does not accept samples of shape",
    "train small.npz --clean 18 --augment flip-crop": "is for images",
    "train small.npz --clean 18 --noise feature:0.4 --noise-probs none.npy": "there is no file 'none.npy'",
    "train small.npz --clean 16 --split paper": "a clean set of 16 is too large",
    "train small.npz --clean 18 --head nowhere": "nowhere",
    "compare digits --methods cross-entropy,metalablenet": "unknown method 'metalablenet': did you mean 'metalabelnet'",
    "compare digits --methods ,": "methods ',' names no method: choose from",
    "compare digits --methods all,fine-tune": "methods 'all,fine-tune': all cannot be combined with names",
    "compare digits --seeds 0": "seeds 0 is too small",
    "compare digits --jobs 0": "jobs 0 is too small",
    "compare digits --jobs -2": "jobs -2 is too small",
    "compare digits --methods fine-tune --warmup 99": "warmup 99 is too large for 30 epochs",
    "compare small.npz --methods cross-entropy --device nowhere": "device 'nowhere' cannot be used",
    "labels nowhere": "nowhere is not a run folder: it has no run.json",
    "labels . --data small.npz": "is not a run folder: it has no run.json",
    "labels": "required: RUN",
    "methods zzz": r"unknown method 'zzz': choose from bootstrap, .*, … \(\d+ in all\)",
    "methods metalabelnt": "unknown method 'metalabelnt': did you mean 'metalabelnet'?",
}


@pytest.mark.parametrize("arguments", WRONG_ARGUMENTS, ids=lambda text: text or "nothing")
def test_wrong_argument_gives_one_line(arguments: str, capsys: Capture, work_dir: Path) -> None:
    assert re.search(WRONG_ARGUMENTS[arguments], input_error(arguments.split(), capsys, work_dir))


def test_distant_names_are_not_suggested() -> None:
    assert (
        str(unknown_name_error("class", "square", ["bar", "ring"])) == "unknown class 'square': choose from bar, ring"
    )


def test_missing_gpu(capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    output = input_error(["train", "small.npz", "--clean", "18", "--device", "cuda:97"], capsys, work_dir)
    assert "device 'cuda:97' cannot be used" in output


X, Y = table_samples(80, seed=0)
WITH_NAN = np.where(np.arange(320).reshape(80, 4) == 42, np.nan, X)
WRONG_DATA: dict[str, tuple[dict[str, Any], str]] = {
    "a label out of range": ({"y_train": np.where(Y == 2, 7, Y)}, "row 2 has label 7; labels are 0 to 2"),
    "a negative label": ({"y_train": Y - 2}, "row 0 is -2"),
    "a label that is no whole number": ({"y_train": Y + 0.5}, "row 0 is 0.5; a label is an integer"),
    "labels that are names in one part": (
        {"y_train": np.array(["a"] * 80)},
        "but other labels are strings; use numbers or class names in all",
    ),
    "too few labels": ({"y_train": Y[:79]}, "80 samples but 79 labels"),
    "a value that is NaN": ({"x_train": WITH_NAN}, "row 10 has a value that is NaN or infinite"),
    "a value that is infinite": ({"x_test": np.full((30, 4), np.inf)}, "row 0 has a value that is NaN or infinite"),
    "a value whose square is infinite": ({"x_train": X * 1e37}, "row 0 has "),
    "a clean value whose square is infinite": (
        {"x_clean": np.where(np.arange(320).reshape(80, 4) == 42, 1e37, X), "y_clean": Y},
        "x_clean: row 10 has the value 1e+37; values up to 2e+18 are allowed: rescale them, or leave the row out",
    ),
    "a class without a row": ({"y_train": np.where(Y == 2, 0, Y)}, "is missing from the training rows with a known"),
    "a class without a clean row": (
        {"x_clean": X[:40], "y_clean": Y[:40] % 2},
        "class 'ü – 文' is missing from the clean rows: a clean set needs a row of every class",
    ),
    "more clean rows asked for than there are": ({"x_clean": X[:9], "y_clean": Y[:9]}, "18 is too large: there are 9"),
    "no samples": ({"x_train": None}, "x_train is missing"),
    "samples of two shapes": (
        {"x_test": np.zeros((30, 5))},
        "samples have the shape (5,) in x_test, but (4,) in x_train",
    ),
    "one class": ({"y_train": 0 * Y, "y_test": None, "x_test": None, "classes": None}, "at least 2 classes, not 1"),
}


@pytest.mark.parametrize("command", ["train", "compare"])
@pytest.mark.parametrize("case", WRONG_DATA)
def test_wrong_data_gives_one_line(case: str, command: str, capsys: Capture, work_dir: Path) -> None:
    changes, says = WRONG_DATA[case]
    write_npz(work_dir / "wrong.npz", **changes)
    more = "--method metalabelnet" if command == "train" else "--methods metalabelnet --seeds 1 --jobs 1"
    before = folder_contents(work_dir)
    output = run_cli([command, "wrong.npz", "--clean", "18", "--out", "out", *more.split()], capsys)
    lines = output.err.splitlines()
    if command == "compare":
        assert lines.pop(0).startswith("wrong.npz, no added noise: 1 run of 1 method, one at a time")
    assert (output.code, len(lines)) == (2, 1)
    assert says in lines[0]
    assert folder_contents(work_dir) == before


@pytest.mark.parametrize("content", [b"", b"PK", b"\x93NUMPY", None])
def test_broken_file_gives_one_line(content: bytes | None, capsys: Capture, work_dir: Path) -> None:
    whole = (work_dir / "small.npz").read_bytes()
    (work_dir / "broken.npz").write_bytes(whole[: len(whole) // 2] if content is None else content)
    assert "broken.npz: not a complete .npz file" in input_error(
        ["train", "broken.npz", "--out", "o"], capsys, work_dir
    )


# Folders


def arguments(out: Path | str, *more: str) -> list[str]:
    return ["train", "small.npz", *f"--method cross-entropy {TINY} --epochs 3".split(), "--out", str(out), *more]


def test_existing_run_is_not_overwritten(capsys: Capture, work_dir: Path) -> None:
    assert run_cli(arguments("run"), capsys).code == 0
    assert "already holds a run: resume it with --resume" in input_error(arguments("run"), capsys, work_dir)
    output = input_error(arguments("run", "--resume", "--lr", "0.9"), capsys, work_dir)
    assert "was started with lr = 0.05, not 0.9" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "run is a run folder: give data, or resume the run with --resume"),
        (["--resume", "--lr", "0.05"], "--lr: the run in run is resumed with its own settings; leave out --lr"),
        (["--resume", "--set", "a=1"], "leave out --set"),
        (["--resume", "--seed", "0"], "leave out --seed"),
        (["--resume", "--net", "mlp"], "not with a network of your own; leave it out"),
        (["--resume", "-o", "other"], "the run in run is resumed there; leave out --out"),
    ],
)
def test_run_folder_as_data(words: list[str], message: str, capsys: Capture, work_dir: Path) -> None:
    with pytest.raises(RunStopped):
        train(tiny_run(work_dir / "small.npz"), folder=work_dir / "run", stop=lambda: True)
    assert message in input_error(["train", "run", *words], capsys, work_dir)


def test_resume_of_a_run_folder_executes_no_code_that_it_names(capsys: Capture, work_dir: Path) -> None:
    with pytest.raises(RunStopped):
        train(tiny_run(work_dir / "small.npz"), folder=work_dir / "run", stop=lambda: True)
    file = work_dir / "run" / "run.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"run": content["run"] | {"net": "evil:make"}}))
    output = input_error(["train", "run", "--resume"], capsys, work_dir)
    assert "allow its code to run with --net evil:make" in output
    file.write_text(json.dumps(content | {"own_net": "mine.Net"}))
    assert "resume it there, with resume=True" in input_error(["train", "run", "--resume"], capsys, work_dir)


def test_finished_run_is_not_trained_again(capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_cli(arguments("run"), capsys)
    before = folder_contents(work_dir)
    monkeypatch.setattr("metalabelnet.cli.commands.train.prepare", lambda *_: pytest.fail("it is trained again"))
    again = run_cli(arguments("run", "--resume"), capsys)
    assert (again.code, again.out) == (0, first.out)
    assert again.err == "run is already finished\n"
    assert folder_contents(work_dir) == before


def test_folder_with_other_files_is_not_used(capsys: Capture, work_dir: Path) -> None:
    (work_dir / "letters").mkdir()
    (work_dir / "letters" / "to_ada.txt").write_text("dear Ada")
    assert "is not empty and has no run.json" in input_error(arguments("letters"), capsys, work_dir)
    assert "is a file" in input_error(arguments("letters/to_ada.txt"), capsys, work_dir)
    assert "is a file" in input_error(arguments("letters/to_ada.txt/run"), capsys, work_dir)


def test_folder_without_write_permission(capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "is not writable: choose another folder with --out" in input_error(arguments("run"), capsys, work_dir)


def test_folder_cannot_be_created(capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(self: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", no)
    output = run_cli(arguments("run"), capsys)
    assert output.code == 2
    assert output.err.splitlines()[-1] == "metalabelnet: run: Permission denied"
    assert not (work_dir / "run").exists()


@pytest.mark.parametrize("command", ["train", "compare", "pack"])
def test_folder_that_cannot_be_created_is_an_error_before_reading(
    command: str, capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc is such a folder for root: it seems writable, and making a folder in it fails."""

    def no(path: str, *_: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    def read(*_: Any, **__: Any) -> None:
        pytest.fail("data are read")

    monkeypatch.setattr(os, "mkdir", no)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=0))
    for function in ("cli.commands.train.prepare", "cli.run_description.read_data", "cli.commands.pack.list_images"):
        monkeypatch.setattr(f"metalabelnet.{function}", read)
    more = {"train": [], "compare": ["--methods", "cross-entropy"], "pack": []}[command]
    output = run_cli([command, "small.npz", *more, "-o", "there"], capsys)
    assert output.code == 2
    message = r"metalabelnet: there(/\S*)? cannot be created \(No such file or directory\): choose another folder with"
    assert re.match(message, output.err.splitlines()[-1])
    assert not (work_dir / "there").exists()


def test_largest_clean_set_that_a_message_names_works(capsys: Capture, work_dir: Path) -> None:
    words = ["train", "small.npz", *f"--method cross-entropy {TINY} --unlabeled 0 --out run".split(), "--clean"]
    message = input_error([*words, "90"], capsys, work_dir)
    largest = int(message.split("give ")[1].split(" or fewer")[0])
    assert f"give {largest} or fewer" in input_error([*words, str(largest + 1)], capsys, work_dir)
    assert run_cli([*words, str(largest)], capsys).code == 0


def test_default_run_folder_name(capsys: Capture, work_dir: Path) -> None:
    assert run_cli(arguments("x")[:-2], capsys).code == 0
    assert RunFolder(work_dir / "runs" / "small-cross-entropy-uniform0.4-clean18-unlabeled14-seed0").finished


def test_disk_full_during_training(capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the file, and the run can be resumed from the last checkpoint."""
    sync, checkpoint = os.fsync, RunFolder(Path("run")).checkpoint
    synced = 0

    def fsync(handle: int) -> None:
        nonlocal synced
        synced += 1
        if synced > 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        output = run_cli(arguments("run", "--checkpoint-seconds", "0"), capsys)
    assert output.code == 2
    assert output.err.splitlines()[-1] == f"metalabelnet: {checkpoint}: No space left on device"
    assert "Traceback" not in output.err
    assert not list((work_dir / "run").rglob("*.tmp"))
    assert checkpoint.exists()
    assert run_cli(arguments("run", "--resume"), capsys).code == 0


def test_divergence_gives_one_line(capsys: Capture, work_dir: Path) -> None:
    output = run_cli(arguments("run", "--lr", "1e30"), capsys)
    assert output.code == 1
    last = output.err.splitlines()[-1]
    assert re.fullmatch(r"metalabelnet: .* at step \d+ of epoch 0 with learning rate 1e\+30; .*: try a lower lr", last)
    assert "Traceback" not in output.err


def test_too_little_memory_gives_one_line(capsys: Capture, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CrossEntropy, "begin_epoch", lambda _self, _epoch: torch.zeros(1 << 60))
    output = run_cli(arguments("run"), capsys)
    assert output.code == 2
    last = output.err.splitlines()[-1]
    assert re.fullmatch(r"metalabelnet: not enough memory \(.*\): use a smaller network, batch size or data set", last)
    assert "Traceback" not in output.err


# Help, version and lists


def test_version(capsys: Capture) -> None:
    assert run_cli(["--version"], capsys).out == f"metalabelnet {metalabelnet.__version__}\n"


COMMANDS = (
    *("train", "compare", "labels", "predict", "pack", "export", "report", "review", "reproduce"),
    *("methods", "datasets", "noises"),
)


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_every_command_has_help(command: str | None, capsys: Capture) -> None:
    output = run_cli([*([command] if command else []), "--help"], capsys)
    assert (output.code, output.err) == (0, "")
    assert output.out.startswith("usage: metalabelnet")
    if command not in (None, "methods", "datasets", "noises"):
        examples = output.out.partition("examples:\n")[2].splitlines()
        assert len(examples) >= 2
        assert all(line.startswith(f"  metalabelnet {command} ") for line in examples)
    if command is None:
        assert all(name in output.out for name in COMMANDS)


def test_every_run_setting_has_an_option_with_help(capsys: Capture) -> None:
    text = " ".join(run_cli(["train", "--help"], capsys).out.split())
    for field in fields(tiny_run(Path("small.npz"))):
        if field.name == "data_format":  # detected from DATA
            continue
        name = {"data": "DATA", "settings": "--set"}.get(field.name, f"--{field.name.replace('_', '-')}")
        assert name in text
        assert " ".join(str(field.metadata["help"]).split())[:40] in text


def test_help_shows_defaults_per_data_set(capsys: Capture) -> None:
    text = " ".join(run_cli(["compare", "--help"], capsys).out.split())
    assert "warm-up on the given labels (default: 11; 45 for cifar10, cifar100" in text
    assert "(default: 100; " in text
    assert "1000 for fashion-mnist" in text
    assert "5000 for cifar10, cifar100" in text
    assert "--set METHOD.NAME=VALUE" in text
    assert "--method " not in text


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ("methods", lambda: [(name, m.traits.summary, m.traits.reference) for name, m in METHODS.items()]),
        ("datasets", lambda: [(name, s.summary, s.reference) for name, s in DATASETS.items()]),
        ("noises", lambda: [(n.usage, n.summary, n.reference) for n in NOISE_KINDS.values()]),
    ],
)
def test_lists_are_complete(command: str, rows: Callable[[], list[tuple[str, ...]]], capsys: Capture) -> None:
    output = run_cli([command], capsys)
    assert (output.code, output.err) == (0, "")
    lines = output.out.splitlines()[2:]
    assert len(lines) == len(rows())
    for line, row in zip(lines, rows(), strict=True):
        assert all(cell in line for cell in row)


@pytest.mark.parametrize("name", METHODS)
def test_methods_lists_settings(name: str, capsys: Capture) -> None:
    output = run_cli(["methods", name], capsys)
    assert (output.code, output.err) == (0, "")
    assert METHODS[name].traits.summary in output.out
    for field in fields(METHODS[name].Settings):
        assert re.search(rf"^{field.name} +{re.escape(str(field.default))} +\S", output.out, re.MULTILINE)
    if name == "metalabelnet":
        assert "how the meta-gradient is computed (exact, double-backward, finite-difference)" in output.out


def test_labels_of_unfinished_run(capsys: Capture, work_dir: Path) -> None:
    with pytest.raises(RunStopped):
        train(tiny_run(work_dir / "small.npz"), folder=work_dir / "run", stop=lambda: True)
    output = input_error(["labels", "run"], capsys, work_dir)
    assert "the run is not finished; resume it with: metalabelnet train run --resume" in output
