"""The table beyond the paper: `metalabelnet-plus` against what a person with a clean set would try first.

A cell is named DATA/NOISE. Every method has one network, one schedule and one augmentation in a cell, a fifth of the
clean samples is held out to select the epoch, and the test samples decide nothing.

    digits             100 clean samples of 1,797 in all, 500 of them to test
    fashion-mnist      10,000 noisy training images, 200 clean ones out of the others
    cifar10-5000       5,000 clean images out of the training images, the others noisy; cifar10-1000 likewise; a third
                       of the paper's schedule, because the table has hundreds of runs

`feature` is noise from a probe trained on the true labels; on CIFAR-10 `authors` is the noise that the paper's authors
published, most of which goes to one class, and `worst` are the labels that people gave (CIFAR-10N).
"""

from __future__ import annotations

from typing import Any

METHODS = (
    "cross-entropy",
    "clean-only",
    "fine-tune",
    "gce",
    "co-teaching",
    "meta-weight-net",
    "mslg",
    "metalabelnet",
    "metalabelnet-plus",
)
_RATES = (0.2, 0.4, 0.6, 0.8)
DIGITS = tuple(f"digits/{kind}:{rate}" for kind in ("uniform", "feature") for rate in _RATES)
FASHION = tuple(f"fashion-mnist/{kind}:{rate}" for kind in ("uniform", "feature") for rate in _RATES)
CIFAR10 = tuple(
    f"cifar10-{clean}/{noise}"
    for clean in (5000, 1000)
    for noise in (*(f"{kind}:{rate}" for kind in ("uniform", "feature", "authors") for rate in (0.4, 0.8)), "worst")
)
CELLS = (*DIGITS, *FASHION, *CIFAR10)
ABLATION_CELLS = ("digits/uniform:0.4", "digits/uniform:0.8", "digits/feature:0.4", "digits/feature:0.8")
UNLABELED_CELLS = ("cifar10-5000/feature:0.4", "cifar10-5000/authors:0.4")

# What each ingredient of `metalabelnet-plus` is without it.
WITHOUT: dict[str, dict[str, Any]] = {
    "all": {},
    "a label net that does not learn": {"beta": 0.0},
    "no clean gradient": {"clean_weight": 0.0},
    "whole warm-up": {"warmup_share": 1.0},
    "no average": {"ema": 0.0},
    "features of warm-up": {"features": "warm-up"},
    "no prior": {"prior": 0.0},
    "no given label": {"given": 0.0},
    "doubt left in T": {"matrix": "expected"},
    "nothing handed over": {"handover": 0.0},
    "no strong view": {"consistency": 0.0},
    "losses of the paper": {"step3": "paper"},
    "rates of the schedule": {"lr_schedule": "milestones"},
}

_THIRD = {"epochs": 40, "warmup": 15, "lr_milestones": (13, 27)}  # of 120, 44, (40, 80)
_DATA: dict[str, dict[str, Any]] = {
    "digits": {"data": "digits", "clean": 100},
    "fashion-mnist": {"data": "fashion-mnist", "clean": 200, "limit": 10_000},
    "cifar10-5000": {"data": "cifar10", "clean": 5000, **_THIRD},
    "cifar10-1000": {"data": "cifar10", "clean": 1000, **_THIRD},
}


def make(method: str, cell: str, seed: int, **changes: Any) -> dict[str, Any]:
    """The fields of one run."""
    data, _, noise = cell.partition("/")
    kind, _, rate = noise.partition(":")
    probe = {"noise_probs": "probe"} if kind == "feature" else {}
    labels = {"authors": f"feature:{rate}", "worst": "file:cifar10n-worst"}.get(kind, noise)
    fields = {**_DATA[data], "method": method, "noise": labels, **probe, "split": "general", "protocol": "default"}
    return {**fields, "seed": seed, **changes}
