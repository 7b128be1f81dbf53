"""Standard streams that are closed, networks of the user that raise, and options that have no effect."""

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli_runner import ENVIRONMENT, CliResult, run_cli
from metalabelnet.cli import main
from metalabelnet.cli.parser import make_parser
from tiny_data import folder_contents, write_npz
from user_data import QUICK, TABLE_COLUMNS, table_rows, text_rows, write_csv, write_photos

Capture = pytest.CaptureFixture[str]
FAST = "--clean 18 --epochs 2 --warmup 1 --batch-size 12 --snapshots 0 --device cpu"
MAX_MESSAGE_CHARACTERS = 300


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with small.npz in it."""
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "small.npz")
    return tmp_path


def one_line_error(result: CliResult) -> str:
    """Check that a command failed as wrong input with one line on standard error; return it."""
    (line,) = [line for line in result.err.splitlines() if line.startswith("metalabelnet: ")]
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err
    assert len(line) <= MAX_MESSAGE_CHARACTERS
    return line


# Standard streams


def run_shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command in which $RUN is `metalabelnet`; report the exit status of a pipe's first command."""
    environment = {**ENVIRONMENT, "RUN": f"{sys.executable} -m metalabelnet"}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, env=environment, timeout=120
    )


@pytest.mark.parametrize("words", ["methods", "train --help", "--version", "labels nowhere", ""])
def test_closed_standard_output(words: str) -> None:
    result = run_shell(f"$RUN {words} >&-")
    assert result.returncode == 2
    assert result.stderr == "metalabelnet: standard output is closed: redirect it to a file, or to /dev/null\n"


@pytest.mark.parametrize("words", ["methods | head -c1", "train --help | head -c1", "--version | true"])
def test_reader_closes_standard_output(words: str) -> None:
    result = run_shell(f"$RUN {words}")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("words", ["train --help", "--version"])
def test_full_disk_on_standard_output(words: str) -> None:
    result = run_shell(f"$RUN {words} >/dev/full")
    assert (result.returncode, result.stderr) == (2, "metalabelnet: No space left on device\n")


def test_closed_standard_error() -> None:
    """Messages are not printed on standard output instead."""
    result = run_shell("$RUN train 2>&-")
    assert (result.returncode, result.stdout) == (2, "")


def test_run_continues_when_nobody_reads_its_progress(
    work_dir: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as broken:
        monkeypatch.setattr(sys, "stderr", broken)
        assert run_cli(f"train small.npz {FAST} --out run".split(), capsys).code == 0
        assert run_cli(["train", "small.npz", "--lr", "-1"], capsys).code == 2
        monkeypatch.undo()
    assert (work_dir / "run" / "summary.json").exists()


# Networks of the user

NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes, mode):
        super().__init__()
        self.fc, self.mode, self.calls = nn.Linear(shape[0], classes), mode, 0

    def forward(self, x):
        if self.mode == "always" or (self.mode == "training" and self.training):
            return self.no_such_layer(x)
        self.calls += self.training and torch.is_grad_enabled()
        if self.mode == "later" and self.calls > 4:
            raise KeyError("a key " + 500 * "x")
        if self.mode == "tuple" and self.training:
            return self.fc(x), x
        return self.fc(x)

