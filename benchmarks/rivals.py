"""The same iteration with the packages one would otherwise take: TorchOpt, higher, betty.

    python benchmarks/rivals.py --check          one iteration of each beside ours: does it compute the same?
    python benchmarks/rivals.py                  8-layer CNN, batch 128, CUDA if there is a card
    python benchmarks/rivals.py --batch 16 --seconds 5 --json out.json

Each function of `RIVALS` writes phase 2 (`metalabelnet.core.algorithm`) as the package's own documentation would have
it, and as sparingly as the package allows: features once; the gradient by φ alone; and, where the package lets the
graph of f(x) be used twice, one pass over x for steps 1 and 3. All differentiate through the look-ahead, as
`double-backward` does. Adam and SGD are PyTorch's, but for betty's SGD, which is its own.

    package   look-ahead                                      f(x)   running statistics of BatchNorm
    torchopt  MetaSGD on the network, which then gets θ back  once   x and x_m, as ours
    higher    innerloop_ctx; its copy of the buffers is read  once   x and x_m, as ours
              back
    betty     IterativeProblem and roll_back, which runs      twice  x alone, as meta_updates_statistics=False
              step 3 as the inner step taken again

betty's default, ImplicitProblem with type "darts", is left out: it takes a finite difference at θ̂ where the algorithm
has the derivative at θ, and in 0.1.1 `roll_back` does not roll it back: its cache shares memory with the weights.

All come with `pip install 'metalabelnet[benchmark]'`. betty-ml 0.1.1 asks for `torch>=1.6.*`, which pip from 24.1 on
does not accept: `pip install --no-deps betty-ml==0.1.1` may still do, or an older pip. For a machine without a package
index, take them along in a folder that is put on PYTHONPATH. higher and betty are pure Python; so is TorchOpt for
Python 3.12 (its wheels up to 3.11 hold a compiled Adam, not used here), but it needs optree, which is compiled:

    pip install --no-deps --target rivals higher==0.2.1 betty-ml==0.1.1
    pip install --no-deps --target rivals --python-version 3.12 --only-binary :all: \
        torchopt==0.7.3 optree graphviz typing_extensions
    PYTHONPATH=rivals python benchmarks/rivals.py

What is not installed, and what does not run, is a row that says so.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.metadata
import json
import logging
import resource
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from metalabelnet.core.algorithm import Phase2
from metalabelnet.core.labelnet import LabelNet
from metalabelnet.core.losses import classification_loss, cross_entropy, entropy_loss, scale_factor
from metalabelnet.core.optimizers import SGD, Adam
from metalabelnet.methods.metalabelnet import MetaLabelNetSettings
from metalabelnet.nets import build
from metalabelnet.nets.head import Extractor, find_head
from metalabelnet.train.engine import tensor_cores
from metalabelnet.train.settings import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn

PACKAGES = {"torchopt": "torchopt", "higher": "higher", "betty": "betty-ml"}  # what is imported, what is installed
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where an iteration starts: the networks, a batch, and all rates. Rivals change copies of f and m."""

    f: nn.Module
    g: nn.Module
    m: nn.Module
    x: Tensor
    x_m: Tensor
    y_m: Tensor
    settings: MetaLabelNetSettings
    rate: float = Run.rate
    momentum: float = Run.momentum
    weight_decay: float = Run.weight_decay

    def copies(self) -> tuple[nn.Module, nn.Module]:
        """f and m, to be changed."""
        return copy.deepcopy(self.f), copy.deepcopy(self.m)

    def adam(self, phi: Iterable[Tensor]) -> torch.optim.Adam:
        """PyTorch's own, for φ."""
        return torch.optim.Adam(phi, lr=self.settings.beta, weight_decay=self.settings.label_net_decay)

    def sgd(self, theta: Iterable[Tensor]) -> torch.optim.SGD:
        """PyTorch's own, for θ."""
        return torch.optim.SGD(theta, lr=self.rate, momentum=self.momentum, weight_decay=self.weight_decay)

    def l_c(self, logits: Tensor, log_y_hat: Tensor) -> Tensor:
        """The loss of the look-ahead."""
        return scale_factor(self.settings.loss_scale, logits) * classification_loss(logits, log_y_hat).mean()

    def l_ce(self, logits: Tensor, log_y_hat: Tensor) -> Tensor:
        """L_c + L_e, the loss of step 3."""
        l_e = scale_factor(self.settings.loss_scale, logits) * entropy_loss(logits).mean()
        return self.l_c(logits, log_y_hat) + self.settings.entropy_weight * l_e


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One full iteration each time it is called, and what it has done so far.

    `by_theta` and `by_phi` are SGD's momentum and Adam's first moments: after one iteration the gradients, decay
    included, up to a factor.
    """

    step: Callable[[], Tensor]
    theta: Callable[[], Iterable[Tensor]]
    phi: Callable[[], Iterable[Tensor]]
    by_theta: Callable[[], Iterable[Tensor]]
    by_phi: Callable[[], Iterable[Tensor]]

    def __call__(self) -> Tensor:
        return self.step()


def start(*, batch: int, size: int, device: str, dtype: torch.dtype = torch.float32, net: str = "cnn8") -> Start:
    """Random images and new networks: an iteration costs the same whatever is on them."""
    r = torch.Generator().manual_seed(0)
    x, x_m = (torch.rand(batch, 3, size, size, generator=r).mul(2).sub(1).to(device, dtype) for _ in "01")
    f = build(net, (3, size, size), 10, seed=0).to(device, dtype)
    g = Extractor(f, find_head(f, x[:2], 10))
    m = LabelNet(g.width, 10, r).to(device, dtype)
    y_m = (torch.arange(batch) % 10).to(device)
    return Start(f=f.train(), g=g, m=m, x=x, x_m=x_m, y_m=y_m, settings=MetaLabelNetSettings())


def ours(s: Start, engine: Any = "double-backward") -> Iteration:
    """This package's own, eager."""
    f, m = s.copies()
    sgd = SGD(f.parameters(), rate=s.rate, momentum=s.momentum, weight_decay=s.weight_decay)
    adam = Adam(m.parameters(), rate=s.settings.beta, weight_decay=s.settings.label_net_decay)
    phase2 = Phase2(f, s.g, m, sgd=sgd, adam=adam, settings=replace(s.settings, engine=engine))
    return Iteration(
        step=lambda: phase2.step(s.x, s.x_m, s.y_m, seed=0),
        theta=f.parameters,
        phi=m.parameters,
        by_theta=lambda: sgd.buffers,
        by_phi=lambda: adam.first,
    )


