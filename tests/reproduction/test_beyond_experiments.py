"""The experiments beyond the paper: runs, comparison, ablation."""

from pathlib import Path

import pytest

from metalabelnet.core.intervals import paired_difference
from metalabelnet.core.student_t import critical_value
from metalabelnet.reproduction.beyond import ABLATIONS, CELLS, DIGITS, FOUR_OF_DIGITS, METHODS
from metalabelnet.reproduction.beyond_tables import learning_table
from metalabelnet.reproduction.markdown_blocks import fill_page
from metalabelnet.reproduction.resources import Resources
from metalabelnet.reproduction.results import Results, spec_key
from metalabelnet.reproduction.runner import folder_name
from metalabelnet.reproduction.selection import Selection, run_specs
from metalabelnet.reproduction.table import Table
from metalabelnet.reproduction.tables import tables
from sample_results import result_line, run_spec, write_results

PLUS = "metalabelnet-plus"


def spec(method: str, cell: str, seed: int = 0):
    return run_spec("beyond", method, cell, seed=seed)


def comparison_table(results: Results) -> Table:
    return tables("beyond", results)[-1]


def row(table: Table, name: str) -> list[str]:
    (matching,) = (r for r in table.rows if r[0] == name)
    return list(matching)


def test_methods_differ_in_nothing_but_the_method() -> None:
    for cell in CELLS:
        fields = [{**spec(method, cell).fields, "method": "", "settings": {}} for method in METHODS]
        assert all(one == fields[0] for one in fields)
        assert fields[0]["protocol"] == "default"


def test_noise_source_of_a_cell() -> None:
    probe, authors = spec(PLUS, "cifar10-5000/feature:0.4"), spec(PLUS, "cifar10-5000/authors:0.4")
    assert not probe.needs_noise_probs
    assert authors.needs_noise_probs
    assert spec_key(probe) != spec_key(authors)
    assert spec(PLUS, "cifar10-1000/worst").needs_human_labels
    run = Resources(device="cpu").run(spec(PLUS, "digits/feature:0.8"))
    assert (run.noise, run.noise_probs, run.clean) == ("feature:0.8", None, 100)
    run = Resources(device="cpu").run(spec(PLUS, "fashion-mnist/uniform:0.2"))
    assert (run.data, run.limit, run.clean) == ("fashion-mnist", 10_000, 200)


def test_clean_only_is_one_run_per_data_set() -> None:
    keys = {spec_key(e) for e in run_specs("beyond", Selection(methods=("clean-only",), seeds=1))}
    assert len(keys) == 4  # digits, Fashion-MNIST, CIFAR-10 with 5,000 and with 1,000


def test_results_file_and_folder_name(tmp_path: Path) -> None:
    one = spec(PLUS, "digits/uniform:0.4")
    write_results(tmp_path, result_line(one))
    assert [file.name for file in tmp_path.iterdir()] == ["beyond.jsonl"]
    assert "/" not in folder_name(one, "float32")


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    cell = "digits/uniform:0.4"
    ours, theirs = (95.0, 97.0, 99.0), (90.0, 91.0, 95.0)  # 5, 6, 4: mean 5, standard error 1/√3
    lines = [result_line(spec(PLUS, cell, seed), a) for seed, a in enumerate(ours)]
    lines += [result_line(spec("fine-tune", cell, seed), a) for seed, a in enumerate(theirs)]
    lines += [result_line(spec("gce", cell, 0), 96.0)]
    matching = row(comparison_table(write_results(tmp_path, *lines)), "digits, uniform 40 %")
    half_width = critical_value(0.05, df=2) / 3**0.5
    interval = f"({5 - half_width:+.2f} to {5 + half_width:+.2f})"
    assert matching[1:5] == ["", f"+5.00 {interval}", "", "gce: -1.00 (one seed, no interval)"]
    assert matching[5] == f"best: {PLUS} (fewer than two common seeds: gce)"


def test_repeats_of_a_seed_are_averaged_and_count_once(tmp_path: Path) -> None:
    cell = "digits/uniform:0.4"
    lines = [result_line(spec(PLUS, cell, seed), a) for seed, a in ((0, 94.0), (0, 96.0), (1, 97.0), (2, 99.0))]
    lines += [result_line(spec("fine-tune", cell, seed), a) for seed, a in enumerate((90.0, 91.0, 95.0))]
    all_tables = tables("beyond", write_results(tmp_path, *lines))
    assert row(all_tables[0], PLUS)[2] == "97.00 ± 2.00 (3)"
    half_width = critical_value(0.05, df=2) / 3**0.5
    text = row(all_tables[-1], "digits, uniform 40 %")[2]
    assert text == f"+5.00 ({5 - half_width:+.2f} to {5 + half_width:+.2f})"
    assert all_tables[-1].notes[-1] == "Repeated runs of a seed are averaged: 1 run beside the first."


