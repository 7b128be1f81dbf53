"""A real run over pictures in folders, made once, and a page that serves a copy of it."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "cli"))  # for `files`, somebody's own data
sys.path.append(str(Path(__file__).parent))

from browsing import Program
from metalabelnet.cli import main
from served import Served, serve
from user_data import FRUIT, QUICK, write_csv, write_photos


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos`, `checked.csv` and `run`."""
    home = tmp_path_factory.mktemp("trained")
    true_label = write_photos(home / "photos")
    checked = [pair for pair in true_label if pair[1] in FRUIT][:24] + [
        pair for pair in true_label if pair[1] == "rare"
    ][:2]
    write_csv(home / "checked.csv", ("id", "label"), checked)
    arguments = f"--clean {home}/checked.csv {QUICK} --image-size 8 --out {home}/run"
    assert main(["train", str(home / "photos"), *arguments.split()]) == 0
    return home


@pytest.fixture
def make_page(trained: Path, tmp_path: Path) -> Callable[..., Served]:
    """Serve a copy of the run, or anything else."""

    def make(source: str | Path | None = None, **read_options: str) -> Served:
        if source is None:
            shutil.copytree(trained / "run", tmp_path / "run", dirs_exist_ok=True)
        return serve(tmp_path / "run" if source is None else source, **read_options)

    return make


@pytest.fixture
def page(make_page: Callable[..., Served]) -> Served:
    return make_page()


@pytest.fixture
def start(trained: Path, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start the program on a copy of the run, or on anything else; all are ended after the test."""
    programs: list[Program] = []

    def begin(source: Path | None = None, *more: str) -> Program:
        if source is None and not (tmp_path / "run").exists():
            shutil.copytree(trained / "run", tmp_path / "run")
        programs.append(Program(tmp_path / "run" if source is None else source, *more))
        return programs[-1]

    yield begin
    for program in programs:
        if program.process.poll() is None:
            program.end()
