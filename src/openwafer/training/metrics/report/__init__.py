"""The report of a run, as one self-contained HTML file."""

from openwafer.training.metrics.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
