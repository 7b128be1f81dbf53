"""The experiment with equal GPU minutes for every method: its runs, its budget, its table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metalabelnet.cli import main
from metalabelnet.cli.commands import reproduce
from metalabelnet.errors import InputError, RunStopped
from metalabelnet.methods import METHODS
from metalabelnet.reproduction import epoch_seconds, field
from metalabelnet.reproduction.epoch_seconds import (
    FILE_NAME,
    epochs_within,
    measure,
    measure_missing,
    read_epoch_seconds,
)
from metalabelnet.reproduction.results import Results
from metalabelnet.reproduction.selection import Selection, run_specs
from metalabelnet.reproduction.tables import tables
from metalabelnet.train.settings import Run, make_run
from sample_results import result_line, write_results

TIMES = dict.fromkeys(field.METHODS, 2.0) | {"metalabelnet": 6.0}


def write_times(folder: Path, times: dict[str, float] = TIMES) -> None:
    folder.mkdir(exist_ok=True)
    entries = {name: {"seconds": s, "device": "NVIDIA H200", "dtype": "bf16"} for name, s in times.items()}
    (folder / FILE_NAME).write_text(json.dumps(entries))


def test_epochs_follow_from_minutes_and_seconds_per_epoch() -> None:
    specs = run_specs("field", Selection(epoch_seconds=TIMES, seeds=1))
    assert len(specs) == len(field.METHODS) * 8 * 2
    epochs = {(spec.method, spec.point): spec.fields["epochs"] for spec in specs}
    assert epochs["metalabelnet", "10"] == 100
    assert epochs["metalabelnet", "20"] == 200
    assert epochs["cross-entropy", "10"] == 300
    assert epochs_within(10, 10_000) == 2


def test_settings_of_a_run() -> None:
    selection = Selection(epoch_seconds=TIMES, seeds=1, methods=("metalabelnet",), points=("10",))
    runs = {spec.cell: make_run(**spec.fields) for spec in run_specs("field", selection)}
    assert [run.noise for run in runs.values()] == [
        "cifar10n:worst", "cifar10n:aggregate", "cifar10n:random1", "symmetric:0.2", "symmetric:0.5", "symmetric:0.8",
        "symmetric:0.9", "asymmetric:0.4",
    ]  # fmt: skip
    run = runs["worst"]
    assert (run.net, run.clean, run.recipe, run.split) == ("preact-resnet18", 1000, "modern", "general")
    assert run.lr == 0.02
    assert run.epochs == 100


def test_methods_are_those_of_the_table() -> None:
    assert {"cross-entropy", "fine-tune", "metalabelnet", "metalabelnet-plus"} <= set(field.METHODS) <= set(METHODS)
    for numbers in field.PUBLISHED.values():
        assert set(numbers) <= set(field.CELLS)


def test_table_has_the_published_number_beside(tmp_path: Path) -> None:
    write_times(tmp_path)
    selection = Selection(epoch_seconds=TIMES, seeds=1, methods=("cross-entropy",), cells=("worst",), points=("20",))
    (spec,) = run_specs("field", selection)
    write_results(tmp_path, result_line(spec, 84.25))
    assert (tmp_path / "field.jsonl").is_file()
    ten, twenty = tables("field", Results(tmp_path))
    assert "20 GPU minutes" in twenty.title
    assert (twenty.columns[1], twenty.columns[2]) == ("worst", "published")
    rows = {row[0]: row for row in twenty.rows}
    assert list(rows) == sorted(rows, key=field.METHODS.index)
    assert rows["cross-entropy"][1:3] == ["84.25 (1)", "77.7"]
    assert rows["metalabelnet"][1:3] == ["", "–"]
    assert next(row for row in ten.rows if row[0] == "cross-entropy")[1] == ""


def test_table_of_other_minutes_is_shown_where_there_are_runs(tmp_path: Path) -> None:
    write_times(tmp_path)
    assert [table.title.split(",")[1] for table in tables("field", Results(tmp_path))] == [
        " 10 GPU minutes for each method: mean ± standard deviation (seeds)",
        " 20 GPU minutes for each method: mean ± standard deviation (seeds)",
    ]
    selection = Selection(epoch_seconds=TIMES, seeds=1, methods=("dmlp",), cells=("symmetric:0.5",), points=("1",))
    (spec,) = run_specs("field", selection)
    assert spec.fields["epochs"] == 30
    write_results(tmp_path, result_line(spec, 90.5))
    one, ten, _ = tables("field", Results(tmp_path))
    assert "1 GPU minute for" in one.title
    cell = one.columns.index("symmetric 50 %")
    assert next(row for row in one.rows if row[0] == "dmlp")[cell] == "90.50 (1)"
    assert next(row for row in ten.rows if row[0] == "dmlp")[cell] == ""


def test_sources_of_the_published_numbers_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_times(tmp_path)
    folders = ["--results", str(tmp_path), "--figures", str(tmp_path / "figures")]
    assert main(["reproduce", "field", "--tables-only", *folders]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "figures" / "field.md").read_text()
    for method in field.PUBLISHED:
        assert method in field.SOURCES
    assert field.SOURCES in printed
    assert field.SOURCES in page


def test_list_has_methods_that_are_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_times(tmp_path, {"ssr": 3.0})
    words = ["reproduce", "field", "--list", "--results", str(tmp_path), "--cells", "worst", "--points", "20"]
    assert main([*words, "--methods", "ssr,dmlp", "--seeds", "1"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "ssr worst 20 seed 0" in printed
    assert "epochs=400" in printed
    assert "dmlp worst 20 seed 0" in printed
    assert "epochs=20 min, not measured yet" in printed


def test_measuring_ends_with_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was measured is stored; the same command resumes with the next method."""
    measured: list[str] = []

    def measure(run: Run, stop: Callable[[], bool]) -> float:
        measured.append(run.method)
        if len(measured) == 2:
            monkeypatch.setattr(reproduce.time, "monotonic", lambda: float("inf"))
        if stop():
            raise RunStopped
        return 5.0

    monkeypatch.setattr(epoch_seconds, "measure", measure)
    words = ["reproduce", "field", "--methods", "ssr,dmlp,mlc", "--budget", "5", "--device", "cpu"]
    folders = [word for name in ("results", "out", "figures") for word in (f"--{name}", str(tmp_path / name))]
    assert main([*words, *folders]) == 0
    assert "the budget of 5 min is used up; some methods are not measured yet" in capsys.readouterr().err
    assert measured == ["ssr", "mlc"]
    assert read_epoch_seconds(tmp_path / "results") == {"ssr": 5.0}


