"""How a sample without a label is marked."""

from __future__ import annotations

UNLABELED = -1
UNLABELED_NAMES = ("", "-1")  # "no label" where labels are strings
