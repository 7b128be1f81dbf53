"""The table of methods. A new one is a file beside this and a line below."""

from __future__ import annotations

from metalabelnet.methods.cross_entropy import CrossEntropy
from metalabelnet.methods.fine_tune import FineTune
from metalabelnet.methods.meta_only import MetaOnly
from metalabelnet.methods.metalabelnet import MetaLabelNet
from metalabelnet.methods.method import Method, Schedule, Task

__all__ = ["METHODS", "Method", "Schedule", "Task"]

METHODS: dict[str, type[Method]] = {
    "cross-entropy": CrossEntropy,
    "meta-only": MetaOnly,
    "fine-tune": FineTune,
    "metalabelnet": MetaLabelNet,
}
