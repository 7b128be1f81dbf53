"""Phase 2 implemented with TorchOpt, higher and betty, one function each; `rivals` compares and times them."""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from metalabelnet.core.algorithm import Phase2
from metalabelnet.core.label_net import LabelNet
from metalabelnet.core.losses import classification_loss, cross_entropy, entropy_loss, scale_factor
from metalabelnet.core.optimizers import SGD, Adam
from metalabelnet.methods.metalabelnet import MetaLabelNetSettings
from metalabelnet.nets import build
from metalabelnet.nets.head import FeatureExtractor, find_head
from metalabelnet.train.settings import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Start:
    """The initial state of an iteration: networks, batch, learning rates. Implementations change copies of f and m."""

    f: nn.Module
    g: nn.Module
    m: nn.Module
    x: Tensor
    x_m: Tensor
    y_m: Tensor
    settings: MetaLabelNetSettings
    lr: float = Run.lr
    momentum: float = Run.momentum
    weight_decay: float = Run.weight_decay

    def copies(self) -> tuple[nn.Module, nn.Module]:
        """Return copies of f and m that an implementation may change."""
        return copy.deepcopy(self.f), copy.deepcopy(self.m)

    def adam(self, phi: Iterable[Tensor]) -> torch.optim.Adam:
        """Return PyTorch's Adam for φ."""
        return torch.optim.Adam(phi, lr=self.settings.beta, weight_decay=self.settings.label_net_decay)

    def sgd(self, theta: Iterable[Tensor]) -> torch.optim.SGD:
        """Return PyTorch's SGD for θ."""
        return torch.optim.SGD(theta, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def l_c(self, logits: Tensor, log_y_hat: Tensor) -> Tensor:
        """Return L_c, the loss of the look-ahead."""
        return scale_factor(self.settings.loss_scale, logits) * classification_loss(logits, log_y_hat).mean()

    def l_ce(self, logits: Tensor, log_y_hat: Tensor) -> Tensor:
        """Return L_c + L_e, the loss of step 3."""
        l_e = scale_factor(self.settings.loss_scale, logits) * entropy_loss(logits).mean()
        return self.l_c(logits, log_y_hat) + self.settings.entropy_weight * l_e


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """A function that runs one iteration, and access to its state.

    `theta_gradients` and `phi_gradients` return SGD's momentum and Adam's first moments: after one iteration they are
    the gradients, with weight decay, up to a factor.
    """

    step: Callable[[], Tensor]
    theta: Callable[[], Iterable[Tensor]]
    phi: Callable[[], Iterable[Tensor]]
    theta_gradients: Callable[[], Iterable[Tensor]]
    phi_gradients: Callable[[], Iterable[Tensor]]

    def __call__(self) -> Tensor:
        return self.step()


def make_start(*, batch: int, size: int, device: str, dtype: torch.dtype = torch.float32, net: str = "cnn8") -> Start:
    """Return random images and new networks: the cost of an iteration does not depend on their content."""
    r = torch.Generator().manual_seed(0)
    x, x_m = (torch.rand(batch, 3, size, size, generator=r).mul(2).sub(1).to(device, dtype) for _ in "01")
    f = build(net, (3, size, size), 10, seed=0).to(device, dtype)
    g = FeatureExtractor(f, find_head(f, x[:2], 10))
    m = LabelNet(g.width, 10, r).to(device, dtype)
    y_m = (torch.arange(batch) % 10).to(device)
    return Start(f=f.train(), g=g, m=m, x=x, x_m=x_m, y_m=y_m, settings=MetaLabelNetSettings())


def with_metalabelnet(s: Start, differentiation: Any = "double-backward") -> Iteration:
    """Return the iteration of this package, eager."""
    f, m = s.copies()
    sgd = SGD(f.parameters(), lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay)
    adam = Adam(m.parameters(), lr=s.settings.beta, weight_decay=s.settings.label_net_decay)
    phase2 = Phase2(f, s.g, m, sgd=sgd, adam=adam, settings=replace(s.settings, differentiation=differentiation))
    return Iteration(
        step=lambda: phase2.step(s.x, s.x_m, s.y_m, seed=0),
        theta=f.parameters,
        phi=m.parameters,
        theta_gradients=lambda: sgd.buffers,
        phi_gradients=lambda: adam.first,
    )


def with_torchopt(s: Start) -> Iteration:
    """Use MetaSGD, which writes θ̂ into the network; θ is restored after the meta loss."""
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
    """Use a patched copy whose initial weights are θ itself, so that step 3 differentiates the same f(x)."""
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
            for buffer, updated in zip(f.buffers(), f_hat.buffers(), strict=True):
                buffer.copy_(updated)
        del f_hat, look_ahead  # they hold θ̂ and its autograd graph
        return _finish(s, m, v, f_x, sgd, adam)

    return _iteration(step, f, m, sgd, adam)


def _finish(s: Start, m: nn.Module, v: Tensor, f_x: Tensor, sgd: torch.optim.SGD, adam: torch.optim.Adam) -> Tensor:
    """Finish the iteration after the gradient with respect to φ: Adam, new soft labels, SGD on the same f(x)."""
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
        theta_gradients=lambda: [sgd.state[weight]["momentum_buffer"] for weight in f.parameters()],
        phi_gradients=lambda: [adam.state[weight]["exp_avg"] for weight in m.parameters()],
    )


def with_betty(s: Start) -> Iteration:  # noqa: C901  (betty needs two classes)
    """Use two problems: the inner one takes the look-ahead, the outer one step 2; rolled back, the inner one step 3."""
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
                    p.grad = None  # its graph refers to p: a reference cycle
                return moved
            for p in self.params:
                p.grad = p.grad.detach()  # betty builds a graph of this step, too
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

    # betty takes a step with zero gradients at the start, in which weight decay would change the weights.
    sgd = torch.optim.SGD(f.parameters(), lr=s.lr, momentum=s.momentum)
    adam = s.adam(m.parameters())
    lower = Classifier("classifier", Config(), module=f, optimizer=sgd)
    upper = Labels("label_net", Config(first_order=False), module=m, optimizer=adam)
    lower.device = upper.device = s.x.device
    links = {"l2u": {lower: [upper]}, "u2l": {upper: [lower]}}
    with _without_warnings():
        engine = Engine([upper, lower], EngineConfig(roll_back=True), links)
    engine.train()

    def step() -> Tensor:
        with _without_warnings():
            engine.train_step()
        return lower.loss

    return Iteration(
        step=step,
        theta=lambda: lower.params,
        phi=m.parameters,
        theta_gradients=lambda: [state["momentum_buffer"] for state in lower.optimizer.state],
        phi_gradients=lambda: [adam.state[weight]["exp_avg"] for weight in m.parameters()],
    )


def _without_warnings() -> warnings.catch_warnings:
    """Ignore warnings: betty uses deprecated functions, and reads the gradient of tensors that are not leaves."""
    return warnings.catch_warnings(action="ignore")


RIVALS: dict[str, Callable[[Start], Iteration]] = {
    "torchopt": with_torchopt,
    "higher": with_higher,
    "betty": with_betty,
}
REFERENCES: dict[str, Callable[[Start], Iteration]] = {
    "metalabelnet, double-backward": with_metalabelnet,
    "metalabelnet, exact": lambda s: with_metalabelnet(s, "exact"),
}
