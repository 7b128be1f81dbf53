"""With torch, numpy and safetensors alone, training works, and errors name the missing extra."""

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

from cli_runner import TINY
from metalabelnet.train import RunFolder
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


def run(python: Path, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [python, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_training_needs_no_extra(python: Path, tmp_path: Path) -> None:
    write_npz(tmp_path / "tiny.npz")
    output = run(
        python,
        ["-m", "metalabelnet", "train", "tiny.npz", *f"--method metalabelnet {TINY} --out run".split()],
        tmp_path,
    )
    assert output.returncode == 0, output.stderr
    lines = output.stderr.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("metalabelnet on tiny.npz: 62 training samples of 3 classes")
    assert all(re.match(rf"metalabelnet: epoch {k}/5: loss ", line) for k, line in enumerate(lines[1:], 1))
    assert RunFolder(tmp_path / "run").finished


THE_REST = """
import importlib, sys
for name in sys.argv[1].split(","):
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    sys.exit(f"{name} is installed: the environment has extras")
from metalabelnet.cli import main
tiny = sys.argv[2].split()
print(main(["compare", "tiny.npz", *tiny, "--methods", "cross-entropy,metalabelnet", "--jobs", "1", "--out", "o"]))
print("##", file=sys.stderr)
print(main(["train", "digits", "--out", "d"]))
"""

OWN = """
from metalabelnet.cli import main
quick = "--epochs 2 --warmup 1 --batch-size 16 --device cpu".split()
print(main(["train", "table.csv", "--clean-column", "checked", *quick, "--out", "run"]))
print(main(["predict", "run", "table.csv", "-o", "out.csv"]))
for arguments in ("photos/ --clean table.csv", "table.parquet --true-label label", "news.csv --clean-column ok",
                  "table.csv --clean-column checked --net timm:resnet18", "news.csv --clean-column ok --encoder some"):
    print(main(["train", *arguments.split(), "--out", "other"]))
print(main(["export", "run", "--onnx", "model.onnx"]))
"""


REPORT = """
import sys
from metalabelnet.cli import main
quick = "--clean 10 --epochs 2 --warmup 1 --net small-cnn --device cpu --out run"
trained = main(["train", "pics.npz", *quick.split()])
print("##", file=sys.stderr)
print(trained, main(["report", "run"]))
"""


def test_table_needs_no_extra_and_other_data_names_its_extra(python: Path, tmp_path: Path) -> None:
    write_csv(tmp_path / "table.csv", TABLE_COLUMNS, table_rows(60))
    write_csv(tmp_path / "news.csv", ["text", "label", "ok"], text_rows(60))
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    for name in "ab":
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "r0.png").write_bytes(b"")
    (tmp_path / "photos" / "a" / "r1.png").write_bytes(b"")
    write_csv(tmp_path / "checked.csv", ["id", "label"], [["a/r0.png", "a"], ["b/r0.png", "b"]])
    output = run(python, ["-c", OWN.replace("--clean table.csv", "--clean checked.csv")], tmp_path)
    assert "60 rows written to out.csv\n0\n" in output.stdout, output.stderr
    assert output.stdout.split()[-6:] == ["2"] * 6
    for sentence in (
        "reading images needs Pillow: pip install 'metalabelnet[images]'",
        "a Parquet file needs pyarrow: pip install 'metalabelnet[tables]'",
        "TF-IDF of texts needs scikit-learn: pip install 'metalabelnet[text]'",
        "takes color images, not samples of shape",
        "the encoder some needs sentence-transformers: pip install 'metalabelnet[encoder]'",
        "exporting to ONNX needs onnx, onnxruntime and onnxscript: pip install 'metalabelnet[onnx]'",
    ):
        assert sentence in output.stderr
    assert "Traceback" not in output.stderr


def test_compare_without_matplotlib_and_digits_without_sklearn(python: Path, tmp_path: Path) -> None:
    write_npz(tmp_path / "tiny.npz")
    output = run(python, ["-c", THE_REST, ",".join(EXTRAS), f"{TINY} --seeds 1"], tmp_path)
    assert output.returncode == 0, output.stderr
    of_compare, of_digits = output.stderr.split("##\n")
    lines = output.stdout.splitlines()
    assert [line.split()[0] for line in lines[3:5]] == ["cross-entropy", "metalabelnet"]
    assert "no plot: a plot of the learning curves needs matplotlib: pip install 'metalabelnet[plot]'" in of_compare
    assert lines[-2:] == ["0", "2"]
    assert of_digits == "metalabelnet: the data set digits needs scikit-learn: pip install 'metalabelnet[digits]'\n"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["o", "tiny.npz"]
    assert sorted(f.name for f in (tmp_path / "o").iterdir()) == [
        "cross-entropy-seed0",
        "metalabelnet-seed0",
        "table.txt",
    ]


def test_reproduce_tables_need_no_extra_and_figures_name_theirs(python: Path, tmp_path: Path) -> None:
    from sample_results import result_line, run_spec, write_results

    write_results(tmp_path / "results", result_line(run_spec("fig-curves"), 77.77, curves=True))
    output = run(python, ["-m", "metalabelnet", "reproduce", "fig-curves", "cifar10-table", "--tables-only"], tmp_path)
    assert output.returncode == 0, output.stderr
    assert "77.77 (1)" in output.stdout
    assert output.stderr == "no figures: a figure needs matplotlib: pip install 'metalabelnet[plot]'\n"
    made = sorted(file.name for file in (tmp_path / "docs" / "results" / "reproduction").iterdir())
    assert made == ["cifar10-table.md", "cifar10-table.tex", "fig-curves.md", "fig-curves.tex"]


def test_train_does_not_import_installed_extras(tmp_path: Path) -> None:
    show = "import metalabelnet.cli.commands.train, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = set(run(Path(sys.executable), ["-c", show], tmp_path).stdout.split())
    assert {"torch", "metalabelnet"} <= loaded
    assert not loaded & {*EXTRAS, "PIL", "scipy", "pandas"}


def test_report_needs_no_extra(python: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (60, 12, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "pics.npz", x_train=x, y_train=np.arange(60) % 2)
    output = run(python, ["-c", REPORT], tmp_path)
    assert (output.returncode, output.stderr.rpartition("##\n")[2]) == (0, "")
    assert output.stdout.splitlines()[-1] == "0 0"
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count('src="data:image/png;base64,') == 30
