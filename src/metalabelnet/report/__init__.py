"""HTML report of finished runs: one self-contained file, built from run folders alone."""

from __future__ import annotations

from metalabelnet.report.page import make_report

__all__ = ["make_report"]