def with_torchopt(s: Start) -> Iteration:
    """MetaSGD writes θ̂ into the network; what was extracted before is put back after the meta loss."""
    import torchopt

    f, m = s.copies()
    sgd, adam = s.sgd(f.parameters()), s.adam(m.parameters())
    look_ahead = torchopt.MetaSGD(f, lr=s.settings.inner_step)

    def step() -> Tensor:
        v = s.g(s.x)
        theta, inner = torchopt.extract_state_dict(f, with_buffers=False), torchopt.extract_state_dict(look_ahead)
        f_x = f(s.x)
        look_ahead.step(s.l_c(f_x, m(v)))
        cross_entropy(f(s.x_m), s.y_m).mean().backward(inputs=list(m.parameters()))
        torchopt.recover_state_dict(f, theta)
        torchopt.recover_state_dict(look_ahead, inner)
        return _finish(s, m, v, f_x, sgd, adam)

    return _iteration(step, f, m, sgd, adam)


def with_higher(s: Start) -> Iteration:
    """A patched copy whose first weights are θ itself, so that step 3 can go back through the same f(x)."""
    import higher

    f, m = s.copies()
    sgd, adam = s.sgd(f.parameters()), s.adam(m.parameters())
    inner = torch.optim.SGD(f.parameters(), lr=s.settings.inner_step)

    def step() -> Tensor:
        v = s.g(s.x)
        with higher.innerloop_ctx(f, inner, copy_initial_weights=False) as (f_hat, look_ahead):
            f_x = f_hat(s.x)
            look_ahead.step(s.l_c(f_x, m(v)))
            cross_entropy(f_hat(s.x_m), s.y_m).mean().backward(inputs=list(m.parameters()))
            for buffer, seen in zip(f.buffers(), f_hat.buffers(), strict=True):
                buffer.copy_(seen)
        del f_hat, look_ahead  # they hold θ̂ and the graph behind it
        return _finish(s, m, v, f_x, sgd, adam)

    return _iteration(step, f, m, sgd, adam)


def _finish(s: Start, m: nn.Module, v: Tensor, f_x: Tensor, sgd: torch.optim.SGD, adam: torch.optim.Adam) -> Tensor:
    """From the gradient by φ on: Adam, new soft labels, and SGD through the pass there is."""
    adam.step()
    adam.zero_grad()
    loss = s.l_ce(f_x, m(v).detach())
    loss.backward()
    sgd.step()
    sgd.zero_grad()
    return loss.detach()


def _iteration(
    step: Callable[[], Tensor], f: nn.Module, m: nn.Module, sgd: torch.optim.SGD, adam: torch.optim.Adam
) -> Iteration:
    return Iteration(
        step=step,
        theta=f.parameters,
        phi=m.parameters,
        by_theta=lambda: [sgd.state[weight]["momentum_buffer"] for weight in f.parameters()],
        by_phi=lambda: [adam.state[weight]["exp_avg"] for weight in m.parameters()],
    )


