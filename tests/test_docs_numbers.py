"""Numbers in README and in the result pages are those of the stored results."""

import functools
import importlib.util
import json
import re
import statistics
import sys
from pathlib import Path
from types import ModuleType

import pytest

from metalabelnet.core.intervals import paired_difference
from metalabelnet.core.sharded_table import MAX_VALUES_PER_MESSAGE
from metalabelnet.reproduction.beyond import FIRST_TO_TRY, PLUS
from metalabelnet.reproduction.results import Results
from metalabelnet.reproduction.selection import DEFAULT_SELECTION
from metalabelnet.reproduction.table_cells import collect_cells
from metalabelnet.reproduction.tables import tables

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "results"
# Rows of the table in speed.md, by their names when they were measured.
SPEED_ROWS = {
    "plain step, eager": "plain step, eager",
    "phase 2, double backward, eager": "phase 2, double-backward, eager",
    "phase 2, exact, eager": "phase 2, exact, eager",
    "phase 2 by TorchOpt 0.7.3": "phase 2, torchopt 0.7.3",
    "phase 2 by higher 0.2.1": "phase 2, higher 0.2.1",
    "phase 2 by betty 0.1.1": "phase 2, betty 0.1.1",
    "phase 2, exact, compiled, TF32": "phase 2, exact, recorded",
    "plain step, compiled, bf16": "plain step, recorded, bf16",
    "phase 2, exact, compiled, bf16": "phase 2, exact, recorded, bf16",
    "phase 2 of an earlier `metalabelnet-plus`, compiled, bf16": "phase 2 of plus, exact, recorded, bf16",
    "plain step, 8 concurrent runs, bf16, each": "plain step, 8 together, bf16, each",
    "phase 2, 8 concurrent runs, bf16, each": "phase 2, 8 together, bf16, each",
}


@functools.cache
def read_results() -> Results:
    return Results(ROOT / "results")


def load_benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")  # a script finds the modules beside it
        spec.loader.exec_module(module)
    return module


def table_rows(text: str) -> list[list[str]]:
    """The cells of the first table of a text, without its head."""
    lines = re.findall(r"^\|.*\|$", text.partition("\n\n## ")[0], flags=re.MULTILINE)
    first = lines[: next((k for k, line in enumerate(lines) if k > 1 and set(line) <= set("|-")), None)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in first[2:]]


def measured_rows() -> list[dict[str, dict[str, float]]]:
    """For each of the two hosts, the rows by name."""
    runs = json.loads((ROOT / "results" / "speed" / "2026-11-17-h200-one-run.json").read_text())["runs"]
    return [{row["row"]: row for row in run["rows"]} for run in runs]


def test_speed_table() -> None:
    page = (PAGES / "speed.md").read_text(encoding="utf-8").partition("## One step on an H200")[2]
    rows = table_rows(page.partition("## Whole runs")[0])
    assert [row[0] for row in rows] == list(SPEED_ROWS)
    hosts = measured_rows()
    for name, ms, speed in rows:
        stored = [host[SPEED_ROWS[name]] for host in hosts]
        assert [float(x) for x in ms.split(", ")] == pytest.approx([row["ms"] for row in stored], abs=0.0051)
        speeds = [float(x) for x in speed.rstrip(" ×").split(", ") if x]
        for number, row in zip(speeds, stored, strict=False):
            assert number == pytest.approx(row["speed"], abs=0.51 if number > 8.5 else 0.051)


def test_speed_of_the_readme() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found = re.search(r"second phase takes ([\d.]+) ms, (\d+) to (\d+) times as fast as eager double backward", text)
    assert found is not None
    rows = [host["phase 2, exact, recorded, bf16"] for host in measured_rows()]
    assert all(round(row["ms"], 1) == float(found[1]) for row in rows)
    assert [round(row["speed"]) for row in rows] == [int(found[2]), int(found[3])]
    speed = ROOT / "results" / "speed"
    runs = json.loads((speed / "2026-11-18-h200-preact-resnet18.json").read_text())["runs"]
    stored = {row["row"]: row["ms"] for row in runs["step"]["rows"]}
    assert f"{stored['phase 2, exact, compiled, bf16']:.1f} ms with a PreAct ResNet-18" in text
    both = json.loads((speed / "2026-11-18-h200-double-backward.json").read_text())["rows"]
    stored = {row["row"]: f"{row['ms']:.2f}" for row in both}
    backward, exact = (stored[f"phase 2, {kind}, compiled, bf16"] for kind in ("double-backward", "exact"))
    assert f"compiled double backward takes {backward} ms where the closed form takes {exact}" in text


def test_kernels_of_the_speed_page() -> None:
    runs = json.loads((ROOT / "results" / "speed" / "2026-11-18-h200-kernels-option.json").read_text())["runs"]
    stored = [f"{row['ms']:.2f}" for kind in ("hopper", "cudnn") for row in runs[kind]["rows"]]
    text = " ".join((PAGES / "speed.md").read_text(encoding="utf-8").split())
    assert "{} and {} ms with our kernels, {} and {} ms with cuDNN's".format(*stored) in text


def speed_section(title: str) -> str:
    text = (PAGES / "speed.md").read_text(encoding="utf-8").partition(f"## {title}\n")[2]
    return text.partition("\n## ")[0]


