"""The paper's runs on Clothing1M, Food-101N and WebVision, and their small versions for a smoke test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metalabelnet.run_options import HUB, IMAGE_BENCHMARKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RESNET50 = {"net": "torchvision:resnet50", "pretrained": HUB, "batch_size": 32, "lr": 1e-3, "lr_milestones": (5,)}
SMOKE_CLEAN = {"clothing1m": 56, "food101n": 14, "webvision-mini": 100}  # largest clean sets of the stand-ins
SMOKE_SCALE = 20_000  # images of Clothing1M for one of its stand-in
TOP1, TOP5 = "top 1", "top 5"
TOP5_KEY = "test_top5_accuracy"  # in the summary of a run


def _recipe(data: str, **fields: Any) -> Callable[..., dict[str, Any]]:
    """Return a function that makes the settings of a run from method, cell, seed and changed settings."""

    def make_fields(method: str, _cell: str, seed: int, **changes: Any) -> dict[str, Any]:
        return {
            "data": data,
            "recipe": "paper",
            "method": method,
            "noise": "none",
            "split": "paper",
            "protocol": "paper",
            "seed": seed,
            **({"settings": {"beta": 1e-3}} if method == "metalabelnet" else {}),
            **fields,
            **changes,
        }

    return make_fields


clothing1m = _recipe("clothing1m", **RESNET50, epochs=10, warmup=1, clean=14_000)
food101n = _recipe("food101n", **RESNET50, epochs=10, warmup=6, clean=15_000)
webvision = _recipe(
    "webvision-mini",
    net="timm:inception_resnet_v2",
    batch_size=16,
    lr=1e-2,
    lr_milestones=(12,),
    epochs=30,
    warmup=14,
    clean=1000,
)


def is_photo_run(fields: Mapping[str, Any]) -> bool:
    """Whether a run is on one of these data sets."""
    return fields["data"] in IMAGE_BENCHMARKS


def smoke_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run on a stand-in of its data set: images of 8×8, a small network, two epochs."""
    largest = SMOKE_CLEAN[fields["data"]]
    clean = largest * fields["clean"] // 14_000 if fields["data"] == "clothing1m" else largest
    same = {name: fields[name] for name in ("data", "recipe", "method", "noise", "split", "protocol", "seed")}
    return {
        **same,
        "net": "small-cnn",
        "image_size": 8,
        "clean": max(14, clean),
        "unlabeled": fields.get("unlabeled", 0) // SMOKE_SCALE,
        "epochs": 2,
        "warmup": 1,
        "batch_size": 14,
        "lr_milestones": (1,),
        "settings": {"synthetic": 2} if fields["method"] == "mlnt" else fields.get("settings", {}),
    }
