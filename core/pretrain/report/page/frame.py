"""Frame of a page: one file, without network access and scripts."""

from __future__ import annotations

from html import escape
from importlib import resources

import pretrain


def framed(title: str, content: str, style: str = "") -> str:
    """Return the page.

    Args:
        title: plain text.
        content: HTML between the borders of the page, with its heading.
        style: CSS of this page alone.
    """
    common = resources.files("pretrain.report.page").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{common}{style}</style></head>\n"
        f"<body><main>{content}<footer>pretrain {escape(pretrain.__version__)}</footer></main></body></html>\n"
    )


def section(title: str, content: str, *, unfolded: bool = False) -> str:
    """Return a part of the page under a title that folds it; "" if it has no content."""
    if not content:
        return ""
    return f"<details{' open' if unfolded else ''}><summary>{escape(title)}</summary>{content}</details>"