def test_closed_form_and_double_backward() -> None:
    text = (ROOT / "results" / "speed" / "2026-11-18-h200-double-backward.json").read_text()
    stored = {row["row"]: row for row in json.loads(text)["rows"]}
    page = speed_section("Closed form and double backward")
    kinds = ("double-backward", "exact")
    for name, *cells in table_rows(page):
        rows = [stored[f"phase 2, {kind}, {name.removesuffix(', TF32')}"] for kind in kinds]
        assert cells == [f"{row['ms']:.2f} ms, {row['MiB']:.0f} MiB" for row in rows]
    gains = {}
    for how in ("compiled, bf16", "compiled"):
        double_backward, exact = (stored[f"phase 2, {kind}, {how}"]["ms"] for kind in kinds)
        gains[how] = round(100 * (double_backward / exact - 1))
    assert gains["compiled"] == 0
    assert f"gains {gains['compiled, bf16']} % in bf16 and nothing in TF32" in " ".join(page.split())


def test_speed_of_preact_resnet18() -> None:
    text = (ROOT / "results" / "speed" / "2026-11-18-h200-preact-resnet18.json").read_text()
    runs = json.loads(text)["runs"]
    stored, epoch = {row["row"]: row for row in runs["step"]["rows"]}, runs["epoch"]
    page = speed_section("PreAct ResNet-18 on an H200")
    rows = table_rows(page)
    assert [row[0] for row in rows] == ["plain step", "phase 2, exact"]
    for name, *cells in rows:
        assert cells == [f"{stored[f'{name}, {how}']['ms']:.2f} ms" for how in ("eager", "compiled, bf16")]
    step_ms, first = 1000 * epoch["steps_s"] / epoch["steps"], stored["phase 2, exact, compiled, bf16"]["first_step_s"]
    sentences = " ".join(page.split())
    assert f"takes {epoch['epoch_s']:.1f} s compiled: {epoch['steps']} steps of {step_ms:.1f} ms" in sentences
    assert f"and {epoch['end_of_epoch_s']:.1f} s for dividing the rows" in sentences
    assert f"an eager step takes {stored['DivideMix, eager']['ms']:.0f} ms" in sentences
    assert f"The first step of phase 2 took {first:.0f} s" in sentences


def test_stages_before_inductor() -> None:
    stored = json.loads((ROOT / "results" / "speed" / "2026-11-19-2-cores-first-step.json").read_text())
    rows = table_rows(speed_section("Stages of the first step before Inductor"))
    columns = stored["before"], stored["after"]
    assert [row[1:] for row in rows] == [
        [f"{column['trace_s']:.1f} s" for column in columns],
        [str(column["nodes"]) for column in columns],
        [f"{column['aot_s']:.1f} s" for column in columns],
        [str(column["nodes_for_inductor"]) for column in columns],
    ]


def test_table_of_informative_samples() -> None:
    lines = (ROOT / "results" / "review" / "informative.jsonl").read_text().splitlines()
    table = load_benchmark("informative").table([json.loads(line) for line in lines])
    page = (PAGES / "review.md").read_text(encoding="utf-8")
    command = "python benchmarks/informative.py --table results/review/informative.jsonl"
    assert f"<!-- begin: informative -->\n\n{table}\n\n<!-- end: informative -->" in page, f"run: {command}"


def test_cost_of_clothing1m() -> None:
    cost = load_benchmark("clothing1m_cost")
    page = (PAGES / "scale.md").read_text(encoding="utf-8")
    command = "python benchmarks/clothing1m_cost.py"
    assert f"<!-- begin: clothing1m-cost -->\n\n{cost.table()}\n\n<!-- end: clothing1m-cost -->" in page, (
        f"run: {command}"
    )
    compiled, eager = cost.measured_steps()
    text = " ".join(page.split())
    assert f"{compiled['ms']:.1f} ms and {compiled['MiB'] / 1024:.1f} GiB for a compiled step with 32 rows" in text
    assert f"{eager['ms']:.1f} ms and {eager['MiB'] / 1024:.1f} GiB for an eager step by double backward" in text
    assert f"{cost.decoded_per_second():.0f} JPEG files of 92 kB decoded per second of CPU time" in text
    assert f"With 4 of them the images of a step would take {1000 * 64 / 4 / cost.decoded_per_second():.0f} ms" in text


def test_counted_traffic_follows_the_formula() -> None:
    """ResNet-50 has 23,508,032 weights before its last layer and 26,560 channels in 53 BatchNorm layers."""
    for count in load_benchmark("clothing1m_cost").read_lines("streaming/rank_traffic.jsonl"):
        assert count["weights"] == 23_508_032 + 14 * (2048 + 1)
        assert count["gradients: bytes"] == 3 * 4 * count["weights"]
        assert (count["BatchNorm: messages"], count["BatchNorm: bytes"]) == (7 * 53, 7 * 2 * 4 * 26_560)
        own_rows = count["batch"] // count["ranks"]
        assert count["logits and features: bytes"] == own_rows * 4 * (2048 + 4 * 14)