def test_equal_results_are_level(tmp_path: Path) -> None:
    """The least spread is one of the 5,000 test samples."""
    cell = "digits/uniform:0.4"
    lines = [result_line(spec(method, cell, seed), 90.0) for method in (PLUS, "clean-only") for seed in (0, 1)]
    matching = row(comparison_table(write_results(tmp_path, *lines)), "digits, uniform 40 %")
    half_width = critical_value(0.05, df=1) * 0.02 / 2**0.5
    assert matching[1] == f"+0.00 ({-half_width:+.2f} to {half_width:+.2f}), level"
    assert matching[5] == f"level: clean-only, {PLUS}"


def test_correction_for_the_number_of_cells(tmp_path: Path) -> None:
    """p = 0.02 is beyond zero alone, and level among eight cells."""
    lines = []
    for column in DIGITS:
        for seed, lead in enumerate((0.8, 1.0, 1.3)):
            lines += [result_line(spec(PLUS, column, seed), 90.0 + lead)]
            lines += [result_line(spec("fine-tune", column, seed), 90.0)]
    one = write_results(tmp_path / "one", *lines[:6])
    eight = write_results(tmp_path / "eight", *lines)
    assert row(comparison_table(one), "digits, uniform 20 %")[-1] == f"best: {PLUS}"
    assert row(comparison_table(eight), "digits, uniform 20 %")[-1] == f"level: {PLUS}, fine-tune"
    assert row(comparison_table(eight), "digits, uniform 20 %")[2].endswith("level")


def test_differences_over_all_data_and_noises(tmp_path: Path) -> None:
    """A pair of data and noise counts once, however many seeds it has, and only where both methods were run."""
    leads = {"digits/uniform:0.2": (4.0, 6.0), "digits/uniform:0.4": (6.0,), "digits/feature:0.2": (-1.0, -1.0)}
    lines = [result_line(spec(PLUS, "digits/feature:0.4"), 99.0)]
    for column, values in leads.items():
        for seed, lead in enumerate(values):
            lines += [result_line(spec(PLUS, column, seed), 90.0 + lead)]
            lines += [result_line(spec("fine-tune", column, seed), 90.0)]
    overall = tables("beyond", write_results(tmp_path, *lines))[-2]
    (only,) = overall.rows
    difference = paired_difference([5.0, 6.0, -1.0])
    low, high = difference.interval()
    assert only[:5] == ["fine-tune", "3", "2 / 1", "-1.00", "+6.00"]
    assert only[5:] == [f"+3.33 ({low:+.2f} to {high:+.2f}), level", f"{difference.p_value():.2g}"]


def test_lead_over_no_learning_and_over_the_highest_baseline(tmp_path: Path) -> None:
    cell = "digits/uniform:0.2"
    values = {PLUS: 95.0, "metalabelnet-plus:not-learned": 96.0, "fine-tune": 92.0, "glc": 93.0, "pencil": 99.0}
    lines = [result_line(spec(method, cell), value) for method, value in values.items()]
    (only,) = learning_table(write_results(tmp_path, *lines)).rows
    assert only == ["digits, uniform 20 %", "95.00 (1)", "-1.00", "glc: +2.00"]


def test_superseded_runs_are_counted_in_a_note(tmp_path: Path) -> None:
    one = spec(PLUS, "digits/uniform:0.4")
    old = result_line(one, 80.0) | {"superseded": "0123456: another loss"}
    result = tables("beyond", write_results(tmp_path, old, result_line(one, 90.0)))
    assert row(result[0], PLUS)[2] == "90.00 (1)"
    assert result[-1].notes[-1] == "Stored and not used, because the method has changed since: 1 run."
    assert result[-1].markdown().endswith(f"\n\n{result[-1].notes[-1]}\n")


@pytest.mark.parametrize("point", [point for point in ABLATIONS if point != "all"])
def test_ablation_changes_one_setting(point: str) -> None:
    cell = "digits/feature:0.4"
    whole = run_spec("beyond-ablation", PLUS, cell, "all")
    assert spec_key(whole) == spec_key(spec(PLUS, cell))
    without = run_spec("beyond-ablation", PLUS, cell, point)
    assert spec_key(without) != spec_key(whole)
    assert len(without.fields["settings"]) == (2 if "(exponent 1)" in point else 1)