def always(shape, classes): return Net(shape, classes, "always")
def training(shape, classes): return Net(shape, classes, "training")
def later(shape, classes): return Net(shape, classes, "later")
def tuple(shape, classes): return Net(shape, classes, "tuple")
def good(shape, classes): return Net(shape, classes, "")
"""
NET_ERRORS = {
    "nets.py:always": "the network nets.py:always fails: AttributeError at {file}:12 ('Net' object has",
    "nets.py:training": "the network nets.py:training fails: AttributeError at {file}:12 ('Net' object has",
    "nets.py:later": "the network nets.py:later fails: KeyError at {file}:15 ('a key xxx",
    "nets.py:tuple": "the network nets.py:tuple returns tuple for 2 samples in training mode, not logits of shape",
}


@pytest.mark.parametrize("net", NET_ERRORS)
def test_forward_of_user_network_raises(net: str, work_dir: Path, capsys: Capture) -> None:
    (work_dir / "nets.py").write_text(NETS)
    expected = NET_ERRORS[net].format(file=work_dir / "nets.py")
    for method in ("cross-entropy", "metalabelnet"):
        words = f"train small.npz {FAST} --method {method} --net {net} --out run-{method}"
        assert expected in one_line_error(run_cli(words.split(), capsys))


def test_forward_of_user_network_raises_in_compare(work_dir: Path, capsys: Capture) -> None:
    (work_dir / "nets.py").write_text(NETS)
    words = f"compare small.npz {FAST} --methods cross-entropy,gce --seeds 1 --jobs 1 --net nets.py:later --out runs"
    result = run_cli(words.split(), capsys)
    assert result.code == 1
    assert "Traceback" not in result.err
    assert f"the network nets.py:later fails: KeyError at {work_dir}/nets.py:15" in result.err


def test_forward_of_user_network_raises_in_predict(work_dir: Path, capsys: Capture) -> None:
    (work_dir / "nets.py").write_text(NETS)
    assert run_cli(f"train small.npz {FAST} --net nets.py:good --out run".split(), capsys).code == 0
    (work_dir / "nets.py").write_text(NETS.replace('if self.mode == "always"', "if len(x) > 2"))
    result = run_cli(["predict", "run", "small.npz", "--net", "nets.py:good", "-o", "out.csv"], capsys)
    expected = f"the network nets.py:good fails: AttributeError at {work_dir}/nets.py:12"
    assert expected in one_line_error(result)
    assert not (work_dir / "out.csv").exists()


def test_error_of_the_package_is_not_blamed_on_the_user(
    work_dir: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    (work_dir / "nets.py").write_text(NETS)
    monkeypatch.setattr("metalabelnet.cli.commands.train.prepare", fail)
    with pytest.raises(ZeroDivisionError):
        run_cli(f"train small.npz {FAST} --net nets.py:good --out run".split(), capsys)


# Values that are no values


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("train small.npz --set=--", "argument --set: -- is not a value"),
        ("train small.npz --lr=--", "argument --lr: -- is not a value"),
        ("labels run -o--", "argument -o: -- is not a value"),
        (f"train small.npz --epochs {10**400}", "is too large: the maximum is 1000000"),
        (f"train small.npz --seed {2**63}", "seed 9223372036854775808 is too large"),
        (f"train small.npz --batch-size {10**30}", "is too large: the maximum is 1000000000000"),
        (f"compare small.npz --seeds {10**30}", "is too large: the maximum is 10000"),
    ],
)
def test_value_out_of_range(words: str, says: str, capsys: Capture) -> None:
    assert says in one_line_error(run_cli(words.split(), capsys))


def test_damaged_label_table(work_dir: Path, capsys: Capture) -> None:
    assert run_cli(f"train small.npz {FAST} --out run".split(), capsys).code == 0
    file = work_dir / "run" / "labels.csv"
    header, first, *rest = file.read_text(encoding="utf-8").splitlines()
    (work_dir / "run" / "digests.json").unlink()
    for damaged in (f"x{first}", first.replace(",", ",,", 1), first.rpartition(",")[0], header):
        file.write_text("\n".join([header, damaged, *rest]) + "\n", encoding="utf-8")
        for words in ("labels run", "labels run --format cleanlab", "labels run --format fiftyone --top 2"):
            assert "labels.csv" in one_line_error(run_cli(words.split(), capsys))


# Options that have no effect

# The combinations of options that a command refuses: one of them would be ignored. Every option of every command is
# listed, here or in ALWAYS_USED.
REFUSED = {
    "train": {
        "--head": {
            "small.npz --head net.5": "--head net.5: the network is chosen automatically, and its last layer is known",
            "small.npz --net mlp --head net.5": "--head net.5: mlp is built in, and its last layer is known",
        },
        "--noise-probs": {
            "small.npz --noise-probs p.npy": "only feature noise uses class probabilities, and the noise is none",
            "small.npz --noise uniform:0.4 --noise-probs p.npy": "and the noise is uniform:0.4; choose --noise feature",
        },
        "--data-dir": {"small.npz --data-dir .": "--data-dir .: small.npz is a file of its own; leave --data-dir out"},
        "--clean": {"t.csv --clean a.csv --clean-file b.csv": "--clean a.csv and --clean-file b.csv name two files"},
        "--clean-file": {"t.csv --clean-file a.csv --split paper": "the split 'paper' takes the clean set from the te"},
        "--clean-column": {
            "t.csv --clean-column checked --split paper": "--clean-column checked: the split 'paper' takes the clean",
            "small.npz --clean-column checked": "--clean-column is for a folder of images or a table",
            "photos --clean-column checked": "--clean-column names a column of a table, and photos is a folder",
        },
        "--true-label": {"photos --true-label x": "--true-label names a column of a table, and photos is a folder"},
        "--label": {"photos --label x": "--label names a column", "digits --label x": "--label is for a folder of im"},
        "--image": {"photos --image x": "--image names a column", "digits --image x": "--image is for a folder of im"},
        "--text": {
            "photos --text x": "--text names a column",
            "t.csv --image a --text b": "give one of --image, --text, --features",
        },
        "--features": {
            "photos --features x": "--features names a column",
            "t.csv --features a --text b": "give one of --image, --text, --features",
        },
        "--id": {"photos --id x": "--id names a column", "small.npz --id x": "--id is for a folder of images or a t"},
        "--annotations": {
            "digits --annotations a.csv": "--annotations is for a folder of images or a table, and digits is neither",
            "t.csv --annotations a.csv --noise uniform:0.4": "noise uniform:0.4 changes given labels, not those of --a",
            "t.csv --annotations a.csv --unlabeled 3": "unlabeled 3 changes given labels, not those of --annotations",
        },
        "--test": {"small.npz --test t.csv": "--test is for a folder of images or a table"},
        "--image-size": {
            "small.npz --image-size 8": "--image-size is for a folder of images or a table",
            "t.csv --clean-column checked --image-size 8": "--image-size 8 is for images, and these samples have none",
            "news.csv --clean-column checked --image-size 8": "--image-size 8 is for images",
        },
        "--text-features": {
            "small.npz --text-features char": "--text-features is for a folder of images or a table",
            "t.csv --clean-column checked --text-features char": "--text-features char is for texts",
        },
        "--encoder": {
            "small.npz --encoder x": "--encoder x is for images and texts, and small has none",
            "t.csv --clean-column checked --encoder x": "--encoder x is for images (timm:NAME, torchvision:NAME, a",
            "photos --clean clean.csv --encoder wordllama": "--encoder wordllama is for texts, and these samples are i",
            "photos --clean clean.csv --encoder x --image-size 8": "--image-size 8 has no effect with --encoder x",
        },
        "--on-error": {"small.npz --on-error skip": "--on-error is for a folder of images or a table"},
        "--memory-limit": {"small.npz --memory-limit 1": "--memory-limit is for a folder of images or a table"},
        "--workers": {
            "small.npz --workers 2": "--workers is for packed images, and small.npz is not packed: leave it out",
            "photos --clean clean.csv --workers 2": "--workers is for packed images, and photos is not packed",
        },
        "--augment": {"small.npz --augment flip-crop --clean 18": "is for images, and small.npz has none"},
        "--pretrained": {"small.npz --pretrained": "pretrained weights are for networks of timm or torchvision"},
        "--execution": {
            "small.npz --method logistic-both --execution compiled": "steps of logistic-both cannot be traced"
        },
        "--kernels": {
            "small.npz --kernels hopper": "kernels hopper needs dtype bf16",
            "small.npz --kernels hopper --dtype bf16 --execution eager": "kernels hopper needs compiled steps",
        },
        "--set": {"small.npz --method cross-entropy --set beta=1": "unknown setting of cross-entropy 'beta'"},
    },
    "compare": {
        "--set": {
            "small.npz --methods gce,sce --set metalabelnet.beta=1": "--set metalabelnet.beta=1: metalabelnet is not "
            "compared; leave it out, or choose METHOD from gce, sce",
            "small.npz --methods gce --set q=0.5": "--set q=0.5: write METHOD.NAME=VALUE",
        },
        "--head": {"small.npz --head net.5": "--head net.5: the network is chosen automatically"},
        "--noise-probs": {"small.npz --noise-probs p.npy": "only feature noise uses class probabilities"},
        "--jobs": {
            "small.npz --jobs 2 --cluster ray": "--jobs: the resources of --cluster ray decide; leave out --jobs"
        },
        "--gpus-per-run": {
            "small.npz --gpus-per-run 0.5": "--gpus-per-run 0.5: it is for --cluster; leave it out",
            "small.npz --gpus-per-run 0.5 --cluster ray --device cpu": "--device cpu uses no GPU; leave out one of",
        },
        "--cluster": {"small.npz --cluster slurm": "unknown cluster 'slurm': choose ray, or ray:ADDRESS"},
    },
    "labels": {
        "--data-dir": {
            "run --data-dir .": "--data-dir .: it is the folder of a named data set, and it is for --data NAME",
            "run --data small.npz --data-dir .": "and small.npz is not one of digits, ",
        },
    },
    "predict": {
        "--net": {"run small.npz --net nets.py:good": "not with a network of your own; leave it out"},
        "--image": {"run small.npz --image x": "--image x: this run was trained on arrays, not on images"},
        "--text": {"run small.npz --text x": "--text x: this run was trained on arrays, not on texts"},
        "--id": {"run small.npz --id x": "--id x names a column of a table, and no input is a table"},
    },
    "pack": {
        "--clean": {"clothing1m -o x --clean clean.csv": "--clean is for your own images, and clothing1m has its own"},
        "--test": {"clothing1m -o x --test photos": "--test is for your own images, and clothing1m has its own"},
        "--split": {"photos -o x --split paper": "--split is for a named data set (clothing1m, food101n, "},
        "--data-dir": {"photos -o x --data-dir .": "--data-dir is for a named data set (clothing1m, food101n, "},
    },
    "export": {"--net": {"run --onnx m.onnx --net nets.py:good": "not with a network of your own; leave it out"}},
    "reproduce": {
        **{
            f"--{name}": {
                f"--list --{name} {value}": f"--{name}: --list trains and writes nothing; leave out --{name} or --list",
                f"all --tables-only --{name} {value}": f"--{name}: --tables-only trains nothing; leave out --{name}",
            }
            for name, value in {
                **dict.fromkeys(("data-dir", "pretrained", "out", "commit"), "x"),
                **dict.fromkeys(("budget", "concurrent", "jobs"), "2"),
                "order": "cheapest",
                "device": "cpu",
                "cluster": "ray",
                "gpus-per-run": "0.5",
            }.items()
        },
        "--noise-probs": {
            "fig-curves --list --noise-probs x": "--noise-probs: --list trains and writes nothing",
            "fig-curves --tables-only --noise-probs x": "--noise-probs: --tables-only trains nothing",
            "fig-curves --smoke --noise-probs x": "--noise-probs: --smoke trains on digits with noise of its own",
            "fig-curves --cells uniform:0.4 --noise-probs x": "--noise-probs x: none of these runs reads this file",
        },
        "--figures": {"--list --figures x": "--figures: --list trains and writes nothing"},
        "--doc": {
            "--list --doc x": "--doc: --list trains and writes nothing",
            "all --smoke --doc x": "--smoke trains on other data; leave out --smoke or --doc",
        },
        "--tables-only": {"--list --tables-only": "--tables-only: --list trains and writes nothing"},
        "--smoke": {"all --smoke --data-dir x": "--data-dir: --smoke trains on digits"},
        "--methods": {"cifar10-table --methods metalabelnet-plus": "unknown method 'metalabelnet-plus'"},
        "--cells": {"fig-curves --cells worst": "unknown cell 'worst'"},
        "--points": {"cifar10-table --points 0.1": "unknown point '0.1'"},
    },
}
# Options with an effect in every combination. The schedule and the recipe belong to the run, not to the method: the
# same command may be repeated with another --method, also one without warm-up (--warmup) or that ignores unlabeled
# samples (--unlabeled). `--recipe own` equals the common schedule for methods without published settings. --resume
# starts a run that does not exist, so that the same command can be repeated after every interruption.
SHARED_BY_METHODS = "--epochs --warmup --batch-size --lr --lr-milestones --momentum --weight-decay --order --snapshots"
RECIPE = "--lr-schedule --lr-warmup --ema --strong-augment --strong-weight --mixup --label-smoothing --select-from"
OF_EVERY_RUN = "--noise --limit --unlabeled --split --recipe --protocol --net --seed --device --dtype -o --resume"
ALWAYS_USED = {
    "train": f"{SHARED_BY_METHODS} {RECIPE} {OF_EVERY_RUN} --clean-given --method --checkpoint-seconds --log",
    "compare": f"{SHARED_BY_METHODS} {RECIPE} {OF_EVERY_RUN} --clean-given --methods --seeds --log",
    "labels": "-o --suspects --top --format --data --spreadsheet-safe",
    "predict": "-o --on-error --device",
    "pack": "-o --decode --image-size --on-error",
    "embed": "--encoder -o --test --label --true-label --image --text --id --data-dir --on-error",
    "export": "--onnx",
    "report": "-o",
    "reproduce": "-o --list --seeds --results --dtype",
    "methods": "",
    "datasets": "",
    "noises": "",
}


def subcommands() -> dict[str, argparse.ArgumentParser]:
    (action,) = [a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return action.choices


@pytest.mark.parametrize("command", ALWAYS_USED)
def test_effect_of_every_option_is_known(command: str) -> None:
    options = {action.option_strings[0] for action in subcommands()[command]._actions if action.option_strings}
    refused = {**(REFUSED["train"] if command == "compare" else {}), **REFUSED.get(command, {})}
    assert options - {"-h"} <= {*refused, *ALWAYS_USED[command].split()}


def test_every_command_is_known() -> None:
    assert subcommands().keys() - ALWAYS_USED.keys() == {"review"}  # in test_review_page.py


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data of every kind, and `run`, trained on an .npz file."""
    folder = tmp_path_factory.mktemp("inputs")
    write_npz(folder / "small.npz")
    write_csv(folder / "t.csv", TABLE_COLUMNS, table_rows(60))
    write_csv(folder / "news.csv", ["text", "label", "checked"], text_rows(60))
    true_labels = write_photos(folder / "photos", count=12)
    write_csv(folder / "clean.csv", ["id", "label"], true_labels[5:11])
    (folder / "nets.py").write_text(NETS)
    (folder / "page.md").write_text("")
    assert main(f"train {folder}/small.npz {FAST} --out {folder}/run".split()) == 0
    return folder


