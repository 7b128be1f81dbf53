"""What a run reports while it trains (`Progress`), and what it returns (`Result`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from metalabelnet.labels.label_table import LabelTable
    from metalabelnet.methods import Method


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a run.

    Attributes
    ----------
    epoch, epochs : int
        Completed epochs, and the total.
    step, steps : int
        Completed steps of the current epoch, and the total.
    metrics : dict or None
        Metrics of the epoch that has just ended, if one has.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    metrics: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run.

    Attributes
    ----------
    summary : dict
        Content of summary.json.
    history : list of dict
        Metrics of each epoch.
    method : Method
        The trained method, with the weights of the selected epoch.
    labels : LabelTable
        Corrected labels of the training samples.

    Examples
    --------
    >>> from metalabelnet.train import make_run, train
    >>> result = train(make_run("digits", method="clean-only", epochs=1, limit=100, device="cpu"))
    >>> result.summary["epochs"], len(result.history), result.model.training, len(result.labels.rows)
    (1, 1, False, 100)
    """

    summary: dict[str, Any]
    history: list[dict[str, Any]]
    method: Method
    labels: LabelTable

    @property
    def model(self) -> nn.Module:
        """The trained classifier in eval mode, from inputs to logits. uint8 images must be scaled to [−1, 1]."""
        model = self.method.classifier().eval()
        trainable = {name: weight.requires_grad for name, weight in self.method.net.named_parameters()}
        for name, weight in model.named_parameters():  # EMA weights are frozen, but users may train the model further
            own_name = next((own for own in trainable if name == own or name.endswith(f".{own}")), None)
            weight.requires_grad_(weight.requires_grad if own_name is None else trainable[own_name])
        return model
