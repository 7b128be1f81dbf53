"""Fuzz the command line: damaged files and odd arguments must end in one line and exit code 2, or in success.

    python tests/fuzz/fuzz.py --seconds 300 --seed 1
    python tests/fuzz/fuzz.py --seed 1 --case 17 --keep /tmp/case     repeat one case and keep its files

Every case runs in a forked child of this process, which has imported everything, in a sandbox of its own: the current
folder, HOME and TMPDIR. Violations:

    traceback   an exception was not handled
    exit code   other than 0 (success), 1 (a run failed), 2 (wrong input) or 130 (stopped)
    message     not one line of at most 300 characters for exit code 2, or control characters
    hang        no end after 60 seconds (a command that trains is stopped by SIGTERM after 20); with --busy, where other
                programs use the processor: 60 seconds of CPU time, 60 seconds without any, or 300 seconds
    writes      something changed outside of the places that the command names, or at all for exit code 2
"""

import argparse
import collections
import contextlib
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import cases
import fixtures
import torch

from metalabelnet.cli import main
from metalabelnet.review import server

MAX_MESSAGE_CHARACTERS = 300
SECONDS_UNTIL_STOP = 20  # of a command that trains
SECONDS_UNTIL_HANG = 60
BUSY_SECONDS_UNTIL_HANG = 300  # on a busy machine, where the other limit is for CPU time and for time without any
MEMORY_BYTES, FILE_BYTES = 6 << 30, 1 << 28  # more memory than this process has, and the largest file
TRAINING = ("train", "compare", "reproduce")
UNCAUGHT = 70  # exit code of a child that ended with an exception
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
Snapshot = dict[str, tuple[int, ...]]


@dataclass
class Violation:
    """What a case did wrong."""

    kind: str
    detail: str
    case: cases.Case


