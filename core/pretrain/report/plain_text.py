"""Plain text: columns, paragraphs, names of ranks, sizes, the kernel table."""

from __future__ import annotations

import textwrap
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pretrain.plugins.negotiation.kernel_table import KernelTable


def columns(rows: Sequence[Sequence[str]], width: int = 100) -> list[str]:
    """Return rows as lines; columns fit their longest cell, the last wraps at `width`, with 30 characters at least."""
    before = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    indent = sum(before) + 2 * len(before)
    lines: list[str] = []
    for row in rows:
        cells = "".join(f"{cell:<{size}}  " for cell, size in zip(row, before, strict=False))
        last = [part for line in row[-1].splitlines() for part in _wrap(line, max(30, width - indent))] or [""]
        lines += [(cells + last[0]).rstrip(), *(" " * indent + part for part in last[1:])]
    return lines


def indented(text: str, indent: int, width: int = 100) -> list[str]:
    """Return a paragraph as lines of at most `width` characters, indented, those after the first by two more."""
    first, *rest = _wrap(text, width - indent - 2) or [""]
    return [" " * indent + first, *(" " * (indent + 2) + line for line in rest)]


def _wrap(text: str, width: int) -> list[str]:
    # Names, paths and commands stay in one piece: users copy them.
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def rank_names(ranks: Iterable[int]) -> str:
    """Return "rank 3", "ranks 0, 2-5"."""
    ordered = sorted(ranks)
    return f"rank{'s' if len(ordered) > 1 else ''} {rank_numbers(ordered)}"


def rank_numbers(ranks: Iterable[int]) -> str:
    """Return the numbers of ranks, runs of three and more in short: "0, 2-5"."""
    placed = enumerate(sorted(ranks))
    runs = [[rank for _, rank in run] for _, run in groupby(placed, key=lambda pair: pair[1] - pair[0])]
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(parts)


def size_text(size: float) -> str:
    """Return a number of bytes with three digits and a decimal unit: "12 kB", "1.5 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


INDENT = 4
WIDTH = 100  # characters of a line; an unbreakable name may be longer


def kernel_table_text(table: KernelTable, *, everything: bool = False) -> str:
    """Return the table as text; with `everything` also requests, and kernels that were offered but not taken."""
    header = ("operation", "kernel", "kind", "provider")
    cells = [header, *((row.operation, row.kernel, row.kind or "-", row.provider) for row in table.rows)]
    # No cell is wrapped here: each row must stay the one line to which its reasons are added below.
    head, *body = columns(cells, width=10_000)
    lines = [f"kernels of backend '{table.backend}' ({table.provider}), {table.digest()[:12]}", head]
    for line, row in zip(body, table.rows, strict=True):
        lines.append(line)
        if everything:
            asked = (f"{key} {value}" for key, value in row.request.items() if key != "operation" and value != "")
            lines += indented(f"asked: {', '.join(asked)}", INDENT, WIDTH)
        for other in row.rejected:
            if everything or other.why.startswith("declined"):
                kind = f" ({other.kind})" if other.kind and other.kind != other.kernel else ""
                source = "" if other.provider.startswith(table.provider) else f" of {other.provider}"
                lines += indented(f"{other.kernel}{kind}{source} {other.why}", INDENT, WIDTH)
    return "\n".join(lines)
