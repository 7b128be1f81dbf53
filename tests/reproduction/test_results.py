"""The results folder: one small line per run, without paths, identified by its settings."""

import functools
import json
import operator
import platform
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from metalabelnet.errors import InputError
from metalabelnet.methods import METHODS
from metalabelnet.reproduction.resources import Resources
from metalabelnet.reproduction.results import (
    Results,
    make_result_line,
    result_line_from_folder,
    run_key,
    spec_key,
    stored_settings,
)
from metalabelnet.reproduction.selection import Selection, run_specs
from metalabelnet.reproduction.tuning_data import tuning_data
from metalabelnet.train import RunFolder, train
from metalabelnet.train.versions import versions
from sample_results import METADATA, result_line, run_spec, write_results

COMMITTED = Path(__file__).parents[2] / "results"


def test_line_is_read_as_written(tmp_path: Path) -> None:
    one = run_spec("cifar10-table")
    write_results(tmp_path, result_line(one, 78.5, curves=True))
    read = Results(tmp_path).find(one)
    assert read == json.loads((tmp_path / "cifar10.jsonl").read_text())
    assert read["summary"]["test_accuracy"] == 78.5
    assert read["summary"]["test_accuracy_last"] == 77.5
    assert {name: len(curve) for name, curve in read["curves"].items() if name != "label_change"} == {
        "test_accuracy": 120,
        "clean_accuracy": 120,
        "clean_loss": 120,
    }
    assert read["curves"]["clean_accuracy"][-1] == round(50 + 28 * 119 / 120 + 4 / 3, 2)
    assert read["curves"]["clean_loss"][-1] == 0.00833
    assert read["curves"]["label_change"]["from"] == 45
    assert read["curves"]["label_change"]["mean"][0] == 0.000268
    assert [f.name for f in tmp_path.iterdir()] == ["cifar10.jsonl"]


def test_line_is_small_and_contains_no_path(tmp_path: Path) -> None:
    for one in (run_spec("cifar10-table"), run_spec("cifar10n", cell="worst")):
        write_results(tmp_path / one.experiment, result_line(one, curves=True))
        (file,) = (tmp_path / one.experiment).iterdir()
        text = file.read_text()
        assert len(text) < 5000
        assert "/a/path" not in text
        assert "data_dir" not in text
    assert result_line(run_spec("cifar10-table"))["settings"]["noise_probs"] == "authors"
    assert result_line(run_spec("cifar10-table", cell="uniform:0.4"))["settings"]["noise_probs"] is None
    assert result_line(run_spec("cifar10n", cell="worst"))["settings"]["noise"] == "cifar10n:worst"


def test_one_file_per_data_set(tmp_path: Path) -> None:
    write_results(
        tmp_path,
        result_line(run_spec("cifar10-table")),
        result_line(run_spec("cifar10n", cell="worst")),
        result_line(run_spec("fig-losses")),
    )
    assert sorted(f.name for f in tmp_path.iterdir()) == ["cifar10.jsonl", "cifar10n.jsonl", "fig-losses.jsonl"]


def test_lines_without_curves_are_read() -> None:
    lines = [json.loads(text) for text in (COMMITTED / "cifar10.jsonl").read_text().splitlines()[:4]]
    results = Results(COMMITTED)
    expected = {"metalabelnet": [78.76, 78.5], "fine-tune": [79.2], "clean-only": [74.48, 73.86]}
    for method, accuracies in expected.items():
        found = results.find_all(run_spec("cifar10-table", method))
        assert [line["summary"]["test_accuracy"] for line in found] == accuracies
    assert {one["settings"]["method"] for one in lines} == {"metalabelnet", "fine-tune", "clean-only", "cross-entropy"}


def test_method_without_given_labels_is_one_run_for_all_noises(tmp_path: Path) -> None:
    cells = ("uniform:0.2", "feature:0.6")
    first, second = (spec_key(run_spec("cifar10-table", "clean-only", cell=cell)) for cell in cells)
    assert first == second
    assert len({spec_key(run_spec("cifar10-table", "fine-tune", cell=cell)) for cell in cells}) == 2
    results = write_results(tmp_path, result_line(run_spec("cifar10-table", "clean-only", cell="uniform:0.2"), 73.0))
    assert results.find(run_spec("cifar10-table", "clean-only", cell="feature:0.6"))["summary"]["test_accuracy"] == 73.0


def test_repeated_runs_of_a_seed_are_all_found(tmp_path: Path) -> None:
    results = write_results(tmp_path, result_line(run_spec("cifar10-table"), 70.0))
    assert results.find(run_spec("fig-curves")) is None
    results.add(result_line(run_spec("fig-curves"), 71.0, curves=True))
    for again in (results, Results(tmp_path)):
        for name in ("cifar10-table", "fig-curves"):
            found = again.find_all(run_spec(name))
            assert [line["summary"]["test_accuracy"] for line in found] == [70.0, 71.0]
        assert again.find(run_spec("fig-curves"))["summary"]["test_accuracy"] == 71.0
        assert again.find(run_spec("cifar10-table"))["summary"]["test_accuracy"] == 70.0


