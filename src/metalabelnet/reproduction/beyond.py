"""Experiments beyond the paper: all methods with the same recipe, on several data sets and kinds of noise.

A cell is named DATA/NOISE. Every method has the recipe `modern`. Clean samples are drawn out of the noisy ones and keep
their given label. A fifth of the clean set is held out to select the epoch; the test samples are used for testing only.

    digits             1,797 samples: 100 clean, 500 for testing, the others noisy
    fashion-mnist      10,000 noisy training images, 200 clean images out of the others
    cifar10-5000       5,000 clean images out of the training images, the others noisy (cifar10-1000 likewise);
                       40 epochs

`feature` is noise drawn from a probe trained on the true labels. On CIFAR-10 `authors` is the noise published by the
paper's authors, most of which goes to one class; `worst` and `aggregate` are the human labels of CIFAR-10N.
"""

from __future__ import annotations

from typing import Any

PLUS = "metalabelnet-plus"
PLUS_NOT_LEARNED = f"{PLUS}:not-learned"
VARIANTS: dict[str, dict[str, Any]] = {  # rows of the table that are settings of a method
    PLUS_NOT_LEARNED: {"learn": False, "exponent": 1.0},  # without learning 1 is better than the default exponent
}
BASELINES = ("clean-only", "fine-tune", "metalabelnet")
# What a person with a noisy data set and a clean set would try first.
FIRST_TO_TRY = ("cross-entropy", "clean-only", "fine-tune", "fixmatch", "glc", "co-teaching", "sce")
METHODS = (
    "cross-entropy",
    "clean-only",
    "fine-tune",
    "fixmatch",
    "glc",
    "sce",
    "gce",
    "bootstrap",
    "forward",
    "co-teaching",
    "joint-optimization",
    "pencil",
    "mlnt",
    "meta-weight-net",
    "mslg",
    "t-revision",
    "elr",
    "elr-plus",
    "sop",
    "sop-plus",
    "dividemix",
    "ssr",
    "l2rw",
    "mlc",
    "dmlp",
    "metalabelnet",
    PLUS_NOT_LEARNED,
    PLUS,
)
_RATES = (0.2, 0.4, 0.6, 0.8)
DIGITS = tuple(f"digits/{kind}:{rate}" for kind in ("uniform", "feature") for rate in _RATES)
FASHION = tuple(f"fashion-mnist/{kind}:{rate}" for kind in ("uniform", "feature") for rate in _RATES)
CIFAR10 = tuple(
    f"cifar10-{clean}/{noise}"
    for clean in (5000, 1000)
    for noise in (
        *(f"{kind}:{rate}" for kind in ("uniform", "feature", "authors") for rate in _RATES),
        "worst",
        "aggregate",
    )
)
CELLS = (*DIGITS, *FASHION, *CIFAR10)
FOUR_OF_DIGITS = ("digits/uniform:0.4", "digits/uniform:0.8", "digits/feature:0.4", "digits/feature:0.8")
ABLATION_CELLS = (
    *FOUR_OF_DIGITS,
    "cifar10-1000/uniform:0.4",
    "cifar10-1000/uniform:0.8",
    "cifar10-1000/feature:0.4",
    "cifar10-1000/worst",
)
LENGTHS = ("40", "120")  # numbers of epochs that are compared on CIFAR-10
LENGTH_METHODS = ("cross-entropy", "fine-tune", "fixmatch", "co-teaching", "sce", "metalabelnet", PLUS)
UNLABELED_CELLS = ("cifar10-5000/feature:0.4", "cifar10-5000/authors:0.4")

# Settings that remove one component of `metalabelnet-plus`.
ABLATIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "label net not taught": {"learn": False},
    "label net not taught (exponent 1)": VARIANTS[PLUS_NOT_LEARNED],
    "one noise rate": {"by_margin": False},
    "noise rate by clean samples": {"rate_from_training": False},
    "no trust floor": {"trust_floor": 0.0},
    "wrong labels by class alone": {"by_prediction": False},
    "exponent 1": {"exponent": 1.0},
    "no sharpening": {"sharpening": 1.0},
    "all labels weigh the same": {"weighted": False},
    "no alignment": {"align": False},
    "no clean loss": {"clean_weight": 0.0},
    "whole warm-up": {"warmup_share": 1.0},
}

_DATA: dict[str, dict[str, Any]] = {
    "digits": {"data": "digits", "clean": 100},
    "fashion-mnist": {"data": "fashion-mnist", "clean": 200, "limit": 10_000},
    "cifar10-5000": {"data": "cifar10", "clean": 5000, "epochs": 40},
    "cifar10-1000": {"data": "cifar10", "clean": 1000, "epochs": 40},
}


def make_fields(method: str, cell: str, seed: int, **changes: Any) -> dict[str, Any]:
    """The settings of one run."""
    data, _, noise = cell.partition("/")
    kind, _, rate = noise.partition(":")
    probe = {"noise_probs": "probe"} if kind == "feature" else {}
    labels = {"authors": f"feature:{rate}", "worst": "cifar10n:worst", "aggregate": "cifar10n:aggregate"}.get(
        kind, noise
    )
    settings = {"settings": VARIANTS[method]} if method in VARIANTS else {}
    fields = {
        **_DATA[data],
        "recipe": "modern",
        "method": method.partition(":")[0],
        **settings,
        "noise": labels,
        **probe,
        "split": "general",
        "protocol": "default",
    }
    return {**fields, "seed": seed, **changes}