class Sandbox:
    """Folders for the cases: `fixtures`, and `work`, `home`, `tmp` and `outside`, which are new for every case."""

    def __init__(self, root: Path, seed: int, *, busy: bool = False) -> None:
        self.root, self.seed, self.busy, self.last_code = root, seed, busy, 0
        self.codes: collections.Counter[str] = collections.Counter()  # of ended cases, by command and exit code
        self.work, self.output = root / "case" / "work", root / "output"
        self.output.mkdir()
        os.environ.update(HOME=str(root / "case" / "home"), TMPDIR=str(root / "case" / "tmp"))
        os.environ["MPLCONFIGDIR"] = str(root / "matplotlib")
        for name in ("METALABELNET_DATA", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            os.environ.pop(name, None)
        server.serve = lambda *_, **__: None  # type: ignore[assignment]
        torch.set_num_threads(1)
        (root / "fixtures").mkdir()
        with contextlib.chdir(root / "fixtures"):
            fixtures.write_fixtures(root / "fixtures")

    def run(self, number: int) -> tuple[cases.Case, list[Violation]]:
        """Run one case and return its violations."""
        self.clear()
        return self.run_case(cases.make_case(self.seed, number, self.root / "fixtures", self.work))

    def clear(self) -> None:
        """Make the folders of a case, except `work`."""
        shutil.rmtree(self.root / "case", ignore_errors=True)
        for name in ("home", "tmp", "outside"):
            (self.root / "case" / name).mkdir(parents=True)
        (self.root / "case" / "outside" / "secret.txt").write_text("secret\n")

    def run_case(self, case: cases.Case) -> tuple[cases.Case, list[Violation]]:
        """Run the command of a case, whose files are in `work`, and return its violations."""
        before = snapshot(self.root / "case")
        code, hung = self._run_child(case)
        self.last_code = code
        self.codes[f"{case.command} {code}"] += 1
        err = (self.output / "err").read_text(encoding="utf-8", errors="replace")
        found = list(check_output(code, err, hung=hung))
        found += check_writes(case, code, before, snapshot(self.root / "case"), self.root / "case", self.work)
        return case, [Violation(kind, detail, case) for kind, detail in found]

    def _run_child(self, case: cases.Case) -> tuple[int, bool]:
        """Return the exit code, negative for a signal, and whether the child had to be killed."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about threads, which are idle here
            pid = os.fork()
        if pid == 0:
            self._be_child(case)
        start, stopped = time.monotonic(), False
        is_hung = busy_hang_check(pid) if self.busy else lambda: time.monotonic() - start > SECONDS_UNTIL_HANG
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # processes that the child has started
                code = os.waitstatus_to_exitcode(status)
                return (130 if stopped and code == -signal.SIGTERM else code), False
            seconds = time.monotonic() - start
            if case.command in TRAINING and seconds > SECONDS_UNTIL_STOP and not stopped:
                stopped = True
                os.kill(pid, signal.SIGTERM)
            if is_hung():
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return 0, True
            time.sleep(0.002)

    def _be_child(self, case: cases.Case) -> None:
        code = UNCAUGHT
        try:
            os.setsid()
            os.chdir(self.work)
            for number, name in enumerate((os.devnull, self.output / "out", self.output / "err")):
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
                os.dup2(os.open(name, flags), number)
            sys.stdout, sys.stderr = (
                os.fdopen(number, "w", encoding="utf-8", errors=errors)
                for number, errors in ((1, "strict"), (2, "backslashreplace"))
            )
            sys.argv = ["metalabelnet", *case.arguments]
            tempfile.tempdir = None
            limit_memory()
            warnings.resetwarnings()
            warnings.simplefilter("ignore", DeprecationWarning)
            code = main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def busy_hang_check(pid: int) -> Callable[[], bool]:
    """Return a function that says whether a process on a busy machine hangs."""
    start, used = time.monotonic(), 0.0
    last_use = start

    def is_hung() -> bool:
        nonlocal used, last_use
        now = time.monotonic()
        if (now_used := cpu_seconds(pid)) > used:
            used, last_use = now_used, now
        return max(used, now - last_use) > SECONDS_UNTIL_HANG or now - start > BUSY_SECONDS_UNTIL_HANG

    return is_hung


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def limit_memory() -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, size + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))


def snapshot(folder: Path) -> Snapshot:
    """Return kind, size and modification time of every file; folders have a kind only."""
    found: Snapshot = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(root, name)  # noqa: PTH118 (os.walk is faster)
            status = os.lstat(path)
            is_folder = os.path.isdir(path) and not os.path.islink(path)  # noqa: PTH112, PTH114
            found[path] = (status.st_mode,) if is_folder else (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def check_output(code: int, err: str, *, hung: bool) -> Iterator[tuple[str, str]]:
    """Yield the violations in exit code and standard error."""
    lines = err.splitlines()
    last = lines[-1] if lines else ""
    if hung:
        yield "hang", f"no end after {SECONDS_UNTIL_HANG} s; last line: {last[:200]}"
        return
    if "Traceback (most recent call last)" in err or "Exception ignored" in err:
        place = [line.strip() for line in lines if line.startswith('  File "') and "/metalabelnet/" in line]
        yield "traceback", f"{last[:200]} {place[-1] if place else ''}"
    elif code not in (0, 1, 2, 130):
        yield "exit code", f"{code}: {last[:200]}"
    elif code == 2:
        errors = [line for line in lines if line.startswith("metalabelnet: ")]
        if last not in errors:
            yield "message", f"the last line is not the error: {last[:200]!r}"
        elif len(last) > MAX_MESSAGE_CHARACTERS:
            yield "message", f"{len(last)} characters: {last[:200]}"
    if CONTROL_CHARACTERS.search(err):
        yield "message", f"control characters: {CONTROL_CHARACTERS.search(err)!r}"


def check_writes(
    case: cases.Case, code: int, before: Snapshot, after: Snapshot, root: Path, work: Path
) -> Iterator[tuple[str, str]]:
    """Yield the violations in what was written."""
    changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    places = [str(place) for place in cases.output_places(case.arguments, work)]
    smoke = str(root / "tmp" / "metalabelnet-smoke-")
    cache = [str(root / "home" / ".cache"), str(root / "home" / ".cache" / "metalabelnet")]  # empty folders may stay
    cache += [path for path in after if Path(path).name.startswith("torchinductor_")]  # empty too, made by PyTorch
    outside = [
        path
        for path in changed
        if not any(path == place or path.startswith(f"{place}/") or place.startswith(f"{path}/") for place in places)
        and not (case.command == "review" and ".sqlite" in path)
        and not path.startswith(smoke)
        and path not in cache
    ]
    if outside:
        yield "writes", f"outside of the named places: {outside[:3]}"
    elif code == 2 and changed and case.command not in (*TRAINING, "review"):
        yield "writes", f"although the input is wrong: {changed[:3]}"


def fuzz(box: Sandbox, *, seconds: float, most: int, report: bool = True) -> list[Violation]:
    """Run cases until the time or the number is reached; return the violations."""
    violations: list[Violation] = []
    start, number = time.monotonic(), 0
    while number < most and time.monotonic() - start < seconds:
        found = box.run(number)[1]
        violations += found
        number += 1
        if report:
            for violation in found:
                print(f"case {number - 1}: {violation.kind}: {violation.detail}", flush=True)
            if number % 200 == 0:
                print(f"{number} cases, {len(violations)} violations", flush=True)
    return violations


def print_summary(box: Sandbox, violations: list[Violation]) -> None:
    """Print the number of cases, and the violations by kind with a command that reproduces each."""
    print(f"{box.codes.total()} cases, {len(violations)} violations")
    print("by command and exit code:", ", ".join(f"{name}: {n}" for name, n in sorted(box.codes.items())))
    groups: dict[tuple[str, str], list[Violation]] = collections.defaultdict(list)
    for violation in violations:
        groups[violation.kind, re.sub(r"\d+|'[^']*'", "", violation.detail)[-120:]].append(violation)
    for (kind, _), found in sorted(groups.items(), key=lambda item: -len(item[1])):
        first = found[0]
        print(f"\n{len(found)}× {kind}: {first.detail}")
        print(f"    metalabelnet {shlex.join(first.case.arguments)[:300]}")
        for damage in first.case.damage:
            print(f"    {damage}")
        print(f"    reproduce: python tests/fuzz/fuzz.py --seed {box.seed} --case {first.case.number} --keep FOLDER")


def run_one(box: Sandbox, number: int, keep: Path | None) -> int:
    """Run one case again and print everything about it; copy its files to `keep`."""
    case, found = box.run(number)
    print(f"metalabelnet {shlex.join(case.arguments)}", *case.damage, sep="\n    ")
    print((box.output / "err").read_text(encoding="utf-8", errors="replace"))
    for violation in found:
        print(f"{violation.kind}: {violation.detail}")
    if keep is not None:
        box.clear()
        cases.make_case(box.seed, number, box.root / "fixtures", box.work)
        shutil.move(box.work, keep)
        print(f"run it in {keep}")
    return 1 if found else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fuzz the command line.")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--case", type=int, help="run this case alone")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="with --case: move its files here")
    parser.add_argument("--busy", action="store_true", help="other programs use the processor: see hang above")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        box = Sandbox(Path(temporary).resolve(), options.seed, busy=options.busy)
        if options.case is not None:
            sys.exit(run_one(box, options.case, options.keep and options.keep.resolve()))
        print(f"seed {options.seed}")
        violations = fuzz(box, seconds=options.seconds, most=options.cases)
        print_summary(box, violations)
        sys.exit(1 if violations else 0)
