"""The store of results: one line a run, whole, small, without a path, recognised by its settings."""

import functools
import json
import operator
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from made import entry, line, store
from metalabelnet.errors import InputError
from metalabelnet.reproduction.results import Results, key, key_of, settings_of

COMMITTED = Path(__file__).parents[2] / "results"


def test_a_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    one = entry("cifar10-table")
    store(tmp_path, line(one, 78.5, curves=True))
    read = Results(tmp_path).of(one)
    assert read == json.loads((tmp_path / "cifar10.jsonl").read_text())
    assert read["summary"]["test_accuracy"] == 78.5
    assert read["summary"]["test_accuracy_last"] == 77.5
    assert len(read["curves"]["test_accuracy"]) == 120
    assert read["curves"]["label_change"]["from"] == 45
    assert read["curves"]["label_change"]["mean"][0] == 0.000268
    assert [f.name for f in tmp_path.iterdir()] == ["cifar10.jsonl"]


def test_a_line_is_small_and_names_no_path(tmp_path: Path) -> None:
    for one in (entry("cifar10-table"), entry("cifar10n", cell="worst")):
        store(tmp_path / one.what, line(one, curves=True))
        (file,) = (tmp_path / one.what).iterdir()
        text = file.read_text()
        assert len(text) < 3300
        assert "/a/path" not in text
        assert "data_dir" not in text
    assert line(entry("cifar10-table"))["settings"]["noise_probs"] == "authors"
    assert line(entry("cifar10-table", cell="uniform:0.4"))["settings"]["noise_probs"] is None
    assert line(entry("cifar10n", cell="worst"))["settings"]["noise"] == "file:cifar10n-worst"


def test_each_data_set_has_its_file(tmp_path: Path) -> None:
    store(tmp_path, line(entry("cifar10-table")), line(entry("cifar10n", cell="worst")), line(entry("fig-losses")))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["cifar10.jsonl", "cifar10n.jsonl", "fig-losses.jsonl"]


def test_the_lines_written_before_there_were_curves_are_taken() -> None:
    lines = [json.loads(text) for text in (COMMITTED / "cifar10.jsonl").read_text().splitlines()[:4]]
    results = Results(COMMITTED)
    for method, accuracy in (("metalabelnet", 78.76), ("fine-tune", 79.2), ("clean-only", 74.48)):
        found = results.of(entry("cifar10-table", method))
        assert found is not None
        if "curves" not in found:
            assert found["summary"]["test_accuracy"] == accuracy
    assert {one["settings"]["method"] for one in lines} == {"metalabelnet", "fine-tune", "clean-only", "cross-entropy"}


def test_a_method_that_reads_no_given_label_is_run_once_for_all_noises(tmp_path: Path) -> None:
    cells = ("uniform:0.2", "feature:0.6")
    first, second = (key(entry("cifar10-table", "clean-only", cell=cell)) for cell in cells)
    assert first == second
    assert len({key(entry("cifar10-table", "fine-tune", cell=cell)) for cell in cells}) == 2
    results = store(tmp_path, line(entry("cifar10-table", "clean-only", cell="uniform:0.2"), 73.0))
    assert results.of(entry("cifar10-table", "clean-only", cell="feature:0.6"))["summary"]["test_accuracy"] == 73.0


def test_what_needs_the_epochs_does_not_take_a_line_without(tmp_path: Path) -> None:
    results = store(tmp_path, line(entry("cifar10-table"), 70.0))
    assert results.of(entry("cifar10-table")) is not None
    assert results.of(entry("fig-curves")) is None
    results.add(line(entry("fig-curves"), 71.0, curves=True))
    for again in (results, Results(tmp_path)):
        assert again.of(entry("fig-curves"))["summary"]["test_accuracy"] == 71.0
        assert again.of(entry("cifar10-table"))["summary"]["test_accuracy"] == 71.0


def test_settings_left_to_their_default_and_settings_named_are_the_same() -> None:
    one = entry("cifar10-table")
    settings = settings_of(one)
    assert key_of(settings) == key(one)
    assert key_of({**settings, "settings": {"beta": 0.01}}) == key(one)
    assert key_of({**settings, "settings": {"beta": 0.001}}) != key(one)
    assert key_of(settings, {"beta": 0.001}) != key(one), "a default that has changed since"
    assert key_of({**settings, "dtype": "float32", "differentiation": "eager", "device": "cpu"}) == key(one)
    without = {name: value for name, value in settings.items() if name not in ("head", "unlabeled")}
    assert key_of(without) == key(one), "a line from before a setting was there"


