"""With torch, numpy and safetensors alone, training works, and errors name the missing extra."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

from cli_runner import TINY, CliResult
from metalabelnet.train import RunFolder
from sample_results import result_line, run_spec, write_results
from tiny_data import write_npz
from user_data import TABLE_COLUMNS, table_rows, text_rows, write_csv

NEEDED = ("torch", "numpy", "safetensors")
EXTRAS = ("rich", "sklearn", "matplotlib", "PIL", "pyarrow", "timm", "torchvision", "onnx", "onnxruntime")
SOURCE = Path(__file__).parents[2] / "src"


def closure(names: tuple[str, ...]) -> set[str]:
    """Return these distributions and their installed requirements, without extras."""
    requirements = pytest.importorskip("packaging.requirements")
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            required = importlib.metadata.distribution(name).requires or []
        except importlib.metadata.PackageNotFoundError:  # such as the CUDA libraries of a build without CUDA
            continue
        found.add(name)
        for text in required:
            requirement = requirements.Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(requirement.name)
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the required packages alone."""
    home = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    work_dir = Path(sysconfig.get_paths()["purelib"])
    for name in closure(NEEDED):
        files = importlib.metadata.distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            if not (site / top).exists() and (work_dir / top).exists():
                (site / top).symlink_to(work_dir / top)
        for libs in work_dir.glob(f"{name}.libs"):
            if not (site / libs.name).exists():
                (site / libs.name).symlink_to(libs)
    return home / "bin" / "python"


