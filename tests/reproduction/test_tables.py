"""Tables built from results: mean, standard deviation, paper numbers, empty cells."""

from pathlib import Path

import pytest

from metalabelnet.reproduction.claims import NOT_RUN, baseline_comparison, claims_table, paper_agreement
from metalabelnet.reproduction.experiments import EXPERIMENTS, RUNNABLE
from metalabelnet.reproduction.figures import has_figure
from metalabelnet.reproduction.paper_numbers import PAPER_NUMBERS
from metalabelnet.reproduction.results import Results
from metalabelnet.reproduction.selection import Selection
from metalabelnet.reproduction.table import Table
from metalabelnet.reproduction.tables import tables
from sample_results import result_line, run_spec, write_results


def cell(table: Table, row: str, column: int) -> str:
    (matching,) = (r for r in table.rows if r[0] == row)
    return matching[column]


def test_mean_standard_deviation_and_number_of_runs(tmp_path: Path) -> None:
    accuracies = (78.0, 79.0, 80.0)
    results = write_results(
        tmp_path, *(result_line(run_spec("cifar10-table", seed=s), a) for s, a in enumerate(accuracies))
    )
    _, feature, last = tables("cifar10-table", results)
    assert cell(feature, "metalabelnet", 5) == "79.00 ± 1.00 (3)"
    assert cell(feature, "metalabelnet", 6) == "78.42 ± 0.36"
    assert cell(last, "metalabelnet", 7) == "78.00 ± 1.00 (3)"
    assert feature.columns[5:7] == ["feature-dependent 60 %", "paper"]


def test_cells_without_runs_are_empty(tmp_path: Path) -> None:
    uniform, feature, last = tables("cifar10-table", Results(tmp_path))
    for table in (uniform, feature):
        assert len(table.rows) == 14
        assert all(row[1::2] == [""] * 4 for row in table.rows)
        assert all(row[2::2] == ["–"] * 4 for row in table.rows[-2:])
    assert all(row[1:] == [""] * 8 for row in last.rows)
    assert cell(feature, "sce", 6) == "fail"


@pytest.mark.parametrize("name", RUNNABLE)
def test_tables_without_results_have_only_paper_numbers(name: str, tmp_path: Path) -> None:
    for table in tables(name, Results(tmp_path)):
        paper = [k for k, column in enumerate(table.columns) if column == "paper"]
        assert not any(text for row in table.rows for k, text in enumerate(row) if k and k not in paper)


def test_failed_runs_are_shown(tmp_path: Path) -> None:
    gce, mslg = (run_spec("cifar10-table", method) for method in ("gce", "mslg"))
    again = run_spec("cifar10-table", "mslg", seed=1)
    results = write_results(tmp_path, result_line(gce, None), result_line(mslg, 70.0), result_line(again, None))
    feature = tables("cifar10-table", results)[1]
    assert cell(feature, "gce", 5) == "fail"
    assert cell(feature, "mslg", 5) == "70.00 (1), 1 failed"


def test_points_table_shows_columns_with_two_points(tmp_path: Path) -> None:
    runs = [("0.001", "feature:0.6", 70.0), ("0.01", "feature:0.6", 71.0), ("0.1", "uniform:0.2", 60.0)]
    results = write_results(tmp_path, *(result_line(run_spec("ablation-beta", cell=c, point=p), a) for p, c, a in runs))
    (table,) = tables("ablation-beta", results)
    assert table.columns == ["β", "feature-dependent 60 %", "last epoch"]
    assert [row[1] for row in table.rows] == ["", "70.00 (1)", "71.00 (1)", ""]
    results.add(result_line(run_spec("ablation-beta", cell="uniform:0.2", point="0.01"), 61.0))
    assert tables("ablation-beta", results)[0].columns[1] == "uniform 20 %"


def test_curves_and_stability_tables(tmp_path: Path) -> None:
    results = write_results(
        tmp_path,
        result_line(run_spec("fig-curves"), curves=True),
        result_line(run_spec("fig-stability", "mslg"), curves=True),
    )
    (table,) = tables("fig-curves", results)
    assert cell(table, "metalabelnet, feature-dependent 60 %", 1) == "60.37"  # 50 + 28·43/120 + 1/3
    (table,) = tables("fig-stability", results)
    assert [row[2] for row in table.rows] == ["0.0001", "0.0001"]


