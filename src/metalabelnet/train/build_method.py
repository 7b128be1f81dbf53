"""Build the method of a run on its rows."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from metalabelnet import nets
from metalabelnet.errors import InputError
from metalabelnet.methods import LINEAR_METHODS, METHODS, LogisticMethod, Method, Task
from metalabelnet.seeds import stream_seed
from metalabelnet.train.prepare import classifier_name

if TYPE_CHECKING:
    from torch import nn

    from metalabelnet.data.problem import Problem
    from metalabelnet.train.settings import Run


def build_method(run: Run, problem: Problem, net: nn.Module | None = None) -> Method:
    """Return the method of a run, with its first network built. `net` replaces the network of the settings."""
    device, dtype = problem.train.x.device, run.torch_dtype
    name = classifier_name(run, problem.shape, problem.encoder_config)
    method_class = find_method_class(run, problem, net)
    untrained = copy.deepcopy(net)  # a method may ask for a second network after this one is trained

    def make_net(k: int) -> nn.Module:
        seed = stream_seed(run.seed, "net", k)
        if net is None or untrained is None:
            new_net = nets.build(name, problem.shape, len(problem.train.classes), seed=seed, pretrained=run.pretrained)
        else:
            new_net = net if k == 0 else nets.copy_with_new_head(untrained, seed=seed)
        # Tensor cores need channels-last images; other layouts are converted in every convolution.
        layout = torch.channels_last if device.type == "cuda" and problem.train.is_image else torch.preserve_format
        return new_net.to(device, dtype).to(memory_format=layout)  # type: ignore[call-overload,no-any-return]

    task = Task(
        make_net=make_net,
        train=problem.train,
        clean=problem.clean,
        recipe=run.make_recipe(),
        dtype=dtype,
        seed=run.seed,
        head=run.head,
    )
    return method_class(task, run.method_settings())


def find_method_class(run: Run, problem: Problem, net: nn.Module | None = None) -> type[Method]:
    """Return the class of the run's method: `metalabelnet-plus` with a linear network is fitted, not trained.

    Raises InputError for a logistic method with another network, and for settings that a fitted method does not have.
    """
    method_class = METHODS[run.method]
    linear = net is None and classifier_name(run, problem.shape, problem.encoder_config) == "linear"
    if linear and run.method in LINEAR_METHODS:
        if run.settings:
            raise InputError(
                f"--set {next(iter(run.settings))}: {run.method} with a linear network has no settings; leave it out, "
                "or choose a network with --net mlp"
            )
        return LINEAR_METHODS[run.method]
    if issubclass(method_class, LogisticMethod):
        network = run.net if net is None else type(net).__name__
        raise InputError(f"{run.method} fits a linear layer, not the network {network}: leave out the network")
    return method_class