def run(python: Path, program: str, given: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [python, "-c", program], input=given, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


# Runs the commands of standard input, all in one process because it imports PyTorch for seconds.
RUN_COMMANDS = """
import contextlib, importlib, io, json, os, sys
given = json.load(sys.stdin)
for name in given["extras"]:
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    sys.exit(f"{name} is installed: the environment has extras")
from metalabelnet.cli import main
results = []
for folder, command in given["commands"]:
    os.chdir(folder)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(command.split())
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""
QUICK = "--epochs 2 --warmup 1 --batch-size 16 --device cpu"
COMMANDS = {
    "train": [f"train tiny.npz --method metalabelnet {TINY} --out run"],
    "compare": [
        f"compare tiny.npz {TINY} --seeds 1 --methods cross-entropy,metalabelnet --jobs 1 --out o",
        "train digits --out d",
    ],
    "table": [
        f"train table.csv --clean-column checked {QUICK} --out run",
        "predict run table.csv -o out.csv",
        "train photos/ --clean checked.csv --out other",
        "train table.parquet --true-label label --out other",
        "train news.csv --clean-column ok --out other",
        "train table.csv --clean-column checked --net timm:resnet18 --out other",
        "train news.csv --clean-column ok --encoder some --out other",
        "export run --onnx model.onnx",
    ],
    "reproduce": ["reproduce fig-curves cifar10-table --tables-only"],
    "report": [
        "train pics.npz --clean 10 --epochs 2 --warmup 1 --net small-cnn --device cpu --out run",
        "report run",
    ],
}


def write_inputs(home: Path) -> None:
    """Write the files that the commands read."""
    for name in COMMANDS:
        (home / name).mkdir()
    write_npz(home / "train" / "tiny.npz")
    write_npz(home / "compare" / "tiny.npz")
    table = home / "table"
    write_csv(table / "table.csv", TABLE_COLUMNS, table_rows(60))
    write_csv(table / "news.csv", ["text", "label", "ok"], text_rows(60))
    (table / "table.parquet").write_bytes(b"PAR1")
    for name in "ab":
        (table / "photos" / name).mkdir(parents=True)
        (table / "photos" / name / "r0.png").write_bytes(b"")
    (table / "photos" / "a" / "r1.png").write_bytes(b"")
    write_csv(table / "checked.csv", ["id", "label"], [["a/r0.png", "a"], ["b/r0.png", "b"]])
    write_results(home / "reproduce" / "results", result_line(run_spec("fig-curves"), 77.77, curves=True))
    x = np.random.default_rng(0).integers(0, 255, (60, 12, 12, 3), dtype=np.uint8)
    np.savez(home / "report" / "pics.npz", x_train=x, y_train=np.arange(60) % 2)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a folder for each of `COMMANDS`, in which they run."""
    home = tmp_path_factory.mktemp("home")
    write_inputs(home)
    return home


@pytest.fixture(scope="module")
def results(python: Path, home: Path) -> dict[str, list[CliResult]]:
    """Return the results of `COMMANDS`."""
    commands = [(str(home / name), command) for name, group in COMMANDS.items() for command in group]
    output = run(python, RUN_COMMANDS, json.dumps({"extras": EXTRAS, "commands": commands}))
    assert output.returncode == 0, output.stderr
    left = iter(CliResult(*result) for result in json.loads(output.stdout))
    return {name: [next(left) for _ in group] for name, group in COMMANDS.items()}


def test_training_needs_no_extra(results: dict[str, list[CliResult]], home: Path) -> None:
    (trained,) = results["train"]
    assert trained.code == 0, trained.err
    lines = trained.err.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("metalabelnet on tiny.npz: 62 training samples of 3 classes")
    assert all(re.match(rf"metalabelnet: epoch {k}/5: loss ", line) for k, line in enumerate(lines[1:], 1))
    assert RunFolder(home / "train" / "run").finished


def test_table_needs_no_extra_and_other_data_names_its_extra(results: dict[str, list[CliResult]]) -> None:
    trained, predicted, *others = results["table"]
    assert (trained.code, predicted.code) == (0, 0), trained.err + predicted.err
    assert "60 rows written to out.csv\n" in predicted.out
    sentences = (
        "reading images needs Pillow: pip install 'metalabelnet[images]'",
        "a Parquet file needs pyarrow: pip install 'metalabelnet[tables]'",
        "TF-IDF of texts needs scikit-learn: pip install 'metalabelnet[text]'",
        "takes color images, not samples of shape",
        "the encoder sentence-transformers:some needs sentence-transformers: pip install 'metalabelnet[encoders]'",
        "exporting to ONNX needs onnx, onnxruntime and onnxscript: pip install 'metalabelnet[onnx]'",
    )
    for other, sentence in zip(others, sentences, strict=True):
        assert other.code == 2
        assert sentence in other.err
        assert "Traceback" not in other.err


def test_compare_without_matplotlib_and_digits_without_sklearn(results: dict[str, list[CliResult]], home: Path) -> None:
    compared, digits = results["compare"]
    assert (compared.code, digits.code) == (0, 2), compared.err
    assert [line.split()[0] for line in compared.out.splitlines()[3:5]] == ["cross-entropy", "metalabelnet"]
    assert "no plot: a plot of the learning curves needs matplotlib: pip install 'metalabelnet[plot]'" in compared.err
    assert digits.err == "metalabelnet: the data set digits needs scikit-learn: pip install 'metalabelnet[digits]'\n"
    assert sorted(f.name for f in (home / "compare").iterdir()) == ["o", "tiny.npz"]
    assert sorted(f.name for f in (home / "compare" / "o").iterdir()) == [
        "cross-entropy-seed0",
        "metalabelnet-seed0",
        "table.txt",
    ]


def test_reproduce_tables_need_no_extra_and_figures_name_theirs(
    results: dict[str, list[CliResult]], home: Path
) -> None:
    (reproduced,) = results["reproduce"]
    assert reproduced.code == 0, reproduced.err
    assert "77.77 (1)" in reproduced.out
    assert reproduced.err == "no figures: a figure needs matplotlib: pip install 'metalabelnet[plot]'\n"
    made = sorted(file.name for file in (home / "reproduce" / "docs" / "results" / "reproduction").iterdir())
    assert made == ["cifar10-table.md", "cifar10-table.tex", "fig-curves.md", "fig-curves.tex"]


def test_report_needs_no_extra(results: dict[str, list[CliResult]], home: Path) -> None:
    trained, reported = results["report"]
    assert (trained.code, reported.code, reported.err) == (0, 0, "")
    page = (home / "report" / "report.html").read_text(encoding="utf-8")
    assert page.count('src="data:image/png;base64,') == 30


def test_train_does_not_import_installed_extras() -> None:
    show = "import metalabelnet.cli.commands.train, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = set(run(Path(sys.executable), show).stdout.split())
    assert {"torch", "metalabelnet"} <= loaded
    assert not loaded & {*EXTRAS, "PIL", "scipy", "pandas"}