def test_selected_methods_and_cells_are_shown_if_run(tmp_path: Path) -> None:
    results = write_results(
        tmp_path, result_line(run_spec("fig-curves", "cross-entropy", cell="uniform:0.8"), curves=True)
    )
    selection = Selection(methods=("cross-entropy", "gce"), cells=("uniform:0.2", "uniform:0.8"))
    (default,), (table,) = tables("fig-curves", results), tables("fig-curves", results, selection)
    added = [row for row in table.rows if row not in default.rows]
    assert [row[0] for row in added] == ["metalabelnet, uniform 80 %", "cross-entropy, uniform 80 %"]
    assert added[1][2] == "78.00 (1)"
    assert not has_figure("fig-curves", results)
    assert has_figure("fig-curves", results, selection)


def test_selected_cell_is_shown_with_a_single_point(tmp_path: Path) -> None:
    results = write_results(tmp_path, result_line(run_spec("ablation-beta", cell="uniform:0.2", point="0.1"), 60.0))
    (table,) = tables("ablation-beta", results, Selection(cells=("uniform:0.2",), points=("0.1",)))
    assert table.columns[1::2] == ["uniform 20 %", "feature-dependent 60 %"]
    assert [row[1] for row in table.rows] == ["", "", "", "60.00 (1)"]