def test_superseded_line_is_kept_and_not_found(tmp_path: Path) -> None:
    one = run_spec("cifar10-table")
    flagged = result_line(one, 70.0) | {"superseded": "0123456: the loss has changed"}
    results = write_results(tmp_path, flagged)
    assert results.find(one) is None
    results.add(result_line(one, 72.0))
    for again in (results, Results(tmp_path)):
        assert len(again.lines) == 2
        assert [line["summary"]["test_accuracy"] for line in again.find_all(one)] == [72.0]
        assert again.find_superseded([one]) == [json.loads(json.dumps(flagged))]
        assert again.find_superseded([run_spec("cifar10-table", seed=1), run_spec("cifar10-table", "gce")]) == []


def test_superseded_line_may_have_settings_that_no_longer_exist(tmp_path: Path) -> None:
    flagged = result_line(run_spec("cifar10-table")) | {"superseded": "0123456: renamed"}
    flagged["settings"]["settings"] = {"no_such_setting": 1}
    (tmp_path / "cifar10.jsonl").write_text(json.dumps(flagged) + "\n")
    assert len(Results(tmp_path).lines) == 1


def test_line_names_the_device_that_trained_and_what_the_method_was_tuned_on(tmp_path: Path) -> None:
    """On a machine with a GPU, a run on the CPU is a run on the CPU."""
    spec = run_specs("cifar10-table", Selection(smoke=True, methods=("cross-entropy",)))[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "get_device_name", lambda *_: "a GPU")
        run = Resources(device="cpu", dtype="float32").run(spec)
        train(run, folder=tmp_path)
        assert versions()["device"] == "a GPU"
    assert RunFolder(tmp_path).metadata()["versions"]["device"] == platform.machine()
    line = result_line_from_folder(spec, RunFolder(tmp_path))
    assert line["versions"]["device"] == platform.machine()
    assert line["tuned_on"].startswith("not tuned")


def test_line_names_the_device_that_resumed_a_run() -> None:
    """run.json is written when a run starts; the device that finished it is among what was executed."""
    one = run_spec("cifar10-table")
    executed = {"execution": "eager", "kernels": "none", "fallbacks": [], "device": "another GPU"}
    metadata = {**METADATA, "method_settings": {}, "executed": executed}
    assert make_result_line(one, metadata=metadata, failure="x")["versions"]["device"] == "another GPU"


def test_committed_lines_say_their_recipe_and_what_the_method_was_tuned_on() -> None:
    """A superseded line keeps what the earlier version of the method was tuned on."""
    for line in Results(COMMITTED).lines:
        assert line["tuned_on"]
        if not line.get("superseded"):
            assert line["tuned_on"] == tuning_data(line["settings"]["method"], line["settings"]["recipe"])


def test_committed_lines_whose_epoch_was_selected_again_follow_their_curves() -> None:
    """The stored loss is rounded: an epoch that it cannot tell from the best may be selected.

    On a GPU the accuracy after the run comes from another forward pass than that of the curve.
    """
    lines = [line for line in Results(COMMITTED).lines if "reselected" in line and not line.get("superseded")]
    assert lines
    for line in lines:
        summary, curves, settings = line["summary"], line["curves"], line["settings"]
        first = int(METHODS[settings["method"]].traits.select_from * settings["epochs"])
        ranks = list(zip(curves["clean_accuracy"], (-loss for loss in curves["clean_loss"]), strict=True))
        epoch = summary["selected_epoch"]
        assert epoch >= first
        assert ranks[epoch] == max(ranks[first:])
        assert summary["test_accuracy"] == pytest.approx(curves["test_accuracy"][epoch], abs=0.1)


def test_explicit_default_settings_give_the_same_key() -> None:
    one = run_spec("cifar10-table")
    settings = stored_settings(one)
    assert run_key(settings) == spec_key(one)
    assert run_key({**settings, "settings": {"beta": 0.01}}) == spec_key(one)
    assert run_key({**settings, "settings": {"beta": 0.001}}) != spec_key(one)
    assert run_key(settings, {"beta": 0.001}) != spec_key(one), "the default has changed since"
    assert run_key({**settings, "dtype": "float32", "execution": "eager", "device": "cpu"}) == spec_key(one)
    without = {name: value for name, value in settings.items() if name not in ("head", "unlabeled")}
    assert run_key(without) == spec_key(one), "a line without a newer setting"


def test_dtype_selects_lines(tmp_path: Path) -> None:
    write_results(tmp_path, result_line(run_spec("cifar10-table")))
    assert Results(tmp_path, "bf16").find(run_spec("cifar10-table")) is not None
    assert Results(tmp_path, "float32").find(run_spec("cifar10-table")) is None