def test_memory_of_label_tables() -> None:
    file = ROOT / "results" / "streaming" / "label_table_memory.jsonl"
    one, two, four = (json.loads(text) for text in file.read_text().splitlines())
    text = " ".join((ROOT / "docs" / "how-it-works" / "scale.md").read_text(encoding="utf-8").split())
    held = [max(line["held_mb"]) for line in (one, two, four)]
    assert [line["ranks"] for line in (one, two, four)] == [1, 2, 4]
    assert f"Measured for {one['samples']:,} samples and {one['classes']} classes, 80 MB" in text
    assert f"holds {held[0]:.1f} MB more than" in text
    assert f"each of two ranks {held[1]:.1f} MB, each of four {held[2]:.1f} MB" in text
    assert f"a batch of {two['batch']} rows takes {max(two['lookup_ms']):.1f} ms" in text
    assert f"{max(two['gather_ms']):.0f} ms for the 80 MB above" in text
    assert max(two["gather_peak_mb"][1:]) < 1.1 * held[1]
    assert f"messages of 4 MB ({MAX_VALUES_PER_MESSAGE:,} numbers)" in text
    for samples, classes, unit, cells in (
        (1_000_000, 14, 1e6, ("56", "7", "0.9")),
        (2_400_000, 1000, 1e9, ("9.6", "1.2", "0.15")),
    ):
        for ranks, cell in zip((1, 8, 64), cells, strict=True):
            assert samples * classes * 4 / ranks / unit == pytest.approx(float(cell), abs=0.03)
        assert f"{samples:,} samples, {classes:,} classes" in text
        assert " | ".join(f"{cell} {'MB' if unit == 1e6 else 'GB'}" for cell in cells) in text


def test_share_of_wrong_labels_among_informative_samples() -> None:
    lines = [json.loads(text) for text in (ROOT / "results" / "review" / "informative.jsonl").read_text().splitlines()]
    cell = [line for line in lines if (line["data"], line["noise"]) == ("digits", "feature:0.4")]
    shares = {s: [line["wrong"] for line in cell if line["sampling"] == s] for s in ("entropy", "random")}
    text = " ".join((PAGES / "review.md").read_text(encoding="utf-8").split())
    low, high = min(shares["entropy"]), max(shares["entropy"])
    assert f"{low:.0f} to {high:.0f} % of the samples chosen by `entropy` had a wrong label" in text
    assert f"and {min(shares['random']):.0f} to {max(shares['random']):.0f} % of those drawn at random" in text


def test_boost_claim_equals_the_generated_table() -> None:
    """The sentence on the boost of phase 2 has the numbers of the table of claims, which is built from results/."""
    page = (PAGES / "reproduction.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| phase 2 boosts accuracy"))
    over_warmup = re.findall(r"\+([\d.]+) over the end of warm-up", row)
    over_cross_entropy = re.findall(r"\+([\d.]+) over cross-entropy", row)
    text = " ".join(page.split())
    gains = (
        "phase 2 gains {} and {} points over the end of warm-up at uniform noise of 40 and 60 %, and {} and {} points"
    )
    assert gains.format(*over_warmup) in text
    assert "the gains are {} and {}, and {} and {}.".format(*over_cross_entropy) in text


@pytest.mark.parametrize(
    ("data", "name", "ours"),
    [
        ("digits", "digits", PLUS),
        ("fashion-mnist", "Fashion-MNIST", PLUS),
        ("cifar10-1000", "CIFAR-10", PLUS),
    ],
)
def test_means_over_the_noises_of_a_data_set(data: str, name: str, ours: str) -> None:
    cells = collect_cells("beyond", read_results(), DEFAULT_SELECTION)
    page = (PAGES / "beyond.md").read_text()
    noises = [cell for (m, cell, _), c in cells.items() if m == ours and cell.startswith(data + "/") and c.ended]
    (statement,) = re.findall(rf"^- \*\*{name}\*\* (.*?)^- \*\*", page, flags=re.MULTILINE | re.DOTALL)
    stated = dict(re.findall(r"`([\w:-]+)`\s+(?:has\s+)?(\d\d\.\d) %", statement))
    assert {ours, "fixmatch", "fine-tune"} <= stated.keys()
    for method, mean in stated.items():
        assert f"{statistics.mean(cells[method, cell, ''].mean() for cell in noises):.1f}" == mean, method
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert re.search(rf"{stated[ours]} % on `?{name}`? \({len(noises)} noises", readme)


FIRST_TO_TRY_IN_README = {
    "`clean-only` and `glc` in 27": ("clean-only", "glc"),
    "`cross-entropy` and `fixmatch` in 26": ("cross-entropy", "fixmatch"),
    "`fine-tune` in 25": ("fine-tune",),
    "`sce` and `co-teaching` in 24": ("sce", "co-teaching"),
}


