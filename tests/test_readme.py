"""What the README shows must run."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 12
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
