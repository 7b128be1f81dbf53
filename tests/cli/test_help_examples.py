"""The examples in `--help` can be run as they stand."""

import re
import shlex
from pathlib import Path

import pytest

from metalabelnet.cli import parser
from metalabelnet.cli.build_run import build_run
from tiny_data import table_samples, write_npz
from user_data import text_rows, write_csv, write_photos

EXAMPLES = [  # without the explanations, which follow after two or more spaces
    re.split(r"\s{3,}| {2,}(?=[a-z])", line.strip().removeprefix("metalabelnet "))[0]
    for name, text in vars(parser).items()
    if name.endswith("_EXAMPLES")
    for line in text.splitlines()
    if line.startswith("  metalabelnet ")
]
SINGLE_RUNS = [example for example in EXAMPLES if example.startswith("train ") and "--resume" not in example]


def test_there_are_examples_of_every_command_that_takes_many_options() -> None:
    assert {example.split()[0] for example in EXAMPLES} >= {"train", "compare", "labels", "predict", "review", "pack"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_is_parsed(example: str) -> None:
    assert callable(parser.make_parser().parse_args(shlex.split(example)).command)


@pytest.mark.parametrize("example", SINGLE_RUNS)
def test_example_is_a_valid_run(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = table_samples(9, seed=0)
    write_npz(tmp_path / "mine.npz", x_clean=x, y_clean=y)
    write_photos(tmp_path / "photos")
    write_csv(tmp_path / "texts.csv", ["text", "label", "checked"], text_rows(30))
    write_csv(tmp_path / "table.csv", ["a", "kind", "checked"], [[1, "x", 1], [2, "y", 0]])
    build_run(parser.make_parser().parse_args(shlex.split(example)))
