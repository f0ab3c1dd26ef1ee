"""Report of one or several runs: report.html, a self-contained page."""

from pretrain.report.page.run_page import write_report

__all__ = ["write_report"]