def test_leads_of_the_readme() -> None:
    overall = next(t for t in tables("beyond", read_results()) if "minus each other method" in t.title)
    rows = {row[0]: row for row in overall.rows}
    counts = {name: tuple(map(int, (row[1], row[2].partition(" / ")[0]))) for name, row in rows.items()}
    readme = " ".join((ROOT / "README.md").read_text().split())
    for statement, methods in FIRST_TO_TRY_IN_README.items():
        assert statement in readme
        assert {counts[method] for method in methods} == {(27, int(statement.rpartition(" ")[2]))}
    page = " ".join((PAGES / "beyond.md").read_text().split())
    assert {name for methods in FIRST_TO_TRY_IN_README.values() for name in methods} == set(FIRST_TO_TRY)
    for name in FIRST_TO_TRY:  # "are all beyond their intervals"
        assert float(re.findall(r"\(([+-][\d.]+) to", rows[name][5])[0]) > 0
        assert "level" not in rows[name][5]
    for name in ("glc", "fine-tune", "fixmatch"):
        assert f"{float(rows[name][5].partition(' ')[0]):+.1f}" in page.partition("mean leads of")[2][:400]
    level = {name for name, row in rows.items() if "level" not in row[5]} - set(FIRST_TO_TRY)
    assert level == {"mlc", "metalabelnet"}


def test_leads_over_the_highest_baselines() -> None:
    page = (ROOT / "docs" / "how-it-works" / "metalabelnet-plus.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+), .* \(\d\) \| ([+-][\d.]+)? ?\| [\w-]+: ([+-][\d.]+) \|$", page, flags=re.MULTILINE)
    leads: dict[str, list[float]] = {}
    for data, _, lead in rows:
        leads.setdefault(data, []).append(float(lead))
    behind = {data: [-lead for lead in those if lead < 0] for data, those in leads.items()}
    level = sum(lead == 0 for those in leads.values() for lead in those)
    assert {data: (len(leads[data]), len(behind[data])) for data in leads} == {
        "digits": (8, 0),
        "fashion-mnist": (8, 5),
        "cifar10-1000": (11, 0),
    }
    results = " ".join((PAGES / "beyond.md").read_text().split())
    number = sum(map(len, behind.values()))
    assert f"it is ahead in {27 - number - level} of 27" in results
    overview = " ".join((PAGES / "index.md").read_text().split())
    assert f"over 27 pairs of data and noise, and behind the best of them in {number}." in overview
    by = f"by {min(behind['fashion-mnist']):.1f} to {max(behind['fashion-mnist']):.1f} points"
    assert f"**behind the highest of these baselines under five of eight noises**, {by}" in results
    ahead = leads["cifar10-1000"]
    assert f"under all eleven noises, by {min(ahead):.1f} to {max(ahead):.1f} points" in results
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"one leads in five of eight, by up to {max(behind['fashion-mnist']):.1f} points" in readme


UNFINISHED = {
    "uniform:0.6": ("uniform:0.6", "uniform 60 %"),
    "feature:0.6": ("feature:0.6", "feature-dependent 60 %"),
    "aggregate": ("cifar10n:aggregate", "aggregate"),
}


def test_gains_of_learning() -> None:
    page = (ROOT / "docs" / "how-it-works" / "metalabelnet-plus.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+), (.*) \| .* \(\d\) \| ([+-][\d.]+) \| [\w-]+: .* \|$", page, flags=re.MULTILINE)
    gains: dict[str, dict[str, float]] = {}
    for data, noise, gain in rows:
        gains.setdefault(data, {})[noise] = float(gain)
    results = " ".join((PAGES / "beyond.md").read_text().split())
    for data, start in (
        ("digits", "on `digits` {} points,"),
        ("fashion-mnist", "on Fashion-MNIST {},"),
        ("cifar10-1000", "on CIFAR-10 {} over eight noises,"),
    ):
        own = gains[data]
        low, high = min(own, key=own.__getitem__), max(own, key=own.__getitem__)
        start = start.format(f"{statistics.mean(own.values()):+.1f}")
        assert f"{start} from {own[low]:+.1f} ({low}) to {own[high]:+.1f} ({high})" in results
    assert len(gains["cifar10-1000"]) == 8
    assert sum(gain < 0 for gain in gains["fashion-mnist"].values()) == 5
    assert (
        f"On CIFAR-10 learning gains under every noise, at least {min(gains['cifar10-1000'].values()):.1f} points"
        in (" ".join(page.split()))
    )
    overall = next(t for t in tables("beyond", read_results()) if "minus each other method" in t.title)
    row = next(row for row in overall.rows if row[0] == f"{PLUS}:not-learned")
    mean = row[5].partition(" ")[0].lstrip("+")
    assert (
        f"Over {row[1]} pairs of data and noise the mean gain is {mean} points (p = {row[6]}, not corrected)" in results
    )
    learned = {
        line["settings"]["noise"]: line["curves"]["test_accuracy"]
        for line in read_results().lines
        if line["settings"]["method"] == PLUS
        and (line["settings"]["data"], line["settings"]["clean"]) == ("cifar10", 1000)
        and not (line.get("superseded") or line["settings"]["settings"] or line["settings"]["noise_probs"] == "authors")
    }
    unfinished = (ROOT / "results" / "variants" / "2026-11-19-not-learned-unfinished.jsonl").read_text().splitlines()
    by_noise = {line["cell"].partition("/")[2]: line for line in map(json.loads, unfinished)}
    for cell, (noise, name) in UNFINISHED.items():
        gain = learned[noise][by_noise[cell]["epochs_done"] - 1] - by_noise[cell]["curve"][-1]
        assert gain > 0
        assert f"{gain:.1f} ({name})" in results


