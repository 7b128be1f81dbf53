"""On which data the settings of each method were chosen.

No row of a table is a fair test of settings that were chosen on its own test samples. Each result line therefore names
what its method was tuned on; docs/results/plus-defaults.md has the runs.
"""

from __future__ import annotations

PUBLISHED = "not tuned: settings of the paper's table, or of the method's own paper"
TUNED_ON = {
    "metalabelnet-plus": (
        "digits, seeds 100 to 102, labels of the training rows, after tries that looked at test rows of seeds 0 to 2; "
        "CIFAR-10 (seed 100) and Fashion-MNIST (seeds 100 to 103), 10,000 held-out training images"
    ),
}


MODERN = "; recipe modern: chosen on fine-tune and cross-entropy without test samples (docs/results/recipe.md)"


def tuning_data(method: str, recipe: str) -> str:
    """Return the data on which the settings of a method and its recipe were chosen."""
    return TUNED_ON.get(method, PUBLISHED) + (MODERN if recipe == "modern" else "")
