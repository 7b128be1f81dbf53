"""The wheel, installed in a new environment outside the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=cwd, env={**clean, **environment}, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_wheel_trains_outside_checkout(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", ROOT]
    run(*build, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    sources = {f.relative_to(ROOT / "src").as_posix() for f in (ROOT / "src").rglob("*.py")}
    assert sources <= set(names)
    assert "metalabelnet/py.typed" in names
    assert all(name.startswith(("metalabelnet/", "metalabelnet-")) for name in names)

    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    programs = tmp_path / "venv" / "bin"
    constraints = str(ROOT / "constraints.txt")
    run(programs / "pip", "install", "--quiet", f"{wheel}[all]", cwd=tmp_path, PIP_CONSTRAINT=constraints)
    where = run(programs / "python", "-c", "import metalabelnet; print(metalabelnet.__file__)", cwd=tmp_path).stdout
    assert where.startswith(str(tmp_path))

    settings = "--noise uniform:0.4 --clean 100 --epochs 6 --warmup 3 --out run"
    output = run(programs / "metalabelnet", "train", "digits", *settings.split(), cwd=tmp_path, OMP_NUM_THREADS="1")
    assert "test accuracy" in output.stdout
    assert (tmp_path / "run" / "labels.csv").read_text().count("\n") == 1198
    assert '"commit": null' in (tmp_path / "run" / "run.json").read_text()
