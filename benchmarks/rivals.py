"""The same iteration with other packages: TorchOpt, higher, betty.

    python benchmarks/rivals.py --check          compare one iteration of each with metalabelnet
    python benchmarks/rivals.py                  8-layer CNN, batch 128, on CUDA if available
    python benchmarks/rivals.py --batch 16 --seconds 5 --json out.json

Each function in `RIVALS` (`rival_steps.py`) implements phase 2 (`metalabelnet.core.algorithm`) with one package, as
efficiently as the package allows: features are computed once; only the gradient with respect to φ is computed; and
where the package lets the graph of f(x) be used twice, steps 1 and 3 share one pass over x. All differentiate through
the look-ahead, as `double-backward` does. Adam and SGD are PyTorch's, except for betty's SGD.

    package   look-ahead                                      f(x)   running statistics of BatchNorm
    torchopt  MetaSGD on the network, then θ is restored      once   x and x_m, as metalabelnet
    higher    innerloop_ctx; its buffers are copied back      once   x and x_m, as metalabelnet
    betty     IterativeProblem and roll_back, which runs      twice  x only, as clean_updates_statistics=False
              step 3 as the inner step taken again

betty is 0.1.1, the newest version that works: 0.2.1 requires Python below 3.11, and its IterativeProblem fails at the
start with KeyError: 'params' (tried with --ignore-requires-python). betty's default, ImplicitProblem with type "darts",
is not measured: it takes a finite difference at θ̂ where the algorithm has the derivative at θ.

`pip install 'metalabelnet[benchmark]'` installs TorchOpt and higher. betty-ml 0.1.1 requires `torch>=1.6.*`, which is
not a valid requirement, and pip rejects it from 24.1 on; an older pip accepts it. On a machine without a package
index, install them to a folder on PYTHONPATH. higher and betty are pure Python; so is TorchOpt for Python 3.12 (its
wheels up to 3.11 contain a compiled Adam, which is not used here), but it needs optree, which is compiled for one
version of Python:

    pip install --no-deps --target rivals higher==0.2.1
    python -m venv old && old/bin/pip install 'pip<24.1'
    old/bin/pip install --no-deps --target rivals betty-ml==0.1.1
    pip install --no-deps --target rivals --python-version 3.12 --only-binary :all: \
        torchopt==0.7.3 optree graphviz typing_extensions
    PYTHONPATH=rivals python benchmarks/rivals.py

The row of a package that is missing or fails has a note with the reason.
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

from rival_steps import REFERENCES, RIVALS, Iteration, Start, make_start, with_metalabelnet
from timing import free_gpu_memory, milliseconds, peak_memory_mib

from metalabelnet.engine import tf32_and_cudnn_benchmark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

PACKAGES = {"torchopt": "torchopt", "higher": "higher", "betty": "betty-ml"}  # module: distribution
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


def import_problem(name: str) -> str:
    """Return why a package cannot be imported, or an empty string."""
    if name in REFERENCES:
        return ""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        return "not installed" if error.name == name else f"failed: {_reason(error)}"
    except Exception as error:  # any failure is the row's note
        return f"failed: {_reason(error)}"
    return ""


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def relative_difference(expected: Iterable[Tensor], actual: Iterable[Tensor]) -> float:
    """Return ‖actual − expected‖ / ‖expected‖ over all tensors."""
    a, b = (torch.cat([tensor.detach().double().flatten() for tensor in tensors]) for tensors in (expected, actual))
    return float((b - a).norm() / a.norm())


def compare(make: Callable[[Start], Iteration], s: Start) -> dict[str, float]:
    """Return the differences from metalabelnet's double backward after one iteration from the same start.

    Gradients are compared, too, because weights show little: Adam's first step hardly depends on the norm of the
    gradient, and SGD moves θ by about 1e-5 of its norm, so that in float32 an unchanged θ would pass.
    """
    expected, actual = with_metalabelnet(s), make(s)
    expected(), actual()
    return {
        "∇φ": relative_difference(expected.phi_gradients(), actual.phi_gradients()),
        "∇θ": relative_difference(expected.theta_gradients(), actual.theta_gradients()),
        "φ": relative_difference(expected.phi(), actual.phi()),
        "θ": relative_difference(expected.theta(), actual.theta()),
    }


def agrees(differences: dict[str, float], s: Start) -> bool:
    """Return whether all differences are within the tolerance of the dtype."""
    return max(differences.values()) < TOLERANCE[s.x.dtype]


def measure_row(name: str, *, batch: int, size: int, device: str, seconds: float) -> dict[str, Any]:
    """Measure one iteration: ms and MiB, or a note with the reason why not."""
    empty = {"row": name, "ms": None, "MiB": None, "note": import_problem(name), "version": ""}
    if empty["note"]:
        return empty
    version = importlib.metadata.version(PACKAGES[name]) if name in PACKAGES else ""
    cuda = device == "cuda"
    if cuda:
        free_gpu_memory()
    before = torch.cuda.memory_allocated() / 2**20 if cuda else peak_memory_mib()
    try:
        iteration = (REFERENCES | RIVALS)[name](make_start(batch=batch, size=size, device=device))
        iteration()
        if cuda:
            free_gpu_memory()
        ms = milliseconds(iteration, cuda=cuda, seconds=seconds)
    except Exception as error:  # any failure is the row's note
        return {**empty, "note": f"failed: {_reason(error)}"}
    memory = torch.cuda.max_memory_allocated() / 2**20 if cuda else peak_memory_mib()
    return {"row": name, "ms": ms, "MiB": memory - before, "note": "", "version": version}


def measure_rows(
    *, batch: int = 128, size: int = 32, device: str = "cpu", seconds: float = 2.0, names: Iterable[str] = tuple(RIVALS)
) -> list[dict[str, Any]]:
    """Measure several rows: row, ms, MiB, note, version; ms and MiB are None if the note has a reason.

    On a CPU each row has its own process, to measure its memory.
    """
    measure = measure_row if device == "cuda" else _measure_in_subprocess
    return [measure(name, batch=batch, size=size, device=device, seconds=seconds) for name in names]


def _measure_in_subprocess(name: str, **settings: Any) -> dict[str, Any]:
    options = [text for key, value in settings.items() for text in (f"--{key}", str(value))]
    command = [sys.executable, __file__, "--row", name, *options]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def main() -> int:
    """Print the measurements, or the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each row is timed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--check", action="store_true", help="compare one iteration of each with metalabelnet")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    shape = {"batch": args.batch, "size": args.size, "device": args.device}
    if args.check:
        return _check_all(**shape)
    with tf32_and_cudnn_benchmark():
        if args.row:
            print(json.dumps(measure_row(args.row, **shape, seconds=args.seconds)))
            return 0
        results = []
        for name in REFERENCES | RIVALS:
            results += measure_rows(**shape, seconds=args.seconds, names=[name])
            r = results[-1]
            print(f"{name:24s}", r["note"] or f"{r['ms']:9.3f} ms {r['MiB']:8.0f} MiB", flush=True)
    if args.json:
        args.json.write_text(json.dumps({**shape, "torch": torch.__version__, "rows": results}, indent=1) + "\n")
    return 0


def _check_all(**shape: Any) -> int:
    failures = 0
    for dtype in TOLERANCE:
        s = make_start(**shape, dtype=dtype)
        for name, make in RIVALS.items():
            text = import_problem(name)
            try:
                differences = {} if text else compare(make, s)
            except Exception as error:  # any failure is printed
                differences, text = {}, f"failed: {_reason(error)}"
            if differences:
                failures += not agrees(differences, s)
                numbers = "  ".join(f"{what} {value:.1e}" for what, value in differences.items())
                text = f"{numbers}  {'agrees' if agrees(differences, s) else 'DIFFERS'}"
            print(f"{str(dtype).removeprefix('torch.'):8s} {name:10s} {text}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