def digits_run(**changes: Any) -> Run:
    fields = {"method": "metalabelnet", "net": "mlp", "epochs": 40, "warmup": 10, "limit": 100, "recipe": "paper"}
    return make_run("digits", **{**fields, "device": "cpu", **changes})


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((9, 10, 20, 23, 26), 0.25 * 1 + 0.75 * 3),  # 1 s in the warm-up, 3 s after it; the first of each compiles
        (range(2, 22, 2), 2 * 2.0),  # a method that trains twice the epochs of its run
    ],
)
def test_phases_count_by_their_share(ends: list[int], expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    class Folder:
        def __init__(self, _folder: Path) -> None:
            pass

        def metrics(self) -> list[dict[str, int]]:
            return [{"seconds": seconds} for seconds in ends]

    trained = []
    monkeypatch.setattr(epoch_seconds, "RunFolder", Folder)
    monkeypatch.setattr(epoch_seconds, "train", lambda run, **_: trained.append((run.epochs, run.warmup)))
    assert measure(digits_run()) == expected
    assert trained == [(5, 2)]


def test_methods_are_measured_once_on_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    measure_missing(tmp_path, {"metalabelnet": digits_run()}, log.append)
    times = read_epoch_seconds(tmp_path)
    assert times["metalabelnet"] > 0
    assert len(log) == 1
    monkeypatch.setattr(epoch_seconds, "measure", lambda *_: 7.0)
    runs = {"metalabelnet": digits_run(), "cross-entropy": digits_run(method="cross-entropy")}
    measure_missing(tmp_path, runs, log.append)
    assert read_epoch_seconds(tmp_path) == {**times, "cross-entropy": 7.0}
    with pytest.raises(InputError, match=r"was measured on .* in float32, and gce would be on .* in float64"):
        measure_missing(tmp_path, {"gce": digits_run(method="gce", dtype="float64")}, log.append)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"a": 1}', "[" * 100_000, '{"a": {"seconds": 1, "device": "x"}}'),
        *(
            f'{{"a": {{"seconds": {seconds}, "device": "x", "dtype": "y"}}}}'
            for seconds in ("0", "NaN", "Infinity", "1e-308", 10**400, '"1"', "true", "null")
        ),
    ],
    ids=lambda text: text[:30],
)
def test_damaged_times_raise_input_error(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(InputError, match=r"epoch-seconds\.json is damaged: restore it, or delete it to measure again"):
        read_epoch_seconds(tmp_path)