def test_worth_of_each_component() -> None:
    digits = next(t for t in tables("beyond-ablation", read_results()) if "removed on its own, digits" in t.title)
    change = {row[0]: row[-1] for row in digits.rows}
    lost = {name: -float(text.split()[0]) for name, text in change.items() if text[0] in "+-"}
    page = " ".join((PAGES / "beyond.md").read_text().split())
    manual = " ".join((ROOT / "docs" / "how-it-works" / "metalabelnet-plus.md").read_text().split())
    learning = lost["label net not taught (exponent 1)"]
    assert f"without learning the method loses {learning} points" in page
    assert f"learning is worth {learning} points" in manual
    assert f"with the default exponent it loses {lost['label net not taught']}, beyond it" in page
    assert {name for name in lost if "level" not in change[name]} == {"label net not taught"}
    for variant, text, text_of_manual in (
        ("no clean loss", "no clean loss ({}, most", "the clean loss ({})"),
        ("no sharpening", "no sharpening ({}, most", "sharpening ({})"),
        ("all labels weigh the same", "equal weights ({})", "weights ({})"),
        ("wrong labels by class alone", "wrong labels by class alone ({},", "follow the prediction ({})"),
        ("whole warm-up", "the long warm-up ({})", "the short warm-up ({})"),
        ("one noise rate", "One noise rate for all samples ({})", "whether the noise rate depends on the margin"),
        ("noise rate by clean samples", "the noise rate by clean samples alone ({})", "or uses training samples"),
        ("no trust floor", "no trust floor ({})", "whether there is a trust floor"),
        ("exponent 1", "exponent 1 ({})", "whether the exponent is 1"),
        ("no alignment", "no alignment ({}) make no difference", "or alignment"),
    ):
        assert text.format(f"{-lost[variant]:+.1f}") in page
        assert text_of_manual.format(f"{abs(lost[variant]):.1f}") in manual
    cells = digits.rows[[row[0] for row in digits.rows].index("label net not taught (exponent 1)")]
    assert cells[4].startswith("81.40")  # feature-dependent 80 %, where the loss is


def test_leads_of_joint_optimization_on_digits() -> None:
    cells = collect_cells("beyond", read_results(), DEFAULT_SELECTION)
    leads = []
    for column in (c for m, c, _ in cells if m == PLUS and c.startswith("digits/")):
        own, other = (cells[m, column, ""].by_seed() for m in (PLUS, "joint-optimization"))
        leads.append(statistics.mean(other[seed] - own[seed] for seed in own.keys() & other.keys()))
    ahead = [lead for lead in leads if lead > 0]
    count = {2: "two", 3: "three", 4: "four", 5: "five"}[len(ahead)]
    page = " ".join((PAGES / "beyond.md").read_text().split())
    assert f"`joint-optimization` leads by up to {max(ahead):.1f} under {count} noises" in page


def test_exponents_without_learning() -> None:
    lines = (ROOT / "results" / "variants" / "2026-11-19-not-taught.jsonl").read_text().splitlines()
    found: dict[tuple[bool, str], list[float]] = {}
    for line in map(json.loads, lines):
        found.setdefault(("exponent" in line["settings"], line["cell"]), []).append(line["test_last"])
    page = (PAGES / "plus-defaults.md").read_text(encoding="utf-8").partition("| label net not taught | feature")[2]
    cells = [f"digits/{noise}" for noise in ("feature:0.4", "feature:0.8", "uniform:0.6", "uniform:0.8")]
    for row, exponent_1 in zip(table_rows(f"| label net not taught | feature{page}"), (False, True), strict=True):
        means = [statistics.mean(found[exponent_1, cell]) for cell in cells]
        assert row[1:] == [f"{mean:.1f}" for mean in means]


def read_variants(name: str) -> list[dict[str, object]]:
    file = ROOT / "results" / "variants" / f"2026-11-20-{name}.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


TRUST = {
    "before": "as before",
    "label net not taught (exponent 1)": "label net not taught (exponent 1)",
    "**noise rate in P at most 0.5**": "noise rate in P at most 0.5",
    "not taught, but with the learned P": "label net not taught, but P learned",
    "the same, aligned": "label net not taught, but P learned and aligned",
    "P²": "P^2",
    "P^(1/(1 − e))": "P^(1/(1-e))",
    "exponent 1, P^(1/(1 − e))": "exponent 1, P^(1/(1-e))",
    "exponent 1, P^(1 + 2e)": "exponent 1, P^(1+2e)",
    "exponent 1, P^(1 + e)": "exponent 1, P^(1+e)",
    "clean weight 0.5 at every noise rate": "clean weight 0.5 at every noise rate",
    "ŷ^1.5 and weight u^0.5 at every noise rate": "ŷ^1.5, weight u^0.5 at every noise rate",
    "no alignment": "no alignment",
}
TRUST_CELLS = ("uniform:0.2", "uniform:0.4", "uniform:0.6", "uniform:0.8", "feature:0.4", "feature:0.8")


