"""MetaLabelNet: warm-up on the given labels, then Algorithm 1 on soft labels learned from the clean set."""

from __future__ import annotations

from typing import ClassVar

from metalabelnet.methods.label_net_method import Generated, LabelNetSettings


class MetaLabelNet(Generated):
    """The paper's method: the clean set teaches the label net, and the classifier through it alone."""

    summary = "soft labels generated so that training on them lowers the loss on the clean samples"
    reference = "Algan and Ulusoy 2021"
    Settings: ClassVar[type] = LabelNetSettings