def damaged_line(path: str, value: Any = None) -> bytes:
    """A result line with another value at this path, or without it."""
    line = json.loads(json.dumps(result_line(run_spec("fig-curves"), curves=True)))
    *names, last = path.split("/")
    parent = functools.reduce(operator.getitem, names, line)
    if value is None:
        del parent[last]
    else:
        parent[last] = value
    return json.dumps(line).encode()


REQUIRED_PATHS = (
    "date",
    "settings",
    "summary",
    "versions",
    "commit",
    "curves/test_accuracy",
    "curves/label_change/mean",
)
REQUIRED_PATHS += tuple(f"settings/{name}" for name in ("data", "method", "noise", "net", "seed", "epochs", "warmup"))
REQUIRED_PATHS += tuple(f"summary/{name}" for name in ("test_accuracy", "test_accuracy_last", "seconds"))
DAMAGED_LINES = {
    **{f"without {path}": damaged_line(path) for path in REQUIRED_PATHS},
    "no settings": b'{"settings": 3}',
    "a seed in letters": damaged_line("settings/seed", "a"),
    "two methods": damaged_line("settings/method", ["gce", "sce"]),
    "fewer epochs than warm-up": damaged_line("settings/warmup", 121),
    "one version": damaged_line("versions", "2.11"),
    "a number for the method's settings": damaged_line("method_settings", 3),
    "an accuracy of 10^400": damaged_line("summary/test_accuracy", 10**400),
    "an infinite time": damaged_line("summary/seconds", float("inf")),
    "a list of numbers of samples": damaged_line("summary/samples", [1]),
    "an epoch beyond all": damaged_line("settings/epochs", 2**62),
    "a text in a curve": damaged_line("curves/label_change/mean", ["a"] * 120),
    "losses without values": damaged_line("losses", {"tau": [0.0]}),
    "no runs on the device": damaged_line("concurrent", 0),
    "half a line": b"{",
    "not text": b"\x80\x02\xff",
    "not UTF-8": b"\xff\xfe{\x00}",
}


@pytest.mark.parametrize("name", DAMAGED_LINES)
def test_damaged_line_is_reported(name: str, tmp_path: Path) -> None:
    write_results(tmp_path, result_line(run_spec("cifar10-table")))
    with (tmp_path / "cifar10.jsonl").open("ab") as file:
        file.write(DAMAGED_LINES[name] + b"\n")
    with pytest.raises(InputError, match=r"cifar10.jsonl, line 2: not a result of a run; remove the line"):
        Results(tmp_path)


def test_concurrent_add_keeps_all_lines(tmp_path: Path) -> None:
    lines = [result_line(run_spec("cifar10-table", seed=seed)) for seed in range(8)]
    threads = [threading.Thread(target=Results(tmp_path).add, args=(one,)) for one in lines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Results(tmp_path).lines) == 8


def test_line_added_by_two_processes_is_written_once(tmp_path: Path) -> None:
    """The line of one run folder is written once, that of a repeated run is another line."""
    one, other = Results(tmp_path), Results(tmp_path)
    one.add(result_line(run_spec("cifar10-table"), 78.0))
    other.add(result_line(run_spec("cifar10-table"), 78.0))
    assert len(Results(tmp_path).lines) == 1
    other.add(result_line(run_spec("cifar10-table"), 77.0))
    other.add(result_line(run_spec("fig-curves"), 79.0, curves=True))
    one.add(result_line(run_spec("cifar10-table", seed=1)))
    for results in (one, Results(tmp_path)):
        found = results.find_all(run_spec("cifar10-table"))
        assert [line["summary"]["test_accuracy"] for line in found] == [78.0, 77.0, 79.0]
    assert len(one.lines) == len(Results(tmp_path).lines) == 4


def test_other_dtype_is_another_line(tmp_path: Path) -> None:
    write_results(tmp_path, result_line(run_spec("cifar10-table")))
    again = result_line(run_spec("cifar10-table"))
    again["settings"]["dtype"] = "float32"
    Results(tmp_path, "float32").add(again)
    assert len(Results(tmp_path).lines) == 2


def test_append_after_a_line_without_newline(tmp_path: Path) -> None:
    shutil.copy(COMMITTED / "cifar10.jsonl", tmp_path)
    file = tmp_path / "cifar10.jsonl"
    file.write_text(file.read_text().rstrip("\n"))
    count = len(Results(tmp_path).lines)
    write_results(tmp_path, result_line(run_spec("cifar10-table", seed=3)))
    assert len(Results(tmp_path).lines) == count + 1


def test_failure_is_a_result(tmp_path: Path) -> None:
    results = write_results(tmp_path, result_line(run_spec("fig-curves"), None))
    assert results.find(run_spec("fig-curves"))["failure"] == "the loss is nan"