def test_table_of_how_much_a_given_label_counts() -> None:
    found: dict[tuple[object, str], list[float]] = {}
    for line in read_variants("trust"):
        noise = str(line["cell"]).partition("/")[2]
        found.setdefault((line["variant"], noise), []).append(float(str(line["test_last"])))
    page = (PAGES / "plus-defaults.md").read_text(encoding="utf-8").partition("## How much a given label counts")[2]
    rows = dict(
        re.findall(r"^\| (.+?) \| ((?:[\d.–]+ \| ){5}[\d.–]+) \|$", page.partition("## ")[0], flags=re.MULTILINE)
    )
    assert rows.keys() == TRUST.keys()
    for name, text in rows.items():
        for noise, value in zip(TRUST_CELLS, text.split(" | "), strict=True):
            runs = found.get((TRUST[name], noise), [])
            assert (value == "–") == (not runs)
            assert not runs or (len(runs) == 2 and value == f"{statistics.mean(runs):.1f}")


def test_errors_of_the_noise_rate() -> None:
    cases = [line for line in read_variants("noise-rate-errors") if "noise_rate" in line]
    assert len(cases) == 24
    page = " ".join((PAGES / "plus-defaults.md").read_text(encoding="utf-8").split())
    powered, alone = (
        statistics.mean((float(str(case[by])) - float(str(case["noise_rate"]))) ** 2 for case in cases) ** 0.5
        for by in ("with_training_samples", "by_clean_samples")
    )
    assert f"wrong by {powered:.3f} (root mean square), by clean samples alone by {alone:.3f}" in page


def test_recipe_table() -> None:
    """The changes that each value of the recipe makes, from the runs on training data."""
    page = (PAGES / "recipe.md").read_text(encoding="utf-8").partition("<!-- begin: recipe -->")[2]
    rows = {row[0]: row[1:] for row in table_rows(page.partition("<!-- end: recipe -->")[0])}
    columns = [
        (data, method) for data in ("digits", "cifar10", "fashion-mnist") for method in ("cross-entropy", "fine-tune")
    ]
    for k, (data, method) in enumerate(columns):
        lines = [json.loads(text) for text in (ROOT / "results" / "recipe" / f"{data}.jsonl").read_text().splitlines()]
        cells: dict[str, dict[tuple[str, int], float]] = {}
        for line in lines:
            if line["method"] == method:
                cells.setdefault(line["variant"], {})[line["noise"], line["seed"]] = line["accuracy"]
        start = cells["start"]
        for variant, row in rows.items():
            shared = [key for key in cells.get(variant, {}) if key in start]
            if variant == "start":
                assert row[k] == f"{sum(start.values()) / len(start):.2f}"
            elif shared:
                change = sum(cells[variant][key] - start[key] for key in shared) / len(shared)
                assert row[k] == f"{change:+.2f} ({len(shared)})"
            else:
                assert not row[k]


