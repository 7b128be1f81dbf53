"""The experiment `field`: methods of recent years on the benchmarks they are compared on, with equal GPU time for each.

CIFAR-10 with human labels (CIFAR-10N), symmetric and asymmetric noise; PreAct ResNet-18; 1,000 clean training images,
which methods without a use for them need to select the epoch. The recipe is `modern` with the learning rate that the
public code of DivideMix, ELR and SOP has for this network. Every method has the same GPU minutes (the points of the
experiment): its number of epochs follows from its measured seconds per epoch, which are stored with the results.
"""

from __future__ import annotations

from typing import Any

from metalabelnet.methods import METHODS as METHOD_TABLE

NET = "preact-resnet18"
LR = 0.02
MINUTES = ("10", "20")  # by default
ALL_MINUTES = ("1", "2", "5", *MINUTES)
CELLS = (
    "worst",
    "aggregate",
    "random1",
    "symmetric:0.2",
    "symmetric:0.5",
    "symmetric:0.8",
    "symmetric:0.9",
    "asymmetric:0.4",
)
_CIFAR10N_CELLS = CELLS[:3]
_SYMMETRIC_CELLS = CELLS[3:7]
METHODS: tuple[str, ...] = tuple(
    name
    for name in (
        "cross-entropy",
        "fine-tune",
        "fixmatch",
        "glc",
        "elr",
        "elr-plus",
        "dividemix",
        "sop",
        "sop-plus",
        "ssr",
        "mlc",
        "dmlp",
        "l2rw",
        "t-revision",
        "metalabelnet",
        "metalabelnet-plus",
    )
    if name in METHOD_TABLE
)


def _published(*numbers: str, cells: tuple[str, ...] = _SYMMETRIC_CELLS, **more: str) -> dict[str, str]:
    return {**dict(zip(cells, numbers, strict=True)), **more}


# Test accuracy as published. `SOURCES` says where.
PUBLISHED: dict[str, dict[str, str]] = {
    "cross-entropy": _published("77.7", "87.8", "85.0", cells=_CIFAR10N_CELLS),
    "dividemix": _published("96.1", "94.6", "93.2", "76.0", worst="92.56", aggregate="95.01", random1="95.16"),
    "elr-plus": _published("95.8", "94.8", "93.3", "78.7", worst="91.09"),
    "sop-plus": _published("96.3", "95.5", "94.0", cells=_SYMMETRIC_CELLS[:3], worst="92.89"),
    "ssr": _published("96.7", "96.1", "95.6", "95.2"),
    "mlc": _published("92.6", "88.1", "77.4", "67.9"),
}
SOURCES = (
    "Published: with the schedule of the method's own paper (200 to 600 epochs), and without a clean set except mlc. "
    "cross-entropy: ResNet-34, Wei et al. 2022 (arXiv:2110.12088). dividemix, elr-plus and sop-plus: the table of Xiao "
    "et al. 2023 (arXiv:2207.10276). ssr: Feng et al. 2022 (arXiv:2111.11288). mlc: ResNet-32, the table of Taraday "
    "and Baskin 2023 (arXiv:2305.12961)."
)


def make_fields(method: str, cell: str, seed: int, **changes: Any) -> dict[str, Any]:
    """The settings of one run."""
    return {
        "data": "cifar10",
        "method": method,
        "noise": f"cifar10n:{cell}" if cell in _CIFAR10N_CELLS else cell,
        "split": "general",
        "protocol": "default",
        "recipe": "modern",
        "net": NET,
        "lr": LR,
        "clean": 1000,
        "seed": seed,
        **changes,
    }
