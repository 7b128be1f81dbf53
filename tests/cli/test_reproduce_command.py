"""`metalabelnet reproduce`: lists, wrong input, interruption, time budget."""

import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_runner import Forker, count_finished_epochs, run_cli, wait_for
from metalabelnet.reproduction.experiments import EXPERIMENTS, RUNNABLE
from metalabelnet.reproduction.results import Results
from tiny_data import write_npz

Capture = pytest.CaptureFixture[str]
SMOKE = "fig-warmup --smoke --device cpu --points 20,80 --cells uniform:0.4 --seeds 3"
START_SECONDS = 240  # worker processes that import PyTorch on a busy machine


def arguments(folder: Path, what: str = SMOKE) -> list[str]:
    places = [word for name in ("results", "out", "figures") for word in (f"--{name}", str(folder / name))]
    return ["reproduce", *what.split(), *places]


def test_list(tmp_path: Path, capsys: Capture) -> None:
    output = run_cli(["reproduce", "--list", "--results", str(tmp_path)], capsys)
    assert output.code == 0
    rows = {line.split()[0]: line for line in output.out.splitlines()[2:]}
    assert set(rows) == set(EXPERIMENTS)
    assert "0/448" in rows["cifar10-table"]
    assert "needs data: WebVision" in rows["webvision-table"]
    assert f"no finished runs: {tmp_path} has no result files; name another folder with --results DIR" in output.err


def test_list_names_the_folder_of_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no finished runs: results has no result files" in run_cli(["reproduce", "--list"], capsys).err
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "digits.jsonl").touch()
    output = run_cli(["reproduce", "--list"], capsys)
    assert output.err == "finished runs are those in the result files of the folder results\n"


