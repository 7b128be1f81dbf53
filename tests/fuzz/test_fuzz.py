"""A few seeded cases of the fuzzer; `make fuzz` runs more."""

import functools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cases
import mutations
import pytest

import fuzz as fuzz_module
from fuzz import Sandbox, check_output, fuzz
from tiny_data import write_npz

Fresh = Callable[..., Any]


@functools.cache
def sandbox(root: Path) -> Sandbox:
    return Sandbox(root, seed=1)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    """Call functions in a new process with a sandbox: forks of a test process, which has threads, can hang."""
    root = tmp_path_factory.mktemp("fuzz").resolve()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield lambda call, *more: pool.submit(call, root, *more).result()


def run_undamaged(root: Path, text: str, files: tuple[str, ...]) -> tuple[list[Any], int, str]:
    """Run a command whose files are whole; return violations, exit code and standard error."""
    box = sandbox(root)
    box.clear()
    cases.copy_fixtures(box.root / "fixtures", box.work, f"{text} {' '.join(files)}")
    found = box.run_case(cases.Case(0, text.split()))[1]
    return found, box.last_code, (box.output / "err").read_text(encoding="utf-8")


def run_seeded(root: Path, count: int) -> list[tuple[str, str]]:
    return [(v.kind, f"{v.detail} {v.case}") for v in fuzz(sandbox(root), seconds=200, most=count, report=False)]


def make_twice(root: Path, folder: Path) -> list[list[cases.Case]]:
    fixtures = sandbox(root).root / "fixtures"
    return [[cases.make_case(5, number, fixtures, folder / f"{name}{number}") for number in range(8)] for name in "ab"]


def run_writer(root: Path) -> list[tuple[str, str]]:
    """Run a command whose network writes a file in the folder that the command does not name."""
    box = sandbox(root)
    box.clear()
    box.work.mkdir()
    (box.work / "nets.py").write_text(cases.NETS + "open('elsewhere', 'w').write('x')\n")
    write_npz(box.work / "small.npz")
    words = f"train small.npz --clean 18 --net nets.py:make {cases.FAST} --out out"
    return [(v.kind, v.detail) for v in box.run_case(cases.Case(0, words.split()))[1]]


def run_sleeper(root: Path, busy: bool) -> tuple[list[str], float]:
    """Run a command whose network waits for ever, with one second until it hangs; return violations and seconds."""
    box = sandbox(root)
    box.clear()
    box.work.mkdir()
    (box.work / "nets.py").write_text("import time\ntime.sleep(1000)\n")
    write_npz(box.work / "small.npz")
    words = f"train small.npz --clean 18 --net nets.py:make {cases.FAST} --out out"
    start = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuzz_module, "SECONDS_UNTIL_HANG", 1)
        patch.setattr(box, "busy", busy)
        return [v.kind for v in box.run_case(cases.Case(0, words.split()))[1]], time.monotonic() - start


@pytest.mark.slow
@pytest.mark.parametrize(("text", "files"), cases.COMMANDS[::8])
def test_commands_succeed_without_damage(text: str, files: tuple[str, ...], fresh: Fresh) -> None:
    """Otherwise the damage of a case would have no effect."""
    found, code, err = fresh(run_undamaged, text, files)
    assert (found, code) == ([], 0), err


@pytest.mark.slow
def test_seeded_cases(fresh: Fresh) -> None:
    assert fresh(run_seeded, 60) == []


@pytest.mark.slow
def test_case_depends_on_seed_and_number_only(fresh: Fresh, tmp_path: Path) -> None:
    first, second = fresh(make_twice, tmp_path)
    assert first == second


@pytest.mark.slow
def test_writes_are_found(fresh: Fresh) -> None:
    ((kind, detail),) = fresh(run_writer)
    assert (kind, "elsewhere" in detail) == ("writes", True)


@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True])
def test_hangs_are_found(busy: bool, fresh: Fresh) -> None:
    kinds, seconds = fresh(run_sleeper, busy)
    assert "hang" in kinds
    assert 1 < seconds < 20


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


def test_digests_of_a_pack_are_renewed_for_its_own_files_only(tmp_path: Path) -> None:
    """An index may name any path: reading /dev/zero would not end."""
    for name, renewed in (("/dev/zero", False), ("ids.json", True)):
        text = json.dumps({"digests": {name: "old"}, "shards": []})
        (tmp_path / "pack.json").write_text(text)
        (tmp_path / "ids.json").write_text("[]")
        mutations.renew_digests_of_pack(tmp_path)
        assert ((tmp_path / "pack.json").read_text() != text) == renewed
