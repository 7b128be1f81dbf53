"""The table beyond the paper: its runs, its standings, its ablation."""

from pathlib import Path

import pytest

from made import entry, line, store
from metalabelnet.reproduction.beyond import CELLS, METHODS, WITHOUT
from metalabelnet.reproduction.document import fill
from metalabelnet.reproduction.entries import Selection, entries
from metalabelnet.reproduction.resources import Places
from metalabelnet.reproduction.results import Results, key
from metalabelnet.reproduction.runner import folder_name
from metalabelnet.reproduction.tables import tables
from metalabelnet.reproduction.text_table import Table

PLUS = "metalabelnet-plus"


def of(method: str, cell: str, seed: int = 0):
    return entry("beyond", method, cell, seed=seed)


def standing(results: Results) -> Table:
    return tables("beyond", results)[-1]


def row(table: Table, name: str) -> list[str]:
    (found,) = (r for r in table.rows if r[0] == name)
    return list(found)


def test_every_method_has_the_same_run_but_for_itself() -> None:
    for cell in CELLS:
        fields = [{**of(method, cell).fields, "method": ""} for method in METHODS]
        assert all(one == fields[0] for one in fields)
        assert fields[0]["protocol"] == "default"


def test_where_the_noise_of_a_cell_comes_from() -> None:
    probe, authors = of(PLUS, "cifar10-5000/feature:0.4"), of(PLUS, "cifar10-5000/authors:0.4")
    assert not probe.needs_probs
    assert authors.needs_probs
    assert key(probe) != key(authors)
    assert of(PLUS, "cifar10-1000/worst").needs_human
    run = Places(device="cpu").run(of(PLUS, "digits/feature:0.8"))
    assert (run.noise, run.noise_probs, run.clean) == ("feature:0.8", None, 100)
    run = Places(device="cpu").run(of(PLUS, "fashion-mnist/uniform:0.2"))
    assert (run.data, run.limit, run.clean) == ("fashion-mnist", 10_000, 200)


def test_the_clean_set_alone_is_one_run_for_all_noises_of_a_data_set() -> None:
    keys = {key(e) for e in entries("beyond", Selection(methods=("clean-only",), seeds=1))}
    assert len(keys) == 4  # digits, Fashion-MNIST, CIFAR-10 with 5,000 and with 1,000


def test_lines_have_a_file_of_their_own_and_folders_are_not_nested(tmp_path: Path) -> None:
    one = of(PLUS, "digits/uniform:0.4")
    store(tmp_path, line(one))
    assert [file.name for file in tmp_path.iterdir()] == ["beyond.jsonl"]
    assert "/" not in folder_name(one, "float32")


def test_differences_are_seed_by_seed_and_in_standard_errors(tmp_path: Path) -> None:
    cell = "digits/uniform:0.4"
    ours, theirs = (95.0, 97.0, 99.0), (90.0, 91.0, 95.0)  # 5, 6, 4: mean 5, standard error 1/√3
    lines = [line(of(PLUS, cell, seed), a) for seed, a in enumerate(ours)]
    lines += [line(of("fine-tune", cell, seed), a) for seed, a in enumerate(theirs)]
    lines += [line(of("gce", cell, 0), 96.0)]
    found = row(standing(store(tmp_path, *lines)), "digits, uniform 40 %")
    assert found[1:] == ["", "+5.00 (+8.7 s.e.)", "", "gce: -1.00"]


def test_without_spread_there_is_no_division_by_zero(tmp_path: Path) -> None:
    cell = "digits/uniform:0.4"
    lines = [line(of(method, cell, seed), 90.0) for method in (PLUS, "clean-only") for seed in (0, 1)]
    assert row(standing(store(tmp_path, *lines)), "digits, uniform 40 %")[1] == "+0.00 (s.e. 0)"


@pytest.mark.parametrize("point", [point for point in WITHOUT if point != "all"])
def test_the_ablation_takes_one_ingredient_out(point: str) -> None:
    cell = "digits/feature:0.4"
    whole = entry("beyond-ablation", PLUS, cell, "all")
    assert key(whole) == key(of(PLUS, cell))
    without = entry("beyond-ablation", PLUS, cell, point)
    assert key(without) != key(whole)
    assert len(without.fields["settings"]) == 1


def test_the_ablation_is_told_against_the_whole(tmp_path: Path) -> None:
    cells = ("digits/uniform:0.4", "digits/uniform:0.8", "digits/feature:0.4", "digits/feature:0.8")
    lines = [line(entry("beyond-ablation", PLUS, cell, "all"), 90.0) for cell in cells]
    lines += [line(entry("beyond-ablation", PLUS, cell, "whole warm-up"), 88.0 - k) for k, cell in enumerate(cells)]
    (table,) = tables("beyond-ablation", store(tmp_path, *lines))
    assert row(table, "all")[-2:] == ["90.00", "–"]
    assert row(table, "whole warm-up")[-2:] == ["86.50", "-3.50 (-5.4 s.e.)"]
    assert row(table, "no average")[1:] == [""] * 6


def test_labels_taken_away_are_told_against_the_run_of_the_table(tmp_path: Path) -> None:
    cell = "cifar10-5000/authors:0.4"
    whole, without = (entry("beyond-unlabeled", PLUS, cell, point) for point in ("0", "36000"))
    assert key(whole) == key(of(PLUS, cell))
    assert without.fields["unlabeled"] == 36_000
    (table,) = tables("beyond-unlabeled", store(tmp_path, line(whole, 84.0), line(without, 82.5)))
    assert row(table, "36000")[1:] == ["", "82.50 (1)", "", "-1.50"]


def test_the_page_is_what_the_results_say() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "beyond.md").read_text()
    assert fill(page, Results(root / "results")) == page, (
        "run: metalabelnet reproduce beyond beyond-ablation beyond-unlabeled --tables-only --doc docs/beyond.md"
    )
