"""A few seeded cases of the fuzzer; `make fuzz` runs more."""

import os
from collections.abc import Iterator
from pathlib import Path

import cases
import pytest

from fuzz import Sandbox, check_output, fuzz
from metalabelnet.review import server

pytestmark = pytest.mark.slow  # forks: a worker process with threads can hang its children


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    environment, serve = dict(os.environ), server.serve
    yield Sandbox(tmp_path_factory.mktemp("fuzz").resolve(), seed=1)
    os.environ.clear()
    os.environ.update(environment)
    server.serve = serve


def test_commands_succeed_without_damage(box: Sandbox) -> None:
    """Otherwise the damage of a case would have no effect."""
    for text, files in cases.COMMANDS[::8]:
        box.clear()
        cases.copy_fixtures(box.root / "fixtures", box.work, f"{text} {' '.join(files)}")
        assert box.run_case(cases.Case(0, text.split()))[1] == []
        assert box.last_code == 0, (box.output / "err").read_text(encoding="utf-8")


def test_seeded_cases(box: Sandbox) -> None:
    violations = fuzz(box, seconds=60, most=60, report=False)
    assert [(v.kind, v.detail, v.case) for v in violations] == []


def test_case_depends_on_seed_and_number_only(box: Sandbox, tmp_path: Path) -> None:
    first, second = (
        [cases.make_case(5, number, box.root / "fixtures", tmp_path / f"{name}{number}") for number in range(8)]
        for name in "ab"
    )
    assert first == second


@pytest.mark.parametrize(
    ("code", "err", "kind"),
    [
        (70, "Traceback (most recent call last):\n  File x\nValueError: y\n", "traceback"),
        (-11, "", "exit code"),
        (3, "", "exit code"),
        (2, "", "message"),
        (2, "metalabelnet: wrong\nand more\n", "message"),
        (2, f"metalabelnet: {'x' * 300}\n", "message"),
        (0, "epoch\x1b[2J\n", "message"),
    ],
)
def test_violations_are_found(code: int, err: str, kind: str) -> None:
    assert [found for found, _ in check_output(code, err, hung=False)] == [kind]
    assert list(check_output(2, "a note\nmetalabelnet: wrong\n", hung=False)) == []


def test_writes_are_found(box: Sandbox) -> None:
    """A file in the folder is written that the command does not name."""
    box.clear()
    box.work.mkdir()
    (box.work / "nets.py").write_text(cases.NETS + "open('elsewhere', 'w').write('x')\n")
    cases.write_npz(box.work / "small.npz")
    words = f"train small.npz --clean 18 --net nets.py:make {cases.FAST} --out out"
    (violation,) = box.run_case(cases.Case(0, words.split()))[1]
    assert (violation.kind, "elsewhere" in violation.detail) == ("writes", True)