def with_betty(s: Start) -> Iteration:  # noqa: C901  (two small classes that betty wants)
    """Two levels. The inner one steps ahead, the outer one learns from that, and the inner one goes back and steps."""
    from betty.configs import Config, EngineConfig
    from betty.engine import Engine
    from betty.logging.logger_base import get_logger
    from betty.problems import ImplicitProblem, IterativeProblem

    get_logger().setLevel(logging.WARNING)
    f, m = s.copies()

    class Classifier(IterativeProblem):  # type: ignore[misc]
        ahead, loss = True, s.x.new_zeros(())

        def forward(self, x: Tensor) -> Tensor:
            return self.fmodule(self.params, self.buffers, x)

        def get_batch(self) -> tuple[Tensor, Tensor]:
            return s.x, s.g(s.x)

        def on_inner_loop_start(self) -> None:
            self.ahead = True

        def recover_states(self) -> None:
            super().recover_states()
            self.ahead = False

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            x, v = batch
            if self.ahead:
                return s.l_c(self(x), self.label_net(v))
            loss = s.l_ce(self(x), self.label_net(v).detach())
            self.loss = loss.detach()
            return loss

        def custom_optimizer_step(self) -> tuple[Tensor, ...]:
            if self.ahead:
                moved = tuple(p - s.settings.inner_step * p.grad for p in self.params)
                for p in self.params:
                    p.grad = None  # its graph leads back to p: a cycle that would keep all of it
                return moved
            for p in self.params:
                p.grad = p.grad.detach()  # betty makes a graph of this step too
            self.optimizer.param_groups[0]["weight_decay"] = s.weight_decay
            with torch.no_grad():
                moved = self.optimizer.step(self.params)
            return tuple(p.requires_grad_() for p in moved)

    class Labels(ImplicitProblem):  # type: ignore[misc]
        def get_batch(self) -> tuple[Tensor, Tensor]:
            return s.x_m, s.y_m

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            x_m, y_m = batch
            return cross_entropy(self.classifier(x_m), y_m).mean()

    # betty takes a step with zero gradients when it starts, which weight decay would make a real one
    sgd = torch.optim.SGD(f.parameters(), lr=s.rate, momentum=s.momentum)
    adam = s.adam(m.parameters())
    own = {"device": str(s.x.device)}
    lower = Classifier("classifier", Config(), module=f, optimizer=sgd, **own)
    upper = Labels("label_net", Config(first_order=False), module=m, optimizer=adam, **own)
    links = {"l2u": {lower: [upper]}, "u2l": {upper: [lower]}}
    with _quiet():
        engine = Engine([upper, lower], EngineConfig(roll_back=True), links)
    engine.train()

    def step() -> Tensor:
        with _quiet():
            engine.train_step()
        return lower.loss

    return Iteration(
        step=step,
        theta=lambda: lower.params,
        phi=m.parameters,
        by_theta=lambda: [state["momentum_buffer"] for state in lower.optimizer.state],
        by_phi=lambda: [adam.state[weight]["exp_avg"] for weight in m.parameters()],
    )


def _quiet() -> warnings.catch_warnings:
    """betty uses what functorch has deprecated, and asks weights that are no leaves for their gradient."""
    return warnings.catch_warnings(action="ignore")


RIVALS: dict[str, Callable[[Start], Iteration]] = {
    "torchopt": with_torchopt,
    "higher": with_higher,
    "betty": with_betty,
}
OURS: dict[str, Callable[[Start], Iteration]] = {
    "ours, double-backward": ours,
    "ours, exact": lambda s: ours(s, "exact"),
}


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
    cuda, before = device == "cuda", _resident()
    try:
        iteration = (OURS | RIVALS)[name](start(batch=batch, size=size, device=device))
        iteration()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        ms = _milliseconds(iteration, cuda=cuda, seconds=seconds)
    except Exception as error:  # whatever it is, it belongs in the row
        return {**empty, "note": f"cannot: {_reason(error)}"}
    memory = torch.cuda.max_memory_allocated() / 2**20 if cuda else _resident() - before
    return {"row": name, "ms": ms, "MiB": memory, "note": "", "version": version}


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


def _milliseconds(step: Callable[[], object], *, cuda: bool, seconds: float) -> float:
    """The median of five repeats, the device synchronised around each."""

    def repeat(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            step()
        if cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    step()
    count = max(2, int(seconds / 5 / max(1e-4, repeat(1))))
    return 1000 * statistics.median(repeat(count) for _ in range(5))


def _resident() -> float:
    """The most MiB this process has held. `ru_maxrss` would start with what the parent held when it forked."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) / 2**10 for line in status.read_text().splitlines() if "VmHWM" in line)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


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
    with tensor_cores():
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
