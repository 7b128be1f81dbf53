"""What a method receives: the data and the settings of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from metalabelnet.data.rows import Rows
    from metalabelnet.methods.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Task:
    """The data and the settings of a run that a method receives.

    Attributes
    ----------
    make_net : callable
        ``make_net(k)`` returns the k-th network of the run, newly initialized, on the device of the data.
    train : Rows
        The training rows with their given labels; −1 marks a row without one.
    clean : Rows
        The clean set, without the rows that are held out for validation.
    recipe : Recipe
        How the networks are trained: length, optimizer, EMA, augmentation losses, selection.
    dtype : torch.dtype
        Data type of the networks and their inputs.
    seed : int
        Seed of the run. Draw random numbers from ``seeds.generator(seed, "name of the stream", ...)`` only.
    head : str or None
        Name of the classifier's last layer; None to detect it.
    """

    make_net: Callable[[int], nn.Module]
    train: Rows
    clean: Rows
    recipe: Recipe
    dtype: torch.dtype
    seed: int
    head: str | None = None
