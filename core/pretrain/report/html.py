"""HTML pages, the only writer of them: one file each, without network access and scripts."""

from __future__ import annotations

from html import escape
from importlib import resources
from typing import TYPE_CHECKING

import pretrain
from pretrain.atomic_files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pretrain.errors import PretrainError


def write_page(page: str, output: Path, error: type[PretrainError]) -> None:
    """Write a page atomically, or raise the error."""
    with replacing(output, error=error) as stream:
        stream.write(page.encode())


def framed(title: str, parts: Iterable[str]) -> str:
    """Return a page: its title, plain text, as the heading, then parts of HTML."""
    style = resources.files("pretrain.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n"
        f"<body><main><h1>{escape(title)}</h1>{''.join(parts)}"
        f"<footer>pretrain {escape(pretrain.__version__)}</footer></main></body></html>\n"
    )


def section(title: str, content: str, *, unfolded: bool = False) -> str:
    """Return a part of the page under a title that folds it; "" if it has no content."""
    if not content:
        return ""
    return f"<details{' open' if unfolded else ''}><summary>{escape(title)}</summary>{content}</details>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, style: str = "") -> str:
    """Return a table of plain texts, the first column as row heads; "" without rows. Style "numbers" aligns right."""
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    content = f'<table class="{style}"><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="wide">{content}</div>' if body else ""


def paragraph(lines: Iterable[str], style: str = "") -> str:
    """Return a paragraph of plain lines; "" if there are none."""
    text = "<br>".join(escape(line) for line in lines)
    kind = f' class="{style}"' if style else ""
    return f"<p{kind}>{text}</p>" if text else ""


def legend(items: Iterable[tuple[str, str]]) -> str:
    """Return the names of a page's curves or areas, each with its style."""
    entries = (f'<li class="{style}">{escape(name)}</li>' for style, name in items)
    return f'<ul class="legend">{"".join(entries)}</ul>'


def charts(figures: Iterable[str]) -> str:
    """Return figures side by side."""
    return f'<div class="charts">{"".join(figures)}</div>'