def test_losses_column_titles(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for name, value in (("uniform:0.4", 1.5), ("feature:0.6", 2.5)):
        losses = dict.fromkeys(("meta_at_theta", "meta_at_theta_hat", "meta_at_new_theta_hat"), value)
        results.add(result_line(run_spec("fig-losses", cell=name), losses={**losses, "new_theta_hat_at": 1.0}))
    (default,) = tables("fig-losses", results)
    (table,) = tables("fig-losses", results, Selection(cells=("uniform:0.4",)))
    assert (default.columns, default.rows[0][1:]) == (["quantity", "value"], ["2.500000"])
    assert (table.columns, table.rows[0][1:]) == (["quantity", "uniform 40 %", "value"], ["1.500000", "2.500000"])


@pytest.mark.parametrize("name", ["clothing1m-table", "food101n-table", "webvision-table"])
def test_photo_tables_show_paper_numbers(name: str, tmp_path: Path) -> None:
    (table,) = tables(name, Results(tmp_path))
    assert sum(n.table == name for n in PAPER_NUMBERS) == sum(text != "" for row in table.rows for text in row[1:])
    line = result_line(run_spec(name, cell="top 1" if name == "webvision-table" else "accuracy"), 81.25)
    line["summary"]["test_top5_accuracy"] = 93.5
    (table,) = tables(name, write_results(tmp_path, line))
    row = next(row for row in table.rows if row[0] == "metalabelnet")
    assert row[1::2] == ["81.25 (1)", "93.50 (1)"][: len(row) // 2]


def test_photo_tables_by_point(tmp_path: Path) -> None:
    spec = run_spec("clothing1m-unlabeled", cell="accuracy", point="300000")
    (table,) = tables("clothing1m-unlabeled", write_results(tmp_path, result_line(spec, 77.5)))
    assert table.columns == ["unlabeled images", "cross-entropy", "paper", "metalabelnet", "paper"]
    assert table.rows[1] == ["300000", "", "68.66", "77.50 (1)", "77.54"]


def test_markdown_and_latex(tmp_path: Path) -> None:
    table = Table(title="A 10 % table", columns=["a_b", "β"], rows=[["x", "1.00 ± 0.10 (2)"]])
    assert table.markdown() == "A 10 % table\n\n| a_b | β |\n| --- | --- |\n| x | 1.00 ± 0.10 (2) |\n"
    assert r"x & 1.00 $\pm$ 0.10 (2) \\" in table.latex()
    assert r"a\_b & $\beta$ \\ \hline" in table.latex()
    assert table.latex().splitlines()[0] == "% A 10 % table"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_latex_is_ascii_except_the_comment(name: str, tmp_path: Path) -> None:
    for table in tables(name, Results(tmp_path)):
        assert "".join(table.latex().splitlines(keepends=True)[1:]).isascii()


def test_paper_agreement(tmp_path: Path) -> None:
    """Welch's t-test against the paper's four runs, by SciPy; three cells have an interval, and Holm tests three."""
    stats = pytest.importorskip("scipy.stats")
    one = {"feature:0.6": [78.0, 79.0], "feature:0.8": [60.0, 60.2], "uniform:0.8": [47.0, 53.4], "uniform:0.2": [84.6]}
    lines = [result_line(run_spec("cifar10-table", cell=c, seed=s), a) for c, v in one.items() for s, a in enumerate(v)]
    rows = {row[0]: row for row in paper_agreement(write_results(tmp_path, *lines)).rows}
    test = stats.ttest_ind_from_stats(60.1, stats.tstd(one["feature:0.8"]), 2, 76.57, 0.33, 4, equal_var=False)
    df = (0.02 / 2 + 0.33**2 / 4) ** 2 / ((0.02 / 2) ** 2 + (0.33**2 / 4) ** 2 / 3)
    half_width = stats.t.isf(0.05 / 3 / 2, df) * (60.1 - 76.57) / test.statistic
    assert rows["feature-dependent 80 %"][3:] == [
        f"-16.47 ({-16.47 - half_width:.2f} to {half_width - 16.47:.2f})",
        "below",
    ]
    assert rows["feature-dependent 60 %"][3].startswith("+0.08 (")
    assert [rows[name][4] for name in ("feature-dependent 60 %", "uniform 80 %")] == ["level", "level"]
    assert rows["uniform 20 %"][3:] == ["+1.25 (one seed, no interval)", ""]
    assert rows["uniform 40 %"][3:] == [NOT_RUN, ""]


def test_baseline_comparison(tmp_path: Path) -> None:
    runs = [("metalabelnet", 78.0), ("fine-tune", 79.5), ("clean-only", 74.0), ("gce", 66.0)]
    results = write_results(tmp_path, *(result_line(run_spec("cifar10-table", m), a) for m, a in runs))
    results.add(result_line(run_spec("cifar10-table", seed=1), 90.0))  # no pair
    row = next(row for row in baseline_comparison(results).rows if row[0] == "feature-dependent 60 %")
    one = "(one seed, no interval)"
    assert row[2:] == [f"-1.50 {one}", f"+4.00 {one}", "", f"fine-tune (of 3 run), -1.50 {one}"]


def test_boost_of_phase_2(tmp_path: Path) -> None:
    """The curve has 50 + 28·43/120 + 1/3 at the end of warm-up."""
    lines = [result_line(run_spec("cifar10-table"), 78.0, curves=True)]
    lines += [result_line(run_spec("cifar10-table", "cross-entropy"), 70.0)]
    answers = {row[0]: row[1] for row in claims_table(write_results(tmp_path, *lines)).rows}
    boost = answers["phase 2 boosts accuracy by about 10 % at feature-dependent and 5 % at uniform noise"]
    assert boost == (
        f"feature-dependent 60 %: {78 - 50 - 28 * 43 / 120 - 1 / 3:+.1f} over the end of warm-up, "
        "+8.0 over cross-entropy for all epochs"
    )


def test_claims_have_numbers_or_not_run(tmp_path: Path) -> None:
    results = Results(tmp_path)
    assert {row[1] for row in claims_table(results).rows} == {NOT_RUN}
    for point, accuracy in (("1000", 77.0), ("5000", 78.0)):
        results.add(result_line(run_spec("fig-clean-size", point=point), accuracy))
    for method, accuracy in (("metalabelnet", 78.0), ("mslg", 73.0)):
        results.add(result_line(run_spec("fig-stability", method), accuracy, curves=True))
    answers = {row[0]: row[1] for row in claims_table(results).rows}
    expected = "feature-dependent 60 %: 1000 → 77.00 (1), 5000 → 78.00 (1)"
    assert answers["about 1,000 clean samples suffice"] == expected
    assert answers["soft labels change less than MSLG's"].endswith("metalabelnet 0.0002, mslg 0.0002")
    assert "rank 1 of 2 run" in answers["best of all methods at every level of feature-dependent noise"]