def test_with_a_dtype_only_its_lines_count(tmp_path: Path) -> None:
    store(tmp_path, line(entry("cifar10-table")))
    assert Results(tmp_path, "bf16").of(entry("cifar10-table")) is not None
    assert Results(tmp_path, "float32").of(entry("cifar10-table")) is None


def changed(way: str, value: Any = None) -> bytes:
    """A line with another value in the place this way leads to, or with nothing there."""
    whole = json.loads(json.dumps(line(entry("fig-curves"), curves=True)))
    *names, last = way.split("/")
    place = functools.reduce(operator.getitem, names, whole)
    if value is None:
        del place[last]
    else:
        place[last] = value
    return json.dumps(whole).encode()


NEEDED = ("date", "settings", "summary", "versions", "commit", "curves/test_accuracy", "curves/label_change/mean")
NEEDED += tuple(f"settings/{name}" for name in ("data", "method", "noise", "net", "seed", "epochs", "warmup"))
NEEDED += tuple(f"summary/{name}" for name in ("test_accuracy", "test_accuracy_last", "seconds"))
DAMAGED = {
    **{f"without {way}": changed(way) for way in NEEDED},
    "no settings": b'{"settings": 3}',
    "a seed in letters": changed("settings/seed", "a"),
    "two methods": changed("settings/method", ["gce", "sce"]),
    "fewer epochs than warm-up": changed("settings/warmup", 121),
    "one version": changed("versions", "2.11"),
    "a number for the method's settings": changed("method_settings", 3),
    "half a line": b"{",
    "not text": b"\x80\x02\xff",
    "not UTF-8": b"\xff\xfe{\x00}",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_line_is_named(name: str, tmp_path: Path) -> None:
    store(tmp_path, line(entry("cifar10-table")))
    with (tmp_path / "cifar10.jsonl").open("ab") as file:
        file.write(DAMAGED[name] + b"\n")
    with pytest.raises(InputError, match=r"cifar10.jsonl, line 2: this is no result of a run; remove the line"):
        Results(tmp_path)


def test_lines_added_at_once_are_all_there(tmp_path: Path) -> None:
    lines = [line(entry("cifar10-table", seed=seed)) for seed in range(8)]
    threads = [threading.Thread(target=Results(tmp_path).add, args=(one,)) for one in lines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Results(tmp_path).lines) == 8


def test_a_line_that_two_processes_add_is_written_once(tmp_path: Path) -> None:
    one, other = Results(tmp_path), Results(tmp_path)
    one.add(line(entry("cifar10-table"), 78.0))
    other.add(line(entry("cifar10-table"), 77.0))
    assert len(Results(tmp_path).lines) == 1
    assert other.of(entry("cifar10-table"))["summary"]["test_accuracy"] == 78.0
    other.add(line(entry("fig-curves"), 79.0, curves=True))
    one.add(line(entry("cifar10-table", seed=1)))
    for results in (one, other, Results(tmp_path)):
        assert results.of(entry("fig-curves")) is not None, "one that has more is written"
    assert len(one.lines) == len(Results(tmp_path).lines) == 3


def test_a_line_of_another_dtype_is_another(tmp_path: Path) -> None:
    store(tmp_path, line(entry("cifar10-table")))
    again = line(entry("cifar10-table"))
    again["settings"]["dtype"] = "float32"
    Results(tmp_path, "float32").add(again)
    assert len(Results(tmp_path).lines) == 2


def test_a_file_whose_last_line_has_no_end_is_gone_on_with(tmp_path: Path) -> None:
    shutil.copy(COMMITTED / "cifar10.jsonl", tmp_path)
    file = tmp_path / "cifar10.jsonl"
    file.write_text(file.read_text().rstrip("\n"))
    count = len(Results(tmp_path).lines)
    store(tmp_path, line(entry("cifar10-table", seed=3)))
    assert len(Results(tmp_path).lines) == count + 1


def test_a_failure_is_a_result(tmp_path: Path) -> None:
    results = store(tmp_path, line(entry("fig-curves"), None))
    assert results.of(entry("fig-curves"))["failure"] == "the loss is nan"
