"""A run trained once on image folders, and a review page on a copy of it."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "cli"))  # for `files`, somebody's own data
sys.path.append(str(Path(__file__).parent))

from metalabelnet.cli import main
from review_browser import ForkedReviewServer, ReviewForker, ReviewServer
from review_client import ReviewClient, open_review
from user_data import FRUIT, LEARNED, QUICK, write_csv, write_photos


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos`, `checked.csv` and `run`."""
    home = tmp_path_factory.mktemp("trained")
    true_label = write_photos(home / "photos")
    checked = [pair for pair in true_label if pair[1] in FRUIT][:24] + [
        pair for pair in true_label if pair[1] == "rare"
    ][:2]
    write_csv(home / "checked.csv", ("id", "label"), checked)
    arguments = f"--clean {home}/checked.csv {QUICK} {LEARNED} --image-size 8 --out {home}/run"
    assert main(["train", str(home / "photos"), *arguments.split()]) == 0
    return home


@pytest.fixture
def make_page(trained: Path, tmp_path: Path) -> Callable[..., ReviewClient]:
    """Open a copy of the run, or another source."""

    def make(source: str | Path | None = None, **read_options: str) -> ReviewClient:
        if source is None:
            shutil.copytree(trained / "run", tmp_path / "run", dirs_exist_ok=True)
            (tmp_path / "run" / "digests.json").unlink(missing_ok=True)  # tests may change the files of the run
        return open_review(tmp_path / "run" if source is None else source, **read_options)

    return make


@pytest.fixture
def page(make_page: Callable[..., ReviewClient]) -> ReviewClient:
    return make_page()


@pytest.fixture(scope="session")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReviewForker]:
    forker = ReviewForker(tmp_path_factory.mktemp("review"))
    yield forker
    forker.close()


@pytest.fixture
def start(forker: ReviewForker, trained: Path, tmp_path: Path) -> Iterator[Callable[..., ReviewServer]]:
    """Start `metalabelnet review` on a copy of the run or another source; stopped after the test."""
    servers: list[ReviewServer] = []

    def start_server(source: Path | None = None, *more: str) -> ReviewServer:
        if source is None and not (tmp_path / "run").exists():
            shutil.copytree(trained / "run", tmp_path / "run")
        servers.append(ForkedReviewServer(forker, tmp_path / "run" if source is None else source, *more))
        return servers[-1]

    yield start_server
    for server in servers:
        server.stop()