def test_ablation_table_shows_the_difference_from_all(tmp_path: Path) -> None:
    cells = ("digits/uniform:0.4", "digits/uniform:0.8", "digits/feature:0.4", "digits/feature:0.8")
    lines = [result_line(run_spec("beyond-ablation", PLUS, cell, "all"), 90.0) for cell in cells]
    lines += [
        result_line(run_spec("beyond-ablation", PLUS, cell, "no sharpening"), 88.0 - k) for k, cell in enumerate(cells)
    ]
    (table,) = tables("beyond-ablation", write_results(tmp_path, *lines))
    assert row(table, "all")[-2:] == ["90.00", "–"]
    assert row(table, "no sharpening")[-2:] == ["86.50", "-3.50 (one seed, no interval)"]
    assert row(table, "one noise rate")[1:] == [""] * 6


def test_ablation_has_a_table_for_each_data_set_with_variants(tmp_path: Path) -> None:
    runs = [run_spec("beyond-ablation", PLUS, f"{data}/uniform:0.4") for data in ("digits", "cifar10-1000")]
    lines = [result_line(run, 90.0) for run in runs]
    assert [t.title.partition(":")[0] for t in tables("beyond-ablation", write_results(tmp_path, *lines))] == [
        "Each component removed on its own"
    ]
    lines += [result_line(run_spec("beyond-ablation", PLUS, run.cell, "no sharpening"), 80.0) for run in runs]
    found = tables("beyond-ablation", write_results(tmp_path, *lines))
    assert [t.title.partition(":")[0].rpartition(", ")[2] for t in found] == ["digits", "cifar10-1000"]
    assert row(found[1], "no sharpening")[1] == "80.00 (1)"
    assert len(found[1].columns) == 7


def test_lengths_share_the_runs_of_the_table(tmp_path: Path) -> None:
    short, long = (run_spec("beyond-length", "sce", "cifar10-1000/worst", epochs) for epochs in ("40", "120"))
    assert spec_key(short) == spec_key(spec("sce", "cifar10-1000/worst"))
    assert long.fields["epochs"] == 120
    (empty,) = tables("beyond-length", write_results(tmp_path, result_line(short, 80.0)))
    assert not empty.rows
    lines = [result_line(short, 80.0), result_line(long, 83.0)]
    (table,) = tables("beyond-length", write_results(tmp_path, *lines))
    column = table.columns.index("worst")
    assert [r[column] for r in table.rows if r[0] == "sce"] == ["80.00 (1)", "83.00 (1)"]


def test_unlabeled_table_shows_the_difference_from_all_labels(tmp_path: Path) -> None:
    cell = "cifar10-5000/authors:0.4"
    whole, without = (run_spec("beyond-unlabeled", PLUS, cell, point) for point in ("0", "36000"))
    assert spec_key(whole) == spec_key(spec(PLUS, cell))
    assert without.fields["unlabeled"] == 36_000
    (table,) = tables("beyond-unlabeled", write_results(tmp_path, result_line(whole, 84.0), result_line(without, 82.5)))
    assert row(table, "36000")[1:] == ["", "82.50 (1)", "", ""]


def test_clean_sets_without_given_labels_are_compared_with_those_that_have_them(tmp_path: Path) -> None:
    runs = {
        point: [run_spec("beyond-clean-given", PLUS, cell, point) for cell in FOUR_OF_DIGITS]
        for point in ("keep", "drop")
    }
    assert [spec_key(run) for run in runs["keep"]] == [spec_key(spec(PLUS, cell)) for cell in FOUR_OF_DIGITS]
    assert {run.fields["clean_given"] for run in runs["drop"]} == {"drop"}
    lines = [result_line(run, 97.0 if point == "keep" else 96.0) for point in runs for run in runs[point]]
    (table,) = tables("beyond-clean-given", write_results(tmp_path, *lines))
    assert row(table, "drop")[-2:] == ["96.00", "-1.00 (one seed, no interval)"]


@pytest.mark.parametrize("page", ["results/beyond.md", "how-it-works/metalabelnet-plus.md"])
def test_page_matches_the_results(page: str) -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / page).read_text()
    assert fill_page(text, Results(root / "results")) == text, "run: make tables"