def test_table_of_epochs_that_can_be_selected(capsys: pytest.CaptureFixture[str]) -> None:
    page = (PAGES / "recipe.md").read_text(encoding="utf-8")
    benchmark = load_benchmark("selection_window")
    lines = (ROOT / "results" / "recipe" / "window-digits.jsonl").read_text().splitlines()
    benchmark.print_table([json.loads(line) for line in lines])
    assert page.partition("<!-- begin: window -->")[2].partition("<!-- end: window -->")[0].strip() in (
        capsys.readouterr().out
    )
    gains: dict[tuple[str, str], list[float]] = {}
    for text in (ROOT / "results" / "variants" / "2026-11-19-noise-rate.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line["variant"] in ("exponent 1 + e, weight u^e", "glc", "sce", "fine-tune"):
            key = (line["method"], line["cell"].partition("/")[0])
            gains.setdefault(key, []).append(line["test_last"] - line["test"])
    means = {key: f"{abs(statistics.mean(values)):.1f}" for key, values in gains.items()}
    plus = [means[PLUS, data] for data in ("fashion-mnist", "cifar10-1000")]
    others = [means[method, "fashion-mnist"] for method in ("glc", "sce", "fine-tune")]
    text = " ".join(page.split())
    assert f"is {plus[0]} and {plus[1]} points above the selected one" in text
    assert f"{others[0]}, {others[1]} and {others[2]} below it" in text


def test_reading_of_packed_images() -> None:
    """Images per second on the page on large data sets, rounded to two digits."""
    page = (PAGES / "scale.md").read_text(encoding="utf-8")
    lines = (ROOT / "results" / "streaming" / "cpu.jsonl").read_text().splitlines()
    stored: dict[str, float] = {}
    for line in map(json.loads, lines):
        stored |= line.get("reading", {})
        if "decoding" in line:
            stored["decoded to 224×224 by a worker, for comparison"] = line["decoding"]["1 workers"]["per_cpu_second"]
    rows = table_rows(page.partition("## Reading packed images")[2])
    assert len(rows) == len(stored) == 5
    for name, number in rows:
        assert number == f"{float(f'{stored[name]:.2g}'):,.0f}"


def test_steps_from_packed_photos() -> None:
    page = (PAGES / "scale.md").read_text(encoding="utf-8")
    cold, m = map(json.loads, (ROOT / "results" / "streaming" / "h200.jsonl").read_text().splitlines())
    section = page.partition("## Steps from packed photos")[2].partition("\n## ")[0]
    text = " ".join(section.split())
    for name, row in zip(("on the device", "from the pack"), table_rows(section), strict=True):
        assert row[1:] == [f"{m[key]['ms']:.2f} ms" for key in (name, f"{name}, again")]
    pack, batch = m["from the pack"], int(m["settings"]["batch"])
    used = 2 * batch / (pack["ms"] / 1000)
    packing, supply = m["packing"], m["supply without steps"]["images_per_second"]
    gib = {name: pack[f"{name} MiB"] / 1024 for name in ("process", "decoding", "compiling")}
    cores, own, caches = (
        pack["cores busy, workers"],
        pack["cores busy, process"],
        "first step, compiled beside packing, seconds",
    )
    for fact in (
        f"one H200 with {m['cores']} cores",
        f"commit {m['commit'][:7]}, PyTorch {m['versions']['torch'][:4]}",
        f"uses {batch} noisy and {batch} clean images",
        f"medians of five times {int(m['settings']['steps']) // int(m['settings']['repeats'])} steps",
        f"{packing['images']:,} synthetic JPEG files of {packing['bytes_per_image'] / 1000:.0f} kB with 640×480 pixels",
        f"of {packing['distinct scenes']:,} scenes",
        f"takes {m['ratio']:.2f} times as long",
        f"supply {supply:,.0f} images per second, and the steps use {used:,.0f}",
        f"{cores:.1f} cores busy**, which is {used / cores:.0f} images per second of CPU time",
        f"keeps {own:.1f} cores busy",
        f"Memory of the host: {sum(gib.values()):.1f} GiB**",
        f"{gib['process']:.1f} GiB for the process, {gib['decoding']:.1f} GiB for the processes that decode",
        f"{gib['compiling']:.1f} GiB for those of PyTorch",
        f"{cold['packing']['packing_per_second']:,.0f} images per second, beside",
        f"took {cold[caches]:.0f} s with empty caches of the compiler, and {m[caches]:.0f} s with",
    ):
        assert fact in text
    assert pack["ms"] < 1.1 * m["on the device"]["ms"]
    assert sum(gib.values()) < 4


def test_time_and_memory_by_number_of_classes() -> None:
    page = " ".join((PAGES / "scale.md").read_text(encoding="utf-8").split())
    lines = (ROOT / "results" / "streaming" / "many_classes.jsonl").read_text().splitlines()
    few, many = map(json.loads, lines[-2:])  # the earlier ones were measured before label tables became faster
    assert (few["classes"], many["classes"]) == (10, 1000)
    time, memory = (many[key] / few[key] for key in ("cpu_seconds", "peak_mib"))
    assert time < 3
    assert memory < 1.5
    assert (
        f"{few['cpu_seconds']:.1f} s of CPU time and {few['peak_mib']:.0f} MiB with 10 classes, "
        f"{many['cpu_seconds']:.1f} s and {many['peak_mib']:.0f} MiB with 1,000, "
        f"so {time:.1f} times the time and {memory:.1f} times the memory. "
        f"The steps take {few['cpu_seconds_of_steps']:.1f} and {many['cpu_seconds_of_steps']:.1f} s"
    ) in page


def test_time_and_memory_by_number_of_rows() -> None:
    page = (PAGES / "scale.md").read_text(encoding="utf-8")
    texts = (ROOT / "results" / "streaming" / "many_rows.jsonl").read_text().splitlines()
    lines = [json.loads(text) for text in texts]
    for line in lines:
        assert (line["classes"], line["epochs"]) == (1000, 1)
        sizes = f"{line['rows']:,} | {line['clean']:,} | {line['batch']}"
        seconds = f"{line['cpu_seconds']:,.0f} s | {line['cpu_seconds_of_steps']:,.0f} s"
        memory = f"{line['peak_mib'] / 1024:.1f} GiB | {line['run_folder_mib']:,.0f} MiB"
        assert f"| {sizes} | {seconds} | {memory} |" in page
    few, many = (next(line for line in lines if line["rows"] == rows) for rows in (240_000, 2_400_000))
    assert (few["clean"], few["batch"]) == (many["clean"], many["batch"])
    time, memory = (many[key] / few[key] for key in ("cpu_seconds", "peak_mib"))
    assert f"the CPU time grows {time:.1f} times, the memory {memory:.1f} times" in " ".join(page.split())


@pytest.mark.parametrize("name", ["cifar10n", "runs", "fashion_mnist"])
def test_tables_of_linear_classifiers(name: str) -> None:
    page = (ROOT / "docs" / "how-it-works" / "tables-and-texts.md").read_text(encoding="utf-8")
    rows = load_benchmark("linear").markdown(ROOT / "results" / "linear" / f"{name}.jsonl")
    assert rows
    for row in rows:
        assert row in page


@functools.cache
def read_linear_rows() -> dict[str, list[str]]:
    """The cells of the tables of linear classifiers, by set and noise."""
    benchmark = load_benchmark("linear")
    files = [ROOT / "results" / "linear" / f"{name}.jsonl" for name in ("cifar10n", "runs", "fashion_mnist")]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for path in files for row in benchmark.markdown(path)]
    return {name: cells for name, *cells in rows}