CASES = [
    pytest.param(command, words, says, id=f"{command} {words}")
    for command, options in REFUSED.items()
    for cases in options.values()
    for words, says in cases.items()
]


@pytest.mark.parametrize(("command", "words", "says"), CASES)
def test_option_without_effect_is_refused(
    command: str, words: str, says: str, inputs: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(inputs)
    before = folder_contents(inputs)
    assert says in one_line_error(run_cli([command, *shlex.split(words)], capsys))
    assert folder_contents(inputs) == before


def test_equal_clean_files_are_accepted(inputs: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inputs)
    words = f"train photos --clean clean.csv --clean-file clean.csv {QUICK}"
    result = run_cli(words.split(), capsys)
    assert "name two files" not in result.err


def test_options_of_network_training_are_named_where_a_linear_layer_is_fitted(capsys: Capture) -> None:
    def output(options: str, folder: str) -> str:
        result = run_cli(f"train small.npz --clean 18 --device cpu --out {folder} {options}".split(), capsys)
        assert result.code == 0
        return result.err

    note = "--epochs, --lr have no effect: metalabelnet-plus fits a linear layer to these samples; --net mlp trains"
    assert output("--epochs 5 --lr 0.1", "one").count(note) == 1
    assert "--momentum has no effect: logistic-clean fits" in output("--momentum 0.5 --method logistic-clean", "two")
    assert "no effect" not in output("", "three")
    assert "no effect" not in output("--epochs 2 --warmup 1 --net mlp", "four")
