"""A report of runs to send around: one HTML file that needs nothing else, made from run folders alone."""

from __future__ import annotations

from metalabelnet.report.page import make_report

__all__ = ["make_report"]