def test_linear_classifier_in_the_readme() -> None:
    """The table "Which method for which data": leads over the best other row, and over logistic regression on texts."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    numbers = {
        name: [float(number) for number in re.findall(r"[+-][\d.]+", cells[-1].replace("−", "-"))]
        for name, cells in read_linear_rows().items()
    }
    cifar10n = [lead for name, lead in numbers.items() if name.startswith("cifar10n")]
    assert all(low > 0 for _, low, _ in cifar10n)
    leads_there = [lead for lead, _, _ in cifar10n]
    assert f"{min(leads_there):.1f} to {max(leads_there):.1f} points ahead on CIFAR-10N" in readme
    tables = [lead for name, lead in numbers.items() if not name.startswith("cifar10n")]
    ahead, level = sum(low > 0 for _, low, _ in tables), sum(low <= 0 <= high for _, low, high in tables)
    assert ahead + level == len(tables)
    assert f"ahead under {ahead} of {len(tables)} noises, level under {level}" in readme

    real = load_benchmark("real")
    leads = []
    for by_method in real.read_draws(ROOT / "results" / "real" / "runs.jsonl").values():
        own, *logistic = (real.mean_of(by_method[method], "test_accuracy") for method in real.METHODS)
        leads.append(own - max(logistic))
    assert "{:.1f} and {:.1f} points ahead on two sets; level on sentence embeddings".format(*leads[:2]) in readme
    encoders = real.markdown(ROOT / "results" / "real" / "held_out.jsonl")
    (sentences,) = (row for row in encoders if "sentence-transformers" in row and " to " in row)
    low, high = re.findall(r"\(([+−][\d.]+) to ([+−][\d.]+)\)", sentences)[0]
    assert low.startswith("−")
    assert high.startswith("+")

    gains = []
    for by_method in real.read_draws(ROOT / "results" / "real" / "annotations.jsonl").values():
        every, vote = by_method[PLUS], by_method[f"{PLUS}, majority vote"]
        gains.append(paired_difference([every[k]["test_accuracy"] - vote[k]["test_accuracy"] for k in sorted(every)]))
    (low, _), (low_2, high_2) = (gain.interval() for gain in gains)
    assert low > 0
    assert low_2 <= 0 <= high_2
    assert f"texts: {gains[0].mean:+.1f} points over majority vote; level on another set" in readme


def test_unseen_tables() -> None:
    unseen = load_benchmark("unseen_tables")
    page = (ROOT / "docs" / "how-it-works" / "tables-and-texts.md").read_text(encoding="utf-8")
    table, _, text = page.partition("<!-- begin: unseen-tables -->")[2].partition("<!-- end: unseen-tables -->")
    file = ROOT / "results" / "linear" / "unseen_tables.jsonl"
    *rows, over_all, over_logistic = unseen.markdown(file)
    assert table.strip().splitlines()[2:] == rows
    text = " ".join(text.split())
    pattern = r"mean (\S+); of (\d+) ahead in (\d+), beyond the interval in (\d+); behind beyond it in (\d+)"
    mean, cells, *counts = re.search(pattern, over_all).groups()
    start = f"Over the highest of all rows the mean lead is {mean}: of {cells} cells ahead in {counts[0]}, beyond the "
    assert start + f"interval in {counts[1]}, behind beyond it in {counts[2]}." in text
    mean, cells, *counts = re.search(pattern, over_logistic).groups()
    start = (
        f"Over the highest logistic row it is {mean}: ahead in {counts[0]}, beyond the interval in {counts[1]}, behind "
    )
    assert f"{start}beyond it in {counts[2]}." in text
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"14 unseen tables: {float(mean):+.1f}" in readme

    draws = unseen.read_draws(file)
    behind = {"german": 74, "contraceptive": 52, "marketing": 33}
    for name, by_method in draws.items():
        limit = behind.get(name.split()[0], 100)
        assert max(statistics.mean(x["test_accuracy"] for x in by.values()) for by in by_method.values()) < limit
    assert "no row reaches {}, {} and {} %".format(*behind.values()) in text
    before = unseen.read_draws(file.with_name("unseen_tables_three_decays.jsonl"))
    gains = {
        name: statistics.mean(draws[name][PLUS][k]["test_accuracy"] - x["test_accuracy"] for k, x in by[PLUS].items())
        for name, by in before.items()
    }
    assert f"{statistics.mean(gains.values()):.2f} points lower" in text
    for table_name in ("letter", "texture"):
        assert f"{max(gain for name, gain in gains.items() if table_name in name):.1f}" == "1.7"


@pytest.mark.parametrize("name", ["runs", "encoders", "held_out", "annotations"])
def test_tables_of_texts_with_real_noise(name: str) -> None:
    page = (ROOT / "docs" / "how-it-works" / "tables-and-texts.md").read_text(encoding="utf-8")
    benchmark, path = load_benchmark("real"), ROOT / "results" / "real" / f"{name}.jsonl"
    rows = benchmark.annotation_markdown(path) if name == "annotations" else benchmark.markdown(path)
    assert rows
    for row in rows:
        assert row in page


def test_cost_of_many_rows() -> None:
    page = (ROOT / "docs" / "how-it-works" / "tables-and-texts.md").read_text(encoding="utf-8")
    lines = map(json.loads, (ROOT / "results" / "speed" / "fixed_features.jsonl").read_text().splitlines())
    for m in {line["data"]: line for line in lines}.values():  # the latest of each
        cells = (
            f"{m['logistic_seconds']} s | {m['seconds']} s | {m['ratio']} | {m['logistic_gib']} GiB | {m['gib']} GiB |"
        )
        assert cells in page
