"""The kernel table for the console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.report.columns import columns, indented

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.plugins.negotiation.kernel_table import KernelTable, Rejected

INDENT = 4
WIDTH = 100
"""Characters of a line; an unbreakable name may be longer."""


def render(table: KernelTable, *, everything: bool = False) -> str:
    """Return the table as plain text.

    Args:
        table: what to show.
        everything: also what was asked, and the kernels that were offered but not taken. Otherwise only declines.
    """
    header = ("operation", "kernel", "kind", "provider")
    cells = [header, *((row.operation, row.kernel, row.kind or "-", row.provider) for row in table.rows)]
    # No cell is wrapped here: each row must stay the one line to which its reasons are added below.
    head, *body = columns(cells, width=10_000)
    lines = [f"kernels of backend '{table.backend}' ({table.provider}), {table.digest()[:12]}", head]
    for line, row in zip(body, table.rows, strict=True):
        lines.append(line)
        if everything:
            lines += indented(f"asked: {_request(row.request)}", INDENT, WIDTH)
        for other in row.rejected:
            if everything or other.why.startswith("declined"):
                source = "" if other.provider.startswith(table.provider) else f" of {other.provider}"
                lines += indented(f"{_name(other)}{source} {other.why}", INDENT, WIDTH)
    return "\n".join(lines)


def _name(other: Rejected) -> str:
    return f"{other.kernel} ({other.kind})" if other.kind and other.kind != other.kernel else other.kernel


def _request(request: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in request.items() if key != "operation" and value != "")
