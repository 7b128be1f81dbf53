"""The same iteration with the packages one would otherwise take: TorchOpt, higher, betty.

    python benchmarks/rivals.py --check          one iteration of each beside ours: does it compute the same?
    python benchmarks/rivals.py                  8-layer CNN, batch 128, CUDA if there is a card
    python benchmarks/rivals.py --batch 16 --seconds 5 --json out.json

Each function of `RIVALS` (`rival_steps.py`) writes phase 2 (`metalabelnet.core.algorithm`) in the package's way, and
as sparingly as the package allows: features once; the gradient by φ alone; and, where the package lets the graph of
f(x) be used twice, one pass over x for steps 1 and 3. All differentiate through the look-ahead, as `double-backward`
does. Adam and SGD are PyTorch's, but for betty's SGD, which is its own.

    package   look-ahead                                      f(x)   running statistics of BatchNorm
    torchopt  MetaSGD on the network, which then gets θ back  once   x and x_m, as ours
    higher    innerloop_ctx; its copy of the buffers is read  once   x and x_m, as ours
              back
    betty     IterativeProblem and roll_back, which runs      twice  x alone, as clean_updates_statistics=False
              step 3 as the inner step taken again

betty is 0.1.1, the newest that can do it: 0.2.1 declares Python below 3.11, and its IterativeProblem stops at its start
with KeyError: 'params' (tried with --ignore-requires-python). betty's default, ImplicitProblem with type "darts", is no
row: it takes a finite difference at θ̂ where the algorithm has the derivative at θ.

`pip install 'metalabelnet[benchmark]'` brings TorchOpt and higher. betty-ml 0.1.1 asks for `torch>=1.6.*`, which is not
valid and which pip refuses from 24.1 on; an older pip takes it. For a machine without a package index, take them along
in a folder on PYTHONPATH. higher and betty are pure Python; so is TorchOpt for Python 3.12 (its wheels up to 3.11 hold
a compiled Adam, not used here), but it needs optree, which is compiled for one version of Python:

    pip install --no-deps --target rivals higher==0.2.1
    python -m venv old && old/bin/pip install 'pip<24.1'
    old/bin/pip install --no-deps --target rivals betty-ml==0.1.1
    pip install --no-deps --target rivals --python-version 3.12 --only-binary :all: \
        torchopt==0.7.3 optree graphviz typing_extensions
    PYTHONPATH=rivals python benchmarks/rivals.py

What is not installed, and what does not run, is a row that says so.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from rival_steps import OURS, RIVALS, Iteration, Start, ours, start
from timing import milliseconds, resident, tidy

from metalabelnet.engine import tf32_and_cudnn_benchmark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

PACKAGES = {"torchopt": "torchopt", "higher": "higher", "betty": "betty-ml"}  # what is imported, what is installed
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


def note(name: str) -> str:
    """Nothing, or that the package is not installed, or what its import says."""
    if name in OURS:
        return ""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        return "not installed" if error.name == name else f"cannot: {_reason(error)}"
    except Exception as error:  # whatever it is, it belongs in the row
        return f"cannot: {_reason(error)}"
    return ""


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def difference(mine: Iterable[Tensor], theirs: Iterable[Tensor]) -> float:
    """‖theirs − mine‖/‖mine‖ over all tensors."""
    a, b = (torch.cat([tensor.detach().double().flatten() for tensor in tensors]) for tensors in (mine, theirs))
    return float((b - a).norm() / a.norm())


def check(make: Callable[[Start], Iteration], s: Start) -> dict[str, float]:
    """How far a rival is from our double backward after one iteration from the same start.

    The weights alone would not show enough. Adam's first step hardly depends on how long the gradient is; and SGD's
    moves θ by some 1e-5 of its norm, so that in single precision θ left where it was would pass. Hence the gradients.
    """
    mine, theirs = ours(s), make(s)
    mine(), theirs()
    return {
        "∇φ": difference(mine.by_phi(), theirs.by_phi()),
        "∇θ": difference(mine.by_theta(), theirs.by_theta()),
        "φ": difference(mine.phi(), theirs.phi()),
        "θ": difference(mine.theta(), theirs.theta()),
    }


def agrees(found: dict[str, float], s: Start) -> bool:
    """Whether all differences are within what the type of number allows."""
    return max(found.values()) < TOLERANCE[s.x.dtype]


def row(name: str, *, batch: int, size: int, device: str, seconds: float) -> dict[str, Any]:
    """Time and memory of one iteration: milliseconds, MiB, and a note where there is something to say."""
    empty = {"row": name, "ms": None, "MiB": None, "note": note(name), "version": ""}
    if empty["note"]:
        return empty
    version = importlib.metadata.version(PACKAGES[name]) if name in PACKAGES else ""
    cuda = device == "cuda"
    if cuda:
        tidy()
    before = torch.cuda.memory_allocated() / 2**20 if cuda else resident()
    try:
        iteration = (OURS | RIVALS)[name](start(batch=batch, size=size, device=device))
        iteration()
        if cuda:
            tidy()
        ms = milliseconds(iteration, cuda=cuda, seconds=seconds)
    except Exception as error:  # whatever it is, it belongs in the row
        return {**empty, "note": f"cannot: {_reason(error)}"}
    memory = torch.cuda.max_memory_allocated() / 2**20 if cuda else resident()
    return {"row": name, "ms": ms, "MiB": memory - before, "note": "", "version": version}


def rows(
    *, batch: int = 128, size: int = 32, device: str = "cpu", seconds: float = 2.0, names: Iterable[str] = tuple(RIVALS)
) -> list[dict[str, Any]]:
    """A row for each: row, ms, MiB, note, version; ms and MiB are None where the note says why.

    On a CPU each has a process of its own, so that its memory can be told from that of the others.
    """
    one = row if device == "cuda" else _alone
    return [one(name, batch=batch, size=size, device=device, seconds=seconds) for name in names]


def _alone(name: str, **settings: Any) -> dict[str, Any]:
    told = [text for key, value in settings.items() for text in (f"--{key}", str(value))]
    command = [sys.executable, __file__, "--row", name, *told]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def main() -> int:
    """Print the table, or the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each row is timed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--check", action="store_true", help="compare one iteration of each with ours")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    shape = {"batch": args.batch, "size": args.size, "device": args.device}
    if args.check:
        return _check_all(**shape)
    with tf32_and_cudnn_benchmark():
        if args.row:
            print(json.dumps(row(args.row, **shape, seconds=args.seconds)))
            return 0
        results = []
        for name in OURS | RIVALS:
            results += rows(**shape, seconds=args.seconds, names=[name])
            r = results[-1]
            print(f"{name:24s}", r["note"] or f"{r['ms']:9.3f} ms {r['MiB']:8.0f} MiB", flush=True)
    if args.json:
        args.json.write_text(json.dumps({**shape, "torch": torch.__version__, "rows": results}, indent=1) + "\n")
    return 0


def _check_all(**shape: Any) -> int:
    wrong = 0
    for dtype in TOLERANCE:
        s = start(**shape, dtype=dtype)
        for name, make in RIVALS.items():
            said = note(name)
            try:
                found = {} if said else check(make, s)
            except Exception as error:  # whatever it is, it belongs in the row
                found, said = {}, f"cannot: {_reason(error)}"
            if found:
                wrong += not agrees(found, s)
                numbers = "  ".join(f"{what} {value:.1e}" for what, value in found.items())
                said = f"{numbers}  {'agrees' if agrees(found, s) else 'DIFFERS'}"
            print(f"{str(dtype).removeprefix('torch.'):8s} {name:10s} {said}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