def test_list_of_runs_with_recipes(tmp_path: Path, capsys: Capture) -> None:
    output = run_cli(["reproduce", "ablation-beta", "clothing1m-table", "--list", "--results", str(tmp_path)], capsys)
    assert "metalabelnet feature:0.6 0.001 seed 0" in output.out
    assert "settings={'beta': 0.001}" in output.out
    assert "net=torchvision:resnet50, pretrained=hub" in output.out
    assert "78.20" in output.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "name a table or figure: choose from cifar10-table, "),
        ("cifar10-tabel", "unknown table or figure 'cifar10-tabel': did you mean 'cifar10-table'"),
        ("cifar10-table --methods gcee", "unknown method 'gcee': did you mean 'gce'"),
        ("cifar10-table --cells uniform:0.3", "unknown cell 'uniform:0.3'"),
        ("ablation-beta --points 0.001,0.05 --smoke", "ablation-beta: unknown point '0.05': did you mean '0.01'"),
        ("cifar10-table --methods gce,metalabelnet-plus", "cifar10-table: unknown method 'metalabelnet-plus'"),
        ("cifar10-table --methods gce,metalabelnet-plus --list", "cifar10-table: unknown method 'metalabelnet-plus'"),
        ("fig-curves fig-losses --methods gce --cells worst", "fig-curves, fig-losses: unknown cell 'worst'"),
        ("cifar10-table ablation-beta --methods gce --points 0.1", "no run has these methods, cells and points"),
        ("--list --methods metalablnet", "unknown method 'metalablnet': did you mean 'metalabelnet'"),
        ("--list --cells unifrom:0.4", "unknown cell 'unifrom:0.4': did you mean 'uniform:0.4'"),
        ("--list --points 7", "unknown point '7'"),
        ("cifar10-table --seeds 0", "seeds 0 is too small"),
        ("cifar10-table --concurrent 0", "concurrent 0 is too small: the minimum is 1"),
        ("cifar10-table --jobs 0", "jobs 0 is too small"),
        ("fig-curves --cells uniform:0.4 --jobs 2 --concurrent 2 --device cpu", "jobs 2: --jobs is for runs on a CPU"),
        ("cifar10-table --budget 0", "budget 0.0: give a positive number of minutes"),
        ("cifar10-table --budget nan", "budget nan: give a positive"),
        ("cifar10-table --dtype half", "unknown dtype 'half'"),
        ("cifar10-table --order dear", "invalid choice: 'dear'"),
        ("cifar10-table --noise-probs none.npy", "noise-probs none.npy: no such file; correct the path"),
        ("cifar10n --data-dir none", "runs need CIFAR-10_human.pt of CIFAR-10N in the data folder none"),
        ("fig-curves --cells feature:0.4", "nothing can be run: 1 runs need --noise-probs FILE"),
        ("fig-curves --tables-only --doc none.md", "doc: no file 'none.md'"),
    ],
)
def test_wrong_reproduce_input_gives_one_line(
    words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    output = run_cli(["reproduce", *words.split()], capsys)
    assert output.code == 2
    (line,) = [line for line in output.err.splitlines() if line.startswith("metalabelnet: ")]
    assert sentence in line
    assert "Traceback" not in output.err


def test_smoke_does_not_update_doc(tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin: agreement -->\nnumbers of real runs\n<!-- end: agreement -->\n")
    before = page.read_bytes()
    for more in ("", " --tables-only"):
        output = run_cli(arguments(tmp_path, f"fig-curves --smoke --doc {page}{more}"), capsys)
        assert output.code == 2
        assert f"doc {page}: --smoke trains on other data; leave out --smoke or --doc" in output.err
    assert page.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["page.md"], "nothing was run"


def test_tables_only_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    output = run_cli(["reproduce", "all", "--tables-only", "--results", "results", "--figures", "figures"], capsys)
    assert output.code == 0
    assert not (tmp_path / "runs").exists()
    names = {file.name for file in (tmp_path / "figures").iterdir()}
    assert names == {f"{name}.{kind}" for name in RUNNABLE for kind in ("md", "tex")}  # no figures without results


@pytest.fixture(scope="module")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    forker = Forker(write_npz(tmp_path_factory.mktemp("forker") / "tiny.npz"))
    yield forker
    forker.close()


def lines_without_times(folder: Path) -> list[str]:
    """Return the result lines without times."""
    lines = []
    for line in Results(folder / "results").lines:
        del line["summary"]["seconds"], line["commit"]
        lines.append(str(line))
    return sorted(lines)


@pytest.mark.parametrize(
    ("choice", "runs"),
    [
        ("--points 20 --seeds 1 --jobs 1", 1),
        ("--points 20,80 --seeds 3 --jobs 2", 6),
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_reproduce_killed_and_stopped_gives_same_results(
    choice: str, runs: int, forker: Forker, tmp_path: Path, capsys: Capture
) -> None:
    what = f"{SMOKE} {choice}"
    assert run_cli(arguments(tmp_path / "whole", what), capsys).code == 0
    parts = tmp_path / "the parts"  # the resume command must quote the space
    out = parts / "out"

    def last_epoch_written() -> int:
        return max((file.stat().st_mtime_ns for file in out.glob("*/metrics.jsonl")), default=0)

    killed = forker.start(arguments(parts, what), tmp_path)
    wait_for(lambda: sum(map(count_finished_epochs, out.glob("*"))) >= 2, seconds=START_SECONDS)
    killed.send(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    seen = last_epoch_written()  # perhaps all of its epochs: a run that is resumed without a checkpoint repeats them
    asked = forker.start(arguments(parts, what), tmp_path)
    wait_for(lambda: last_epoch_written() > seen, seconds=START_SECONDS)
    asked.send(signal.SIGTERM)
    assert asked.wait() == 130
    line = asked.err.read_text().splitlines()[-1]
    assert line.startswith("metalabelnet: stopped; progress saved; resume with: metalabelnet reproduce ")
    again = shlex.split(line.partition("resume with: metalabelnet ")[2])
    assert "--resume" not in again
    assert len(Results(parts / "results").lines) < runs
    assert run_cli(again, capsys).code == 0
    assert lines_without_times(parts) == lines_without_times(tmp_path / "whole")
    tables = [(folder / "figures" / "fig-warmup.md").read_text() for folder in (parts, tmp_path / "whole")]
    assert tables[0] == tables[1]


def test_budget_stops_cleanly(tmp_path: Path, capsys: Capture) -> None:
    output = run_cli([*arguments(tmp_path), "--jobs", "1", "--budget", "0.00001"], capsys)
    assert output.code == 0
    assert re.search(r"the budget of 1e-05 min is used up; 6 runs left; resume with the same command", output.err)
    assert (tmp_path / "figures" / "fig-warmup.md").exists()
