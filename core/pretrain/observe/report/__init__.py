"""report.html: runs on one page that needs nothing but a browser."""

from pretrain.observe.report.page import write_report

__all__ = ["write_report"]
