"""What the README shows must run."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

README = (Path(__file__).parents[1] / "README.md").read_text()


def example_with(word: str) -> str:
    (example,) = (text for text in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL) if word in text)
    assert len([line for line in example.splitlines() if line.strip()]) <= 12
    return example


def test_the_estimator_example_runs() -> None:
    true = np.arange(90) % 3
    X = np.random.default_rng(0).normal(size=(90, 4)) + 3 * true[:, None]
    y, mask = np.where(np.arange(90) % 7 == 0, (true + 1) % 3, true), np.arange(90) % 7 == 1
    y[2] = -1
    names = {"X": X, "y": y, "mask": mask, "X_new": X[:5]}
    exec(compile(example_with("MetaLabelNetClassifier"), "README.md", "exec"), names)
    assert (names["clf"].labels_ == true).mean() > 0.9


def test_the_pytorch_example_runs() -> None:
    y = torch.arange(60) % 3
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) + 3 * y[:, None]
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    names = {"net": net, "train_set": TensorDataset(x[:40], y[:40]), "clean_set": TensorDataset(x[40:], y[40:])}
    exec(compile(example_with("metalabelnet.fit"), "README.md", "exec"), names)
    assert names["result"].model is net


def test_the_run_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    example = example_with("recipe")
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    accuracy, *_, suspects = capsys.readouterr().out.splitlines()
    assert float(accuracy.split()[2]) > 60
    assert 200 < int(suspects.split()[0]) < 900  # 478 labels are wrong
    assert (tmp_path / "runs" / "example" / "summary.json").exists()


def test_the_commands_it_names_exist() -> None:
    from metalabelnet.cli.parser import make_parser

    parser = make_parser()
    for line in re.findall(r"^metalabelnet (\w+)", README, flags=re.MULTILINE):
        with pytest.raises(SystemExit) as ended:
            parser.parse_args([line, "--help"])
        assert ended.value.code == 0
