"""README: its examples run, its commands exist, its numbers are those of the stored results, and it is short."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_WORDS = 900


def example_with(word: str) -> str:
    (example,) = (text for text in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL) if word in text)
    return example


def test_readme_is_short() -> None:
    assert len(README.split()) <= MAX_WORDS


def test_estimator_example_runs() -> None:
    true = np.arange(90) % 3
    X = np.random.default_rng(0).normal(size=(90, 4)) + 3 * true[:, None]
    y, mask = np.where(np.arange(90) % 7 == 0, (true + 1) % 3, true), np.arange(90) % 7 == 1
    y[2] = -1
    names = {"X": X, "y": y, "mask": mask, "X_new": X[:5]}
    exec(compile(example_with("MetaLabelNetClassifier"), "README.md", "exec"), names)
    assert (names["clf"].labels_ == true).mean() > 0.9


def test_pytorch_example_runs() -> None:
    y = torch.arange(60) % 3
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) + 3 * y[:, None]
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    names = {"net": net, "train_set": TensorDataset(x[:40], y[:40]), "clean_set": TensorDataset(x[40:], y[40:])}
    exec(compile(example_with("metalabelnet.fit"), "README.md", "exec"), names)
    assert type(names["result"].model) is type(net)  # the EMA of the network


def test_run_example_runs_with_fewer_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    example, changes = re.subn(r"epochs=\d+, warmup=\d+", "epochs=2, warmup=1", example_with("make_run"))
    assert changes == 1
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    assert re.fullmatch(r"test accuracy \d+\.\d %\n\d+ labels look wrong\n", capsys.readouterr().out)
    assert (tmp_path / "runs" / "example" / "summary.json").exists()


@pytest.mark.slow
def test_run_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    example = example_with("make_run")
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    accuracy, suspects = capsys.readouterr().out.splitlines()
    assert float(accuracy.split()[2]) > 60
    assert 200 < int(suspects.split()[0]) < 900  # 478 labels are wrong
    assert (tmp_path / "runs" / "example" / "summary.json").exists()


def test_named_commands_exist() -> None:
    from metalabelnet.cli.parser import make_parser

    parser = make_parser()
    commands = re.findall(r"^metalabelnet (\w+)", README, flags=re.MULTILINE)
    assert commands
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            parser.parse_args([command, "--help"])
        assert ended.value.code == 0


def test_table_equals_stored_results() -> None:
    """The README's accuracies are those of the generated table, which another test compares with results/."""
    generated = (ROOT / "docs" / "results" / "reproduction" / "cifar10-table.md").read_text(encoding="utf-8")
    stored: dict[str, dict[str, str]] = {}
    for table in re.findall(r"^\| method.*?(?=\n\n|\Z)", generated, flags=re.MULTILINE | re.DOTALL)[:2]:
        columns, _, *rows = ([cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines())
        for row in rows:
            stored.setdefault(row[0], {}).update(zip(columns, row, strict=False))
    text = re.search(r"<!-- begin: readme-table -->\n(.*?)<!-- end: readme-table -->", README, flags=re.DOTALL)
    assert text is not None
    header, _, *lines = ([cell.strip(" `") for cell in line.strip("| ").split("|")] for line in text[1].splitlines())
    assert lines
    for noise, *cells in lines:
        for method, cell in zip(header[1:], cells, strict=True):
            assert stored[method][noise].startswith(cell.split()[0]), (noise, method)


def test_links_of_top_level_pages_exist() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", (ROOT / page).read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{page}: {target}"
