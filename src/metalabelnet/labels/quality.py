"""Quality of a label table where true labels are known. Shares are per cent; areas are in [0, 1]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metalabelnet.labels.metrics import auroc, average_precision, expected_calibration_error

if TYPE_CHECKING:
    from torch import Tensor

    from metalabelnet.labels.label_table import LabelTable


def label_quality(labels: LabelTable) -> dict[str, Any]:
    """Return how good the corrected labels and the suspicions are.

    right_before, right_after      correct given labels and correct corrected labels, on the same rows: those with a
                                   given label and a known true label
    suspicion_auroc, suspicion_ap  how well suspicion ranks wrong given labels first
    label_ece                      calibration error of the corrected labels

    Every value is None where no true label is known.
    """
    rows, decisions = labels.rows, labels.decisions()
    has_truth, has_given = rows.true >= 0, rows.given >= 0
    both = has_truth & has_given
    wrong = (rows.given != rows.true)[both]

    def percent(correct: Tensor) -> float | None:
        return float(100 * correct.double().mean()) if len(correct) else None

    return {
        "right_before": percent(~wrong),
        "right_after": percent((decisions.label == rows.true)[both]),
        "suspicion_auroc": auroc(decisions.suspicion[both], wrong),
        "suspicion_ap": average_precision(decisions.suspicion[both], wrong),
        "label_ece": expected_calibration_error(labels.probabilities[has_truth], rows.true[has_truth])
        if has_truth.any()
        else None,
    }
